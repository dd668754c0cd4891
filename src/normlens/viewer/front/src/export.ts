/** The current view as a file: SVG, PNG, CSV. Each says what it shows and where it came from. */
import { csvFormatRows } from "d3-dsv";
import type { Theme } from "./colour";
import { picture } from "./draw/svg";
import { fit, wrap } from "./text";
import type { Shown } from "./views/context";

/** One picture of all panels, with a heading and the record of the run under it. */
export function compose(view: Shown, heading: string, record: string, theme: Theme): SVGSVGElement {
  const gap = 24;
  const margin = 20;
  const sizes = view.pictures.map(({ node }) => [Number(node.getAttribute("width")), Number(node.getAttribute("height"))]);
  const stacked = view.stacked === true;
  const wide = stacked ? Math.max(0, ...sizes.map(([w]) => w)) : sizes.reduce((sum, [w]) => sum + w, 0) + gap * (sizes.length - 1);
  const width = Math.max(480, 2 * margin + wide);
  const room = width - 2 * margin;
  const captions = wrap(view.caption, room, 11);
  const records = wrap(record, room, 10);
  const headings = wrap(heading, room, 14);
  const titles = view.pictures.map(({ title }, index) => wrap(title, sizes[index][0], 12));
  const lines = Math.max(1, ...titles.map((parts) => parts.length));
  const top = 26 + 18 * headings.length + 15 * captions.length + 16 * lines;
  const tall = stacked ? sizes.reduce((sum, [, h]) => sum + h, 0) + (0.8 * gap + 16 * lines) * (sizes.length - 1) : Math.max(0, ...sizes.map(([, h]) => h));
  const bottom = top + tall + 20;
  const height = bottom + 13 * records.length + 12;
  const svg = picture(width, height, `${heading}. ${view.caption}`);
  svg.append("title").text(heading);
  svg.append("desc").text(`${view.caption}. ${record}`);
  svg.append("rect").attr("width", width).attr("height", height).attr("fill", theme.panel);
  const line = (text: string, x: number, y: number, size: number, fill: string, weight = 400, room = width - x - margin) =>
    svg.append("text").attr("x", x).attr("y", y).attr("font-size", size).attr("font-weight", weight).attr("fill", fill).text(fit(text, room, size));
  headings.forEach((text, index) => line(text, margin, 24 + 18 * index, 14, theme.ink, 600));
  captions.forEach((text, index) => line(text, margin, 24 + 18 * headings.length + 15 * index, 11, theme.muted));
  let x = margin;
  let y = top;
  view.pictures.forEach(({ node }, index) => {
    titles[index].forEach((text, at) => line(text, x, y - 8 - 16 * (titles[index].length - 1 - at), 12, theme.ink, 600, sizes[index][0]));
    const copy = node.cloneNode(true) as SVGSVGElement;
    copy.querySelectorAll(".target, .row-target, .column-target, .output-target").forEach((element) => element.remove());
    for (const element of copy.querySelectorAll("[tabindex], [role=button]")) for (const name of ["tabindex", "role", "cursor"]) element.removeAttribute(name);
    copy.setAttribute("x", String(x));
    copy.setAttribute("y", String(y));
    svg.node()!.append(copy);
    if (stacked) y += sizes[index][1] + 0.8 * gap + 16 * lines;
    else x += sizes[index][0] + gap;
  });
  records.forEach((text, index) => line(text, margin, bottom + 13 * (index + 1), 10, theme.muted));
  return svg.node()!;
}

export function svgText(node: SVGSVGElement): string {
  // A character that XML cannot hold would make the whole file unreadable.
  const text = new XMLSerializer().serializeToString(node).replace(/[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu, "\ufffd");
  return `<?xml version="1.0" encoding="UTF-8"?>\n${text}`;
}

export async function png(node: SVGSVGElement, factor = 2): Promise<Blob> {
  const width = Number(node.getAttribute("width"));
  const height = Number(node.getAttribute("height"));
  const address = URL.createObjectURL(new Blob([svgText(node)], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = document.createElement("canvas");
    // Browsers refuse canvases beyond about 16,000 pixels a side.
    const scale = Math.min(factor, 16000 / Math.max(width, height));
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the browser gave no PNG"))), "image/png"));
  } finally {
    URL.revokeObjectURL(address);
  }
}

/** Comma-separated values with a heading row; numbers in full. */
export function csv(columns: string[], rows: (string | number)[][]): string {
  return csvFormatRows([columns, ...rows.map((row) => row.map((cell) => (typeof cell === "number" ? String(Number(cell.toPrecision(7))) : cell)))]);
}

export function download(name: string, blob: Blob): void {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
