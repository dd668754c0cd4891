/** What made one number of the output: the text coloured by signed terms, heads, layers, and what adds up. */
import { find, hint, type Item } from "../axis";
import { opposed } from "../colour";
import { h, type Child } from "../dom";
import { colouredText, type DrawnText } from "../draw/coloured_text";
import { ledger, type Row } from "../draw/ledger";
import { matrix, type Drawn } from "../draw/matrix";
import { legend, picture } from "../draw/svg";
import type { Site } from "../grid";
import { number, type Scale } from "../scale";
import { biasesOf, ofItems, outputOf, probabilityOf, readTerms, signed, valueOf } from "../terms";
import { shorten, visible } from "../text";
import type { Question } from "../types";
import { labels, type Cell, type Context, type Shown, type ViewModule } from "./context";
import { token } from "./readout";

/** So many tokens are named where terms are added up; the others stand together. */
const NAMED = 10;
/** Among more positions than these, the one that is explained holds so much that the others would not be seen by layer. */
const MANY = 24;
const BLOCKS: Record<string, string> = { attention: "attention", cross_attention: "cross-attention", mixer: "mixer", feed_forward: "feed-forward", head: "output" };
/** The name of a side: of a model with two sides source and target, elsewhere that of its tower. */
const sideOf = (name: string, sites: ReadonlyMap<string, unknown>): string => (sites.has("encoder") && ({ encoder: "source", decoder: "target" })[name]) || name;
const GRID_NAMES: Record<string, string> = { encoder: "Encoder heads", decoder: "Decoder heads", cross: "Cross-attention heads", vision: "Image heads", audio: "Sound heads", text: "Text heads" };
const gridName = (name: string): string => GRID_NAMES[name] ?? `${name} heads`;

export const explain: ViewModule = {
  name: "explain",
  title: "Explain",
  available: (site) => site.terms !== undefined,
  everySite: true,
  controls: (_, site) => ["curve", ...(site.steps > 1 ? (["step"] as const) : [])],
  choices: [
    { name: "grid", label: "Heads", options: [["heads", "All they passed on", "what passed along a head's edges, through all that follows"], ["direct", "Straight to the output", "past all later blocks"]] },
    {
      name: "map", label: "Layers",
      options: [["states", "States", "the vectors that enter each layer"], ["attention", "Attention", "what the output of each attention block gave"], ["feed_forward", "Feed-forward", "what the output of each feed-forward block gave"]],
    },
  ],
  draw,
};

/** One side of the model that reads a text: its items and their terms. */
interface Side {
  site: Site;
  items: Item[];
  values: number[];
  text: DrawnText;
}

/** How the two colours are called. */
export function signs(question: Question, step: number): { above: string; below: string } {
  const output = shorten(visible(outputOf(question, step)), 32);
  if (question.against !== null) return { above: `for ${output}`, below: `for ${shorten(visible(question.against), 32)}` };
  return { above: `raises ${output}`, below: `lowers ${output}` };
}

