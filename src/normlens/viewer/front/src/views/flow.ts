/** From one output token back through all layers to the inputs; of an explanation, its exact edges and states. */
import { linkHorizontal } from "d3-shape";
import { find, hint, type Item } from "../axis";
import { h } from "../dom";
import { picture } from "../draw/svg";
import { flow as shares, type Edge } from "../paths";
import { number } from "../scale";
import { fit, shorten, textWidth } from "../text";
import type { Measure } from "../types";
import { labels, hasMaps, type Cell, type Context, type Shown, type ViewModule } from "./context";
import { drawExact, hasFlow } from "./exact_flow";
import { token } from "./readout";

const MOST_EDGES = 900;
const MEASURE: Measure = "attnresln_n";

export const flow: ViewModule = {
  name: "flow",
  title: "Flow",
  available: (site) => hasFlow(site) || (hasMaps(site) && site.name !== "cross"),
  controls: (state, site) => [
    "min",
    ...(hasFlow(site.data) && site.steps > 1 ? (["step"] as const) : []),
    ...(hasFlow(site.data) && state.choices.edges === "one" ? (["layer", "head"] as const) : []),
  ],
  choices: [
    {
      name: "edges", label: "Edges", when: (_, site) => hasFlow(site.data),
      options: [["all", "All heads", "edges added over heads, in every layer"], ["one", "One head", "the edges of one head in one layer"]],
    },
  ],
  draw: (context) => (hasFlow(context.site.data) ? drawExact(context) : draw(context)),
};

