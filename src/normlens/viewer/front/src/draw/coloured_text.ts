/** A text whose tokens are coloured by signed numbers: lines broken as in a text, numbers below where there is room. */
import { readableOn, type Theme } from "../colour";
import { hint, type Item } from "../axis";
import { position, type Scale } from "../scale";
import { fit, textWidth } from "../text";
import { signed } from "../terms";
import { picture } from "./svg";

/** Up to so many tokens their numbers stand below them; in a longer text they would drown it. */
const NUMBERED = 48;

export interface TextOptions {
  name: string;
  width: number;
  items: Item[];
  /** Before which items a space stands. */
  spaces: boolean[];
  /** Row and column of items that are patches: they stand as in their image. */
  cells: ([number, number] | null)[];
  values: number[];
  scale: Scale;
  colour: (t: number) => string;
  theme: Theme;
  found: Set<number>;
  /** The item that is explained, or -1. */
  marked: number;
  hover: (index: number) => void;
  leave: () => void;
  click: (index: number) => void;
}

export interface DrawnText {
  node: SVGSVGElement;
  highlight: (index: number) => void;
}

interface Place {
  x: number;
  y: number;
  width: number;
  text: string;
  /** The height of a patch; a token is as high as its line. */
  height?: number;
}

/** The side of a patch in a row of so many. */
const MOST_SIDE = 26;

/** Where each item stands: a space before what begins a word, a new line after a line break. */
export function placed(items: Item[], spaces: boolean[], numbers: string[] | null, width: number, size: number, line: number, cells: ([number, number] | null)[] = []): { places: Place[]; height: number } {
  const places: Place[] = [];
  let x = 0;
  let y = 0;
  const columns = Math.max(1, ...cells.map((cell) => (cell ? cell[1] + 1 : 0)));
  const side = Math.max(4, Math.min(MOST_SIDE, Math.floor(width / columns)));
  let top: number | null = null;
  let bottom = 0;
  items.forEach((item, index) => {
    const cell = cells[index];
    if (cell) {
      const before = cells[index - 1];
      if (top === null || (before && before[0] > cell[0])) {
        top = top === null ? (x > 0 ? y + line : y) : bottom + 8;
        bottom = top;
      }
      places.push({ x: cell[1] * side, y: top + cell[0] * side, width: side, text: "", height: side });
      bottom = Math.max(bottom, top + (cell[0] + 1) * side);
      return;
    }
    if (top !== null) {
      x = 0;
      y = bottom + 6;
      top = null;
    }
    const text = fit(item.text, width - 12, size);
    const wide = Math.min(width, Math.max(textWidth(text, size), numbers ? textWidth(numbers[index], 9.5) : 0) + 8);
    const previous = items[index - 1];
    const broken = previous && /[\u21b5\n]$/.test(previous.text);
    const from = x === 0 ? 0 : x + (spaces[index] ? 5 : 1);
    if (broken || (x > 0 && from + wide > width)) {
      x = 0;
      y += line;
    } else x = from;
    places.push({ x, y, width: wide, text });
    x += wide;
  });
  return { places, height: top === null ? y + line : bottom };
}

export function colouredText(options: TextOptions): DrawnText {
  const { items, values, theme } = options;
  const size = items.length <= 160 ? 15 : items.length <= 1000 ? 13 : 11;
  const numbers = items.length <= NUMBERED ? values.map(signed) : null;
  const tall = Math.round(1.55 * size);
  const line = tall + (numbers ? 20 : 6);
  const { places, height } = placed(items, options.spaces, numbers, options.width - 4, size, line, options.cells);
  const toLeft = items.filter((item) => /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/.test(item.text)).length > items.length / 2;
  const svg = picture(options.width, height + 4, options.name);
  const body = svg.append("g").attr("transform", "translate(2,2)");
  const groups = places.map((place, index) => {
    const value = values[index];
    const fill = options.colour(position(options.scale, value));
    const x = toLeft ? options.width - 4 - place.x - place.width : place.x;
    const group = body.append("g").attr("class", "term").attr("data-index", index).attr("data-value", value).attr("transform", `translate(${x.toFixed(1)},${place.y})`)
      .attr("cursor", "pointer")
      .on("pointerenter", () => options.hover(index)).on("pointerleave", () => options.leave()).on("click", () => options.click(index));
    const found = options.found.has(index);
    group.append("rect").attr("class", "ground").attr("width", place.width).attr("height", place.height ?? tall).attr("rx", place.height ? 0 : 4).attr("fill", fill)
      .attr("stroke", found ? theme.found : index === options.marked ? theme.ink : "none").attr("stroke-width", found ? 2 : 1.4)
      .attr("stroke-dasharray", !found && index === options.marked ? "3 2" : null);
    group.append("text").attr("x", place.width / 2).attr("y", tall / 2).attr("dy", "0.35em").attr("text-anchor", "middle").attr("font-size", size)
      .attr("fill", readableOn(fill)).text(place.text);
    if (numbers && !place.height) {
      group.append("text").attr("class", "number").attr("x", place.width / 2).attr("y", tall + 11).attr("text-anchor", "middle").attr("font-size", 9.5)
        .attr("font-variant-numeric", "tabular-nums").attr("fill", theme.muted).text(numbers[index]);
    }
    group.append("title").text(`${hint(items[index])}\n${signed(value)}`);
    return group;
  });
  const ring = body.append("rect").attr("class", "ring").attr("fill", "none").attr("rx", 5).attr("stroke", theme.ink).attr("stroke-width", 2).attr("pointer-events", "none").attr("visibility", "hidden");
  return {
    node: svg.node()!,
    highlight: (index) => {
      if (index < 0) {
        ring.attr("visibility", "hidden");
        return;
      }
      ring.attr("visibility", "visible").attr("transform", groups[index].attr("transform")).attr("x", -1).attr("y", -1).attr("width", places[index].width + 2).attr("height", (places[index].height ?? tall) + 2);
    },
  };
}
