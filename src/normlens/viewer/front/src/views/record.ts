/** The table of a view, and the record of the run. */
import { h } from "../dom";
import { shorten, visible } from "../text";
import type { Document } from "../types";
import { KEYS } from "../keys";
import type { Shown } from "./context";

const LISTED = 400;

/** The view's numbers as a table; the strongest rows where there are too many to read. */
export function tableOf(view: Shown): HTMLElement {
  const { columns } = view.table;
  if (!columns.length) return h("p", { class: "message" }, "This view has no numbers.");
  const all = view.table.rows();
  let rows = all;
  if (all.length > LISTED) {
    const last = columns.length - 1;
    rows = [...all].sort((a, b) => Math.abs(Number(b[last])) - Math.abs(Number(a[last]))).slice(0, LISTED);
  }
  const text = (cell: string | number) => (typeof cell === "number" ? (Number.isInteger(cell) ? String(cell) : cell.toPrecision(4)) : shorten(visible(cell), 40));
  return h("div", { class: "scroll table", tabindex: 0, role: "region", "aria-label": "Numbers of this view" },
    h("table", { "data-part": "table" },
      h("caption", {}, all.length > LISTED ? `The ${LISTED} rows with the largest ${columns[columns.length - 1]} of ${all.length.toLocaleString("en")}; the CSV file holds all.` : `${all.length} rows`),
      h("thead", {}, h("tr", {}, ...columns.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((cell) => h("td", { class: typeof cell === "number" ? "number" : null }, text(cell))))))));
}

/** Where the numbers come from, and the keys. */
export function about(data: Document): HTMLElement {
  const entries: [string, unknown][] = Object.entries(data.provenance);
  const precision = data.sites.some((site) => Object.values(site.maps).some((map) => map?.encoding === "q8"))
    ? "large maps in 8 bits: a value of 1 % of its row's largest is right to 4 %; all others to 0.05 %"
    : "values are right to 0.05 % (16-bit)";
  const show = (value: unknown): string => (typeof value === "string" ? value : JSON.stringify(value));
  return h("details", { class: "about" },
    h("summary", {}, "About these numbers, and keys"),
    h("dl", {}, ...[...entries, ["precision in this page", precision] as [string, unknown]].flatMap(([name, value]) => [h("dt", {}, shorten(visible(name), 60)), h("dd", {}, shorten(visible(show(value)), 300))])),
    h("dl", { class: "keys" }, ...KEYS.flatMap(([key, does]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, does)])));
}
