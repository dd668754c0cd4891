/** The bar above the view: each control shows the state and changes it, nothing else. */
import type { App } from "./app";
import { choice, field, h, select, type Child } from "./dom";
import { number } from "./scale";
import { spanOf, stream, views, type State, type View } from "./state";
import { shorten, visible } from "./text";
import { MEASURES, type Measure } from "./types";

export interface Controls {
  element: HTMLElement;
  sync: () => void;
}

const VIEW_TEXT: Record<View, string> = { compare: "Compare", overview: "Overview", mixing: "Mixing", flow: "Flow", alignment: "Alignment" };
const SITE_TEXT = { encoder: "Encoder", decoder: "Decoder", cross: "Cross" };

export function controls(app: App): Controls {
  const set = (patch: Partial<State>) => app.update(patch);
  const syncs: (() => void)[] = [];
  const shownFor = (element: HTMLElement, when: () => boolean) => {
    syncs.push(() => (element.hidden = !when()));
    return element;
  };
  const on = (...names: View[]) => () => names.includes(app.state.view);

  const tabs = (Object.keys(VIEW_TEXT) as View[]).map((view) => h("button", { type: "button", "data-view": view, click: () => set({ view }) }, VIEW_TEXT[view]));
  syncs.push(() => {
    const there = views(app.site.data);
    for (const tab of tabs) {
      tab.hidden = !there.includes(tab.dataset.view as View);
      tab.setAttribute("aria-current", tab.dataset.view === app.state.view ? "page" : "false");
    }
  });

  const sites = choice("site", [...app.sites.keys()].map((name) => [name, SITE_TEXT[name as keyof typeof SITE_TEXT]] as [State["site"], string]), (site) => set({ site }));
  syncs.push(() => sites.set(app.state.site));
  sites.element.hidden = app.sites.size < 2;

  const stepper = (name: "layer" | "head", list: () => number[], when: () => boolean) => {
    const range = h("input", { type: "range", "data-control": name, min: 0, step: 1, "aria-label": name });
    const out = h("output", {}, "");
    range.addEventListener("input", () => set({ [name]: list()[Number(range.value)] }));
    const element = h("label", { class: "field stepper" }, h("span", {}, name === "layer" ? "Layer" : "Head"), range, out);
    syncs.push(() => {
      range.max = String(Math.max(0, list().length - 1));
      range.value = String(Math.max(0, list().indexOf(app.state[name])));
      range.setAttribute("aria-valuetext", `${name} ${app.state[name]}`);
      out.textContent = `${app.state[name]} / ${list()[list().length - 1] ?? "–"}`;
    });
    return shownFor(element, when);
  };
  const layer = stepper("layer", () => app.site.data.layers, on("compare", "alignment"));
  const usesHead = () => (app.state.view === "compare" && (MEASURES[app.state.a].perHead || MEASURES[app.state.b].perHead)) || (app.state.view === "alignment" && MEASURES[app.state.b].perHead);
  const head = stepper("head", () => app.site.data.heads, usesHead);

  const measure = (name: "a" | "b", text: string, when: () => boolean) => {
    const control = select(name, (value) => set({ [name]: value as Measure }));
    syncs.push(() => control.set(app.site.measures().map((m) => [m, MEASURES[m].name]), app.state[name]));
    return shownFor(field(text, control.element), when);
  };
  const over = select("over", (value) => set({ over: value as State["over"] }));
  syncs.push(() => {
    const layered = app.site.measures().some((m) => !MEASURES[m].perHead);
    over.set([...app.site.measures().filter((m) => MEASURES[m].perHead).map((m) => [m, `${MEASURES[m].name}, all heads`] as [string, string]), ...(layered ? [["layers", "Layer measures"] as [string, string]] : [])], app.state.over);
  });
  const ratio = select("ratio", (value) => set({ ratio: value as Measure }));
  syncs.push(() => ratio.set(app.site.ratios().map((m) => [m, MEASURES[m].name]), app.state.ratio));

  const draw = choice("draw", [["arcs", "Links"], ["matrix", "Matrix"]], (value: State["draw"]) => set({ draw: value, min: null }));
  const scale = choice("scale", [["row", "Row share", "each row divided by its sum"], ["absolute", "Absolute", "values as measured"]], (value: State["scale"]) => set({ scale: value, min: null }));
  const curve = choice("curve", [["linear", "Linear"], ["sqrt", "√", "square root: small values show better; the legend says what a colour stands for"]], (value: State["curve"]) => set({ curve: value }));
  const level = choice("level", [["token", "Tokens"], ["word", "Words", "subwords merged: contributing columns added, computed rows averaged"]], (value: State["level"]) => set({ level: value }));
  const written = choice("written", [["read", "Read", "label each target position by the token it reads"], ["written", "Written", "label each target position by the token it is about to write"]], (value: "read" | "written") => set({ written: value === "written" }));
  syncs.push(() => written.set(app.state.written ? "written" : "read"));
  const full = choice("full", [["max", "0 to largest"], ["one", "0 to 1"]], (value: "max" | "one") => set({ full: value === "one" }));
  syncs.push(() => draw.set(app.state.draw), () => scale.set(app.state.scale), () => curve.set(app.state.curve), () => full.set(app.state.full ? "one" : "max"), () => level.set(app.state.level, app.canMerge() ? [] : ["word"]));
  const shared = h("input", { type: "checkbox", "data-control": "shared" });
  shared.addEventListener("change", () => set({ shared: shared.checked }));
  syncs.push(() => (shared.checked = app.state.shared));

  const min = h("input", { type: "range", min: 0, max: 100, step: 1, "data-control": "min", "aria-label": "smallest link drawn" });
  const minOut = h("output", {}, "");
  // Squared, since most links are small; the last tenth of the way would hide everything.
  const limit = () => (app.state.view === "flow" ? 0.25 : app.state.scale === "row" ? 0.5 : Math.max(...[app.state.a, app.state.b].map((m) => Math.max(0, ...(app.site.data.maps[m]?.top ?? [1])))));
  min.addEventListener("input", () => set({ min: min.value === "0" ? null : Number((limit() * (Number(min.value) / 100) ** 2).toPrecision(3)) }));
  syncs.push(() => {
    min.value = app.state.min === null ? "0" : String(Math.round(100 * Math.sqrt(app.state.min / limit())));
    minOut.textContent = app.state.min === null ? "auto" : `≥ ${number(app.state.min, app.state.view === "flow" || app.state.scale === "row")}`;
  });

  const span = (axis: "query" | "key") => {
    const from = h("input", { type: "number", min: 0, "data-control": `${axis}-from`, "aria-label": "first position shown" });
    const to = h("input", { type: "number", min: 1, "data-control": `${axis}-to`, "aria-label": "end of the span, not shown itself" });
    const name = () => (stream(app.state.site, axis) === "encoder" ? ("spanEncoder" as const) : ("spanDecoder" as const));
    const first = () => app.site.data[axis].positions[0] ?? 0;
    const change = () => {
      const size = app.site.data[axis].tokens.length;
      const start = Math.max(0, Math.min(size - 1, Math.floor(Number(from.value || first())) - first()));
      const stop = Math.max(start + 1, Math.min(size, Math.floor(Number(to.value || first() + size)) - first()));
      set({ [name()]: start === 0 && stop === size ? null : [start, stop] });
    };
    from.addEventListener("change", change);
    to.addEventListener("change", change);
    syncs.push(() => {
      const size = app.site.data[axis].tokens.length;
      const [start, stop] = spanOf(app.state, app.state.site, axis) ?? [0, size];
      from.value = String(start + first());
      to.value = String(Math.min(size, stop) + first());
    });
    return { from, to };
  };
  const querySpan = span("query");
  const keySpan = span("key");
  const querySpanText = h("span", {}, "");
  syncs.push(() => (querySpanText.textContent = app.state.site === "cross" ? "Target" : "Positions"));

  const find = h("input", { type: "search", placeholder: "Find a token  /", "data-control": "find", "aria-label": "Find a token" });
  const foundOut = h("output", { class: "found", "aria-live": "polite" }, "");
  find.addEventListener("input", () => app.find(find.value));
  find.addEventListener("keydown", (event) => {
    if (event.key === "Enter") app.next(event.shiftKey ? -1 : 1);
  });
  syncs.push(() => {
    if (find.value !== app.search) find.value = app.search;
    foundOut.textContent = app.search ? `${app.found()} found` : "";
  });

  const theme = select("theme", (value) => set({ theme: value as State["theme"] }));
  syncs.push(() => theme.set([["auto", "System colours"], ["light", "Light"], ["dark", "Dark"]], app.state.theme));
  const table = h("button", { type: "button", "data-control": "table", click: () => set({ table: !app.state.table }) }, "Table");
  syncs.push(() => table.setAttribute("aria-pressed", String(app.state.table)));
  const files = (["svg", "png", "csv"] as const).map((kind) => h("button", { type: "button", "data-export": kind, title: `download ${kind === "csv" ? "the numbers of this view" : "this view"} as ${kind.toUpperCase()}`, click: () => void app.export(kind) }, kind.toUpperCase()));

  const group = (...children: Child[]) => h("div", { class: "group" }, ...children);
  const model = app.data.provenance.model;
  const element = h("header", {},
    h("div", { class: "top" },
      h("div", { class: "title" }, h("strong", {}, "normlens"), h("h1", { title: shorten(visible(app.data.title), 300) }, shorten(visible(app.data.title), 240)), model ? h("span", { class: "model" }, shorten(visible(String(model)), 60)) : null),
      h("div", { class: "group" }, find, foundOut, theme.element)),
    h("nav", { "aria-label": "Views" }, ...tabs, sites.element, h("span", { class: "gap" }), table, h("div", { class: "choice", role: "group", "aria-label": "Download" }, ...files)),
    h("div", { class: "bar" },
      group(layer, head, measure("a", "Compare", on("compare")), measure("b", "with", on("compare")), measure("b", "Measure", on("alignment")), shownFor(field("Show", over.element), on("overview")), shownFor(field("Measure", ratio.element), on("mixing"))),
      group(shownFor(draw.element, on("compare")), level.element, shownFor(scale.element, on("compare", "overview", "alignment")), shownFor(curve.element, on("compare", "overview", "alignment", "mixing")),
        shownFor(full.element, on("mixing")),
        shownFor(h("span", { class: "field" }, h("span", {}, "Target token"), written.element), () => app.state.view === "alignment" && app.state.level === "token"),
        shownFor(h("label", { class: "check", title: "one scale for all layers and heads" }, shared, "Same scale for all layers"), on("compare", "overview", "alignment")),
        shownFor(h("label", { class: "field stepper" }, h("span", {}, "Links"), min, minOut), () => app.state.view === "flow" || (app.state.view === "compare" && app.state.draw === "arcs")),
        h("span", { class: "field" }, querySpanText, querySpan.from, "–", querySpan.to),
        shownFor(h("span", { class: "field" }, h("span", {}, "Source"), keySpan.from, "–", keySpan.to), () => app.state.site === "cross"))));
  return { element, sync: () => syncs.forEach((sync) => sync()) };
}
