import { expect, test } from "vitest";
import { fromHash, initial, toHash, type State } from "../src/state";
import type { Document } from "../src/types";
import { packed, site } from "./support";

const data: Document = {
  format: "normlens-view", version: 1, title: "", limit: 512, provenance: {},
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
  const chosen: State = { ...first, view: "flow", layer: 3, a: "alpha", scale: "absolute", curve: "sqrt", shared: false, level: "word", spanEncoder: [0, 1], query: 1, min: 0.05, table: true, theme: "dark", full: true, written: true };
  expect(fromHash(`#${toHash(chosen, first)}`, first, data)).toEqual(chosen);
  expect(toHash(first, first)).toBe("");
});

test("a hash that asks for what is not there changes nothing", () => {
  const first = initial(data);
  const hostile = "view=<script>&layer=99&head=7&a=nothing&spanEncoder=9-3&query=77&min=x&site=cross&__proto__=1&theme=pink&b=attn_n";
  expect(fromHash(hostile, first, data)).toEqual({ ...first, layer: 3 });
});
