/** Source and target of an encoder-decoder: the strongest source position of each target position, and the whole map. */
import { hint } from "../axis";
import { h } from "../dom";
import { links } from "../draw/links";
import { matrix, type Drawn } from "../draw/matrix";
import { shown, type Grid } from "../grid";
import { MEASURES } from "../types";
import { colourOf, focusAt, gridOf, labels, measureTitle, places, scaleOf, SITE_TEXT, strokeOf, topOf, axisTitles, type Cell, type Context, type Shown } from "./context";
import { readout } from "./readout";

/** For each row the column of its largest value; the first of equals. */
export function rowMaxima(grid: Grid): [number, number][] {
  const out: [number, number][] = [];
  for (let row = 0; row < grid.rows; row++) {
    let best = 0;
    for (let column = 1; column < grid.columns; column++) {
      if (Math.abs(grid.values[row * grid.columns + column]) > Math.abs(grid.values[row * grid.columns + best])) best = column;
    }
    out.push([row, best]);
  }
  return out;
}

export function alignment(context: Context): Shown {
  const { state, site, theme } = context;
  const measure = state.b;
  const grid = gridOf(context, measure);
  const scale = scaleOf(context, measure, topOf(context, measure, grid));
  const pairs = rowMaxima(grid);
  const marked = new Set(pairs.map(([row, column]) => `${row},${column}`));
  const columns = context.width >= 760 ? 2 : 1;
  const width = Math.min(720, Math.floor((context.width - 24 * (columns - 1)) / columns) - 34);
  const titles = axisTitles(site);
  // A decoder reads token i at position i and writes token i + 1 there; which of the two a link is about is a choice.
  const written = state.written && state.level === "token";
  const next = site.data.query.text;
  const names = written ? context.query.map((item) => next[item.members[0] + 1] ?? "(end)") : labels(context.query);
  const common = {
    name: `Strongest source position of each target position, ${measureTitle(context, measure)}, layer ${state.layer}`,
    width,
    rows: names,
    columns: labels(context.key),
    rowHints: context.query.map(hint),
    columnHints: context.key.map(hint),
    value: (row: number, column: number) => shown(grid, row, column, scale.share),
    scale,
    theme,
    found: context.found,
    rowTitle: written ? "target, written" : titles.row,
    columnTitle: titles.column,
    hover: (row: number, column: number) => context.hover(focusAt(context, row, column)),
    leave: () => context.hover(null),
    click: (row: number, column: number) => context.pin(focusAt(context, row, column)),
  };
  const lines = links({ ...common, only: pairs, min: null, colour: strokeOf(context, measure) });
  const map = matrix({ ...common, colour: colourOf(context, measure), marked: (row, column) => marked.has(`${row},${column}`) });
  const numbers = readout(context, [{ measure, grid, scale }]);
  const drawn: Drawn[] = [lines, map];
  const family = MEASURES[measure].family;
  return {
    element: h("div", { class: "compare alignment" },
      h("div", { class: `panels columns-${columns}` },
        h("figure", { class: `panel ${family}` }, h("figcaption", {}, h("h2", {}, "Alignment links"), h("p", {}, `for each target position the source position with the largest ${measureTitle(context, measure)}`),
          h("p", { class: "note" }, `Target positions are named by the token ${written ? "they are about to write" : "they read"}. Special tokens are not taken out, and nothing is symmetrized.`)), lines.node),
        h("figure", { class: `panel ${family}` }, h("figcaption", {}, h("h2", {}, measureTitle(context, measure)), h("p", {}, MEASURES[measure].says)), map.node)),
      numbers.element),
    pictures: [{ title: "Alignment links (row maxima)", node: lines.node }, { title: measureTitle(context, measure), node: map.node }],
    caption: `${SITE_TEXT[site.name]}, layer ${state.layer}; links are row maxima`,
    table: {
      columns: ["query", "query_token", "written_token", "key", "key_token", measure, `${measure}_row_share`],
      rows: () => pairs.map(([row, column]): Cell[] => [
        context.query[row].position, context.query[row].raw, site.data.query.tokens[context.query[row].members[context.query[row].members.length - 1] + 1] ?? "", context.key[column].position, context.key[column].raw, shown(grid, row, column, false), shown(grid, row, column, true),
      ]),
    },
    focus: (focus) => {
      const [row, column] = places(context, focus);
      for (const picture of drawn) picture.highlight(row, column);
      numbers.show(focus);
    },
  };
}
