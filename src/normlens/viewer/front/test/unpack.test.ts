import { zlibSync } from "fflate";
import { expect, test } from "vitest";
import type { Packed } from "../src/types";
import { unpackLayer } from "../src/unpack";

const base64 = (data: Uint8Array) => btoa(String.fromCharCode(...zlibSync(data)));

test("float16 planes: one, a half, two, the smallest subnormal, a negative", () => {
  const codes = [0x3c00, 0x3800, 0x4000, 0x0001, 0xbc00, 0x0000];
  const data = Uint8Array.from([...codes.map((c) => c & 255), ...codes.map((c) => c >> 8)]);
  const packed: Packed = { encoding: "f16", shape: [1, 2, 3], scale: [2], data: [base64(data)] };
  expect([...unpackLayer(packed, 0)]).toEqual([2, 1, 4, 2 * 2 ** -24, -2, 0]);
});

test("8-bit codes: the row's top times the square of the code", () => {
  const tops = new Uint8Array(new Float32Array([2, 0]).buffer);
  const packed: Packed = { encoding: "q8", shape: [1, 2, 2], scale: [1], data: [base64(Uint8Array.from([...tops, 255, 51, 0, 0]))] };
  const [a, b, c, d] = unpackLayer(packed, 0);
  expect(a).toBe(2);
  expect(b).toBeCloseTo(2 * 0.04, 6);
  expect([c, d]).toEqual([0, 0]);
});

test("a diagonal that is kept apart is read from its own numbers", () => {
  const floats = new Uint8Array(new Float32Array([2, 4, 70, 80]).buffer);
  const packed: Packed = { encoding: "q8", shape: [1, 2, 2], scale: [1], data: [base64(Uint8Array.from([...floats, 0, 255, 255, 0]))], own_apart: true };
  expect([...unpackLayer(packed, 0)]).toEqual([70, 2, 4, 80]);
});
