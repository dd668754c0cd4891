/** What the reader chose, and its short form for the address bar (or the widget's `view`). */
import type { Level } from "./axis";
import type { Curve } from "./scale";
import type { Document, Measure, SiteData } from "./types";
import { VIEWS, viewsOf } from "./views/registry";

export type ThemeChoice = "auto" | "light" | "dark";

export interface State {
  /** The name of a view of the registry. */
  view: string;
  site: SiteData["name"];
  /** Numbers as the papers count them: from 1. */
  layer: number;
  head: number;
  a: Measure;
  b: Measure;
  draw: "arcs" | "matrix";
  scale: "row" | "absolute";
  curve: Curve;
  /** What a position gives to itself: drawn like the rest, in grey and outside the scale, or not at all. */
  own: "shown" | "faded" | "hidden";
  /** One scale for all layers and heads, rather than one for each. */
  shared: boolean;
  level: Level;
  /** Positions shown, per kind of text: `encoder` (source) and `decoder` (target); end excluded. */
  spanEncoder: [number, number] | null;
  spanDecoder: [number, number] | null;
  /** Pinned tokens, as local indices. */
  query: number | null;
  key: number | null;
  /** Smallest link drawn; null: chosen from the data. */
  min: number | null;
  /** The step of an explanation with steps, from 1; 0: all of them added. */
  step: number;
  over: Measure | "layers";
  ratio: Measure;
  /** The choices that views bring themselves, by name. */
  choices: Record<string, string>;
  table: boolean;
  theme: ThemeChoice;
}

/** The stream of tokens that an axis of a site reads. */
export function stream(site: SiteData["name"], axis: "query" | "key"): string {
  return site === "cross" ? (axis === "query" ? "decoder" : "encoder") : site;
}

export function spanOf(state: State, site: SiteData["name"], axis: "query" | "key"): [number, number] | null {
  return stream(site, axis) === "encoder" ? state.spanEncoder : state.spanDecoder;
}

const CHOICES = VIEWS.flatMap((view) => view.choices ?? []);

function available(site: SiteData, wanted: Measure[]): Measure {
  return wanted.find((measure) => site.maps[measure]) ?? Object.keys(site.maps)[0] ?? wanted[0];
}

/** The state a document opens with: the weight against the whole block, where both are there. */
export function initial(document: Document): State {
  const explained = document.explanation && document.sites.findLast((s) => s.name !== "cross");
  const site = explained ?? document.sites.find((s) => s.name === "encoder" && document.sites.length === 1) ?? document.sites.find((s) => s.name === "cross") ?? document.sites[0];
  const ratios = Object.keys(site.ratios) as Measure[];
  const tokens = Math.max(site.query.tokens.length, site.key.tokens.length);
  return {
    view: document.opens ?? (explained ? "explain" : "compare"),
    site: site.name,
    layer: site.layers[Math.floor(site.layers.length / 2)],
    head: site.heads[0] ?? 1,
    a: available(site, ["attn_w", "alpha", "attnres_w", "attn_n", "attnres_n", "attnresln_n", "af_norm"]),
    b: available(site, ["attnresln_n", "attnres_n", "attn_n", "af_norm", "attnres_w", "attn_w", "alpha"]),
    draw: tokens <= 24 ? "arcs" : "matrix",
    scale: "row",
    curve: tokens <= 24 || explained ? "linear" : "sqrt", // among many positions most contributions are small
    own: "faded",
    shared: true,
    level: "token",
    spanEncoder: null,
    spanDecoder: null,
    query: null,
    key: null,
    min: null,
    step: document.explanation?.stepwise ? 1 : 0,
    over: site.maps.af_norm ? "af_norm" : site.maps.alpha ? "alpha" : "layers",
    ratio: ratios.includes("attnresln_n") ? "attnresln_n" : (ratios[0] ?? "attnresln_n"),
    choices: Object.fromEntries(CHOICES.map((choice) => [choice.name, choice.options[0][0]])),
    table: false,
    theme: "auto",
  };
}

