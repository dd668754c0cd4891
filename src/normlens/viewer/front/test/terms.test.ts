import { zlibSync } from "fflate";
import { expect, test } from "vitest";
import { lightness, opposed, readableOn } from "../src/colour";
import { placed } from "../src/draw/coloured_text";
import { signed } from "../src/terms";
import { unpackSparse } from "../src/unpack";
import { leftOut } from "../src/views/exact_flow";

const item = (text: string) => ({ members: [0], position: 0, text, raw: text, continues: false });

test("a text is broken into lines that fit, after line breaks too", () => {
  const { places, height } = placed(["aaaa", "bbbb", "c\u21b5", "d"].map(item), [false, true, true, true], null, 90, 10, 20);
  expect(places.map((place) => place.y)).toEqual([0, 0, 0, 20]);
  expect(Math.max(...places.map((place) => place.x + place.width))).toBeLessThanOrEqual(90);
  expect(places[1].x - places[0].width).toBe(5);
  expect(height).toBe(40);
  expect(placed(["aaaa", "bbbb"].map(item), [false, false], null, 40, 10, 20).places[1]).toMatchObject({ x: 0, y: 20 });
});

test("sparse entries are read back from their columns", () => {
  const columns = [new Uint32Array([0, 2]), new Uint32Array([1, 0]), new Uint32Array([3, 4]), new Uint32Array([0, 4]), new Float32Array([-0.5, 0.25])];
  const bytes = Uint8Array.from(columns.flatMap((column) => [...new Uint8Array(column.buffer)]));
  const sparse = { count: 9, sum: 0, absolute: 2, kept: 2, data: btoa(String.fromCharCode(...zlibSync(bytes))) };
  expect(unpackSparse(sparse)).toEqual([{ layer: 0, head: 1, query: 3, key: 0, value: -0.5 }, { layer: 2, head: 0, query: 4, key: 4, value: 0.25 }]);
});

test("what a threshold leaves out is the rest of all", () => {
  expect(leftOut([1, -0.5], { count: 5, sum: 0.75, absolute: 2 })).toEqual({ drawn: 2, count: 3, sum: 0.25, absolute: 0.5, all: 2 });
});

test("signed numbers have three digits", () => {
  expect([1.9, -0.14, 34.65, 0, 12345].map(signed)).toEqual(["+1.90", "\u22120.140", "+34.6", "0", "+12,345"]);
});

test.each(["light", "dark"] as const)("opposed colours differ in hue at both ends and meet in a neutral zero (%s)", (theme) => {
  const colour = opposed(theme);
  const part = (t: number) => [1, 3, 5].map((at) => parseInt(colour(t).slice(at, at + 2), 16));
  expect(part(1)[2]).toBeGreaterThan(part(1)[0] + 60);
  expect(part(-1)[0]).toBeGreaterThan(part(-1)[2] + 60);
  expect(Math.max(...part(0)) - Math.min(...part(0))).toBeLessThan(12);
  for (const t of [-1, -0.5, 0, 0.5, 1]) expect(readableOn(colour(t))).toBe(lightness(colour(t)) > 49.4 ? "#000000" : "#ffffff");
});
