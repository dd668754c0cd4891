/** Source and target of an encoder-decoder: the strongest source position of each target position, and the whole map. */
import { hint, type Item } from "../axis";
import { ramp } from "../colour";
import { h } from "../dom";
import { links } from "../draw/links";
import { markedText, markNames, tintOf } from "../draw/marked_text";
import { matrix, type Drawn } from "../draw/matrix";
import { shown, type Grid, type Site } from "../grid";
import type { State } from "../state";
import { colourOf, focusAt, gridOf, labels, measureTitle, places, scaleOf, strokeOf, topOf, axisTitles, hasMaps, type Cell, type Context, type Shown, type ViewModule } from "./context";
import { number } from "../scale";
import { shorten, visible } from "../text";
import type { AlignmentData, MarksData } from "../types";
import { unpackLayer } from "../unpack";
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

function asAlign(state: State, site: Site): boolean {
  return state.choices.by === "align" && site.aligned;
}

export const alignment: ViewModule = {
  name: "alignment",
  title: "Alignment",
  available: (site) => hasMaps(site) && site.name === "cross",
  controls: (state, site) => asAlign(state, site) ? [] : ["layer", "b", "scale", "curve", "shared", ...(site.text(state.b).perHead ? (["head"] as const) : [])],
  choices: [
    {
      name: "by",
      label: "Links",
      options: [["align", "As align takes them", "words, chosen layers, special tokens left out"], ["layer", "One layer", "the largest of each row of one map"]],
      when: (_, site) => site.aligned,
    },
    {
      name: "written",
      label: "Target token",
      options: [["false", "Read", "label each target position by the token it reads"], ["true", "Written", "label each target position by the token it is about to write"]],
      when: (state, site) => state.level === "token" && !asAlign(state, site),
    },
  ],
  ownWords: asAlign,
  draw: (context) => (context.state.choices.by === "align" && context.document.alignment ? drawAligned(context, context.document.alignment) : draw(context)),
};

