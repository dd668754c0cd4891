import { expect, test } from "vitest";
import { ticksThatFit } from "../src/draw/svg";
import { textWidth } from "../src/text";

test("numbers on a legend's bar never touch, and its ends are always labelled", () => {
  const label = (t: number) => `${(47 * t).toFixed(1)} %`;
  expect(ticksThatFit(260, label, 10)).toEqual([0, 0.25, 0.5, 0.75, 1]);
  expect(ticksThatFit(140, label, 10)).toEqual([0, 0.5, 1]);
  expect(ticksThatFit(70, label, 10)).toEqual([0, 1]);
  for (const width of [110, 150, 170, 200, 260]) {
    const ends = ticksThatFit(width, label, 10).map((t) => {
      const wide = textWidth(label(t), 10);
      const from = t === 0 ? 0 : t === 1 ? width - wide : t * width - wide / 2;
      return [from, from + wide];
    });
    for (let index = 1; index < ends.length; index++) expect(ends[index][0] - ends[index - 1][1]).toBeGreaterThanOrEqual(8);
  }
});
