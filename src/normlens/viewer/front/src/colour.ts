/** Two ramps of equal lightness steps, so that equal differences look equal, for every kind of colour vision. */
import { hcl, lab, rgb } from "d3-color";

export type Family = "weight" | "norm";
export type ThemeName = "light" | "dark";

export interface Theme {
  name: ThemeName;
  page: string;
  panel: string;
  ink: string;
  muted: string;
  line: string;
  family: Record<Family, string>;
  found: string;
  /** For things that are told apart, not measured; each is read well on the panel, and the panel's colour on it. */
  tints: readonly string[];
}

export const THEMES: Record<ThemeName, Theme> = {
  light: {
    name: "light", page: "#f7f7f5", panel: "#ffffff", ink: "#1b1f24", muted: "#5c646d", line: "#dfe2e6",
    family: { weight: "#9a5a00", norm: "#1d5c96" }, found: "#c2185b",
    tints: ["#1d5c96", "#9a5a00", "#14713a", "#a3296b", "#6a3fb5", "#00707a", "#b3261e", "#63630a"],
  },
  dark: {
    name: "dark", page: "#101317", panel: "#171b20", ink: "#e9ecef", muted: "#9ba4ae", line: "#2c323a",
    family: { weight: "#f0b35f", norm: "#7fbdf0" }, found: "#ff7bac",
    tints: ["#7fbdf0", "#f0b35f", "#7fd19a", "#f08cc0", "#bba5f7", "#5fd0d6", "#f79d94", "#cfcb6a"],
  },
};

const HUE: Record<Family, [number, number]> = { weight: [78, 48], norm: [240, 282] };

/**
 * CIELAB lightness falls (light) or rises (dark) in equal steps from the panel to the strongest value;
 * blue for norms and amber for weights are told apart with any common colour vision deficiency.
 */
export function ramp(family: Family, theme: ThemeName): (t: number) => string {
  const [first, last] = HUE[family];
  const stops: string[] = [];
  for (let step = 0; step <= 255; step++) {
    const t = step / 255;
    const lightness = theme === "light" ? 98 - 73 * t : 12 + 80 * t;
    const bell = theme === "light" ? Math.sin(Math.PI * 0.8 * t ** 0.85) : Math.sin(Math.PI * 0.82 * t ** 0.8);
    let chroma = (family === "norm" ? 46 : 60) * bell * (theme === "light" ? 1 : 0.85);
    let hue = first + (last - first) * (theme === "light" ? t : 1 - t);
    if (theme === "dark" && chroma < 3) [hue, chroma] = [255, 3]; // zero in the tone of the dark panel
    let colour = hcl(hue, chroma, lightness);
    // Out of the screen's gamut: less chroma, same lightness, since lightness carries the number.
    while (!colour.displayable() && chroma > 0) {
      chroma -= 1;
      colour = hcl(hue, Math.max(0, chroma), lightness);
    }
    stops.push(rgb(colour).formatHex());
  }
  return (t) => stops[Math.round(255 * Math.min(1, Math.max(0, t)))];
}

/** A neutral ramp for what stands apart from the scale: seen, but never taken for a part of it. */
export function grey(theme: ThemeName): (t: number) => string {
  const [first, last] = theme === "light" ? [95, 62] : [17, 52];
  return (t) => rgb(lab(first + (last - first) * Math.min(1, Math.abs(t)), 0, 0)).formatHex();
}

/** The ramp of one family to the right of zero and of the other to the left: for differences. */
export function diverging(family: Family, theme: ThemeName): (t: number) => string {
  const [above, below] = [ramp(family, theme), ramp(family === "norm" ? "weight" : "norm", theme)];
  return (t) => (t < 0 ? below(-t) : above(t));
}

/** The same for signed terms, ended where both hues are still strong: which side a token is on is the first thing to see. */
export function opposed(theme: ThemeName): (t: number) => string {
  const whole = diverging("norm", theme);
  return (t) => whole((theme === "light" ? 0.82 : 0.74) * t);
}

/** Which of black and white is read better on a colour: both have a contrast of at least 4.5 where they meet. */
export function readableOn(colour: string): string {
  return lightness(colour) > 49.4 ? "#000000" : "#ffffff";
}

export function lightness(colour: string): number {
  return lab(colour).l;
}
