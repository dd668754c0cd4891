/** What adds up to a number, as signed bars from zero with their numbers, and the sum below a line. */
import type { Theme } from "../colour";
import { signed } from "../terms";
import { fit, textWidth } from "../text";
import { picture } from "./svg";

export interface Row {
  text: string;
  value: number;
  /** Not a token: several of them, or what belongs to no input. */
  quiet?: boolean;
}

export function ledger(name: string, width: number, rows: Row[], total: Row, theme: Theme): SVGSVGElement {
  const step = 20;
  const all = [...rows, total];
  const label = Math.min(0.42 * width, Math.max(60, ...all.map((row) => textWidth(row.text, 12))) + 6);
  const numbers = 64;
  const left = label + numbers + 8;
  const low = Math.min(0, ...all.map((row) => row.value));
  const high = Math.max(0, ...all.map((row) => row.value));
  const room = Math.max(60, width - left - 6);
  const x = (value: number) => left + (high > low ? ((value - low) / (high - low)) * room : 0);
  const height = step * all.length + 14;
  const svg = picture(width, height, name);
  svg.append("line").attr("x1", x(0)).attr("x2", x(0)).attr("y1", 0).attr("y2", height - 4).attr("stroke", theme.line);
  const draw = (row: Row, y: number, sum: boolean) => {
    const group = svg.append("g").attr("class", sum ? "total" : "row").attr("data-value", row.value);
    group.append("text").attr("x", label).attr("y", y).attr("dy", "0.34em").attr("text-anchor", "end").attr("font-size", 12).attr("font-weight", sum ? 650 : 400)
      .attr("fill", row.quiet ? theme.muted : theme.ink).text(fit(row.text, label, 12));
    group.append("text").attr("x", label + numbers).attr("y", y).attr("dy", "0.34em").attr("text-anchor", "end").attr("font-size", 12).attr("font-weight", sum ? 650 : 400)
      .attr("font-variant-numeric", "tabular-nums").attr("fill", theme.ink).text(signed(row.value));
    group.append("rect").attr("x", Math.min(x(0), x(row.value))).attr("y", y - 6).attr("width", Math.max(0.5, Math.abs(x(row.value) - x(0)))).attr("height", 12).attr("rx", 1.5)
      .attr("fill", sum ? theme.muted : theme.family[row.value < 0 ? "weight" : "norm"]).attr("opacity", row.quiet && !sum ? 0.6 : 1);
  };
  rows.forEach((row, index) => draw(row, step * (index + 0.5), false));
  const below = step * rows.length + 4;
  svg.append("line").attr("x1", 0).attr("x2", width).attr("y1", below).attr("y2", below).attr("stroke", theme.muted);
  draw(total, below + 4 + step / 2, true);
  return svg.node()!;
}
