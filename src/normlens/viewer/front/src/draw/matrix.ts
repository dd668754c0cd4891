/** A map as coloured cells: rectangles while there are few, one image with a pixel per cell beyond. */
import { pointer } from "d3-selection";
import { readableOn, type Theme } from "../colour";
import { position, type Scale } from "../scale";
import { fit, textWidth, thinned } from "../text";
import type { Own } from "../views/context";
import { legend, ownLegend, ownLegendHeight, picture, type Svg } from "./svg";

/** More cells than this become one image; the browser stays smooth and an exported file small. */
export const RECTANGLES = 3600;

export interface MatrixOptions {
  name: string;
  width: number;
  rows: string[];
  columns: string[];
  /** Said when a label is pointed at: the raw token. */
  rowHints?: string[];
  columnHints?: string[];
  value: (row: number, column: number) => number;
  /** Cells that cannot be (the future of a causal decoder) stay empty rather than zero. */
  empty?: (row: number, column: number) => boolean;
  marked?: (row: number, column: number) => boolean;
  /** Cells with a dot: links that were taken. */
  dotted?: (row: number, column: number) => boolean;
  /** Cells with a frame: links that are known to be right, or (dashed) possible. */
  framed?: (row: number, column: number) => "sure" | "possible" | undefined;
  /** Cells that stand apart from the scale. */
  own?: Own;
  /** How much it matters that a row or a column is named, where there is no room for all. */
  weights?: { rows?: number[]; columns?: number[] };
  scale: Scale;
  colour: (t: number) => string;
  theme: Theme;
  found: { rows: Set<number>; columns: Set<number> };
  /** A number beside each row, such as its mean. */
  rowValues?: { title: string; texts: string[] };
  rowTitle: string;
  columnTitle: string;
  maxCell?: number;
  /** The height of a row where cells are not square, if it is not to follow from their width. */
  rowHeight?: number;
  square?: boolean;
  hover?: (row: number, column: number) => void;
  leave?: () => void;
  click?: (row: number, column: number) => void;
}

export interface Drawn {
  node: SVGSVGElement;
  highlight: (row: number, column: number) => void;
}

