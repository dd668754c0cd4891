/** A site from plain numbers, packed the way the page reads it. */
import { zlibSync } from "fflate";
import type { AxisData, MeasureText, Packed, SiteData } from "../src/types";

const text = (name: string, family: "weight" | "norm", perHead = false): MeasureText => ({ name, short: name, says: `what ${name} says`, family, perHead });

/** What a document says about measures: some of each kind. */
export const MEASURES: Record<string, MeasureText> = {
  alpha: text("α", "weight", true), af_norm: text("‖αf(x)‖", "norm", true), attn_w: text("ATTN-W", "weight"), attn_n: text("ATTN-N", "norm"),
  attnres_w: text("ATTNRES-W", "weight"), attnres_n: text("ATTNRES-N", "norm"), attnresln_n: text("ATTNRESLN-N", "norm"),
};

export function packed(layers: number[][], columns: number): Packed {
  // 8-bit codes with a top of 1 would lose digits; rows of float32 tops and full codes hold any single column exactly,
  // so each value becomes a row of its own.
  return {
    encoding: "q8",
    shape: [layers.length, layers[0].length, 1],
    scale: layers.map(() => 1),
    data: layers.map((values) => btoa(String.fromCharCode(...zlibSync(Uint8Array.from([...new Uint8Array(new Float32Array(values).buffer), ...values.map(() => 255)]))))),
    top: layers.map((values) => Math.max(...values)),
    top_share: layers.map((values) => {
      let top = 0;
      for (let row = 0; row < values.length / columns; row++) {
        const cells = values.slice(row * columns, (row + 1) * columns);
        const sum = cells.reduce((a, b) => a + b, 0);
        top = Math.max(top, ...cells.map((x) => (sum ? x / sum : 0)));
      }
      return top;
    }),
  };
}

export function axis(tokens: string[], words?: (number | null)[]): AxisData {
  return { tokens, text: tokens, positions: tokens.map((_, i) => i), words: words ?? tokens.map((_, i) => i), total: tokens.length };
}

export function site(maps: SiteData["maps"], tokens: string[], words?: (number | null)[], layers = 1, heads = 0): SiteData {
  return {
    name: "encoder",
    title: "encoder self-attention",
    layers: Array.from({ length: layers }, (_, i) => i + 1),
    heads: Array.from({ length: heads }, (_, i) => i + 1),
    query: axis(tokens, words),
    key: axis(tokens, words),
    maps,
    ratios: {},
    omitted: {},
    absent: [],
  };
}