function draw(context: Context): Shown {
  const { state, theme, document } = context;
  const question = document.explanation!;
  const step = state.step;
  const colour = opposed(theme.name);
  const width = context.width - 34;
  const rowHeight = (layers: number) => Math.max(13, Math.min(26, Math.round(500 / layers)));
  const value = valueOf(question, step);
  const { above, below } = signs(question, step);
  const scaleTo = (top: number, curve = state.curve): Scale => ({ top, curve, share: false, signed: true });

  // ---- the text ----
  const line = h("p", { class: "line", "data-part": "line" });
  const read = [...context.sites.values()].filter((site) => site.data.terms!.tokens);
  const given = read.map((site) => {
    const items = context.axis(site, "key");
    const all = readTerms(site.data.terms!.tokens!, step);
    return { site, items, all, values: ofItems(all, items) };
  });
  const top = Math.max(0, ...given.flatMap(({ values }) => values.map(Math.abs)));
  const absolute = given.reduce((sum, { all }) => sum + all.reduce((a, b) => a + Math.abs(b), 0), 0);
  const shown = (site: Site, index: number) => {
    for (const side of sides) side.text.highlight(side.site === site ? index : -1);
    for (const { of, drawn } of maps) drawn.highlight(-1, of === site ? index : -1);
    const side = sides.find((one) => one.site === site);
    if (!side || index < 0) line.replaceChildren("Point at a token, a head or a cell for its number.");
    else line.replaceChildren(token(side.items[index]), ` at position ${side.items[index].position}${side.items[index].members.length > 1 ? `, ${side.items[index].members.length} tokens` : ""}: ${signed(side.values[index])}, ${number(Math.abs(side.values[index]) / (absolute || 1), true)} of the sum of absolute terms (${number(absolute)})`);
  };
  const pinned = () => {
    const side = sides.find((one) => one.site.name === state.site) ?? sides[0];
    shown(side.site, find(side.items, state.query));
  };
  const pin = (side: { site: Site; items: Item[] }, index: number) => {
    const at = side.items[index].members[0];
    context.update(state.site === side.site.name && state.query === at ? { query: null, key: null } : { site: side.site.name, query: at, key: null });
  };
  const last = read[read.length - 1];
  const sides: Side[] = given.map((side) => {
    const explained = side.site === last && question.position !== null ? question.position + Math.max(0, step - 1) : null;
    return {
      ...side,
      text: colouredText({
        name: `${read.length > 1 ? `${sideOf(side.site.name, context.sites)}: ` : ""}${side.items.length} ${state.level}s coloured by what they gave; the table holds the numbers`,
        width, items: side.items, spaces: side.items.map((item) => side.site.data.key.spaces?.[item.members[0]] ?? true), cells: side.items.map((item) => side.site.data.key.cells?.[item.members[0]] ?? null), values: side.values, scale: scaleTo(top), colour, theme, found: context.matches(side.items),
        marked: step > 0 || !question.stepwise ? find(side.items, explained) : -1,
        hover: (index) => shown(side.site, index), leave: pinned, click: (index) => pin(side, index),
      }),
    };
  });
  const key = picture(Math.min(width, 420), 40, `Colours from ${below} to ${above}`);
  key.append("text").attr("x", 0).attr("y", 10).attr("font-size", 11).attr("font-weight", 600).attr("fill", theme.family.weight).text(`◀ ${below}`);
  key.append("text").attr("x", Math.min(width, 420)).attr("y", 10).attr("text-anchor", "end").attr("font-size", 11).attr("font-weight", 600).attr("fill", theme.family.norm).text(`${above} ▶`);
  legend(key, 0, 16, Math.min(width, 420), scaleTo(top), colour, theme);

  // ---- heads ----
  const maps: { of: Site; drawn: Drawn }[] = [];
  const grids = [...context.sites.values()].map((site) => headGrid(context, site)).filter((grid) => grid !== null);
  const headTop = Math.max(0, ...grids.flatMap((grid) => [...grid.values].map(Math.abs)));
  const cross = context.sites.get("cross");
  const pairs = cross?.data.terms!.edges?.pairs;
  const alone = context.sites.size === 1;
  const columns = context.width >= 900 && (alone || pairs) ? 2 : 1;
  const half = columns === 2 ? Math.floor((context.width - 24) / 2) - 34 : width;
  const each = grids.length > 1 && context.width >= 760 ? Math.floor((width - 20 * (grids.length - 1)) / grids.length) - 2 : alone ? half : width;
  const headFigures = grids.map((grid) => {
    const { site, values } = grid;
    const drawn = matrix({
      name: `${gridName(site.name)}: ${site.data.layers.length} layers by ${grid.columns.length} heads`, width: each,
      rows: site.data.layers.map((layer) => `layer ${layer}`), columns: grid.columns,
      value: (row, column) => values[row * grid.columns.length + column],
      scale: scaleTo(headTop), colour, theme, found: { rows: new Set(), columns: new Set() }, rowTitle: "", columnTitle: "head", square: false, rowHeight: rowHeight(site.data.layers.length), maxCell: 40,
      hover: (row, column) => {
        drawn.highlight(row, column);
        line.replaceChildren(`${gridName(site.name).replace("heads", "layer")} ${site.data.layers[row]}, ${/^\d+$/.test(grid.columns[column]) ? `head ${grid.columns[column]}` : grid.columns[column]}: ${signed(values[row * grid.columns.length + column])}`);
      },
      leave: () => {
        drawn.highlight(-1, -1);
        pinned();
      },
      click: (row, column) => {
        if (site.name !== "cross" && /^\d+$/.test(grid.columns[column])) context.update({ view: "flow", site: site.name, layer: site.data.layers[row], head: Number(grid.columns[column]), choices: { ...state.choices, edges: "one" } });
      },
    });
    return { site, drawn };
  });

  // ---- layers ----
  const layered = sides.map((side) => ({ side, rows: layerRows(context, side.site, side.items) })).filter(({ rows }) => rows !== null);
  const stateTop = Math.max(0, ...layered.flatMap(({ rows }) => rows!.flat().map(Math.abs)));
  const many = sides.some((side) => side.items.length > MANY);
  // Few tokens leave room for all three pictures beside each other.
  const compact = alone && columns === 2 && !many;
  const stateWidth = layered.length > 1 && context.width >= 760 ? Math.floor((width - 24) / 2) : compact ? half : width;
  const layerFigures = layered.map(({ side, rows }) => {
    const weights = side.values.map(Math.abs);
    const drawn = matrix({
      name: `${MAPS[state.choices.map]}: ${rows!.length} layers by ${side.items.length} ${state.level}s`, width: stateWidth,
      rows: side.site.data.layers.map((layer) => `layer ${layer}`), columns: labels(side.items), columnHints: side.items.map(hint),
      value: (row, column) => rows![row][column], scale: scaleTo(stateTop, many ? "sqrt" : state.curve), colour, theme,
      found: { rows: new Set(), columns: context.matches(side.items) }, weights: { columns: weights },
      rowTitle: "", columnTitle: "position", square: false, rowHeight: rowHeight(side.site.data.layers.length), maxCell: 48,
      hover: (row, column) => {
        drawn.highlight(row, column);
        line.replaceChildren(token(side.items[column]), `, ${state.choices.map === "states" ? "entering" : `${BLOCKS[state.choices.map]} of`} layer ${side.site.data.layers[row]}: ${signed(rows![row][column])}`);
      },
      leave: () => {
        drawn.highlight(-1, -1);
        pinned();
      },
      click: (_, column) => pin(side, column),
    });
    maps.push({ of: side.site, drawn });
    return { side, drawn };
  });

  // ---- from the source to the target ----
  const [targets, sources] = cross ? [context.axis(cross, "query"), context.axis(cross, "key")] : [[], []];
  let meeting: Drawn | null = null;
  if (cross && pairs) {
    const all = readTerms(pairs, step);
    const cells = targets.map((target) => ofItems(target.members.reduce((sum, query) => sum.map((value, index) => value + all[query * cross.keys + index]), new Float32Array(cross.keys)), sources));
    const drawn = matrix({
      name: `What passed from the source to the target: ${targets.length} target by ${sources.length} source positions`, width: half,
      rows: labels(targets), columns: labels(sources), rowHints: targets.map(hint), columnHints: sources.map(hint),
      value: (row, column) => cells[row][column], scale: scaleTo(Math.max(0, ...cells.flat().map(Math.abs))), colour, theme,
      found: { rows: context.matches(targets), columns: context.matches(sources) }, rowTitle: "target", columnTitle: "source", square: false, rowHeight: rowHeight(targets.length), maxCell: 40,
      hover: (row, column) => {
        drawn.highlight(row, column);
        line.replaceChildren(token(sources[column]), " → ", token(targets[row]), `, all layers and heads: ${signed(cells[row][column])}`);
      },
      leave: () => {
        drawn.highlight(-1, -1);
        pinned();
      },
    });
    meeting = drawn;
  }

  // ---- what adds up ----
  const rows = summands(sides, [...context.sites.values()], step, value);
  const sum = ledger(`What adds up to ${signed(value)}`, Math.min(half, 560), rows, { text: `= ${question.against === null ? (question.direction ? "the number" : "logit") : "difference"}`, value }, theme);

  const chance = probabilityOf(question, step);
  const contrast = question.against !== null;
  const facts: [string, string, string][] = [
    ["value", signed(value), question.direction ? "the number" : contrast ? "difference of the logits" : step === 0 && question.stepwise ? "sum of the logits" : "logit"],
    ...(chance === null ? [] : [["probability", number(chance, true), `probability of ${shorten(visible(outputOf(question, step)), 24)}`] as [string, string, string]]),
    ["gap", question.proof.gap.toExponential(0), "gap of the proof: what the terms miss of the number, over their absolute sum"],
  ];
  const nothing = (what: string, parts: string) => h("p", { class: "note" }, `${what} were not kept: ask for them with parts=[${parts}].`);
  const heading: Child[] = contrast
    ? ["Why ", chip(outputOf(question, step), "norm"), " rather than ", chip(question.against!, "weight")]
    : question.direction ? ["What made the number along the direction"] : ["What made the logit of ", chip(outputOf(question, step), "norm")];
  const where = question.position !== null && last ? last.data.key.text[question.position + Math.max(0, step - 1)] : null;
  const layersFigure = h("figure", { class: "panel", "data-part": "layers" },
      h("figcaption", {}, h("h2", {}, MAPS[state.choices.map]), h("p", {}, state.choices.map === "states" ? "What each position's vector gave, at the entrance of each layer: how the number is spread over positions as it is made." : "What the output of each block gave at each position, directly and through what follows. Blocks overlap, so they are not added."), many ? h("p", { class: "note" }, `On a √ scale: among ${Math.max(...sides.map((side) => side.items.length))} positions the explained one would outshine the others.`) : null),
      layerFigures.length ? h("div", { class: "row" }, ...layerFigures.map(({ side, drawn }) => h("div", {}, read.length > 1 ? h("p", { class: "side" }, sideOf(side.site.name, context.sites)) : null, drawn.node)))
        : nothing(state.choices.map === "states" ? "States" : "Blocks", state.choices.map === "states" ? '"states"' : '"blocks"'));
  const headsFigure = h("figure", { class: "panel", "data-part": "heads" },
    h("figcaption", {}, h("h2", {}, state.choices.grid === "direct" ? "What each head gives straight to the output" : "What passed through each head"),
      h("p", {}, state.choices.grid === "direct" ? "Past all later blocks; the last column is what belongs to no head: feed-forward blocks and biases." : "Edges of all pairs of positions added, through everything that follows. Choose a head to see its edges.")),
    headFigures.length ? h("div", { class: "row" }, ...headFigures.map(({ site, drawn }) => h("div", {}, grids.length > 1 ? h("p", { class: "side" }, gridName(site.name)) : null, drawn.node)))
      : nothing("Heads", state.choices.grid === "direct" ? '"direct"' : '"heads"'));
  const meetingFigure = meeting && h("figure", { class: "panel", "data-part": "pairs" },
    h("figcaption", {}, h("h2", {}, "From the source to the target"), h("p", {}, "What passed along cross-attention between each pair of positions, all layers and heads added.")), meeting.node);
  const element = h("div", { class: "explain" },
    h("figure", { class: "panel", "data-part": "text" },
      h("figcaption", {}, h("h2", {}, ...heading),
        h("p", { class: "facts" }, ...facts.map(([part, text, says]) => h("span", { "data-part": part, title: says }, h("b", {}, text), ` ${part === "gap" ? "gap of the proof" : says}`))),
        question.says ? h("p", { class: "caution", "data-part": "says" }, question.says) : null,
        h("p", { class: "note" }, `${state.level === "word" ? "Each word has the sum of its tokens' terms, exactly. " : ""}${where !== null ? `Explained at “${shorten(visible(where), 24)}” (dashed). ` : ""}${question.attention === "integrated" ? "Terms include why attention looked where it did (attention=\"integrated\")." : "Attention weights are held fixed: what was carried, not why it was looked at."}`)),
      ...sides.flatMap((side) => [read.length > 1 ? h("p", { class: "side" }, sideOf(side.site.name, context.sites)) : null, side.text.node]),
      key.node()!, line),
    h("div", { class: `panels columns-${columns}` },
      h("div", { class: "stack" }, h("figure", { class: "panel", "data-part": "sum" }, h("figcaption", {}, h("h2", {}, "What adds up"), h("p", {}, "Tokens and biases are all there is: their sum is the number.")), sum), compact ? layersFigure : null),
      alone ? headsFigure : meetingFigure),
    alone ? null : headsFigure,
    compact ? null : layersFigure);
  pinned();
  return {
    element,
    stacked: true,
    pictures: [
      ...sides.map((side) => ({ title: read.length > 1 ? sideOf(side.site.name, context.sites) : `${above}, ${below}`, node: side.text.node })),
      { title: "Colours", node: key.node()! },
      { title: "What adds up", node: sum },
      ...(meeting ? [{ title: "From the source to the target", node: meeting.node }] : []),
      ...headFigures.map(({ site, drawn }) => ({ title: gridName(site.name), node: drawn.node })),
      ...layerFigures.map(({ side, drawn }) => ({ title: `${MAPS[state.choices.map]}${read.length > 1 ? `, ${sideOf(side.site.name, context.sites)}` : ""}`, node: drawn.node })),
    ],
    caption: `${contrast ? `${outputOf(question, step)} against ${question.against}: difference of the logits` : `logit of ${outputOf(question, step)}:`} ${signed(value)}; gap of the proof ${question.proof.gap.toExponential(0)}; blue ${above}, amber ${below}`,
    table: {
      columns: ["site", "key", "key_token", "value"],
      rows: () => sides.flatMap((side) => side.items.map((item, index): Cell[] => [side.site.name, item.position, item.raw, side.values[index]])),
    },
    focus: (focus) => {
      const side = sides.find((one) => one.site.name === state.site) ?? sides[0];
      shown(side.site, find(side.items, focus.query));
    },
  };
}

