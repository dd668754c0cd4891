/** A map as links between two columns of tokens: what is computed on the left, what contributes on the right, or the other way round. */
import { linkHorizontal } from "d3-shape";
import type { Theme } from "../colour";
import { number, position, type Scale } from "../scale";
import { fit, textWidth, thinned } from "../text";
import type { Own } from "../views/context";
import { picture } from "./svg";
import type { Drawn } from "./matrix";

/** More links than this are never drawn at once: the strongest are, and the picture says from which value on. */
export const MOST_LINKS = 1200;
/** Without a threshold of the reader's, so many links per row on average: enough to see, few enough to follow. */
const LINKS_PER_ROW = 6;

export interface LinksOptions {
  name: string;
  width: number;
  rows: string[];
  columns: string[];
  /** Said when a token is pointed at: the raw token. */
  rowHints: string[];
  columnHints: string[];
  value: (row: number, column: number) => number;
  scale: Scale;
  /** Stroke of a link, by the sign of its value. */
  colour: (value: number) => string;
  /** Stroke of a single link, where it is not only its value that matters. */
  stroke?: (row: number, column: number) => { colour: string; dashed: boolean };
  theme: Theme;
  found: { rows: Set<number>; columns: Set<number> };
  rowTitle: string;
  columnTitle: string;
  /** Put what contributes on the left: a source before its target. */
  columnsFirst?: boolean;
  /** Only these links, whatever their value. */
  only?: [number, number][];
  /** Links of a position to itself, which stand apart from the scale. */
  own?: Own;
  weights?: { rows?: number[]; columns?: number[] };
  min: number | null;
  hover?: (row: number, column: number) => void;
  leave?: () => void;
  click?: (row: number, column: number) => void;
}

export interface Link {
  row: number;
  column: number;
  value: number;
}

/** The links worth drawing: at least `min`; without it the strongest, and none below 2 % of the scale's end. */
export function strongest(rows: number, columns: number, value: (row: number, column: number) => number, top: number, min: number | null, own?: (row: number, column: number) => boolean): { links: Link[]; cut: number; total: number } {
  const floor = min ?? 0.02 * top;
  let links: Link[] = [];
  let total = 0;
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      if (own?.(row, column)) continue;
      total++;
      const size = value(row, column);
      if (Math.abs(size) >= floor && size !== 0) links.push({ row, column, value: size });
    }
  }
  links.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const most = min === null ? Math.min(MOST_LINKS, LINKS_PER_ROW * rows) : MOST_LINKS;
  const cutShort = links.length > most;
  if (cutShort) links = links.slice(0, most);
  return { links, cut: cutShort ? Math.abs(links[links.length - 1].value) : floor, total };
}

