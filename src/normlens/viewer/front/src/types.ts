/** The document that `payload.py` writes; names are the vocabulary of the library. */
export type HeadMeasure = "alpha" | "af_norm";
export type LayerMeasure = "attn_w" | "attn_n" | "attnres_w" | "attnres_n" | "attnresln_n";
export type Measure = HeadMeasure | LayerMeasure;
export type Axis = "query" | "key";

export interface Packed {
  encoding?: "f16" | "q8";
  shape?: number[];
  scale?: number[];
  data?: string[];
  rule?: "alpha_f_norm" | "half_attn_w" | "half_attn_w_half_self" | "same";
  of?: Measure;
  /** Does the map hold negative values: a difference of two runs, or differential attention? */
  signed?: boolean;
  top?: number[];
  top_share?: number[];
}

export interface AxisData {
  tokens: string[];
  text: string[];
  positions: number[];
  words: (number | null)[];
  total: number;
}

export interface SiteData {
  name: "encoder" | "decoder" | "cross";
  layers: number[];
  heads: number[];
  query: AxisData;
  key: AxisData;
  maps: Partial<Record<Measure, Packed>>;
  ratios: Partial<Record<Measure, Packed>>;
  f_norm?: Packed;
  /** Heads that a layer does not have where layers differ in their number: pairs of places, from 0. */
  absent: [number, number][];
  omitted: Partial<Record<Measure, string>>;
}

export interface Document {
  format: string;
  version: number;
  title: string;
  limit: number;
  provenance: Record<string, unknown>;
  sites: SiteData[];
}

/** How a measure is named, what it measures and which family (and so which hue) it belongs to. */
export interface MeasureText {
  name: string;
  says: string;
  family: "weight" | "norm";
  perHead: boolean;
}

export const MEASURES: Record<Measure, MeasureText> = {
  alpha: { name: "Attention weight α", says: "one head's attention weight", family: "weight", perHead: true },
  af_norm: { name: "‖αf(x)‖", says: "norm of one head's weighted, transformed vector", family: "norm", perHead: true },
  attn_w: { name: "ATTN-W", says: "attention weight, mean over heads", family: "weight", perHead: false },
  attn_n: { name: "ATTN-N", says: "norm of the vectors, summed over heads", family: "norm", perHead: false },
  attnres_w: { name: "ATTNRES-W", says: "half attention weight, half residual", family: "weight", perHead: false },
  attnres_n: { name: "ATTNRES-N", says: "norm of attention and residual vectors", family: "norm", perHead: false },
  attnresln_n: { name: "ATTNRESLN-N", says: "the whole block: attention, residual and normalization", family: "norm", perHead: false },
};

export const MEASURE_ORDER = Object.keys(MEASURES) as Measure[];
