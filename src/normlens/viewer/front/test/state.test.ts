import { expect, test } from "vitest";
import { fromHash, initial, toHash, type State } from "../src/state";
import { Site } from "../src/grid";
import { VIEWS, viewsOf } from "../src/views/registry";
import type { Document } from "../src/types";
import { MEASURES, packed, site } from "./support";

const data: Document = {
  format: "normlens-view", version: 2, title: "", limit: 512, provenance: {}, measures: MEASURES,
  sites: [site({ attn_w: packed([[1, 0, 0, 1], [1, 0, 0, 1], [1, 0, 0, 1]], 2), attnresln_n: packed([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]], 2), alpha: packed([[1, 0, 0, 1], [1, 0, 0, 1], [1, 0, 0, 1]], 2) }, ["x", "y"], undefined, 3, 1)],
};

test("opens with the weight against the whole block", () => {
  expect(initial(data)).toMatchObject({ a: "attn_w", b: "attnresln_n", view: "compare", layer: 2 });
});

test("a run with ratios alone opens at them", () => {
  const ratios: Document = { ...data, sites: [{ ...data.sites[0], maps: {}, ratios: { attn_n: packed([[0.5, 0.5]], 2) } }] };
  expect(fromHash("", initial(ratios), ratios)).toMatchObject({ view: "mixing", ratio: "attn_n" });
});

test("a hash gives back every choice", () => {
  const first = initial(data);
  const chosen: State = { ...first, view: "flow", layer: 3, a: "alpha", scale: "absolute", curve: "sqrt", own: "hidden", shared: false, level: "word", spanEncoder: [0, 1], query: 1, min: 0.05, table: true, theme: "dark", choices: { full: "true", root: "true", written: "true", edges: "one", grid: "direct", map: "attention", by: "layer" } };
  expect(fromHash(`#${toHash(chosen, first)}`, first, data)).toEqual(chosen);
  expect(toHash(first, first)).toBe("");
});

test("a hash that asks for what is not there changes nothing", () => {
  const first = initial(data);
  const hostile = "view=<script>&layer=99&head=7&a=nothing&spanEncoder=9-3&query=77&min=x&site=cross&__proto__=1&theme=pink&b=attn_n&full=maybe&choices=x";
  expect(fromHash(hostile, first, data)).toEqual({ ...first, layer: 3 });
});

test("a view is found by its name, has a tab, and says which controls it heeds", () => {
  const first = initial(data);
  expect(new Set(VIEWS.map((view) => view.name)).size).toBe(VIEWS.length);
  const one = new Site(data.sites[0], data.measures);
  for (const view of VIEWS) {
    expect(view.title).not.toBe("");
    expect(view.controls(first, one).every((name) => name in first)).toBe(true);
    for (const choice of view.choices ?? []) expect(first.choices[choice.name]).toBe(choice.options[0][0]);
  }
  expect(viewsOf(data.sites[0], data).map((view) => view.name)).toEqual(["compare", "overview", "mixing", "flow"]);
});
