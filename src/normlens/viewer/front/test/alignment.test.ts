import { expect, test } from "vitest";
import { rowMaxima } from "../src/views/alignment";

test("every row links to its largest column, wherever it stands; the first of equals", () => {
  const values = Float32Array.from([9, 1, 2, 1, 9, 2, 1, 2, 9, 5, 5, 5]);
  expect(rowMaxima({ rows: 4, columns: 3, values, sums: new Float32Array(4) })).toEqual([[0, 0], [1, 1], [2, 2], [3, 0]]);
});
