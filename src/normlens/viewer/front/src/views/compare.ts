/** Two measures of one layer side by side, as links or as a matrix. */
import { hint } from "../axis";
import { h } from "../dom";
import { links } from "../draw/links";
import { matrix, type Drawn } from "../draw/matrix";
import { columnWeights, shown } from "../grid";
import { axisTitles, colourOf, focusAt, gridOf, labels, measureTitle, ownOf, places, scaleOf, strokeOf, topOf, hasMaps, type Cell, type Context, type Shown, type ViewModule } from "./context";
import { readout, type Side } from "./readout";

export const compare: ViewModule = {
  name: "compare",
  title: "Compare",
  available: hasMaps,
  controls: (state, site) => [
    "layer", "a", "b", "draw", "scale", "curve", "shared",
    ...(site.name === "cross" ? [] : (["own"] as const)),
    ...(site.text(state.a).perHead || site.text(state.b).perHead ? (["head"] as const) : []),
    ...(state.draw === "arcs" ? (["min"] as const) : []),
  ],
  draw,
};

function draw(context: Context): Shown {
  const { state, site, theme } = context;
  const measures = state.a === state.b ? [state.a] : [state.a, state.b];
  const sides: Side[] = measures.map((measure) => {
    const grid = gridOf(context, measure);
    return { measure, grid, scale: scaleOf(context, measure, topOf(context, measure, grid)) };
  });
  // Shares of a row are one unit: both pictures then end at the same number. Without the own part the rest of one measure can
  // be ten times that of the other, and each ends at its own.
  const apart = site.own(context.query, context.key) !== undefined && state.own !== "shown";
  if (state.scale === "row" && !apart) {
    const top = Math.max(...sides.map((side) => side.scale.top));
    for (const side of sides) side.scale = { ...side.scale, top };
  }
  const side = context.width >= 1180 ? 316 : 0;
  // Side by side, unless labels can be read only below each other; with more positions than that, beside each other again.
  const beside = Math.floor((context.width - side - 24 * (sides.length - 1) - (side ? 24 : 0)) / sides.length) - 34;
  const alone = Math.min(1100, context.width - side - (side ? 24 : 0) - 34);
  const readable = (room: number) => (room - 116) / context.key.length >= 9.5;
  const crowded = state.draw === "matrix" && context.key.length > 24 && !readable(beside) && readable(alone);
  const columns = context.width - side >= 680 && !crowded ? sides.length : 1;
  const width = Math.floor((context.width - side - 24 * (columns - 1) - (side ? 24 : 0)) / columns) - 34;
  const numbers = readout(context, sides);
  const drawn: Drawn[] = [];
  // Both pictures name the same tokens where there is no room for all.
  const each = sides.map(({ grid }) => columnWeights(grid, apart ? site.own(context.query, context.key) : undefined));
  const columnWeight = each[0].map((_, index) => {
    const worth = /[\p{L}\p{N}]/u.test(context.key[index].text) ? 1 : 0.3; // a full stop as a label tells little
    return worth * Math.max(...each.map((list) => list[index] / (Math.max(...list) || 1)));
  });
  const weights = { rows: site.name === "cross" ? undefined : columnWeight, columns: columnWeight };
  const titles = axisTitles(site);
  const panels = sides.map(({ measure, grid, scale }) => {
    const text = site.text(measure);
    const title = measureTitle(context, measure);
    const value = (row: number, column: number) => shown(grid, row, column, scale.share);
    const common = {
      name: `${title}, layer ${state.layer}: ${grid.rows} computed by ${grid.columns} contributing positions; the table below holds the numbers`,
      width: Math.min(width, crowded ? Math.max(760, Math.min(1100, 116 + 11 * context.key.length)) : 760),
      rows: labels(context.query),
      columns: labels(context.key),
      rowHints: context.query.map(hint),
      columnHints: context.key.map(hint),
      value,
      scale,
      theme,
      found: context.found,
      rowTitle: titles.row,
      columnTitle: titles.column,
      hover: (row: number, column: number) => context.hover(focusAt(context, row, column)),
      leave: () => context.hover(null),
      click: (row: number, column: number) => context.pin(focusAt(context, row, column)),
    };
    const own = ownOf(context, grid, scale.top);
    const notes = [...(own ? [own.note] : [])];
    let picture: Drawn;
    if (state.draw === "arcs") {
      const out = links({ ...common, columnsFirst: site.name === "cross", colour: strokeOf(context, measure), min: state.min, own, weights });
      notes.unshift(out.note);
      picture = out;
    } else picture = matrix({ ...common, colour: colourOf(context, measure), own, weights, empty: site.causal ? (row, column) => context.key[column].members[0] > context.query[row].members[context.query[row].members.length - 1] : undefined });
    drawn.push(picture);
    return h("figure", { class: `panel ${text.family}`, "data-measure": measure },
      h("figcaption", {}, h("h2", {}, title), h("p", {}, text.says), ...notes.map((note) => h("p", { class: "note", "data-part": note === own?.note ? "own" : "note" }, note))),
      picture.node);
  });
  const element = h("div", { class: side ? "compare beside" : "compare" }, h("div", { class: `panels columns-${columns}` }, ...panels), numbers.element);
  return {
    element,
    pictures: sides.map(({ measure }, index) => ({ title: `${measureTitle(context, measure)} (${site.text(measure).says})`, node: drawn[index].node })),
    caption: `${site.data.title}, layer ${state.layer}; ${state.scale === "row" ? "shares of each row" : "absolute values"}, ${state.curve === "sqrt" ? "square-root" : "linear"} scale ${state.shared ? "shared by all layers" : "of this layer"}${site.name === "cross" || state.own === "shown" ? "" : `; own part ${state.own === "faded" ? "in grey" : "not drawn"} and outside the scale`}`,
    table: {
      columns: ["query", "query_token", "key", "key_token", ...measures.flatMap((measure) => [measure, `${measure}_row_share`])],
      rows: () => {
        const out: Cell[][] = [];
        for (let row = 0; row < context.query.length; row++) {
          for (let column = 0; column < context.key.length; column++) {
            out.push([
              context.query[row].position, context.query[row].raw, context.key[column].position, context.key[column].raw,
              ...sides.flatMap(({ grid }) => [shown(grid, row, column, false), shown(grid, row, column, true)]),
            ]);
          }
        }
        return out;
      },
    },
    focus: (focus) => {
      const [row, column] = places(context, focus);
      for (const picture of drawn) picture.highlight(row, column);
      numbers.show(focus);
    },
  };
}
