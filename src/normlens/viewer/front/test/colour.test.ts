import { rgb } from "d3-color";
import { expect, test } from "vitest";
import { grey, lightness, ramp, THEMES } from "../src/colour";

for (const family of ["weight", "norm"] as const) {
  for (const theme of ["light", "dark"] as const) {
    test(`${family}, ${theme}: lightness moves one way, in equal steps`, () => {
      const steps = Array.from({ length: 17 }, (_, i) => lightness(ramp(family, theme)(i / 16)));
      const direction = theme === "light" ? -1 : 1;
      const moves = steps.slice(1).map((l, i) => direction * (l - steps[i]));
      const mean = moves.reduce((a, b) => a + b, 0) / moves.length;
      for (const move of moves) expect(Math.abs(move - mean)).toBeLessThan(0.25 * mean);
    });
  }
}

function luminance(colour: string): number {
  const { r, g, b } = rgb(colour);
  const [x, y, z] = [r, g, b].map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
}

test("text keeps a contrast of 4.5 on page and panel", () => {
  for (const theme of Object.values(THEMES)) {
    for (const text of [theme.ink, theme.muted, theme.family.weight, theme.family.norm]) {
      for (const ground of [theme.page, theme.panel]) {
        const [low, high] = [luminance(text), luminance(ground)].sort((a, b) => a - b);
        expect((high + 0.05) / (low + 0.05)).toBeGreaterThan(4.5);
      }
    }
  }
});

test("greys of the own part have no hue and stay between the panel and the ink", () => {
  for (const theme of ["light", "dark"] as const) {
    for (const t of [0, 0.5, 1]) {
      const { r, g, b } = rgb(grey(theme)(t));
      expect(Math.max(r, g, b) - Math.min(r, g, b)).toBeLessThan(2);
    }
    const ends = [lightness(grey(theme)(0)), lightness(grey(theme)(1))];
    expect(theme === "light" ? ends[0] > ends[1] : ends[0] < ends[1]).toBe(true);
  }
});