export function matrix(options: MatrixOptions): Drawn {
  const { rows, columns, theme } = options;
  const size = options.width / columns.length < 15 ? 10 : 11;
  const longest = (labels: string[], cap: number) => Math.min(cap, Math.max(24, ...labels.slice(0, 600).map((text) => textWidth(text.slice(0, 40), size))) + 4);
  const rowLabel = longest(rows, options.width < 460 ? 64 : 96);
  const left = rowLabel + 20;
  const provisional = (options.width - left - 6) / columns.length;
  const slanted = provisional >= 18;
  const columnLabel = longest(columns, options.width < 460 ? 60 : 84);
  const right = Math.max(options.rowValues ? 44 : 0, slanted ? 0.7 * columnLabel + 2 : 6);
  const cellWidth = Math.min(options.maxCell ?? 34, (options.width - left - right) / columns.length);
  const cellHeight = options.square === false ? (options.rowHeight ?? Math.min(28, Math.max(16, cellWidth))) : cellWidth;
  const top = 16 + (slanted ? 0.75 * columnLabel + 8 : columnLabel + 6);
  const bodyWidth = cellWidth * columns.length;
  const bodyHeight = cellHeight * rows.length;
  const legendY = top + bodyHeight + 14;
  const svg: Svg = picture(options.width, legendY + 26 + ownLegendHeight(left, Math.min(260, Math.max(110, bodyWidth)), options.width, options.own), options.name);
  const body = svg.append("g").attr("transform", `translate(${left},${top})`);

  svg.append("text").attr("x", left).attr("y", 11).attr("font-size", 10).attr("fill", theme.muted).text(options.columnTitle);
  svg.append("text").attr("transform", `translate(9,${top + bodyHeight / 2}) rotate(-90)`).attr("font-size", 10).attr("fill", theme.muted)
    .attr("text-anchor", "middle").text(options.rowTitle);

  if (rows.length * columns.length <= RECTANGLES) drawRectangles();
  else drawImage();
  if (options.dotted || options.framed) drawSigns();
  body.append("rect").attr("width", bodyWidth).attr("height", bodyHeight).attr("fill", "none").attr("stroke", theme.line);

  const line = size - 0.5;
  const namedRows = thinned(rows.length, Math.ceil(line / cellHeight), options.weights?.rows);
  const namedColumns = thinned(columns.length, Math.ceil(line / cellWidth), options.weights?.columns);
  rows.forEach((text, row) => {
    if (!namedRows.has(row) && !options.found.rows.has(row)) return;
    body.append("text").attr("class", "row-label").attr("data-row", row).attr("x", -6).attr("y", (row + 0.5) * cellHeight).attr("dy", "0.34em")
      .attr("text-anchor", "end").attr("font-size", size).attr("fill", options.found.rows.has(row) ? theme.found : theme.ink)
      .attr("font-weight", options.found.rows.has(row) ? 700 : 400).text(fit(text, rowLabel, size)).append("title").text(options.rowHints?.[row] ?? text);
  });
  const columnText = (text: string, column: number) =>
    body.append("text").attr("class", "column-label").attr("data-column", column).attr("font-size", size)
      .attr("transform", `translate(${(column + 0.5) * cellWidth + (slanted ? 0 : 4)},-6) rotate(${slanted ? -45 : -90})`)
      .attr("fill", options.found.columns.has(column) ? theme.found : theme.ink).attr("font-weight", options.found.columns.has(column) ? 700 : 400)
      .text(fit(text, columnLabel, size)).append("title").text(options.columnHints?.[column] ?? text);
  columns.forEach((text, column) => {
    if (!namedColumns.has(column) && !options.found.columns.has(column)) return;
    columnText(text, column);
  });
  options.rowValues?.texts.forEach((text, row) => {
    body.append("text").attr("class", "row-value").attr("data-row", row).attr("x", bodyWidth + 6).attr("y", (row + 0.5) * cellHeight).attr("dy", "0.34em").attr("font-size", size)
      .attr("font-variant-numeric", "tabular-nums").attr("fill", theme.muted).text(text);
  });
  if (options.rowValues) body.append("text").attr("x", bodyWidth + 6).attr("y", bodyHeight + 12).attr("font-size", 10).attr("fill", theme.muted).text(options.rowValues.title);
  const bar = Math.min(260, Math.max(110, bodyWidth));
  legend(svg, left, legendY, bar, options.scale, options.colour, theme);
  if (options.own?.mode === "faded") ownLegend(svg, left, legendY, bar, options.width, options.own, options.scale, theme);

  const cross = body.append("g").attr("class", "crosshair").attr("pointer-events", "none");
  const target = body.append("rect").attr("class", "target").attr("width", bodyWidth).attr("height", bodyHeight).attr("fill", "transparent");
  const at = (event: unknown): [number, number] => {
    const [x, y] = pointer(event, target.node());
    return [Math.min(rows.length - 1, Math.max(0, Math.floor(y / cellHeight))), Math.min(columns.length - 1, Math.max(0, Math.floor(x / cellWidth)))];
  };
  target
    .on("pointermove", (event: unknown) => options.hover?.(...at(event)))
    .on("pointerleave", () => options.leave?.())
    .on("click", (event: unknown) => options.click?.(...at(event)));

  function drawRectangles(): void {
    for (let row = 0; row < rows.length; row++) {
      for (let column = 0; column < columns.length; column++) {
        if (options.empty?.(row, column)) continue;
        const value = options.value(row, column);
        const own = options.own?.is(row, column) ? options.own : undefined;
        if (own?.mode === "hidden") continue;
        const rectangle = body.append("rect").attr("class", own ? "own" : "cell").attr("data-row", row).attr("data-column", column)
          .attr("x", column * cellWidth).attr("y", row * cellHeight).attr("width", cellWidth).attr("height", cellHeight)
          .attr("fill", own ? own.colour(own.top > 0 ? Math.abs(value) / own.top : 0) : options.colour(position(options.scale, value)));
        if (cellWidth >= 12) rectangle.attr("stroke", theme.panel).attr("stroke-width", 1);
        if (options.marked?.(row, column)) mark(row, column);
      }
    }
  }

  function drawImage(): void {
    const canvas = document.createElement("canvas");
    canvas.width = columns.length;
    canvas.height = rows.length;
    const context = canvas.getContext("2d")!;
    const image = context.createImageData(columns.length, rows.length);
    const bytes = colourBytes(options.colour);
    const greys = options.own ? colourBytes(options.own.colour) : bytes;
    for (let row = 0; row < rows.length; row++) {
      for (let column = 0; column < columns.length; column++) {
        if (options.empty?.(row, column)) continue;
        const own = options.own?.is(row, column) ? options.own : undefined;
        if (own?.mode === "hidden") continue;
        const value = options.value(row, column);
        const [table, code] = own ? [greys, byteOf(own.top > 0 ? Math.abs(value) / own.top : 0)] : [bytes, byteOf(position(options.scale, value))];
        image.data.set([table[code], table[code + 1], table[code + 2], 255], 4 * (row * columns.length + column));
        if (options.marked?.(row, column)) mark(row, column);
      }
    }
    context.putImageData(image, 0, 0);
    body.insert("image", ":first-child").attr("class", "cells").attr("href", canvas.toDataURL("image/png")).attr("width", bodyWidth).attr("height", bodyHeight)
      .attr("preserveAspectRatio", "none").attr("image-rendering", "pixelated");
  }

  function drawSigns(): void {
    for (let row = 0; row < rows.length; row++) {
      for (let column = 0; column < columns.length; column++) {
        const frame = options.framed?.(row, column);
        if (frame) {
          body.append("rect").attr("class", "frame").attr("data-row", row).attr("data-column", column).attr("data-gold", frame)
            .attr("x", column * cellWidth + 1.25).attr("y", row * cellHeight + 1.25).attr("width", Math.max(1, cellWidth - 2.5)).attr("height", Math.max(1, cellHeight - 2.5))
            .attr("fill", "none").attr("stroke", theme.family.weight).attr("stroke-width", 2).attr("stroke-dasharray", frame === "possible" ? "3 2" : null);
        }
        if (!options.dotted?.(row, column)) continue;
        const fill = options.colour(position(options.scale, options.value(row, column)));
        body.append("circle").attr("class", "dot").attr("data-row", row).attr("data-column", column).attr("cx", (column + 0.5) * cellWidth).attr("cy", (row + 0.5) * cellHeight)
          .attr("r", Math.max(1.5, Math.min(4.5, 0.2 * Math.min(cellWidth, cellHeight)))).attr("fill", readableOn(fill));
      }
    }
  }

  function mark(row: number, column: number): void {
    body.append("rect").attr("class", "mark").attr("data-row", row).attr("data-column", column).attr("x", column * cellWidth + 0.75).attr("y", row * cellHeight + 0.75)
      .attr("width", Math.max(1, cellWidth - 1.5)).attr("height", Math.max(1, cellHeight - 1.5)).attr("fill", "none").attr("stroke", theme.ink).attr("stroke-width", cellWidth > 8 ? 1.5 : 1);
  }

  return {
    node: svg.node()!,
    highlight: (row, column) => {
      cross.selectAll("*").remove();
      const band = (x: number, y: number, width: number, height: number) =>
        cross.append("rect").attr("x", x).attr("y", y).attr("width", width).attr("height", height).attr("fill", "none").attr("stroke", theme.ink).attr("stroke-width", 1.2);
      const tag = (text: string, x: number, y: number, anchor: string, rotate: number) => {
        const width = textWidth(text, size) + 6;
        const group = cross.append("g").attr("transform", `translate(${x},${y}) rotate(${rotate})`);
        group.append("rect").attr("x", anchor === "end" ? -width + 3 : -3).attr("y", -8).attr("width", width).attr("height", 16).attr("rx", 3).attr("fill", theme.ink);
        group.append("text").attr("text-anchor", anchor).attr("dy", "0.34em").attr("font-size", size).attr("fill", theme.panel).text(text);
      };
      if (row >= 0) {
        band(0, row * cellHeight, bodyWidth, cellHeight);
        tag(fit(rows[row], rowLabel, size), -6, (row + 0.5) * cellHeight, "end", 0);
      }
      if (column >= 0) {
        band(column * cellWidth, 0, cellWidth, bodyHeight);
        tag(fit(columns[column], columnLabel, size), (column + 0.5) * cellWidth, -7, "start", slanted ? -45 : -90);
      }
    },
  };
}

/** The colours from -1 to 1 as bytes, and where the colour of a place begins in them. */
export function colourBytes(colour: (t: number) => string): Uint8ClampedArray {
  const out = new Uint8ClampedArray(3 * 511);
  for (let code = -255; code < 256; code++) {
    const value = parseInt(colour(code / 255).slice(1), 16);
    out.set([value >> 16, (value >> 8) & 255, value & 255], 3 * (code + 255));
  }
  return out;
}

export function byteOf(t: number): number {
  return 3 * (Math.round(255 * t) + 255);
}
