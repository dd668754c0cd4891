/** One map as it is drawn: rows and columns joined to items, shares taken of the whole row. */
import type { Item } from "./axis";
import type { Measure, MeasureText, SiteData } from "./types";
import { unpackLayer } from "./unpack";

export interface Grid {
  rows: number;
  columns: number;
  /** Values as measured: key columns of an item added, query rows averaged. */
  values: Float32Array;
  /** Sum of each whole row (absolute values), also where a span shows only a part of it. */
  sums: Float32Array;
}

/** A site with its unpacked layers kept while they are in use. */
export class Site {
  readonly name: SiteData["name"];
  readonly causal: boolean;
  /** Small maps that the overview has drawn. */
  readonly thumbnails = new Map<string, string>();
  private cache = new Map<string, Float32Array>();
  /** `aligned`: does the document hold links that `align` takes? */
  constructor(readonly data: SiteData, private readonly texts: Record<Measure, MeasureText>, readonly aligned = false) {
    this.name = data.name;
    this.causal = data.name === "decoder" && this.seenCausal();
  }

  get queries(): number {
    return this.data.query.tokens.length;
  }
  get keys(): number {
    return this.data.key.tokens.length;
  }

  /** How many steps an explanation has; one without steps counts as one. */
  get steps(): number {
    const terms = this.data.terms;
    return (terms?.tokens ?? terms?.heads)?.data?.length ?? 1;
  }

  measures(): Measure[] {
    return Object.keys(this.texts).filter((measure) => this.data.maps[measure]);
  }
  ratios(): Measure[] {
    return Object.keys(this.texts).filter((measure) => this.data.ratios[measure]);
  }

  /** What is said about a measure. */
  text(measure: Measure): MeasureText {
    return this.texts[measure];
  }

  /** All numbers of a layer: `query key`, or `head query key` for a map per head. */
  layer(measure: Measure, layer: number): Float32Array {
    const name = `${measure}/${layer}`;
    const kept = this.cache.get(name);
    if (kept) return kept;
    const values = this.read(measure, layer);
    this.cache.set(name, values);
    // A page of 512 tokens and 12 heads holds 12 MB per layer and map: keep some, not all.
    let size = 0;
    for (const array of this.cache.values()) size += array.length;
    for (const [key, array] of this.cache) {
      if (size < 40e6 || key === name) break;
      this.cache.delete(key);
      size -= array.length;
    }
    return values;
  }

  private read(measure: Measure, layer: number): Float32Array {
    const packed = this.data.maps[measure];
    if (!packed) throw new Error(`no map ${measure}`);
    const columns = this.keys;
    switch (packed.rule) {
      case undefined:
        return unpackLayer(packed, layer);
      case "same":
        return this.layer(packed.of!, layer);
      case "alpha_f_norm": {
        const alpha = this.layer("alpha", layer);
        const norms = this.fNorm(layer)!;
        const out = new Float32Array(alpha.length);
        const perHead = this.queries * columns;
        for (let i = 0; i < alpha.length; i++) {
          out[i] = Math.abs(alpha[i]) * norms[Math.floor(i / perHead) * columns + (i % columns)];
        }
        return out;
      }
      default: {
        const out = this.layer("attn_w", layer).map((value) => value / 2);
        if (packed.rule === "half_attn_w_half_self") for (let i = 0; i < columns; i++) out[i * columns + i] += 0.5;
        return out;
      }
    }
  }

  /** Has this layer fewer heads than that? */
  absent(layer: number, head: number): boolean {
    return this.data.absent.some(([l, h]) => l === layer && h === head);
  }

  /** Norms of the transformed vectors of a layer, `head key`. */
  fNorm(layer: number): Float32Array | null {
    return this.data.f_norm ? unpackLayer(this.data.f_norm, layer) : null;
  }

  ratio(measure: Measure, layer: number): Float32Array {
    return unpackLayer(this.data.ratios[measure]!, layer);
  }

  /** One `query key` map; `head` counts from 0 and is ignored for a map per layer. */
  cells(measure: Measure, layer: number, head: number): Float32Array {
    const values = this.layer(measure, layer);
    if (!this.text(measure).perHead) return values;
    const size = this.queries * this.keys;
    return values.subarray(head * size, (head + 1) * size);
  }

