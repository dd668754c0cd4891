/** Mixing ratios: how much of each token's new vector comes from elsewhere, layer by layer. */
import { format } from "d3-format";
import { diverging, ramp } from "../colour";
import { find, hint } from "../axis";
import { h } from "../dom";
import { matrix } from "../draw/matrix";
import { number } from "../scale";
import { labels, type Cell, type Context, type Shown, type ViewModule } from "./context";
import { token } from "./readout";

export const mixing: ViewModule = {
  name: "mixing",
  title: "Mixing",
  available: (site) => site.terms === undefined,
  controls: () => ["ratio"],
  choices: [
    { name: "full", label: "Colours", options: [["false", "0 to largest"], ["true", "0 to 1"]] },
    { name: "root", label: "Scale", options: [["false", "Linear"], ["true", "√", "square root: small values show better; the legend says what a colour stands for"]] },
  ],
  draw,
};

function draw(context: Context): Shown {
  const { site, state, theme } = context;
  const nothing = (text: string): Shown => ({
    element: h("p", { class: "message" }, text), pictures: [], caption: "", table: { columns: [], rows: () => [] }, focus: () => undefined,
  });
  if (!site.data.ratios[state.ratio]) return nothing("This run holds no mixing ratio: ask analyze for a map, or for mixing=[…].");
  const layers = site.data.layers;
  const full = state.choices.full === "true";
  // At word level a word's ratio is the mean of its tokens': the vectors that an exact one needs are not in the page.
  const values = layers.map((_, layer) => {
    const tokens = site.ratio(state.ratio, layer);
    return context.query.map((item) => item.members.reduce((sum, index) => sum + tokens[index], 0) / item.members.length);
  });
  const means = values.map((row) => row.reduce((a, b) => a + b, 0) / Math.max(1, row.length));
  const largest = Math.max(0, ...values.flat().map(Math.abs));
  const signed = site.data.ratios[state.ratio]!.signed;
  const scale = { top: full ? 1 : largest, curve: state.choices.root === "true" ? ("sqrt" as const) : ("linear" as const), share: false, signed };
  const family = site.text(state.ratio).family;
  const line = h("p", { class: "line", "data-part": "line" }, "Point at a cell for its ratio.");
  const drawn = matrix({
    name: `Mixing ratio of ${site.text(state.ratio).name}: ${layers.length} layers by ${context.query.length} positions`,
    width: Math.max(300, context.width - 34),
    rows: layers.map((layer) => `layer ${layer}`),
    rowValues: { title: "mean", texts: means.map((mean) => format(".3f")(mean)) },
    columns: labels(context.query),
    columnHints: context.query.map(hint),
    value: (row, column) => values[row][column],
    scale,
    colour: (signed ? diverging : ramp)(family, theme.name),
    theme,
    found: { rows: new Set(), columns: context.found.rows },
    rowTitle: "",
    columnTitle: "position",
    square: false,
    maxCell: 64,
    hover: (row, column) => {
      drawn.highlight(row, column);
      line.replaceChildren(token(context.query[column]), `, layer ${layers[row]}: mixing ratio ${number(values[row][column])}; mean of the layer ${number(means[row])}`);
    },
    leave: () => context.hover(null),
    click: (row, column) => context.update({ layer: layers[row], query: context.query[column].members[0], view: "compare" }),
  });
  const says = site.name === "cross"
    ? "share of the source parts: ‖source‖ / (‖source‖ + ‖residual‖)"
    : family === "weight" ? "share of weight on other positions" : "‖context‖ / (‖context‖ + ‖self‖): what comes from other positions against what stays";
  return {
    element: h("div", { class: "mixing" }, h("figure", { class: `panel ${family}` },
      h("figcaption", {}, h("h2", {}, `Mixing ratio, ${site.text(state.ratio).name}`), h("p", {}, says),
        h("p", { class: "note" }, full ? "colour from 0 to 1" : `colour from 0 to ${number(largest)}, the largest ratio here`),
        state.level === "word" ? h("p", { class: "note" }, "words: mean over their tokens") : null),
      drawn.node, line)),
    pictures: [{ title: `Mixing ratio, ${site.text(state.ratio).name}`, node: drawn.node }],
    caption: `${site.data.title}, all layers; ${says}`,
    table: {
      columns: ["layer", "query", "query_token", `mixing_${state.ratio}`],
      rows: () => layers.flatMap((layer, row) => context.query.map((item, column): Cell[] => [layer, item.position, item.raw, values[row][column]])),
    },
    focus: (focus) => {
      drawn.highlight(-1, find(context.query, focus.query));
    },
  };
}
