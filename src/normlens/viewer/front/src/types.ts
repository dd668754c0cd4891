/** The document that `page_data.py` writes; names are the vocabulary of the library. */
/** A measure by its name in the library, such as `attn_n`; what is said about it comes with the document. */
export type Measure = string;
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
  /** With 8-bit codes: is the diagonal kept apart from the rows' codes? */
  own_apart?: boolean;
  top?: number[];
  top_share?: number[];
  /** The same without what positions give to themselves, where they are among their own keys. */
  top_rest?: number[];
  top_rest_share?: number[];
}

export interface AxisData {
  tokens: string[];
  text: string[];
  positions: number[];
  words: (number | null)[];
  /** In an explanation: before which tokens a space stands. */
  spaces?: boolean[];
  /** Row and column of positions that are patches of an image. */
  cells?: ([number, number] | null)[];
  total: number;
}

export interface SiteData {
  name: string;
  /** What the site is called in a sentence: `encoder self-attention`. */
  title: string;
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
  /** The terms of an explanation, where the document is one. */
  terms?: TermsData;
}

/** Terms of one side; packed arrays have a chunk for each step (one where there are no steps). */
export interface TermsData {
  /** `key`; not there for cross-attention. */
  tokens?: Packed;
  /** `layer key`: of the vectors that enter each layer. */
  states?: Packed;
  /** `layer head`. */
  heads?: Packed;
  /** `block layer key`. */
  blocks?: { names: string[]; values: Packed };
  /** `block layer head`, head 0 for what belongs to no head. */
  direct?: { names: string[]; values: Packed };
  /** `[step][layer][block]`; layer 0 is the head of the model. */
  biases?: { layers: number[]; names: string[]; values: number[][][] };
  edges?: {
    /** Added over heads, edges of a position to itself left out; one entry for each step. */
    summed: Sparse[];
    heads: Sparse[];
    /** `layer key`: past the edges that lead elsewhere. */
    straight?: Packed;
    /** `key`: what the lines of the last layer bring to each position. */
    arrived?: Packed;
    /** `query key`, added over layers and heads: cross-attention only. */
    pairs?: Packed;
  };
  /** `key`: what leaves each source position for the decoder. */
  left?: Packed;
  /** `layer query`: what enters each target position from the source. */
  entered?: Packed;
}

/** The strongest entries of `layer head query key`, and what all of them come to. */
export interface Sparse {
  count: number;
  sum: number;
  absolute: number;
  kept: number;
  data: string;
}

/** What was asked of an explanation, and how it was proved. */
export interface Question {
  /** One name, or one for each step. */
  outputs: string[];
  against: string | null;
  stepwise: boolean;
  values: number[];
  probabilities: (number | null)[] | null;
  proof: { gap: number; over_value: number; replay: number; output: number };
  says: string;
  attention: string | null;
  /** Explained position, on the last side. */
  position: number | null;
  direction: boolean;
}

export interface Document {
  format: string;
  version: number;
  title: string;
  limit: number;
  provenance: Record<string, unknown>;
  /** Every measure that a site may hold, in the order in which the library lists them. */
  measures: Record<Measure, MeasureText>;
  sites: SiteData[];
  explanation?: Question;
  alignment?: AlignmentData;
  /** The name of the view that the page opens on, where it is not the usual one. */
  opens?: string;
}

/** Links between the words of a pair, as `align` gives them: (source word, target word, score). */
export interface AlignmentData {
  source: string[];
  target: string[];
  /** `target source`, one chunk. */
  scores: Packed;
  links: [number, number, number][];
  gold?: { sure: [number, number][]; possible: [number, number][]; aer: number };
  how: string;
  marks?: MarksData;
}

/** What a source text carries, and where it came to stand in the target. */
export interface MarksData {
  /** `markup` is the opening tag or sign, where there is one; `text` what the mark is around in the source. */
  marks: { name: string; markup: string; text: string; placed: boolean }[];
  /** The two texts; several times where marks cross each other, with one mark each. */
  texts: { source: MarkedPart[]; target: MarkedPart[] }[];
  /** For each source word the innermost mark that covers it. */
  words: (number | null)[];
}

/** Characters, or a mark by its number with what is inside of it. */
export type MarkedPart = string | { mark: number; score: number; inside: MarkedPart[] };

/** How a measure is named, what it measures and which family (and so which hue) it belongs to. */
export interface MeasureText {
  name: string;
  /** Its name where there is little room. */
  short: string;
  says: string;
  family: "weight" | "norm";
  perHead: boolean;
}

/** Several documents in one page. */
export interface Pages {
  pages: Document[];
}
