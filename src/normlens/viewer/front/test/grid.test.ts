import { expect, test } from "vitest";
import { items } from "../src/axis";
import { columnWeights, join, largest, ownPart, shown, Site } from "../src/grid";
import { MEASURES, packed, site } from "./support";

const tokens = ["a", "##b", "c"];
const words = [0, 0, 1];
const cells = Float32Array.from([1, 2, 3, 4, 5, 6, 7, 8, 9]);

test("a word's columns are added and its rows averaged", () => {
  const list = items(site({}, tokens, words).query, "word", null);
  const grid = join(cells, 3, list, list);
  expect([...grid.values]).toEqual([(3 + 9) / 2, (3 + 6) / 2, 15, 9]);
  expect([...grid.sums]).toEqual([(6 + 15) / 2, 24]);
});

test("shares are of the whole row, also within a span", () => {
  const list = items(site({}, tokens, words).query, "token", [1, 3]);
  const grid = join(cells, 3, list, list);
  expect([...grid.values]).toEqual([5, 6, 8, 9]);
  expect(shown(grid, 0, 0, true)).toBeCloseTo(5 / 15);
  expect(largest(grid, true)).toBeCloseTo(6 / 15);
});

test("derived maps: ‖αf‖ from α and ‖f‖, ATTNRES-W from ATTN-W", () => {
  const alpha = [0.25, 0.75, 0.5, 0.5, 1, 0, 0.1, 0.9];
  const data = site({ alpha: packed([alpha], 2), af_norm: { rule: "alpha_f_norm" }, attn_w: packed([[0.2, 0.8, 0.6, 0.4]], 2), attnres_w: { rule: "half_attn_w_half_self" } }, ["x", "y"], undefined, 1, 2);
  data.f_norm = packed([[2, 4, 3, 5]], 2);
  const one = new Site(data, MEASURES);
  const close = (a: Float32Array, b: number[]) => a.forEach((x, i) => expect(x).toBeCloseTo(b[i], 6));
  close(one.cells("af_norm", 0, 0), [0.5, 3, 1, 2]);
  close(one.cells("af_norm", 0, 1), [3, 0, 0.3, 4.5]);
  close(one.cells("attnres_w", 0, 0), [0.6, 0.4, 0.3, 0.7]);
});

test("a scale shared by all layers ends at the largest of all layers, at every level", () => {
  const data = site({ attn_n: packed([[1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 0, 0, 20, 0, 0, 0, 0, 0]], 3) }, tokens, words, 2);
  const one = new Site(data, MEASURES);
  const all = items(data.query, "token", null);
  expect(one.top("attn_n", false, all, all, false)).toBe(20);
  expect(one.top("attn_n", true, all, all, false)).toBe(1);
  const merged = items(data.query, "word", null);
  expect(one.top("attn_n", false, merged, merged, false)).toBe(15);
});

test("without the own part a scale ends at the largest of the rest, for tokens as for words", () => {
  const one = new Site(site({ attn_n: packed([[9, 2, 1, 4, 9, 0, 1, 1, 9]], 3) }, tokens, words), MEASURES);
  const all = items(one.data.query, "token", null);
  const own = one.own(all, all)!;
  expect(largest(one.grid("attn_n", 0, 0, all, all), false, own)).toBe(4);
  one.data.maps.attn_n = { ...one.data.maps.attn_n, top_rest: [4], top_rest_share: [4 / 13] };
  expect(one.top("attn_n", false, all, all, true)).toBe(4);
  expect(one.top("attn_n", true, all, all, true)).toBeCloseTo(4 / 13);
  expect(one.top("attn_n", false, all, all, false)).toBe(9);
  const merged = items(one.data.query, "word", null);
  expect(one.top("attn_n", false, merged, merged, true)).toBe(2); // of the two words' cells beside the diagonal: 0.5 and 2
  const { mean, top } = ownPart(one.grid("attn_n", 0, 0, all, all), false, own);
  expect(top).toBe(9);
  expect(mean).toBeCloseTo((9 / 12 + 9 / 13 + 9 / 11) / 3);
  columnWeights(one.grid("attn_n", 0, 0, all, all), own).forEach((x, i) => expect(x).toBeCloseTo([4 / 13 + 1 / 11, 2 / 12 + 1 / 11, 1 / 12][i]));
});

test("cross-attention has no own part", () => {
  const data = { ...site({ attn_n: packed([[1, 2, 3, 4]], 2) }, ["x", "y"]), name: "cross" as const };
  expect(new Site(data, MEASURES).own([], [])).toBeUndefined();
});