export function links(options: LinksOptions): Drawn & { note: string } {
  const { rows, columns, theme, scale } = options;
  const count = Math.max(rows.length, columns.length);
  const step = Math.min(22, Math.max(5, 760 / count));
  const size = Math.min(12.5, Math.max(9, step - 2));
  const every = Math.ceil(10.5 / step);
  const gutter = 46;
  const widest = (labels: string[]) => Math.min(Math.max(66, Math.min(120, 0.24 * options.width)), Math.max(24, ...labels.map((text) => textWidth(text.slice(0, 40), size))) + 4);
  const first = options.columnsFirst === true;
  const left = gutter + widest(first ? columns : rows);
  const right = gutter + widest(first ? rows : columns);
  const top = 24;
  const height = top + step * count + 8;
  const svg = picture(options.width, height, options.name);
  const y = (index: number) => top + (index + 0.5) * step;
  const xLeft = left + 6;
  const xRight = options.width - right - 6;
  const curve = linkHorizontal<unknown, { source: [number, number]; target: [number, number] }, [number, number]>().x((p) => p[0]).y((p) => p[1]);
  const chosen = options.only
    ? { links: options.only.map(([row, column]) => ({ row, column, value: options.value(row, column) })), cut: 0, total: options.only.length }
    : strongest(rows.length, columns.length, options.value, scale.top, options.min, options.own?.is);

  svg.append("text").attr("x", left).attr("y", 12).attr("text-anchor", "end").attr("font-size", 10).attr("fill", theme.muted).text(first ? options.columnTitle : options.rowTitle);
  svg.append("text").attr("x", options.width - right).attr("y", 12).attr("font-size", 10).attr("fill", theme.muted).text(first ? options.rowTitle : options.columnTitle);

  const path = (row: number, column: number) => curve({ source: [xLeft, y(first ? column : row)], target: [xRight, y(first ? row : column)] })!;
  const strength = (value: number) => Math.abs(position(scale, value));
  const widthOf = (value: number) => 0.4 + Math.min(7, 0.55 * step) * strength(value);
  const base = svg.append("g").attr("class", "links").attr("fill", "none");
  for (const link of [...chosen.links].reverse()) {
    base.append("path").attr("class", "link").attr("data-row", link.row).attr("data-column", link.column).attr("d", path(link.row, link.column))
      .attr("stroke", options.stroke?.(link.row, link.column).colour ?? options.colour(link.value)).attr("stroke-width", widthOf(link.value).toFixed(2)).attr("stroke-opacity", (0.22 + 0.7 * strength(link.value)).toFixed(3))
      .attr("stroke-dasharray", options.stroke?.(link.row, link.column).dashed ? "4 3" : null);
  }
  if (options.own?.mode === "faded") {
    for (let row = 0; row < rows.length; row++) {
      for (let column = 0; column < columns.length; column++) {
        if (!options.own.is(row, column)) continue;
        const part = options.own.top > 0 ? Math.abs(options.value(row, column)) / options.own.top : 0;
        base.append("path").attr("class", "own").attr("d", path(row, column)).attr("stroke", options.own.colour(1)).attr("stroke-opacity", 0.35).attr("stroke-width", (0.4 + Math.min(7, 0.55 * step) * part).toFixed(2)).lower();
      }
    }
  }
  const above = svg.append("g").attr("class", "focus").attr("fill", "none");

  const side = (labels: string[], x: number, anchor: "start" | "end", found: Set<number>, kind: "row" | "column") => {
    const named = thinned(labels.length, every, kind === "row" ? options.weights?.rows : options.weights?.columns);
    labels.forEach((text, index) => {
      const shown = named.has(index) || found.has(index);
      if (shown) {
        svg.append("text").attr("class", `${kind}-label`).attr(`data-${kind}`, index).attr("x", x).attr("y", y(index)).attr("dy", "0.34em").attr("text-anchor", anchor)
          .attr("font-size", size).attr("fill", found.has(index) ? theme.found : theme.ink).attr("font-weight", found.has(index) ? 700 : 400)
          .text(fit(text, (anchor === "end" ? left : right) - gutter, size));
      }
      svg.append("rect").attr("class", `${kind}-target`).attr(`data-${kind}`, index).attr("x", anchor === "end" ? 0 : xRight).attr("y", y(index) - step / 2)
        .attr("width", anchor === "end" ? xLeft : options.width - xRight).attr("height", step).attr("fill", "transparent")
        .on("pointerenter", () => (kind === "row" ? options.hover?.(index, -1) : options.hover?.(-1, index)))
        .on("pointerleave", () => options.leave?.())
        .on("click", () => (kind === "row" ? options.click?.(index, -1) : options.click?.(-1, index)))
        .append("title").text((kind === "row" ? options.rowHints : options.columnHints)[index]);
    });
  };
  const place = (kind: "row" | "column"): [number, "start" | "end"] => ((kind === "row") !== first ? [left, "end"] : [options.width - right, "start"]);
  side(rows, ...place("row"), options.found.rows, "row");
  side(columns, ...place("column"), options.found.columns, "column");

  const numbers = svg.append("g").attr("class", "numbers").attr("pointer-events", "none");
  const tag = (text: string, x: number, index: number, anchor: "start" | "end") => {
    const width = textWidth(text, size) + 6;
    numbers.append("rect").attr("x", anchor === "end" ? x - width + 3 : x - 3).attr("y", y(index) - size / 2 - 3).attr("width", width).attr("height", size + 6).attr("rx", 3).attr("fill", theme.ink);
    numbers.append("text").attr("x", x).attr("y", y(index)).attr("dy", "0.34em").attr("text-anchor", anchor).attr("font-size", size).attr("fill", theme.panel).text(text);
  };

  return {
    node: svg.node()!,
    note: options.only
      ? `${chosen.links.length} links`
      : `${chosen.links.length.toLocaleString("en")} of ${chosen.total.toLocaleString("en")} links drawn: ${chosen.cut > 0 ? `≥ ${number(chosen.cut, scale.share)}` : "all that are not zero"}`,
    highlight: (row, column) => {
      above.selectAll("*").remove();
      numbers.selectAll("*").remove();
      const one = row >= 0 || column >= 0;
      base.attr("opacity", one ? 0.13 : 1);
      if (!one) return;
      const list: Link[] = [];
      const allowed = options.only && new Set(options.only.map(([r, c]) => `${r},${c}`));
      const add = (r: number, c: number) => (!allowed || allowed.has(`${r},${c}`)) && list.push({ row: r, column: c, value: options.value(r, c) });
      if (row >= 0 && column >= 0) add(row, column);
      else if (row >= 0) for (let c = 0; c < columns.length; c++) add(row, c);
      else for (let r = 0; r < rows.length; r++) add(r, column);
      list.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
      const taken: number[] = [];
      for (const link of list.filter((l) => Math.abs(l.value) >= 0.004 * scale.top).slice(0, 200)) {
        above.append("path").attr("d", path(link.row, link.column)).attr("stroke", options.stroke?.(link.row, link.column).colour ?? options.colour(link.value)).attr("stroke-width", widthOf(link.value).toFixed(2))
          .attr("stroke-opacity", (0.25 + 0.75 * strength(link.value)).toFixed(3));
        const index = row >= 0 ? link.column : link.row;
        // Numbers stand only where they do not cover a stronger one's.
        if (taken.some((other) => Math.abs(other - index) * step < 11) || taken.length >= 60) continue;
        taken.push(index);
        numbers.append("text").attr("class", "number").attr(row >= 0 ? "data-column" : "data-row", index).attr("y", y(index)).attr("dy", "0.34em").attr("font-size", 10.5)
          .attr("x", (row >= 0) !== first ? options.width - 2 : 2).attr("text-anchor", (row >= 0) !== first ? "end" : "start").attr("fill", theme.muted).attr("font-variant-numeric", "tabular-nums")
          .text(number(link.value, scale.share));
      }
      if (row >= 0) tag(fit(rows[row], (first ? right : left) - gutter, size), place("row")[0], row, place("row")[1]);
      if (column >= 0) tag(fit(columns[column], (first ? left : right) - gutter, size), place("column")[0], column, place("column")[1]);
    },
  };
}