/** The links that `align` takes, between words, with the gold links that are known, and the marks that they carried. */
function drawAligned(context: Context, data: AlignmentData): Shown {
  const { theme } = context;
  const scores = unpackLayer(data.scores, 0);
  const count = data.source.length;
  const value = (row: number, column: number) => scores[row * count + column];
  const name = (row: number, column: number) => `${column},${row}`;
  const taken = new Set(data.links.map(([source, target]) => `${source},${target}`));
  const sure = new Set(data.gold?.sure.map(([source, target]) => `${source},${target}`));
  const possible = new Set(data.gold?.possible.map(([source, target]) => `${source},${target}`));
  const missed = (data.gold?.sure ?? []).filter(([source, target]) => !taken.has(`${source},${target}`));
  const right = (row: number, column: number) => !data.gold || sure.has(name(row, column)) || possible.has(name(row, column));
  const marks = data.marks;
  const names = marks ? markNames(marks.marks) : [];
  const markOf = (column: number) => marks?.words[column] ?? null;
  // Where gold is known, colours say what is right; else they say which mark a link carries.
  const strokeOfLink = (row: number, column: number): string => {
    if (data.gold || !marks) return right(row, column) ? theme.family.norm : theme.family.weight;
    const mark = markOf(column);
    return mark === null ? theme.muted : tintOf(theme, mark);
  };
  const columns = context.width >= 760 ? 2 : 1;
  const width = Math.min(720, Math.floor((context.width - 24 * (columns - 1)) / columns) - 34);
  const line = h("p", { class: "line", "data-part": "line" }, "Point at a word or a cell for its links.");
  const word = (text: string) => h("code", { class: "token" }, shorten(visible(text), 32));
  const found = { rows: context.matches(asItems(data.target)), columns: context.matches(asItems(data.source)) };
  const show = (row: number, column: number) => {
    for (const picture of [lines, map]) picture.highlight(row, column);
    if (row >= 0 && column >= 0) line.replaceChildren(word(data.source[column]), " – ", word(data.target[row]), `: ${number(value(row, column), true)}${taken.has(name(row, column)) ? ", linked" : ""}${sure.has(name(row, column)) ? "; gold: sure" : possible.has(name(row, column)) ? "; gold: possible" : ""}`);
    else line.replaceChildren("Point at a word or a cell for its links.");
  };
  const common = {
    name: `${data.links.length} links between ${count} source and ${data.target.length} target words`,
    width, rows: data.target.map(visible), columns: data.source.map(visible), rowHints: data.target.map(visible), columnHints: data.source.map(visible),
    value, scale: { top: Math.max(0, ...scores), curve: "linear" as const, share: true }, theme, found, rowTitle: "target", columnTitle: "source",
    hover: show, leave: () => show(-1, -1),
  };
  const lines = links({
    ...common, columnsFirst: true, min: null, colour: () => theme.family.norm,
    only: [...data.links.map(([source, target]): [number, number] => [target, source]), ...missed.map(([source, target]): [number, number] => [target, source])],
    stroke: (row, column) => taken.has(name(row, column)) ? { colour: strokeOfLink(row, column), dashed: false } : { colour: theme.muted, dashed: true },
  });
  const map = matrix({
    ...common, colour: ramp("norm", theme.name), dotted: (row, column) => taken.has(name(row, column)),
    framed: (row, column) => (sure.has(name(row, column)) ? "sure" : possible.has(name(row, column)) ? "possible" : undefined),
  });
  const wrong = data.links.filter(([source, target]) => !right(target, source)).length;
  const score = data.gold && `AER ${number(data.gold.aer, true)}: ${data.links.length - wrong} of ${data.links.length} links are in the gold (blue), ${wrong} are not (amber), ${missed.length} sure ones were not found (dashed).`;
  return {
    element: h("div", { class: "compare alignment" },
      marks ? drawMarks(context, marks) : null,
      h("div", { class: `panels columns-${columns}` },
        h("figure", { class: "panel norm" }, h("figcaption", {}, h("h2", {}, "Alignment links"), marks && !data.gold ? h("p", {}, "A link from a marked word has the colour of the innermost mark around it.") : null, h("p", { class: "note", "data-part": "how", title: data.how }, inWords(data.how)), score ? h("p", { "data-part": "score" }, score) : null), lines.node),
        h("figure", { class: "panel norm" }, h("figcaption", {}, h("h2", {}, "Scores of words"), h("p", {}, `A dot is a link that was taken${data.gold ? "; a frame is a gold link (dashed: only possible)" : ""}.`)), map.node, line))),
    pictures: [{ title: "Alignment links", node: lines.node }, { title: "Scores of words", node: map.node }],
    caption: [data.how, score, marks && placedSentence(marks)].filter(Boolean).join(" · "),
    table: {
      columns: ["source", "source_word", "target", "target_word", "gold", ...(marks ? ["mark"] : []), "score"],
      rows: () => data.links.map(([source, target, strength]): Cell[] => {
        const gold = data.gold ? (sure.has(`${source},${target}`) ? "sure" : possible.has(`${source},${target}`) ? "possible" : "none") : "";
        const mark = markOf(source);
        return [source, data.source[source], target, data.target[target], gold, ...(marks ? [mark === null ? "" : names[mark]] : []), strength];
      }),
    },
    focus: () => undefined,
  };
}

