/** Contributions through all layers: the product of row-normalized maps, read from one output position downwards. */
import type { Site } from "./grid";
import type { Measure } from "./types";

export interface Edge {
  /** 0-based place of the layer among the site's layers; the edge leads from `key` before it to `query` after it. */
  layer: number;
  query: number;
  key: number;
  share: number;
}

export interface Flow {
  /** `shares[l][j]`: what passes through position j before layer l; the last entry is the chosen output alone. */
  shares: Float64Array[];
  /** Every edge that carries at least the cut, strongest first. */
  edges: Edge[];
  /** How many edges carry anything at all. */
  total: number;
}

/**
 * `shares[L]` is 1 at the output (spread evenly where a word's tokens are the output), and
 * `shares[l] = shares[l+1] · A_l` with `A_l` the row-normalized map of layer l: each vector sums to 1, and
 * `shares[0]` is the output's row of the product of all layers.
 */
export function flow(site: Site, measure: Measure, outputs: number[], cut: number): Flow {
  const n = site.keys;
  const depth = site.data.layers.length;
  const shares: Float64Array[] = Array.from({ length: depth + 1 }, () => new Float64Array(n));
  for (const output of outputs) shares[depth][output] = 1 / outputs.length;
  let total = 0;
  const edges: Edge[] = [];
  for (let layer = depth - 1; layer >= 0; layer--) {
    const cells = site.cells(measure, layer, 0);
    for (let query = 0; query < n; query++) {
      const above = shares[layer + 1][query];
      if (above === 0) continue;
      let sum = 0;
      for (let key = 0; key < n; key++) sum += Math.abs(cells[query * n + key]);
      if (sum === 0) continue;
      for (let key = 0; key < n; key++) {
        const share = (above * Math.abs(cells[query * n + key])) / sum;
        if (share === 0) continue;
        shares[layer][key] += share;
        total++;
        if (share >= cut) edges.push({ layer, query, key, share });
      }
    }
  }
  edges.sort((a, b) => b.share - a.share);
  return { shares, edges, total };
}
