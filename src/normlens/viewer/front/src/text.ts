/** Token labels: cut by what the eye sees as one character, kept apart from their neighbours' direction. */
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;
export const FONT = "'Inter', 'Segoe UI', system-ui, -apple-system, 'Helvetica Neue', 'Noto Sans', sans-serif";

/** The first `count` characters as a reader counts them (an emoji with its modifiers is one). */
export function graphemes(text: string, count: number): string[] {
  const head = text.slice(0, 16 * count);
  const Segmenter = (Intl as unknown as { Segmenter?: new (...a: unknown[]) => { segment(s: string): Iterable<{ segment: string }> } }).Segmenter;
  if (!Segmenter) return Array.from(head).slice(0, count);
  const out: string[] = [];
  for (const part of new Segmenter(undefined, { granularity: "grapheme" }).segment(head)) {
    if (out.length === count) break;
    out.push(part.segment);
  }
  return out;
}

let context: CanvasRenderingContext2D | null = null;
const widths = new Map<string, number>();

/** Width in pixels at the label size; wide scripts are wide, and a measured canvas knows. */
export function textWidth(text: string, size: number): number {
  const key = `${size}|${text}`;
  let width = widths.get(key);
  if (width === undefined) {
    if (!context && typeof document !== "undefined") context = document.createElement("canvas").getContext("2d");
    if (context) {
      context.font = `${size}px ${FONT}`;
      width = context.measureText(text).width;
    } else width = text.length * size * 0.55;
    if (widths.size > 20000) widths.clear();
    widths.set(key, width);
  }
  return width;
}

/** The text cut to a width in pixels, with an ellipsis where something is missing. */
export function fit(text: string, pixels: number, size: number): string {
  // No label needs more characters than would fit at a quarter of the size each.
  const parts = graphemes(text, Math.ceil(pixels / (0.25 * size)) + 1);
  const whole = parts.join("");
  if (whole.length === text.length && textWidth(whole, size) <= pixels) return isolate(whole);
  let low = 1;
  let high = parts.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (textWidth(parts.slice(0, middle).join("") + "…", size) <= pixels) low = middle;
    else high = middle - 1;
  }
  return isolate(parts.slice(0, low).join("") + "…");
}

/**
 * The labels to write where there is room for one in `every`: those that weigh most first, then whatever still fits, so
 * that no label stands nearer to another than `every` places.
 */
export function thinned(count: number, every: number, weights?: number[]): Set<number> {
  const order = [...Array(count).keys()];
  if (every <= 1) return new Set(order);
  if (!weights) return new Set(order.filter((index) => index % every === 0));
  const chosen = new Set<number>();
  const free = new Uint8Array(count).fill(1);
  for (const index of order.sort((a, b) => weights[b] - weights[a] || a - b)) {
    if (!free[index]) continue;
    chosen.add(index);
    free.fill(0, Math.max(0, index - every + 1), index + every);
  }
  return chosen;
}

/** The text in lines of at most a width in pixels, broken between words. */
export function wrap(text: string, pixels: number, size: number): string[] {
  const lines: string[] = [];
  for (const word of text.split(" ")) {
    const longer = lines.length ? `${lines[lines.length - 1]} ${word}` : word;
    if (lines.length && textWidth(longer, size) <= pixels) lines[lines.length - 1] = longer;
    else lines.push(fit(word, pixels, size));
  }
  return lines;
}

/** Cut to a number of characters, for text that is not drawn at a measured place. */
export function shorten(text: string, count: number): string {
  const parts = graphemes(text, count + 1);
  return parts.length > count ? parts.slice(0, count).join("") + "…" : isolate(text);
}

/** Text with control characters and marks of direction written as their codes: nothing acts, nothing hides. */
export function visible(text: string): string {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufffe\uffff]/g, (c) => `⟨${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

function isolate(text: string): string {
  // First-strong isolate: the ellipsis of a right-to-left label stands at its end, which is on the left.
  return RIGHT_TO_LEFT.test(text) ? `\u2068${text}\u2069` : text;
}
