/** How one number came about: its exact edges and states, signed, from the inputs to the output. */
import { linkHorizontal } from "d3-shape";
import { find, hint, type Item } from "../axis";
import { h } from "../dom";
import { picture } from "../draw/svg";
import type { Site } from "../grid";
import { number } from "../scale";
import { edgesOf, ofItems, outputOf, readTerms, signed, strongestLine } from "../terms";
import { fit, shorten, textWidth, visible } from "../text";
import { labels, type Cell, type Context, type Shown } from "./context";
import { signs } from "./explain";

const MOST_LINES = 900;
/** Without a threshold of the reader's: this part of the strongest edge. */
const PART = 0.015;
/** In a longer text, positions without a line are folded away. */
const UNFOLDED = 40;

interface Line {
  /** Place of the layer among the site's layers. */
  layer: number;
  /** Places of items; `from` -1 is the source text, for what enters by cross-attention. */
  from: number;
  to: number;
  value: number;
  kind: "edge" | "straight" | "source";
}

/** What was kept and what was not, among lines of one kind. */
export interface Cut {
  drawn: number;
  count: number;
  sum: number;
  absolute: number;
  all: number;
}

/** What a threshold leaves out of all lines that there are: how many, what they add up to, and their part of all absolute ones. */
export function leftOut(values: number[], all: { count: number; sum: number; absolute: number }): Cut {
  return {
    drawn: values.length,
    count: Math.max(0, all.count - values.length),
    sum: all.sum - values.reduce((a, b) => a + b, 0),
    absolute: Math.max(0, all.absolute - values.reduce((a, b) => a + Math.abs(b), 0)),
    all: all.absolute,
  };
}

function said(what: string, cut: Cut, least?: number): string {
  const total = cut.drawn + cut.count;
  if (!total) return `No ${what}`;
  if (!cut.count) return `All ${total.toLocaleString("en")} ${what} drawn`;
  return `${cut.drawn.toLocaleString("en")} of ${total.toLocaleString("en")} ${what} drawn${least === undefined ? "" : `, those of at least ${number(least)}`}; the ${cut.count.toLocaleString("en")} left out add up to ${signed(cut.sum)} and are ${number(cut.absolute / (cut.all || 1), true)} of the absolute sum of all`;
}

export function drawExact(context: Context): Shown {
  const { site, state } = context;
  const terms = site.data.terms!;
  const one = state.choices.edges === "one";
  const missing = !terms.edges || !terms.states || !terms.edges.straight
    ? 'The flow is drawn from the exact edges and states of this number, and they were not kept: ask for them with explain(…, parts=["states", "edges"]).'
    : site.steps > 1 && state.step === 0 ? "Edges are drawn for one step at a time: choose a step." : null;
  if (missing) return { element: h("p", { class: "message" }, missing), pictures: [], caption: "", table: { columns: [], rows: () => [] }, focus: () => undefined };
  return drawLines(context, terms.edges!.straight!.shape![1], one);
}

