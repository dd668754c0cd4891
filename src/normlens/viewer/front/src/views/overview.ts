/** Every layer and head at a glance: a grid of small maps, each of which opens. */
import { ramp } from "../colour";
import { h } from "../dom";
import { byteOf, colourBytes } from "../draw/matrix";
import { legend, picture } from "../draw/svg";
import { largest, shown, type Grid } from "../grid";
import { position, type Scale } from "../scale";
import { textWidth } from "../text";
import type { Measure } from "../types";
import { colourOf, scaleOf, hasMaps, ownOf, topOf, type Cell, type Own, type Context, type Shown, type ViewModule } from "./context";

interface Thumb {
  layer: number;
  column: number;
  measure: Measure;
  head: number;
}

export const overview: ViewModule = {
  name: "overview",
  title: "Overview",
  available: hasMaps,
  controls: (_, site) => ["over", "scale", "curve", "shared", ...(site.name === "cross" ? [] : (["own"] as const))],
  draw,
};

function draw(context: Context): Shown {
  const { site, state, theme } = context;
  const share = state.scale === "row";
  const perHead = state.over !== "layers";
  const layered = site.measures().filter((measure) => !site.text(measure).perHead);
  const columns = perHead ? site.data.heads.length : layered.length;
  // On a phone layers are numbers under one heading, so that twelve heads stand side by side.
  const narrow = context.width < 460;
  const left = narrow ? 38 : 58;
  const gap = narrow ? 3 : 5;
  // Deep models: smaller maps, so that the whole stack can be taken in.
  const roomy = Math.max(44, 1500 / site.data.layers.length);
  const cellIn = (room: number) => Math.max(narrow ? 16 : 20, Math.min(perHead ? 96 : 132, roomy, room / Math.max(1, columns) - gap));
  const room = context.width - 40 - left;
  const namesAt = (side: number) => Array.from({ length: columns }, (_, column) => (!perHead ? site.text(layered[column]).short : side < 42 ? String(site.data.heads[column]) : `head ${site.data.heads[column]}`));
  const size = cellIn(room) < 42 ? 9 : 11;
  const longest = Math.max(0, ...namesAt(cellIn(room)).map((name) => textWidth(name, size)));
  // Names that are wider than their column are slanted, and the last one needs room to its right.
  const slanted = longest > cellIn(room) + gap - 6;
  const cell = slanted ? cellIn(room - 0.8 * longest) : cellIn(room);
  const names = namesAt(cell);
  const top = 26 + (slanted ? 0.6 * longest : 0);
  const layers = site.data.layers;
  const ratio = context.query.length / Math.max(1, context.key.length);
  const tall = Math.max(0.4 * cell, Math.min(1.6 * cell, cell * ratio));
  const bottom = top + layers.length * (tall + gap) + 8;
  const width = Math.max(narrow ? 280 : 320, left + columns * (cell + gap) + (slanted ? 0.8 * longest : 4));
  const thumbs: Thumb[] = layers.flatMap((_, layer) =>
    Array.from({ length: columns }, (_, column) => ({ layer, column, measure: perHead ? (state.over as Measure) : layered[column], head: perHead ? column : 0 })));
  const svg = picture(width, bottom + 30, `Overview: ${layers.length} layers by ${columns} ${perHead ? "heads" : "measures"}`).attr("role", "group");
  const title = perHead ? site.text(state.over as Measure).name : "All layer measures";

  const tops = new Map<Measure, number>();
  const sharedTop = (measure: Measure) => {
    if (!tops.has(measure)) tops.set(measure, site.top(measure, share, context.query, context.key, state.own !== "shown"));
    return tops.get(measure)!;
  };
  if (perHead) {
    if (state.shared) legend(svg, left, bottom, Math.min(280, width - left - 8), scaleOf(context, state.over as Measure, sharedTop(state.over as Measure)), colourOf(context, state.over as Measure), theme);
    else svg.append("text").attr("x", left).attr("y", bottom + 14).attr("font-size", 10).attr("fill", theme.muted).text("each small map ends at its own largest value: compare patterns, not strengths");
  } else {
    svg.append("text").attr("x", left).attr("y", bottom + 14).attr("font-size", 10).attr("fill", theme.muted)
      .text(state.shared ? "each column ends at its largest value over all layers" : "each small map ends at its own largest value: compare patterns, not strengths");
  }
  names.forEach((name, column) => {
    const [x, y] = [left + column * (cell + gap) + cell / 2, top - 11];
    const text = svg.append("text").attr("class", "column-label").attr("font-size", size).attr("fill", theme.muted).text(name);
    if (slanted) text.attr("transform", `translate(${x},${y + 4}) rotate(-40)`);
    else text.attr("x", x).attr("y", y).attr("text-anchor", "middle");
  });
  if (narrow) svg.append("text").attr("x", left - 8).attr("y", top - 11).attr("text-anchor", "end").attr("font-size", 9).attr("fill", theme.muted).text("layer");
  layers.forEach((layer, index) => {
    svg.append("text").attr("x", left - 8).attr("y", top + index * (tall + gap) + tall / 2).attr("dy", "0.34em").attr("text-anchor", "end").attr("font-size", 11).attr("fill", theme.muted).text(narrow ? String(layer) : `layer ${layer}`);
  });

  const open = (thumb: Thumb) => {
    const patch = { view: "compare" as const, layer: layers[thumb.layer] };
    if (!perHead) context.update({ ...patch, b: thumb.measure });
    else context.update({ ...patch, head: site.data.heads[thumb.head], a: site.data.maps.alpha ? "alpha" : state.a, b: site.data.maps.af_norm ? "af_norm" : thumb.measure });
  };
  const isChosen = (thumb: Thumb) => layers[thumb.layer] === state.layer && (perHead ? site.data.heads[thumb.head] === state.head : thumb.measure === state.b);
  const nodes = thumbs.map((thumb) => {
    const chosen = isChosen(thumb);
    const group = svg.append("g").attr("transform", `translate(${left + thumb.column * (cell + gap)},${top + thumb.layer * (tall + gap)})`)
      .attr("class", "thumb").attr("data-layer", layers[thumb.layer]).attr("data-column", thumb.column + 1)
      .attr("role", "button").attr("tabindex", chosen ? 0 : -1).attr("data-chosen", chosen ? "" : null).attr("cursor", "pointer")
      .attr("aria-label", `Open layer ${layers[thumb.layer]}, ${perHead ? `head ${site.data.heads[thumb.head]}` : site.text(thumb.measure).name}`)
      .on("click", () => open(thumb))
      .on("keydown", (event: KeyboardEvent) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        open(thumb);
      });
    group.append("rect").attr("width", cell).attr("height", tall).attr("fill", ramp(site.text(thumb.measure).family, theme.name)(0)).attr("stroke", chosen ? theme.ink : theme.line).attr("stroke-width", chosen ? 2 : 1);
    return group;
  });

  // What a small map depends on beside its layer, head and measure; drawn ones are kept while it stays.
  const key = [state.level, share, state.curve, state.own, state.shared, theme.name, Math.round(cell), context.query[0].position, context.query.length, context.key[0].position, context.key.length].join();
  if (site.thumbnails.get("key") !== key) site.thumbnails.clear();
  site.thumbnails.set("key", key);
  // Layer by layer, so that a large page answers while it fills.
  let layer = 0;
  const step = () => {
    if (layer >= layers.length || (layer > 0 && !svg.node()!.isConnected)) return;
    thumbs.forEach((thumb, index) => {
      if (thumb.layer !== layer || (perHead && site.absent(thumb.layer, thumb.head))) return;
      const name = [thumb.measure, thumb.layer, thumb.head, key].join();
      let address = site.thumbnails.get(name);
      if (!address) {
        const grid = site.grid(thumb.measure, thumb.layer, thumb.head, context.query, context.key);
        const end = state.shared ? sharedTop(thumb.measure) : topOf(context, thumb.measure, grid);
        address = thumbnail(grid, scaleOf(context, thumb.measure, end), colourOf(context, thumb.measure), 2 * cell, site.causal, ownOf(context, grid, end));
        site.thumbnails.set(name, address);
      }
      nodes[index].append("image").attr("href", address)
        .attr("width", cell).attr("height", tall).attr("preserveAspectRatio", "none").attr("image-rendering", context.key.length < cell ? "pixelated" : "auto").attr("pointer-events", "none");
    });
    layer++;
    if (layer < layers.length) setTimeout(step);
    else svg.attr("data-complete", "true");
  };
  step();

  return {
    element: h("div", { class: "overview" }, h("figure", { class: "panel" },
      h("figcaption", {}, h("h2", {}, title), h("p", {}, perHead ? `${site.text(state.over as Measure).says}; choose one to open it` : "one column for each measure; choose one to open it"),
        site.name === "cross" || state.own === "shown" ? null : h("p", { class: "note", "data-part": "own" }, `Own part (what a position gives to itself) ${state.own === "faded" ? "in grey" : "not drawn"}; scales end at the largest of the rest.`),
        ...Object.entries(site.data.omitted).map(([measure, why]) => h("p", { class: "note" }, `${site.text(measure as Measure).name} ${why}.`))),
      h("div", { class: "scroll" }, svg.node()!))),
    pictures: [{ title, node: svg.node()! }],
    caption: `${site.data.title}, all layers; ${share ? "shares of each row" : "absolute values"}`,
    table: {
      columns: ["layer", perHead ? "head" : "measure", "largest", "largest_row_share", "query", "query_token", "key", "key_token", ...(site.name === "cross" ? [] : ["mean_self_share"])],
      rows: () => thumbs.map((thumb) => {
        const grid = site.grid(thumb.measure, thumb.layer, thumb.head, context.query, context.key);
        let best = 0;
        for (let i = 1; i < grid.values.length; i++) if (Math.abs(grid.values[i]) > Math.abs(grid.values[best])) best = i;
        const row = Math.floor(best / grid.columns);
        const column = best % grid.columns;
        let self = 0;
        for (let i = 0; i < Math.min(grid.rows, grid.columns); i++) self += shown(grid, i, i, true) / grid.rows;
        const out: Cell[] = [layers[thumb.layer], perHead ? site.data.heads[thumb.head] : thumb.measure, grid.values[best], largest(grid, true),
          context.query[row].position, context.query[row].raw, context.key[column].position, context.key[column].raw];
        return site.name === "cross" ? out : [...out, self];
      }),
    },
    focus: () => undefined,
    open: () => {
      const thumb = thumbs.find((one) => isChosen(one));
      if (thumb) open(thumb);
    },
  };
}