/** A signature such as `align|setting:awi|measure:attn_n` as a phrase; a sentence stays as it is. */
export function inWords(how: string): string {
  if (!how.startsWith("align|")) return how;
  return how.split("|").slice(1).map((part) => part.replace(":", ": ").replace(/([,;(])(?=\S)/g, "$1 ").replaceAll("( ", " (")).join(" · ");
}

function placedSentence(data: MarksData): string {
  const placed = data.marks.filter((mark) => mark.placed).length;
  return data.marks.length ? `${placed} of ${data.marks.length} marks were placed.` : "The source carries no marks.";
}

/** Both texts with their marks, what each mark came to, and what has no place in the target. */
function drawMarks(context: Context, data: MarksData): HTMLElement {
  const { theme } = context;
  const names = markNames(data.marks);
  const word = (text: string) => h("code", { class: "token" }, shorten(visible(text), 60));
  const resting = data.marks.length ? "Point at a mark to see it in both texts." : "";
  const line = h("p", { class: "line", "data-part": "mark" }, resting);
  const show = (mark: number, score: number | null) => {
    for (const element of panel.querySelectorAll("[data-mark]")) element.classList.toggle("on", element.getAttribute("data-mark") === String(mark));
    const { text, markup, placed } = data.marks[mark];
    line.replaceChildren(names[mark], markup ? ` (${shorten(visible(markup), 60)})` : "", text.trim() ? ": around " : ": a point, around no word", text.trim() ? word(text) : "", placed ? (score === null ? "" : `, placed with a score of ${number(score, true)}`) : ", without a place in the target");
  };
  const leave = () => {
    for (const element of panel.querySelectorAll(".on")) element.classList.remove("on");
    line.replaceChildren(resting);
  };
  const lost = data.marks.flatMap((mark, index) => (mark.placed ? [] : [index]));
  const panel = h("figure", { class: "panel norm marks", "data-part": "marks" },
    h("figcaption", {}, h("h2", {}, "Marks carried across"),
      h("p", {}, `${placedSentence(data)} A score is the share of the links at a mark that agree with its place: 100 % where all do.`),
      data.texts.length > 1 ? h("p", { class: "note" }, "Marks that cross each other are placed, and shown, one by one.") : null),
    ...data.texts.flatMap(({ source, target }) => [
      h("p", { class: "side" }, "source"), markedText(source, { marks: data.marks, names, theme, scored: false, hover: show, leave }),
      h("p", { class: "side" }, "target"), markedText(target, { marks: data.marks, names, theme, scored: true, hover: show, leave }),
    ]),
    lost.length ? h("p", { class: "caution", "data-part": "lost" }, "Without a place: ", ...lost.flatMap((mark, index) => [index ? ", " : "", `${names[mark]} `, word(data.marks[mark].text)]), ". By the links, no word of the target belongs there rather than elsewhere.") : null,
    line);
  return panel;
}

function asItems(words: string[]): Item[] {
  return words.map((text, index) => ({ members: [index], position: index, text, raw: text, continues: false }));
}

function draw(context: Context): Shown {
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
  const written = state.choices.written === "true" && state.level === "token";
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
  const lines = links({ ...common, columnsFirst: true, only: pairs, min: null, colour: strokeOf(context, measure) });
  const map = matrix({ ...common, colour: colourOf(context, measure), marked: (row, column) => marked.has(`${row},${column}`) });
  const numbers = readout(context, [{ measure, grid, scale }]);
  const drawn: Drawn[] = [lines, map];
  const family = site.text(measure).family;
  return {
    element: h("div", { class: "compare alignment" },
      h("div", { class: `panels columns-${columns}` },
        h("figure", { class: `panel ${family}` }, h("figcaption", {}, h("h2", {}, "Alignment links"), h("p", {}, `for each target position the source position with the largest ${measureTitle(context, measure)}`),
          h("p", { class: "note" }, `Target positions are named by the token ${written ? "they are about to write" : "they read"}. Special tokens are not taken out, and nothing is symmetrized.`)), lines.node),
        h("figure", { class: `panel ${family}` }, h("figcaption", {}, h("h2", {}, measureTitle(context, measure)), h("p", {}, site.text(measure).says)), map.node)),
      numbers.element),
    pictures: [{ title: "Alignment links (row maxima)", node: lines.node }, { title: measureTitle(context, measure), node: map.node }],
    caption: `${site.data.title}, layer ${state.layer}; links are row maxima`,
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
