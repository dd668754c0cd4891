import { expect, test } from "vitest";
import { diverging, ramp } from "../src/colour";
import { position, valueAt } from "../src/scale";

test("a signed scale has zero in the middle and one hue for each side", () => {
  const scale = { top: 2, curve: "sqrt" as const, share: false, signed: true };
  expect(position(scale, -0.5)).toBe(-0.5);
  expect(position(scale, 0.5)).toBe(0.5);
  expect(valueAt(scale, -0.5)).toBe(-0.5);
  const colour = diverging("norm", "light");
  expect(colour(-1)).toBe(ramp("weight", "light")(1));
  expect(colour(1)).toBe(ramp("norm", "light")(1));
});
