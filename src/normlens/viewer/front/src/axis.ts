/** What stands on an axis: tokens or words, all of them or a span. */
import { visible } from "./text";
import type { AxisData } from "./types";

export interface Item {
  /** Local indices of the tokens that the item joins; the first is its address. */
  members: number[];
  /** Position of the first token in the input, from 0. */
  position: number;
  text: string;
  raw: string;
  /** Does the token continue a word that an earlier token began? */
  continues: boolean;
}

export type Level = "token" | "word";

/** The items of an axis at a level, within `span` (local indices, end excluded). */
export function items(axis: AxisData, level: Level, span: [number, number] | null): Item[] {
  const [start, stop] = span ?? [0, axis.tokens.length];
  const out: Item[] = [];
  for (let index = Math.max(0, start); index < Math.min(stop, axis.tokens.length); index++) {
    const word = axis.words[index];
    const continues = index > 0 && word !== null && axis.words[index - 1] === word;
    const last = out[out.length - 1];
    if (level === "word" && continues && last) {
      last.members.push(index);
      last.text += axis.text[index];
      last.raw += " " + axis.tokens[index];
    } else {
      out.push({ members: [index], position: axis.positions[index], text: axis.text[index], raw: axis.tokens[index], continues: level === "token" && continues });
    }
  }
  return out;
}

export function label(item: Item): string {
  return (item.continues ? "·" : "") + item.text;
}

/** What a label does not say: the raw token and its position, for the hover. */
export function hint(item: Item): string {
  const raw = item.raw.length > 300 ? `${item.raw.slice(0, 300)}… (${item.raw.length} characters)` : item.raw;
  return `token: ${visible(raw)}\nposition: ${item.position}`;
}

/** Does any word span several tokens, so that the word level differs? */
export function hasWords(axis: AxisData): boolean {
  return axis.words.some((word, index) => index > 0 && word !== null && word === axis.words[index - 1]);
}

/** The place of the item that holds a token, or -1. */
export function find(list: Item[], token: number | null): number {
  if (token === null) return -1;
  return list.findIndex((item) => item.members.includes(token));
}
