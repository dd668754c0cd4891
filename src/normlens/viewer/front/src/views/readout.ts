/** The numbers of one token: where it draws from and what it feeds, for both measures. */
import type { Item } from "../axis";
import { hint, label } from "../axis";
import { h } from "../dom";
import { shown, type Grid } from "../grid";
import { number, position, type Scale } from "../scale";
import { shorten, visible } from "../text";
import type { Measure } from "../types";
import { focusAt, headIndex, layerIndex, places, type Context, type Focus } from "./context";

export interface Side {
  measure: Measure;
  grid: Grid;
  scale: Scale;
}

const LISTED = 8;

export function readout(context: Context, sides: Side[]): { element: HTMLElement; show: (focus: Focus) => void } {
  const line = h("p", { class: "line", "data-part": "line" });
  const lists = h("div", { class: "lists" });
  const element = h("section", { class: "readout", "aria-label": "Numbers of the chosen token" }, line, lists);

  // Beside maps per head stands what they are made of: the norm of each contributing position's transformed vector.
  const perHead = sides.some((side) => context.site.text(side.measure).perHead);
  const norms = perHead ? context.site.fNorm(layerIndex(context)) : null;
  const normOf = (item: Item) => {
    const base = headIndex(context) * context.site.keys;
    return item.members.reduce((sum, index) => sum + norms![base + index], 0) / item.members.length;
  };

  const table = (title: string, items: Item[], value: (side: Side, index: number) => number, part: string) => {
    const extra = norms && part === "draws";
    const order = items.map((_, index) => index);
    const strength = (index: number) => Math.max(...sides.map((side) => Math.abs(value(side, index)) / (side.scale.top || 1)));
    order.sort((a, b) => strength(b) - strength(a));
    const head = h("tr", {}, h("th", { scope: "col" }, "token"), ...sides.map((side) => h("th", { scope: "col", class: context.site.text(side.measure).family }, context.site.text(side.measure).short)), extra ? h("th", { scope: "col" }, "‖f(x)‖") : null);
    const rows = order.filter((index) => strength(index) > 0).slice(0, LISTED).map((index) =>
      h("tr", { "data-index": items[index].members[0] },
        h("th", { scope: "row", title: hint(items[index]) }, shorten(label(items[index]), 16)),
        ...sides.map((side) => {
          const amount = value(side, index);
          const bar = h("i", { class: `bar ${context.site.text(side.measure).family}` });
          bar.style.width = `${(100 * Math.abs(position({ ...side.scale, curve: "linear" }, amount))).toFixed(1)}%`;
          return h("td", {}, h("b", {}, number(amount, side.scale.share)), h("span", { class: "track" }, bar));
        }),
        extra ? h("td", { "data-part": "f_norm" }, number(normOf(items[index]))) : null));
    return h("table", { "data-part": part }, h("caption", {}, title), h("thead", {}, head), h("tbody", {}, ...rows));
  };

  const show = (focus: Focus) => {
    const [row, column] = places(context, focus);
    const self = context.site.name !== "cross";
    lists.replaceChildren();
    const share = (side: Side) => (r: number, c: number) => shown(side.grid, r, c, side.scale.share);
    if (row >= 0 && column >= 0) {
      const texts = sides.map((side) => `${context.site.text(side.measure).short} ${number(share(side)(row, column), side.scale.share)}`);
      line.replaceChildren(
        token(context.query[row]), ` draws from `, token(context.key[column]), `: ${texts.join(" · ")}`,
      );
    } else if (row >= 0) line.replaceChildren(token(context.query[row]), place(context.query[row]));
    else if (column >= 0) line.replaceChildren(token(context.key[column]), place(context.key[column]));
    else {
      line.replaceChildren("Point at a token to see where it draws from and what it feeds; click to keep it.");
      return;
    }
    // In self-attention both axes hold the same tokens: one token has both lists.
    const drawer = row >= 0 ? row : self ? places(context, { query: focus.key, key: null })[0] : -1;
    const feeder = row >= 0 && self ? places(context, { query: null, key: focusAt(context, row, -1).query })[1] : column;
    if (drawer >= 0) lists.append(table(`${shorten(context.query[drawer].text, 18)} draws from`, context.key, (side, index) => share(side)(drawer, index), "draws"));
    if (feeder >= 0) lists.append(table(`${shorten(context.key[feeder].text, 18)} feeds`, context.query, (side, index) => share(side)(index, feeder), "feeds"));
  };
  return { element, show };
}

/** Where a token stands, and the raw token where it reads differently. */
function place(item: Item): string {
  return ` at position ${item.position}${item.raw === item.text ? "" : `, token ${shorten(visible(item.raw), 40)}`}`;
}

/** A token as text, with the raw token on hover where it differs. */
export function token(item: Item): HTMLElement {
  return h("code", { class: "token", title: hint(item) }, shorten(label(item), 32));
}