/** A map as a small image; where cells outnumber pixels each pixel shows the largest, so that no peak is lost. */
export function thumbnail(grid: Grid, scale: Scale, colour: (t: number) => string, pixels: number, causal: boolean, own?: Own): string {
  const step = Math.max(1, Math.ceil(Math.max(grid.rows, grid.columns) / pixels));
  const columns = Math.ceil(grid.columns / step);
  const rows = Math.ceil(grid.rows / step);
  const peak = new Float32Array(columns * rows);
  const ownPeak = new Float32Array(columns * rows);
  for (let row = 0; row < grid.rows; row++) {
    const base = Math.floor(row / step) * columns;
    for (let column = 0; column < grid.columns; column++) {
      const place = base + Math.floor(column / step);
      const value = shown(grid, row, column, scale.share);
      if (own?.is(row, column)) {
        ownPeak[place] = Math.max(ownPeak[place], Math.abs(value));
        continue;
      }
      if (Math.abs(value) > Math.abs(peak[place])) peak[place] = value;
    }
  }
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d")!;
  const image = context.createImageData(columns, rows);
  const bytes = colourBytes(colour);
  const greys = own ? colourBytes(own.colour) : bytes;
  for (let place = 0; place < peak.length; place++) {
    if (causal && place % columns > Math.floor(place / columns)) continue;
    // A pixel of one cell is the own part; one of many shows the rest, which is what a small map is looked at for.
    const alone = own && ownPeak[place] > 0 && (step === 1 || peak[place] === 0);
    if (alone && own.mode === "hidden") continue;
    const [table, code] = alone ? [greys, byteOf(own.top > 0 ? ownPeak[place] / own.top : 0)] : [bytes, byteOf(position(scale, peak[place]))];
    image.data.set([table[code], table[code + 1], table[code + 2], 255], 4 * place);
  }
  context.putImageData(image, 0, 0);
  return canvas.toDataURL("image/png");
}