/** The words that a choice may have; for measures, those of the document. */
const WORDS: Partial<Record<keyof State, readonly string[]>> = {
  view: VIEWS.map((view) => view.name),
  site: ["encoder", "decoder", "cross"],
  draw: ["arcs", "matrix"],
  scale: ["row", "absolute"],
  curve: ["linear", "sqrt"],
  own: ["shown", "faded", "hidden"],
  level: ["token", "word"],
  theme: ["auto", "light", "dark"],
};
const NUMBERS: (keyof State)[] = ["layer", "head", "query", "key", "min", "step"];
const MEASURES: (keyof State)[] = ["a", "b", "ratio", "over"];
const FLAGS: (keyof State)[] = ["shared", "table"];
const SPANS: (keyof State)[] = ["spanEncoder", "spanDecoder"];

/** Only what differs from the opening state, as `layer=5&scale=absolute`. */
export function toHash(state: State, from: State): string {
  const out = new URLSearchParams();
  for (const [name, value] of Object.entries(state.choices)) if (value !== from.choices[name]) out.set(name, value);
  for (const name of Object.keys(from) as (keyof State)[]) {
    const value = state[name];
    if (name === "choices") continue;
    if (JSON.stringify(value) === JSON.stringify(from[name])) continue;
    out.set(name, Array.isArray(value) ? value.join("-") : value === null ? "" : String(value));
  }
  return out.toString();
}

/** The state of a hash; whatever it does not know or cannot be, it leaves as it was. */
export function fromHash(hash: string, from: State, document: Document): State {
  const state: State = { ...from, choices: { ...from.choices } };
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const set = (name: keyof State, value: unknown) => ((state as unknown as Record<string, unknown>)[name] = value);
  for (const [name, text] of given) {
    const choice = CHOICES.find((one) => one.name === name);
    if (choice?.options.some(([value]) => value === text)) state.choices[name] = text;
    if (!Object.hasOwn(from, name)) continue;
    const key = name as keyof State;
    if (WORDS[key]?.includes(text)) set(key, text);
    else if (MEASURES.includes(key) && (Object.hasOwn(document.measures, text) || (key === "over" && text === "layers"))) set(key, text);
    else if (NUMBERS.includes(key) && /^\d+(\.\d+)?(e-?\d+)?$/.test(text)) set(key, Number(text));
    else if (FLAGS.includes(key) && /^(true|false)$/.test(text)) set(key, text === "true");
    else if (SPANS.includes(key) && /^\d+-\d+$/.test(text)) {
      const [start, stop] = text.split("-").map(Number);
      if (start < stop) set(key, [start, stop]);
    }
  }
  return settle(state, document);
}

/** The nearest state that the document can show: layers, heads, measures and views that exist. */
export function settle(state: State, document: Document): State {
  const out = { ...state };
  const site = document.sites.find((s) => s.name === out.site) ?? document.sites[0];
  out.site = site.name;
  const nearest = (list: number[], value: number) => list.reduce((best, x) => (Math.abs(x - value) < Math.abs(best - value) ? x : best), list[0]);
  if (site.layers.length) out.layer = nearest(site.layers, out.layer);
  if (site.heads.length) out.head = nearest(site.heads, out.head);
  const first = initial({ ...document, sites: [site] });
  if (!site.maps[out.a]) out.a = first.a;
  if (!site.maps[out.b]) out.b = first.b;
  if (!site.ratios[out.ratio]) out.ratio = first.ratio;
  if (out.over !== "layers" && !site.maps[out.over]) out.over = first.over;
  const steps = document.explanation?.stepwise ? document.explanation.outputs.length : 0;
  out.step = Number.isInteger(out.step) ? Math.min(steps, out.step) : first.step;
  const there = viewsOf(site, document);
  if (!there.some((view) => view.name === out.view)) out.view = there[0].name;
  if (out.query !== null && !(Number.isInteger(out.query) && out.query < site.query.tokens.length)) out.query = null;
  if (out.key !== null && !(Number.isInteger(out.key) && out.key < site.key.tokens.length)) out.key = null;
  return out;
}
