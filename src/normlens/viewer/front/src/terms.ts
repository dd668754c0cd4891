/** The terms of an explanation: read for one step, or added over all steps (step 0), which is exact. */
import { format } from "d3-format";
import type { Item } from "./axis";
import type { Site } from "./grid";
import { number } from "./scale";
import { unpackLayer, unpackSparse, type Entry } from "./unpack";
import type { Packed, Question, Sparse } from "./types";

/** The numbers of a packed array for a step, in the order of its other axes. */
export function readTerms(packed: Packed, step: number): Float32Array {
  if (step > 0) return unpackLayer(packed, step - 1);
  const [first, ...others] = packed.data!.map((_, index) => unpackLayer(packed, index));
  for (const chunk of others) chunk.forEach((value, index) => (first[index] += value));
  return first;
}

/** Terms of items: those of their tokens, added. */
export function ofItems(tokens: Float32Array, items: Item[], offset = 0): number[] {
  return items.map((item) => item.members.reduce((sum, index) => sum + tokens[offset + index], 0));
}

export interface Biases {
  name: string;
  value: number;
}

/** What belongs to no input, by kind of block; those that are zero throughout are left out. */
export function biasesOf(site: Site, step: number): Biases[] {
  const biases = site.data.terms?.biases;
  if (!biases) return [];
  const steps = step > 0 ? [biases.values[step - 1]] : biases.values;
  return biases.names
    .map((name, block) => ({ name, value: steps.reduce((sum, layers) => sum + layers.reduce((all, row) => all + row[block], 0), 0) }))
    .filter(({ value }) => value !== 0);
}

export function valueOf(question: Question, step: number): number {
  return step > 0 ? question.values[step - 1] : question.values.reduce((a, b) => a + b, 0);
}

/** The probability of the explained output; of all steps together, where their terms are added. */
export function probabilityOf(question: Question, step: number): number | null {
  const given = question.probabilities;
  if (!given || given.some((one) => one === null)) return null;
  return step > 0 ? given[step - 1] : (given as number[]).reduce((a, b) => a * b, 1);
}

export function outputOf(question: Question, step: number): string {
  return step > 0 ? question.outputs[step - 1] : question.outputs.join(" · ");
}

const three = format("+.3r");

/** A number with its sign and three digits, so that columns of them are read as one. */
export function signed(value: number): string {
  const size = Math.abs(value);
  if (value === 0 || (size >= 0.001 && size < 1000)) return value === 0 ? "0" : three(value);
  return `${value > 0 ? "+" : ""}${number(value)}`;
}

/** The stored edges of a step with what they leave out; null where there are none, or where several steps would be added. */
export function edgesOf(site: Site, step: number, which: "summed" | "heads"): { entries: Entry[]; all: Sparse } | null {
  const stored = site.data.terms?.edges?.[which];
  const all = stored?.length === 1 ? stored[0] : stored?.[step - 1];
  return all ? { entries: unpackSparse(all), all } : null;
}

const tops = new WeakMap<Site, Map<number, number>>();

/** The largest line of a flow: the end of the threshold's control. */
export function strongestLine(site: Site, step: number): number {
  const known = tops.get(site) ?? new Map<number, number>();
  tops.set(site, known);
  if (!known.has(step)) known.set(step, (edgesOf(site, step, "summed")?.entries ?? []).reduce((top, edge) => Math.max(top, Math.abs(edge.value)), 0) || 1);
  return known.get(step)!;
}
