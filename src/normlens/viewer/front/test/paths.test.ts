import { expect, test } from "vitest";
import { Site } from "../src/grid";
import { flow } from "../src/paths";
import { MEASURES, packed, site } from "./support";

const first = [2, 2, 0, 1, 1, 2, 3, 0, 1];
const second = [1, 3, 0, 0, 2, 2, 5, 1, 4];

function normalized(cells: number[]): number[][] {
  return [0, 1, 2].map((row) => {
    const part = cells.slice(3 * row, 3 * row + 3);
    const sum = part.reduce((a, b) => a + b, 0);
    return part.map((x) => x / sum);
  });
}

test("the input's shares are the output's row of the product, and every level sums to one", () => {
  const one = new Site(site({ attnresln_n: packed([first, second], 3) }, ["a", "b", "c"], undefined, 2), MEASURES);
  const [lower, upper] = [normalized(first), normalized(second)];
  for (let output = 0; output < 3; output++) {
    const { shares, edges } = flow(one, "attnresln_n", [output], 0);
    for (let input = 0; input < 3; input++) {
      const product = [0, 1, 2].reduce((sum, middle) => sum + upper[output][middle] * lower[middle][input], 0);
      expect(shares[0][input]).toBeCloseTo(product, 6);
    }
    for (const level of shares) expect(level.reduce((a, b) => a + b, 0)).toBeCloseTo(1, 6);
    for (const layer of [0, 1]) expect(edges.filter((e) => e.layer === layer).reduce((sum, e) => sum + e.share, 0)).toBeCloseTo(1, 6);
  }
});

test("several outputs are their mean, and the cut leaves shares whole", () => {
  const one = new Site(site({ attnresln_n: packed([first, second], 3) }, ["a", "b", "c"], undefined, 2), MEASURES);
  const both = flow(one, "attnresln_n", [0, 2], 0.2);
  const single = [0, 2].map((output) => flow(one, "attnresln_n", [output], 0).shares[0]);
  both.shares[0].forEach((share, i) => expect(share).toBeCloseTo((single[0][i] + single[1][i]) / 2, 6));
  expect(both.edges.every((edge) => edge.share >= 0.2)).toBe(true);
  expect(both.edges.length).toBeLessThan(both.total);
});
