/** Drawing with presentation attributes only, so that an exported picture looks like the page. */
import { select, type Selection } from "d3-selection";
import { FONT, textWidth } from "../text";
import type { Theme } from "../colour";
import { number, valueAt, type Scale } from "../scale";
import type { Own } from "../views/context";

export type Group = Selection<SVGGElement, unknown, null, undefined>;
export type Svg = Selection<SVGSVGElement, unknown, null, undefined>;

/** An empty picture with an accessible name. */
export function picture(width: number, height: number, name: string): Svg {
  const node = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const svg = select(node)
    .attr("xmlns", "http://www.w3.org/2000/svg")
    .attr("width", width)
    .attr("height", height)
    .attr("viewBox", `0 0 ${width} ${height}`)
    .attr("font-family", FONT)
    .attr("role", "img")
    .attr("aria-label", name);
  return svg;
}

/** How much higher a picture is that has no room for the own part's bar beside the legend. */
export function ownLegendHeight(x: number, bar: number, width: number, own?: Own): number {
  return own?.mode === "faded" && x + bar + 170 > width ? 30 : 0;
}

/** The greys of the own part, beside the legend where there is room, else below it. */
export function ownLegend(svg: Svg | Group, x: number, y: number, bar: number, width: number, own: Own, scale: Scale, theme: Theme): void {
  const below = ownLegendHeight(x, bar, width, own);
  const group = svg.append("g").attr("class", "own-legend").attr("transform", `translate(${below ? x : x + bar + 30},${y + below})`);
  const steps = 24;
  for (let step = 0; step < steps; step++) group.append("rect").attr("x", (step * 60) / steps).attr("width", 60 / steps + 0.5).attr("height", 8).attr("fill", own.colour((step + 0.5) / steps));
  group.append("rect").attr("width", 60).attr("height", 8).attr("fill", "none").attr("stroke", theme.line);
  group.append("text").attr("x", 0).attr("y", 20).attr("font-size", 10).attr("fill", theme.muted).text(`own part, to ${number(own.top, scale.share)}`);
}

const TICKS = [[0, 0.25, 0.5, 0.75, 1], [0, 0.5, 1], [0, 1]];

/** The places of a bar that are labelled: as many as leave a gap between their numbers; its two ends always are. */
export function ticksThatFit(width: number, label: (t: number) => string, size: number, gap = 8): number[] {
  const start = (t: number, wide: number) => (t === 0 ? 0 : t === 1 ? width - wide : t * width - wide / 2);
  const fits = (ticks: number[]) => {
    const spans = ticks.map((t) => {
      const wide = textWidth(label(t), size);
      return [start(t, wide), start(t, wide) + wide];
    });
    return spans.every(([from], index) => index === 0 || from - spans[index - 1][1] >= gap);
  };
  return TICKS.find(fits) ?? TICKS[TICKS.length - 1];
}

/** A bar from zero to the scale's end, with the numbers that places on it stand for. */
export function legend(svg: Svg | Group, x: number, y: number, width: number, scale: Scale, colour: (t: number) => string, theme: Theme): void {
  const group = svg.append("g").attr("transform", `translate(${x},${y})`).attr("class", "legend").attr("data-top", scale.top);
  const steps = 48;
  const at = (t: number) => (scale.signed ? 2 * t - 1 : t);
  for (let step = 0; step < steps; step++) {
    group.append("rect").attr("x", (step * width) / steps).attr("width", width / steps + 0.5).attr("height", 8).attr("fill", colour(at((step + 0.5) / steps)));
  }
  group.append("rect").attr("width", width).attr("height", 8).attr("fill", "none").attr("stroke", theme.line);
  const label = (t: number) => number(valueAt(scale, at(t)), scale.share);
  for (const t of ticksThatFit(width, label, 10)) {
    group.append("text").attr("x", t * width).attr("y", 20).attr("font-size", 10).attr("fill", theme.muted)
      .attr("text-anchor", t === 0 ? "start" : t === 1 ? "end" : "middle").text(label(t));
  }
}