  grid(measure: Measure, layer: number, head: number, query: Item[], key: Item[]): Grid {
    return join(this.cells(measure, layer, head), this.keys, query, key);
  }

  /** The largest value (or share of a row) over all layers and heads of a measure, for a scale that they share. */
  top(measure: Measure, share: boolean, query: Item[], key: Item[], rest: boolean): number {
    const packed = this.data.maps[measure]!;
    const skip = rest ? this.own(query, key) : undefined;
    if (query.length === this.queries && key.length === this.keys) {
      return Math.max(0, ...((skip ? (share ? packed.top_rest_share : packed.top_rest) : undefined) ?? (share ? packed.top_share : packed.top)!));
    }
    let top = 0;
    const heads = this.text(measure).perHead ? this.data.heads.length : 1;
    for (let layer = 0; layer < this.data.layers.length; layer++) {
      for (let head = 0; head < heads; head++) top = Math.max(top, largest(this.grid(measure, layer, head, query, key), share, skip));
    }
    return top;
  }

  /** Which cells are a position's own: what it gives to itself. None in cross-attention. */
  own(query: Item[], key: Item[]): ((row: number, column: number) => boolean) | undefined {
    if (this.name === "cross") return undefined;
    return (row, column) => query[row].members[0] === key[column].members[0];
  }

  private seenCausal(): boolean {
    const measure = this.measures()[0];
    if (!measure || this.queries !== this.keys) return false;
    const cells = unpackCheap(this, measure);
    for (let q = 0; q < this.queries; q++) for (let k = q + 1; k < this.keys; k++) if (cells[q * this.keys + k] !== 0) return false;
    return true;
  }
}

function unpackCheap(site: Site, measure: Measure): Float32Array {
  const layered = site.measures().find((name) => !site.text(name).perHead) ?? measure;
  return site.cells(layered, 0, 0);
}

/** Join tokens to items: `value = mean over the row's tokens of the sum over the column's tokens`. */
export function join(cells: Float32Array, keys: number, query: Item[], key: Item[]): Grid {
  const rows = query.length;
  const columns = key.length;
  const values = new Float32Array(rows * columns);
  const sums = new Float32Array(rows);
  for (let i = 0; i < rows; i++) {
    const members = query[i].members;
    for (const token of members) {
      const base = token * keys;
      let sum = 0;
      for (let k = 0; k < keys; k++) sum += Math.abs(cells[base + k]);
      sums[i] += sum / members.length;
      for (let j = 0; j < columns; j++) {
        let value = 0;
        for (const k of key[j].members) value += cells[base + k];
        values[i * columns + j] += value / members.length;
      }
    }
  }
  return { rows, columns, values, sums };
}

/** The value as shown: itself, or its share of the whole row. */
export function shown(grid: Grid, row: number, column: number, share: boolean): number {
  const value = grid.values[row * grid.columns + column];
  return share ? (grid.sums[row] > 0 ? value / grid.sums[row] : 0) : value;
}

export function largest(grid: Grid, share: boolean, skip?: (row: number, column: number) => boolean): number {
  let top = 0;
  for (let row = 0; row < grid.rows; row++) {
    for (let column = 0; column < grid.columns; column++) if (!skip?.(row, column)) top = Math.max(top, Math.abs(shown(grid, row, column, share)));
  }
  return top;
}

/** What the own cells take of a row on average, and the largest of them as it is shown. */
export function ownPart(grid: Grid, share: boolean, own: (row: number, column: number) => boolean): { mean: number; top: number } {
  let sum = 0;
  let top = 0;
  for (let row = 0; row < grid.rows; row++) {
    for (let column = 0; column < grid.columns; column++) {
      if (!own(row, column)) continue;
      sum += Math.abs(shown(grid, row, column, true));
      top = Math.max(top, Math.abs(shown(grid, row, column, share)));
    }
  }
  return { mean: sum / Math.max(1, grid.rows), top };
}

/** What each column gives to the other rows, in shares: the columns worth naming where there is no room for all. */
export function columnWeights(grid: Grid, own?: (row: number, column: number) => boolean): number[] {
  const out = new Array<number>(grid.columns).fill(0);
  for (let row = 0; row < grid.rows; row++) {
    for (let column = 0; column < grid.columns; column++) if (!own?.(row, column)) out[column] += Math.abs(shown(grid, row, column, true));
  }
  return out;
}
