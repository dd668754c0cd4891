/** What every view is given and gives back. */
import { find, label, type Item } from "../axis";
import type { Theme } from "../colour";
import { diverging, grey, ramp } from "../colour";
import { largest, ownPart, type Grid, type Site } from "../grid";
import { number, type Scale } from "../scale";
import type { State } from "../state";
import type { Document, Measure, SiteData } from "../types";

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
  document: Document;
  sites: Map<string, Site>;
  /** The items on an axis of any site, not only of the chosen one. */
  axis: (site: Site, axis: "query" | "key") => Item[];
  matches: (list: Item[]) => Set<number>;
  found: { rows: Set<number>; columns: Set<number> };
  hover: (focus: Focus | null) => void;
  pin: (focus: Focus) => void;
  update: (patch: Partial<State>) => void;
}

/** The controls that views share; each view says which of them it heeds. */
export type ControlName = "layer" | "head" | "a" | "b" | "over" | "ratio" | "draw" | "scale" | "curve" | "own" | "shared" | "min" | "step";

/** A choice that belongs to one view alone: its buttons and its place in the address follow from this. */
export interface Choice {
  name: string;
  label: string;
  /** Value in the address, text on the button, explanation on hover; the first is the one a page opens with. */
  options: [string, string, string?][];
  /** Whether it makes a difference as things are; always, if not given. */
  when?: (state: State, site: Site) => boolean;
}

/** A way of looking at a site: what `registry.ts` lists. */
export interface ViewModule {
  /** In the address. */
  name: string;
  /** On its tab. */
  title: string;
  available: (site: SiteData, document: Document) => boolean;
  controls: (state: State, site: Site) => readonly ControlName[];
  choices?: readonly Choice[];
  /** Does it show all sites at once, so that there is none to choose? */
  everySite?: boolean;
  /** Does it bring its own words, so that units and spans make no difference as things are? */
  ownWords?: (state: State, site: Site) => boolean;
  draw: (context: Context) => Shown;
}

export function hasMaps(site: SiteData): boolean {
  return Object.keys(site.maps).length > 0;
}

export type Cell = string | number;

export interface Shown {
  element: HTMLElement;
  pictures: { title: string; node: SVGSVGElement }[];
  /** One sentence that says what the picture shows, for the exported file. */
  caption: string;
  /** In an exported file the pictures stand below each other rather than side by side. */
  stacked?: boolean;
  table: { columns: string[]; rows: () => Cell[][] };
  focus: (focus: Focus) => void;
  /** Opens what the view has chosen: Enter. */
  open?: () => void;
}

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
  const rest = context.state.own !== "shown";
  if (context.state.shared) return context.site.top(measure, share, context.query, context.key, rest);
  return largest(grid, share, rest ? context.site.own(context.query, context.key) : undefined);
}

/** How the own part is drawn: which cells it is, its greys and where they end, and a sentence that says so. */
export interface Own {
  is: (row: number, column: number) => boolean;
  mode: "faded" | "hidden";
  colour: (t: number) => string;
  top: number;
  note: string;
}

/** The own part of a map, if the reader wants it apart from the rest; nothing where it is drawn like the rest. */
export function ownOf(context: Context, grid: Grid, end: number): Own | undefined {
  const { state, site } = context;
  const is = site.own(context.query, context.key);
  if (!is || state.own === "shown") return undefined;
  const { mean, top } = ownPart(grid, state.scale === "row", is);
  const how = state.own === "faded" ? "in grey" : "not drawn";
  const note = `Own part (what a position gives to itself) ${how}: ${number(mean, true)} of a row on average. The scale ends at the largest of the rest, ${number(end, state.scale === "row")}.`;
  return { is, mode: state.own, colour: grey(context.theme.name), top, note };
}

export function scaleOf(context: Context, measure: Measure, top: number): Scale {
  return { top, curve: context.state.curve, share: context.state.scale === "row", signed: context.site.data.maps[measure]?.signed };
}

export function colourOf(context: Context, measure: Measure): (t: number) => string {
  const paint = context.site.data.maps[measure]?.signed ? diverging : ramp;
  return paint(context.site.text(measure).family, context.theme.name);
}

/** The stroke of a link: the measure's hue, the other one for negative values. */
export function strokeOf(context: Context, measure: Measure): (value: number) => string {
  const { family } = context.site.text(measure);
  return (value) => context.theme.family[value < 0 ? (family === "norm" ? "weight" : "norm") : family];
}

export function measureTitle(context: Context, measure: Measure): string {
  if (!context.site.text(measure).perHead) return context.site.text(measure).name;
  const missing = context.site.absent(layerIndex(context), headIndex(context)) ? " (this layer has no such head)" : "";
  return `${context.site.text(measure).name}, head ${context.state.head}${missing}`;
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