function draw(context: Context): Shown {
  const { site, state, theme } = context;
  const missing = !site.data.maps[MEASURE]
    ? "Flow is the product of the attnresln_n maps, and this run holds none: ask analyze for attnresln_n."
    : site.data.maps[MEASURE].signed ? "Flow is a product of shares, and a difference of two runs has none: open each run on its own." : null;
  if (missing) {
    return { element: h("p", { class: "message" }, missing), pictures: [], caption: "", table: { columns: [], rows: () => [] }, focus: () => undefined };
  }
  const items = context.query;
  const layers = site.data.layers;
  const depth = layers.length;
  const pinned = find(items, state.query);
  // The last token that is a word: an end mark or a full stop says less.
  const text = (item: Item) => site.data.query.words[item.members[0]] !== null;
  const lastWord = items.findLastIndex((item) => text(item) && /[\p{L}\p{N}]/u.test(item.text));
  const lastText = lastWord >= 0 ? lastWord : items.findLastIndex(text);
  const output = pinned >= 0 ? pinned : lastText >= 0 ? lastText : items.length - 1;
  const place = new Map<number, number>();
  items.forEach((item, index) => item.members.forEach((member) => place.set(member, index)));
  // The product runs over all tokens; words and spans are joined afterwards, so that no path is lost.
  const cut = state.min ?? 0.004 * Math.min(1, 24 / items.length);
  const words = state.level === "word";
  const all = shares(site, MEASURE, items[output].members, words ? 0.01 * cut : cut);
  const node = Array.from({ length: depth + 1 }, () => new Float64Array(items.length));
  all.shares.forEach((row, level) => row.forEach((value, index) => {
    const at = place.get(index);
    if (at !== undefined) node[level][at] += value;
  }));
  const joined = new Map<string, Edge>();
  for (const edge of all.edges) {
    const query = place.get(edge.query);
    const key = place.get(edge.key);
    if (query === undefined || key === undefined) continue;
    const name = `${edge.layer},${query},${key}`;
    const known = joined.get(name);
    if (known) known.share += edge.share;
    else joined.set(name, { layer: edge.layer, query, key, share: edge.share });
  }
  const edges = [...joined.values()].filter((edge) => edge.share >= cut).sort((a, b) => b.share - a.share);
  const kept = edges.slice(0, MOST_EDGES);
  const shownCut = edges.length > MOST_EDGES ? kept[kept.length - 1].share : cut;

  const names = labels(items);
  const step = Math.min(24, Math.max(5, 680 / items.length));
  const size = Math.min(12.5, Math.max(9, step - 2));
  const every = Math.max(1, Math.ceil(10.5 / step));
  const label = Math.min(context.width < 500 ? 70 : 130, Math.max(30, ...names.map((text) => textWidth(text.slice(0, 40), size))) + 6);
  const valueWidth = 52;
  const width = Math.max(320, Math.min(context.width - 34, 1180));
  const left = label + valueWidth;
  const right = label + 14;
  const top = 30;
  const x = (level: number) => left + 8 + (level / depth) * (width - left - right - 16);
  const y = (index: number) => top + (index + 0.5) * step;
  const svg = picture(width, top + step * items.length + 10, `Flow into ${shorten(items[output].text, 40)} through ${depth} layers`);
  const room = (width - left - right) / depth;
  const every2 = Math.max(1, Math.ceil(24 / room));
  svg.append("text").attr("x", x(0)).attr("y", 14).attr("text-anchor", "middle").attr("font-size", 10).attr("fill", theme.muted).text("input");
  layers.forEach((layer, index) => {
    if ((depth - 1 - index) % every2) return;
    svg.append("text").attr("x", x(index + 1)).attr("y", 14).attr("text-anchor", "middle").attr("font-size", 10).attr("fill", theme.muted).text(room < 56 ? `${layer}` : `layer ${layer}`);
  });
  for (let level = 0; level <= depth; level++) svg.append("line").attr("x1", x(level)).attr("x2", x(level)).attr("y1", top).attr("y2", top + step * items.length).attr("stroke", theme.line);
  const curve = linkHorizontal<unknown, { source: [number, number]; target: [number, number] }, [number, number]>().x((p) => p[0]).y((p) => p[1]);
  const colour = theme.family.norm;
  const thick = Math.min(18, Math.max(6, step * 0.8));
  const lines = svg.append("g").attr("fill", "none").attr("stroke", colour);
  for (const edge of [...kept].reverse()) {
    lines.append("path").attr("class", "edge").attr("data-layer", layers[edge.layer]).attr("data-query", edge.query).attr("data-key", edge.key).attr("data-share", edge.share)
      .attr("d", curve({ source: [x(edge.layer), y(edge.key)], target: [x(edge.layer + 1), y(edge.query)] })!)
      .attr("stroke-width", Math.max(0.8, thick * edge.share).toFixed(2)).attr("stroke-opacity", (0.25 + 0.7 * Math.sqrt(edge.share / kept[0].share)).toFixed(3));
  }
  for (let level = 0; level <= depth; level++) {
    node[level].forEach((value, index) => {
      if (value < cut) return;
      svg.append("circle").attr("cx", x(level)).attr("cy", y(index)).attr("r", Math.max(0.8, 0.5 * thick * Math.sqrt(value)).toFixed(2)).attr("fill", colour);
    });
  }
  const strongest = Math.max(...node[0]);
  // The input that holds most, unless the traced position holds it itself.
  const sink = node[0].reduce((best, value, index) => (index !== output && value > node[0][best] ? index : best), output === 0 ? Math.min(1, items.length - 1) : 0);
  const gathered = sink === output ? 0 : node[0][sink];
  // The inputs that matter most are written first; others where there is room left.
  const taken: number[] = [];
  const roomy = (index: number) => !taken.some((other) => Math.abs(other - index) * step < 10.5);
  [...items.keys()].sort((a, b) => node[0][b] - node[0][a]).slice(0, 40).forEach((index) => {
    if (roomy(index) && node[0][index] >= 0.0005) {
      taken.push(index);
      svg.append("text").attr("class", "input-share").attr("data-index", index).attr("x", left - 2).attr("y", y(index)).attr("dy", "0.34em").attr("text-anchor", "end").attr("font-size", 10.5)
        .attr("font-variant-numeric", "tabular-nums").attr("font-weight", node[0][index] > 0.5 * strongest ? 700 : 400).attr("fill", theme.muted).text(number(node[0][index], true));
    }
  });
  const write = (index: number, at: number, anchor: "start" | "end", bold: boolean, ink = theme.ink) =>
    svg.append("text").attr("x", at).attr("y", y(index)).attr("dy", "0.34em").attr("text-anchor", anchor).attr("font-size", size)
      .attr("fill", context.found.rows.has(index) ? theme.found : ink).attr("font-weight", bold || context.found.rows.has(index) ? 700 : 400).text(fit(names[index], label - 4, size));
  names.forEach((_, index) => {
    if (taken.includes(index)) write(index, left - valueWidth, "end", false);
    else if (roomy(index)) {
      taken.push(index);
      write(index, left - valueWidth, "end", false, theme.muted);
    }
    if ((index % every === 0 && (Math.abs(index - output) * step >= 10.5)) || index === output) write(index, width - right + 4, "start", index === output, index === output ? theme.ink : theme.muted);
    svg.append("rect").attr("class", "output-target").attr("data-index", index).attr("x", width - right).attr("y", y(index) - step / 2).attr("width", right).attr("height", step)
      .attr("fill", "transparent").attr("cursor", "pointer")
      .on("click", () => context.update({ query: items[index].members[0] }))
      .append("title").text(`${hint(items[index])}\nclick to trace it`);
  });
  const gaps = layers.length && layers[layers.length - 1] - layers[0] + 1 !== layers.length;
  return {
    element: h("div", { class: "flow" }, h("figure", { class: "panel norm" },
      h("figcaption", {}, h("h2", {}, "Where ", token(items[output]), " draws from, through all layers"),
        h("p", {}, "Product of the row-normalized ", site.text(MEASURE).name, " maps: every column of nodes sums to 100 %. Feed-forward blocks are not in it."),
        h("p", { class: "note", "data-part": "sink" }, "Products of maps accumulate attention sinks: a position that many layers draw a little from, often the first one or a special token, gathers more with every layer. Read this as where the vectors passed, not as what decided the output.",
          gathered > 0.3 ? ` Here ${number(gathered, true)} arrive at ${shorten(items[sink].text, 24)} (position ${items[sink].position}).` : ""),
        h("p", { class: "note", "data-part": "note" }, `${kept.length.toLocaleString("en")} of ${all.total.toLocaleString("en")} steps between ${words ? "tokens, joined to words," : "positions"} drawn: ≥ ${number(shownCut, true)}. Choose an output token on the right, or with j and k.${place.size < site.keys ? " Positions outside the span take part but are not shown." : ""}${gaps ? " Layers without an attention site are passed over." : ""}`)),
      svg.node()!)),
    pictures: [{ title: `Flow into ${shorten(items[output].text, 40)} (position ${items[output].position})`, node: svg.node()! }],
    caption: `${site.data.title}; product of the row-normalized ${site.text(MEASURE).name} maps, feed-forward blocks not in it; steps ≥ ${number(shownCut, true)} drawn`,
    table: {
      columns: ["after_layer", "key", "key_token", "share_of_output"],
      rows: () => node.flatMap((row, level) => items.map((item, index): Cell[] => [level === 0 ? 0 : layers[level - 1], item.position, item.raw, row[index]])),
    },
    focus: () => undefined,
  };
}
