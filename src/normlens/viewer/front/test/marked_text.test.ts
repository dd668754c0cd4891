import { rgb } from "d3-color";
import { expect, test } from "vitest";
import { THEMES } from "../src/colour";
import { levels, markNames, tintOf } from "../src/draw/marked_text";

const mark = (name: string) => ({ name, markup: "", text: "", placed: true });

test("marks of one name are numbered, and one without a name has one", () => {
  expect(markNames(["b", "i", "b", "", "a\u202eb"].map(mark))).toEqual(["b 1", "i", "b 2", "mark", "a⟨202E⟩b"]);
  expect(markNames([mark("x".repeat(80))])[0].length).toBeLessThan(30);
});

test("levels are counted where marks stand inside of each other", () => {
  expect(levels(["plain"])).toBe(0);
  expect(levels(["a", { mark: 0, score: 1, inside: ["b", { mark: 1, score: 1, inside: [] }] }, { mark: 2, score: 1, inside: ["c"] }])).toBe(2);
});

test("every tint is read on the panel, and the panel's colour on it", () => {
  const channel = (value: number) => (value <= 10 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = (colour: string) => {
    const { r, g, b } = rgb(colour);
    return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  };
  for (const theme of Object.values(THEMES)) {
    for (const tint of theme.tints) {
      const [low, high] = [luminance(tint), luminance(theme.panel)].sort((a, b) => a - b);
      expect((high + 0.05) / (low + 0.05), `${tint} on ${theme.name}`).toBeGreaterThan(4.5);
    }
    expect(tintOf(theme, theme.tints.length)).toBe(theme.tints[0]);
  }
});