const MAPS: Record<string, string> = { states: "States: layer by layer", attention: "Attention blocks", feed_forward: "Feed-forward blocks" };

function chip(text: string, family: "norm" | "weight"): HTMLElement {
  return h("code", { class: `token ${family}` }, shorten(visible(text), 40));
}

/** Numbers of a site's heads: `layer head`, with a column for what belongs to no head where they are direct. */
function headGrid(context: Context, site: Site): { site: Site; values: Float32Array; columns: string[] } | null {
  const terms = site.data.terms!;
  const step = context.state.step;
  const heads = site.data.heads.map(String);
  if (context.state.choices.grid !== "direct") return terms.heads ? { site, values: readTerms(terms.heads, step), columns: heads } : null;
  // Of two sides only the second ends in the output; its cross-attention stands in the same array.
  const of = site.name === "cross" ? context.sites.get("decoder")!.data.terms!.direct : terms.direct;
  const block = of?.names.indexOf(site.name === "cross" ? "cross_attention" : "attention") ?? -1;
  if (!of || block < 0) return null;
  const all = readTerms(of.values, step);
  const [, , layers, count] = of.values.shape!;
  const rest = site.name === "cross" ? [] : of.names.filter((name) => !["attention", "cross_attention"].includes(name));
  const columns = [...heads, ...(site.name === "cross" ? ["none"] : ["other"])];
  const values = new Float32Array(layers * columns.length);
  for (let layer = 0; layer < layers; layer++) {
    heads.forEach((_, head) => (values[layer * columns.length + head] = all[(block * layers + layer) * count + head + 1]));
    values[layer * columns.length + heads.length] = all[(block * layers + layer) * count] + rest.reduce((sum, name) => sum + all[(of.names.indexOf(name) * layers + layer) * count], 0);
  }
  return { site, values, columns };
}