function drawLines(context: Context, depth: number, one: boolean): Shown {
  const { site, state, theme, document } = context;
  const question = document.explanation!;
  const terms = site.data.terms!;
  const step = state.step;
  const items = context.key;
  const layers = site.data.layers;
  const tokens = site.keys;
  const place = new Map<number, number>();
  items.forEach((item, index) => item.members.forEach((member) => place.set(member, index)));
  const whole = place.size === tokens;

  // ---- nodes and lines, joined to items ----
  const states = readTerms(terms.states!, step);
  const straight = readTerms(terms.edges!.straight!, step);
  const node = layers.map((_, layer) => ofItems(states, items, layer * tokens));
  node.push(ofItems(readTerms(terms.edges!.arrived!, step), items));
  const stored = edgesOf(site, step, one ? "heads" : "summed")!;
  const chosenLayer = layers.indexOf(state.layer);
  const chosenHead = Math.max(0, site.data.heads.indexOf(state.head));
  const joined = new Map<string, Line>();
  const own = new Float64Array(depth * items.length);
  for (const edge of stored.entries) {
    if (one && (edge.layer !== chosenLayer || edge.head !== chosenHead)) continue;
    const to = place.get(edge.query);
    const from = place.get(edge.key);
    if (to === undefined || from === undefined) continue;
    if (to === from && !one) {
      own[edge.layer * items.length + to] += edge.value; // between the tokens of a word
      continue;
    }
    const name = `${edge.layer},${to},${from}`;
    const known = joined.get(name);
    if (known) known.value += edge.value;
    else joined.set(name, { layer: edge.layer, from, to, value: edge.value, kind: "edge" });
  }
  const edges = [...joined.values()];
  const ways: Line[] = [];
  layers.forEach((_, layer) => ofItems(straight, items, layer * tokens).forEach((value, index) => {
    const all = value + own[layer * items.length + index];
    if (all !== 0) ways.push({ layer, from: index, to: index, value: all, kind: "straight" });
  }));
  const source: Line[] = [];
  if (terms.entered) {
    const entered = readTerms(terms.entered, step);
    layers.forEach((_, layer) => ofItems(entered, items, layer * tokens).forEach((value, index) => {
      if (value !== 0) source.push({ layer, from: -1, to: index, value, kind: "source" });
    }));
  }

  // ---- the threshold, and what it leaves out ----
  const top = one ? edges.reduce((most, edge) => Math.max(most, Math.abs(edge.value)), 0) || 1 : strongestLine(site, step);
  const least = state.min ?? PART * top;
  const strongest = [...edges, ...source].filter((line) => Math.abs(line.value) >= least).sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const kept = strongest.slice(0, MOST_LINES);
  const cut = strongest.length > MOST_LINES ? Math.abs(kept[kept.length - 1].value) : least;
  const keptWays = one ? ways : ways.filter((line) => Math.abs(line.value) >= cut);
  const complete = (list: Line[]) => ({ count: list.length, sum: list.reduce((sum, line) => sum + line.value, 0), absolute: list.reduce((sum, line) => sum + Math.abs(line.value), 0) });
  // Joined to words, or of one head, lines are counted as they are joined; otherwise those that the page does not store count too.
  const exactTotals = !one && state.level === "token" && whole;
  const edgeCut = leftOut(kept.filter((line) => line.kind === "edge").map((line) => line.value), exactTotals ? stored.all : complete(edges));
  const sourceCut = leftOut(kept.filter((line) => line.kind === "source").map((line) => line.value), complete(source));
  const wayCut = leftOut(keptWays.map((line) => line.value), complete(ways));

  // ---- places ----
  const names = labels(items);
  const pinned = find(items, state.query);
  const alive = new Set([...kept, ...keptWays].flatMap((line) => [line.from, line.to]));
  node.forEach((row) => row.forEach((value, index) => Math.abs(value) >= cut && alive.add(index)));
  const rows = [...items.keys()].filter((index) => items.length <= UNFOLDED || alive.has(index) || index === pinned || context.found.columns.has(index));
  const rowOf = new Map(rows.map((index, row) => [index, row]));
  const count = rows.length + (source.length ? 1 : 0);
  const gap = Math.min(26, Math.max(8, 680 / Math.max(1, count)));
  const size = Math.min(12.5, Math.max(9, gap - 2));
  const label = Math.min(context.width < 500 ? 70 : 130, Math.max(30, ...names.map((text) => textWidth(text.slice(0, 40), size))) + 6);
  const numbers = 52;
  const width = Math.max(320, Math.min(context.width - 34, 1180));
  const left = label + numbers;
  const right = site.data.name === "encoder" && terms.left ? 124 : label + 14;
  const head = 30;
  const x = (level: number) => left + 14 + (level / depth) * (width - left - right - 22);
  const y = (index: number) => head + ((rowOf.get(index) ?? rows.length) + 0.5) * gap;
  const { above, below } = signs(question, step);
  const output = shorten(visible(outputOf(question, step)), 40);
  const svg = picture(width, head + gap * count + 10, `Flow to ${output} through ${depth} layers: ${kept.length} edges; the table holds the numbers`);
  const room = (width - left - right) / depth;
  const every = Math.max(1, Math.ceil(24 / room));
  const write = (text: string, at: number, down: number, anchor: "start" | "middle" | "end", px: number, fill: string) =>
    svg.append("text").attr("x", at).attr("y", down).attr("dy", "0.34em").attr("text-anchor", anchor).attr("font-size", px).attr("fill", fill).text(text);
  write("input", x(0), 10, "middle", 10, theme.muted);
  layers.forEach((layer, index) => {
    if ((depth - 1 - index) % every === 0) write(room < 56 ? `${layer}` : `layer ${layer}`, x(index + 1), 10, "middle", 10, theme.muted);
  });
  for (let level = 0; level <= depth; level++) svg.append("line").attr("x1", x(level)).attr("x2", x(level)).attr("y1", head).attr("y2", head + gap * rows.length).attr("stroke", theme.line);

  // ---- lines and nodes ----
  const colour = (value: number) => theme.family[value < 0 ? "weight" : "norm"];
  const largest = Math.max(top, ...ways.map((line) => Math.abs(line.value)));
  const thick = Math.min(18, Math.max(6, gap * 0.8));
  const curve = linkHorizontal<unknown, { source: [number, number]; target: [number, number] }, [number, number]>().x((p) => p[0]).y((p) => p[1]);
  const lines = svg.append("g").attr("fill", "none");
  const told = h("p", { class: "line", "data-part": "line" }, "Point at a line or a node for its number.");
  const name = (index: number) => (index < 0 ? "the source" : shorten(items[index].text, 24));
  for (const line of [...keptWays, ...[...kept].reverse()]) {
    const how = line.kind === "straight" ? `${name(line.to)} stays, past layer ${layers[line.layer]}` : `${name(line.from)} → ${name(line.to)} in layer ${layers[line.layer]}${one ? `, head ${state.head}` : ""}`;
    lines.append("path").attr("class", `line-${line.kind}`).attr("data-layer", layers[line.layer]).attr("data-from", line.from).attr("data-to", line.to).attr("data-value", line.value)
      .attr("d", curve({ source: [x(line.layer), y(line.from)], target: [x(line.layer + 1), y(line.to)] })!)
      .attr("stroke", colour(line.value)).attr("stroke-width", Math.max(0.8, (line.kind === "source" ? 0.5 : 1) * thick * Math.abs(line.value) / largest).toFixed(2))
      .attr("stroke-opacity", ((line.kind === "straight" ? (one ? 0.12 : 0.3) : 0.45) + (line.kind === "straight" ? 0 : 0.5 * Math.sqrt(Math.min(1, Math.abs(line.value) / top)))).toFixed(3))
      .attr("stroke-dasharray", line.kind === "source" ? "5 3" : null)
      .on("pointerenter", () => told.replaceChildren(`${how}: ${signed(line.value)}`)).append("title").text(`${how}: ${signed(line.value)}`);
  }
  node.forEach((row, level) => row.forEach((value, index) => {
    if (Math.abs(value) < cut) return;
    const when = level < depth ? `entering layer ${layers[level]}` : `after layer ${layers[depth - 1]}`;
    svg.append("circle").attr("class", "node").attr("cx", x(level)).attr("cy", y(index)).attr("r", Math.max(1, 0.55 * thick * Math.sqrt(Math.abs(value) / largest)).toFixed(2)).attr("fill", colour(value))
      .on("pointerenter", () => told.replaceChildren(`${name(index)}, ${when}: ${signed(value)}`)).append("title").text(`${name(index)}, ${when}: ${signed(value)}`);
  }));

  // ---- names: those that gave most first, others where there is room ----
  const inputs = node[0];
  const ends = site.data.name === "encoder" && terms.left ? ofItems(readTerms(terms.left, step), items) : node[depth];
  const columnOf = (values: number[], at: number, anchor: "start" | "end", valueAt: number | null, kind: string) => {
    const taken: number[] = [];
    for (const index of [...rows].sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]))) {
      if (taken.some((other) => Math.abs(y(other) - y(index)) < 10.5)) continue;
      taken.push(index);
      const matters = Math.abs(values[index]) >= cut;
      const found = context.found.columns.has(index);
      write(fit(names[index], label - 4, size), at, y(index), anchor, size, found ? theme.found : matters ? theme.ink : theme.muted).attr("font-weight", found || index === pinned ? 700 : 400).append("title").text(hint(items[index]));
      if (valueAt !== null && (matters || items.length <= UNFOLDED)) write(signed(values[index]), valueAt, y(index), "end", 10.5, theme.muted).attr("class", kind).attr("data-index", index).attr("font-variant-numeric", "tabular-nums");
    }
  };
  columnOf(inputs, left - numbers, "end", left - 2, "input-value");
  if (site.data.name === "encoder" && terms.left) {
    write("to the decoder", width, 10, "end", 10, theme.muted);
    ends.forEach((value, index) => rowOf.has(index) && Math.abs(value) >= cut && gap >= 10.5 && write(signed(value), width - 2, y(index), "end", 10.5, theme.muted).attr("class", "end-value").attr("data-index", index));
  } else columnOf(ends, width - right + 4, "start", null, "end-value");
  if (source.length) write("source", left - numbers, y(-1), "end", size, theme.muted);

  const chosen = one ? `the edges of layer ${state.layer}, head ${state.head}` : "edges of all heads added";
  const notes = [
    `${said(state.level === "word" ? "edges between words" : "edges", edgeCut, cut)}.`,
    ...(stored.all.kept < stored.all.count ? [`This page holds the strongest ${stored.all.kept.toLocaleString("en")} of ${stored.all.count.toLocaleString("en")} edges${exactTotals ? ", and those that it does not hold are counted above" : "; those that it does not hold are not counted above"}.`] : []),
    ...(source.length ? [`Entering from the source by cross-attention (dashed, half as wide): ${said("lines", sourceCut)}.`] : []),
    `Straight lines are what stays at a position: its state less the edges that lead elsewhere. ${said("of them", wayCut).replace(" of them drawn", " drawn")}. ${state.level === "word" ? "Edges inside of a word are with them. " : ""}A value vector's bias goes with its edge${question.attention === "integrated" ? ", and what acts through attention scores is in the straight lines" : ""}.`,
    ...(rows.length < items.length ? [`${(items.length - rows.length).toLocaleString("en")} positions without a line or a node of this size are folded away.`] : []),
    ...(whole ? [] : ["Positions outside the span are not shown."]),
  ];
  return {
    element: h("div", { class: "flow" }, h("figure", { class: "panel" },
      h("figcaption", {}, h("h2", {}, "How ", h("code", { class: "token norm" }, output), ...(question.against !== null ? [" rather than ", h("code", { class: "token weight" }, shorten(visible(question.against), 40))] : []), " came about"),
        h("p", {}, `The exact terms of this number, ${chosen}: nodes are what each position's vector gave at the entrance of a layer, edges what attention carried between positions. Blue: ${above}; amber: ${below}.`),
        ...notes.map((note, index) => h("p", { class: "note", "data-part": index === 0 ? "note" : "more" }, note))),
      svg.node()!, told)),
    pictures: [{ title: `Flow to ${output}`, node: svg.node()! }],
    caption: `${site.data.title}; ${chosen}; blue ${above}, amber ${below}; ${notes[0]}`,
    table: {
      columns: ["kind", "layer", "query", "query_token", "key", "key_token", "value"],
      rows: () => [...edges, ...source, ...ways].sort((a, b) => a.layer - b.layer).map((line): Cell[] => [
        line.kind, layers[line.layer], items[line.to].position, items[line.to].raw, ...position(items, line.from), line.value,
      ]),
    },
    focus: () => undefined,
  };
}

function position(items: Item[], index: number): [Cell, Cell] {
  return index < 0 ? ["", ""] : [items[index].position, items[index].raw];
}

/** Which sites have a flow of their own: those that read a text. */
export function hasFlow(site: Site["data"]): boolean {
  return site.terms !== undefined && site.name !== "cross";
}
