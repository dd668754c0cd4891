/** Two measures of one layer side by side, as links or as a matrix. */
import { hint } from "../axis";
import { h } from "../dom";
import { links } from "../draw/links";
import { matrix, type Drawn } from "../draw/matrix";
import { shown } from "../grid";
import { MEASURES } from "../types";
import { axisTitles, colourOf, focusAt, gridOf, labels, measureTitle, places, scaleOf, SITE_TEXT, strokeOf, topOf, type Cell, type Context, type Shown } from "./context";
import { readout, type Side } from "./readout";

export function compare(context: Context): Shown {
  const { state, site, theme } = context;
  const measures = state.a === state.b ? [state.a] : [state.a, state.b];
  const sides: Side[] = measures.map((measure) => {
    const grid = gridOf(context, measure);
    return { measure, grid, scale: scaleOf(context, measure, topOf(context, measure, grid)) };
  });
  // Shares of a row are one unit: both pictures then end at the same number.
  if (state.scale === "row") {
    const top = Math.max(...sides.map((side) => side.scale.top));
    for (const side of sides) side.scale = { ...side.scale, top };
  }
  const side = context.width >= 1180 ? 316 : 0;
  const columns = context.width - side >= 680 ? sides.length : 1;
  const width = Math.floor((context.width - side - 24 * (columns - 1) - (side ? 24 : 0)) / columns) - 34;
  const numbers = readout(context, sides);
  const drawn: Drawn[] = [];
  const titles = axisTitles(site);
  const panels = sides.map(({ measure, grid, scale }) => {
    const text = MEASURES[measure];
    const title = measureTitle(context, measure);
    const value = (row: number, column: number) => shown(grid, row, column, scale.share);
    const common = {
      name: `${title}, layer ${state.layer}: ${grid.rows} computed by ${grid.columns} contributing positions; the table below holds the numbers`,
      width: Math.min(width, 760),
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
    let note = "";
    let picture: Drawn;
    if (state.draw === "arcs") {
      const out = links({ ...common, colour: strokeOf(context, measure), min: state.min });
      note = out.note;
      picture = out;
    } else picture = matrix({ ...common, colour: colourOf(context, measure), empty: site.causal ? (row, column) => context.key[column].members[0] > context.query[row].members[context.query[row].members.length - 1] : undefined });
    drawn.push(picture);
    return h("figure", { class: `panel ${text.family}`, "data-measure": measure },
      h("figcaption", {}, h("h2", {}, title), h("p", {}, text.says), note ? h("p", { class: "note", "data-part": "note" }, note) : null),
      picture.node);
  });
  const element = h("div", { class: side ? "compare beside" : "compare" }, h("div", { class: `panels columns-${columns}` }, ...panels), numbers.element);
  return {
    element,
    pictures: sides.map(({ measure }, index) => ({ title: `${measureTitle(context, measure)} (${MEASURES[measure].says})`, node: drawn[index].node })),
    caption: `${SITE_TEXT[site.name]}, layer ${state.layer}; ${state.scale === "row" ? "shares of each row" : "absolute values"}, ${state.curve === "sqrt" ? "square-root" : "linear"} scale ${state.shared ? "shared by all layers" : "of this layer"}`,
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