/** Numbers of the chosen layer map: a row for each layer, a column for each item; null where they were not kept. */
function layerRows(context: Context, site: Site, items: Item[]): number[][] | null {
  const terms = site.data.terms!;
  const which = context.state.choices.map;
  const tokens = site.keys;
  const cut = (values: Float32Array, start: number) => site.data.layers.map((_, layer) => ofItems(values, items, start + layer * tokens));
  if (which === "states") return terms.states ? cut(readTerms(terms.states, context.state.step), 0) : null;
  const block = terms.blocks?.names.indexOf(which) ?? -1;
  return block < 0 ? null : cut(readTerms(terms.blocks!.values, context.state.step), block * site.data.layers.length * tokens);
}

/** The largest tokens by name, the others together, and the biases by kind of block. */
export function summands(sides: { site: Site; items: Item[]; values: number[] }[], sites: Site[], step: number, value: number): Row[] {
  const two = sides.length > 1;
  const tokens = sides.flatMap(({ site, items, values }) => {
    const counts = new Map<string, number>();
    for (const item of items) counts.set(item.text, (counts.get(item.text) ?? 0) + 1);
    return items.map((item, index) => {
      const place = counts.get(item.text)! > 1 ? ` at ${item.position}` : "";
      return { text: `${item.text}${place}${two ? (site.name === "encoder" ? " (source)" : " (target)") : ""}`, value: values[index] };
    });
  });
  const order = [...tokens].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const rest = order.slice(NAMED).filter((row) => row.value !== 0);
  const rows: Row[] = order.slice(0, NAMED).filter((row) => row.value !== 0);
  if (rest.length) rows.push({ text: `${rest.length} others`, value: rest.reduce((sum, row) => sum + row.value, 0), quiet: true });
  const inside = tokens.reduce((sum, row) => sum + row.value, 0);
  const all = sides.reduce((sum, { site }) => sum + readTerms(site.data.terms!.tokens!, step).reduce((a, b) => a + b, 0), 0);
  if (Math.abs(all - inside) > 1e-6 * (Math.abs(all) + Math.abs(inside))) rows.push({ text: "outside the span", value: all - inside, quiet: true });
  if (sites.some((site) => site.data.terms!.biases)) {
    for (const site of sites) for (const { name, value } of biasesOf(site, step)) rows.push({ text: `${two ? `${site.name} ` : ""}${BLOCKS[name] ?? name} biases`, value, quiet: true });
    if (!sites.some((site) => biasesOf(site, step).length)) rows.push({ text: "no biases", value: 0, quiet: true });
  } else rows.push({ text: "biases (not kept: the difference)", value: value - all, quiet: true });
  return rows;
}
