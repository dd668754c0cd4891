import { expect, test } from "vitest";
import { items, label } from "../src/axis";
import { number, position, valueAt } from "../src/scale";
import { fit, graphemes, shorten, thinned, visible, wrap } from "../src/text";
import { strongest } from "../src/draw/links";
import { axis } from "./support";

test("one emoji with its modifiers is one character", () => {
  expect(graphemes("👩🏽‍💻ab", 2)).toEqual(["👩🏽‍💻", "a"]);
});

test("long text is cut, right-to-left text keeps its own direction", () => {
  expect(shorten("x".repeat(10000), 5)).toBe("xxxxx…");
  expect(fit("x".repeat(10000), 40, 10).length).toBeLessThan(12);
  expect(shorten("שלום", 10)).toBe("\u2068שלום\u2069");
});

test("wrapped text loses nothing and keeps to its width", () => {
  const text = "encoder self-attention, layer 4; shares of each row, linear scale shared by all layers";
  const lines = wrap(text, 120, 11);
  expect(lines.join(" ")).toBe(text);
  expect(lines.length).toBeGreaterThan(2);
  expect(fit(text, 2000, 11)).toBe(text);
});

test("control characters and marks of direction are written as codes", () => {
  expect(visible("a\u0000\u202eb\u2066")).toBe("a⟨0000⟩⟨202E⟩b⟨2066⟩");
  expect(visible("שלום 日本 👩🏽‍💻")).toBe("שלום 日本 👩🏽‍💻");
});

test("numbers carry three digits, shares one decimal", () => {
  expect([0, 0.000012345, 0.12345, 12.345, 1234.6].map((x) => number(x))).toEqual(["0", "1.23e-5", "0.123", "12.3", "1,235"]);
  expect([0.12345, 0.0004, 0].map((x) => number(x, true))).toEqual(["12.3 %", "0.04 %", "0 %"]);
});

test("the legend's numbers are the inverse of the scale", () => {
  for (const curve of ["linear", "sqrt"] as const) {
    for (const t of [0, 0.25, 0.5, 1]) expect(position({ top: 3, curve, share: false }, valueAt({ top: 3, curve, share: false }, t))).toBeCloseTo(t);
  }
});

test("words join across tokens, never across special ones", () => {
  const list = items(axis(["[CLS]", "gal", "##lon", "of", "[SEP]", "[SEP]"], [null, 0, 0, 1, null, null]), "word", null);
  expect(list.map((item) => item.members)).toEqual([[0], [1, 2], [3], [4], [5]]);
  expect(items(axis(["gal", "##lon"], [0, 0]), "token", null).map(label)).toEqual(["gal", "·##lon"]);
});

test("the strongest links are kept and the cut is the weakest of them", () => {
  const value = (row: number, column: number) => row * 100 + column;
  const { links, cut, total } = strongest(100, 100, value, 9999, null);
  expect(total).toBe(10000);
  expect(links.length).toBe(600);
  expect(cut).toBe(Math.min(...links.map((link) => link.value)));
  expect(cut).toBe(9400);
});

test("labels are thinned so that the heaviest stay and none stand too near", () => {
  const weights = Array.from({ length: 100 }, (_, i) => (i === 37 ? 9 : i === 38 ? 8 : i === 60 ? 7 : i % 5));
  const chosen = [...thinned(100, 4, weights)].sort((a, b) => a - b);
  expect(chosen).toContain(37);
  expect(chosen).toContain(60);
  expect(chosen).not.toContain(38);
  for (let i = 1; i < chosen.length; i++) expect(chosen[i] - chosen[i - 1]).toBeGreaterThanOrEqual(4);
  for (let i = 1; i < chosen.length; i++) expect(chosen[i] - chosen[i - 1]).toBeLessThan(8); // no gap in which one more would fit
  expect([...thinned(6, 2)]).toEqual([0, 2, 4]);
  expect(thinned(6, 1, [1, 2, 3, 4, 5, 6]).size).toBe(6);
});

test("links of a position to itself can stand apart", () => {
  const { links, total } = strongest(3, 3, (row, column) => (row === column ? 10 : 1 + row), 10, null, (row, column) => row === column);
  expect(total).toBe(6);
  expect(links.every((link) => link.row !== link.column)).toBe(true);
});
