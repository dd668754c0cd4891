/** A text with its marks as a reader has them: coloured, named, one inside of another. */
import type { Theme } from "../colour";
import { h } from "../dom";
import { number } from "../scale";
import { shorten, visible } from "../text";
import type { MarkedPart, MarksData } from "../types";

/** What each mark is called: its name, with a number where several have the same. */
export function markNames(marks: MarksData["marks"]): string[] {
  const named = marks.map(({ name }) => shorten(visible(name), 24) || "mark");
  const total = new Map<string, number>();
  const places = named.map((name) => {
    total.set(name, (total.get(name) ?? 0) + 1);
    return total.get(name)!;
  });
  return named.map((name, index) => (total.get(name)! > 1 ? `${name} ${places[index]}` : name));
}

/** How many marks stand inside of each other, at most. */
export function levels(parts: MarkedPart[]): number {
  return Math.max(0, ...parts.map((part) => (typeof part === "string" ? 0 : 1 + levels(part.inside))));
}

export function tintOf(theme: Theme, mark: number): string {
  return theme.tints[mark % theme.tints.length];
}

export interface MarkedOptions {
  marks: MarksData["marks"];
  names: string[];
  theme: Theme;
  /** Whether each mark's score stands beside its name: in the text that it was carried into. */
  scored: boolean;
  hover: (mark: number, score: number | null) => void;
  leave: () => void;
}

export function markedText(parts: MarkedPart[], options: MarkedOptions): HTMLElement {
  const { marks, names, theme, scored } = options;
  const nodes = (some: MarkedPart[]): (string | HTMLElement)[] => some.map((part) => (typeof part === "string" ? visible(part) : node(part)));
  const node = ({ mark, score, inside }: Exclude<MarkedPart, string>): HTMLElement => {
    const { markup, placed } = marks[mark];
    const kind = ["carried", placed ? "" : "lost", inside.length ? "" : "point"].filter(Boolean).join(" ");
    const element = h("span", { class: kind, "data-mark": mark, title: visible(markup) || null },
      h("span", { class: "name" }, scored ? `${names[mark]} ${number(score, true)}` : names[mark]), ...nodes(inside));
    element.style.setProperty("--tint", tintOf(theme, mark));
    // The line under an outer mark stays clear of those under the marks inside of it.
    element.style.paddingBottom = `${1 + 4 * levels(inside)}px`;
    element.addEventListener("pointerover", (event) => {
      event.stopPropagation();
      options.hover(mark, scored ? score : null);
    });
    element.addEventListener("pointerout", () => options.leave());
    return element;
  };
  const text = h("p", { class: "marked", dir: "auto" }, ...nodes(parts));
  text.style.lineHeight = String(2 + 0.25 * levels(parts));
  return text;
}
