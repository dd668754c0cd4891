/** What every view is given and gives back. */
import { find, label, type Item } from "../axis";
import type { Theme } from "../colour";
import { diverging, ramp } from "../colour";
import { largest, type Grid, type Site } from "../grid";
import type { Scale } from "../scale";
import type { State } from "../state";
import { MEASURES, type Measure } from "../types";

/** Tokens under the pointer or pinned, as local indices. */
export interface Focus {
  query: number | null;
  key: number | null;
}

export interface Context {
  site: Site;
  state: State;
  theme: Theme;
  width: number;
  query: Item[];
  key: Item[];
  found: { rows: Set<number>; columns: Set<number> };
  hover: (focus: Focus | null) => void;
  pin: (focus: Focus) => void;
  update: (patch: Partial<State>) => void;
}

export type Cell = string | number;

export interface Shown {
  element: HTMLElement;
  pictures: { title: string; node: SVGSVGElement }[];
  /** One sentence that says what the picture shows, for the exported file. */
  caption: string;
  table: { columns: string[]; rows: () => Cell[][] };
  focus: (focus: Focus) => void;
}

export const SITE_TEXT = { encoder: "encoder self-attention", decoder: "decoder self-attention", cross: "cross-attention" } as const;

export function layerIndex(context: Context): number {
  return context.site.data.layers.indexOf(context.state.layer);
}

export function headIndex(context: Context): number {
  return Math.max(0, context.site.data.heads.indexOf(context.state.head));
}

export function gridOf(context: Context, measure: Measure): Grid {
  return context.site.grid(measure, layerIndex(context), headIndex(context), context.query, context.key);
}

/** The end of a measure's scale under the reader's choices. */
export function topOf(context: Context, measure: Measure, grid: Grid): number {
  const share = context.state.scale === "row";
  return context.state.shared ? context.site.top(measure, share, context.query, context.key) : largest(grid, share);
}

export function scaleOf(context: Context, measure: Measure, top: number): Scale {
  return { top, curve: context.state.curve, share: context.state.scale === "row", signed: context.site.data.maps[measure]?.signed };
}

export function colourOf(context: Context, measure: Measure): (t: number) => string {
  const paint = context.site.data.maps[measure]?.signed ? diverging : ramp;
  return paint(MEASURES[measure].family, context.theme.name);
}

/** The stroke of a link: the measure's hue, the other one for negative values. */
export function strokeOf(context: Context, measure: Measure): (value: number) => string {
  const { family } = MEASURES[measure];
  return (value) => context.theme.family[value < 0 ? (family === "norm" ? "weight" : "norm") : family];
}

export function measureTitle(context: Context, measure: Measure): string {
  if (!MEASURES[measure].perHead) return MEASURES[measure].name;
  const missing = context.site.absent(layerIndex(context), headIndex(context)) ? " (this layer has no such head)" : "";
  return `${MEASURES[measure].name}, head ${context.state.head}${missing}`;
}

export function labels(items: Item[]): string[] {
  return items.map(label);
}

/** Focus in places of items; -1 where nothing is. */
export function places(context: Context, focus: Focus): [number, number] {
  return [find(context.query, focus.query), find(context.key, focus.key)];
}

export function focusAt(context: Context, row: number, column: number): Focus {
  return { query: row >= 0 ? context.query[row].members[0] : null, key: column >= 0 ? context.key[column].members[0] : null };
}

export function axisTitles(site: Site): { row: string; column: string } {
  return site.name === "cross" ? { row: "target", column: "source" } : { row: "computed", column: "contributes" };
}
