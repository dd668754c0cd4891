/** The bar above the view: each control shows the state and changes it, nothing else. */
import type { App } from "./app";
import { choice, field, h, select, type Child } from "./dom";
import { number } from "./scale";
import { spanOf, stream, type State } from "./state";
import { shorten, visible } from "./text";
import { strongestLine } from "./terms";
import type { Measure } from "./types";
import type { ControlName } from "./views/context";
import { VIEWS, viewOf, viewsOf } from "./views/registry";

export interface Controls {
  element: HTMLElement;
  sync: () => void;
}

/** `Encoder`, `Vision`, `Vision cross`. */
const siteTab = (name: string): string => name.charAt(0).toUpperCase() + name.slice(1).replace(/_/g, " ");

export function controls(app: App): Controls {
  const set = (patch: Partial<State>) => app.update(patch);
  const syncs: (() => void)[] = [];
  const shownFor = (element: HTMLElement, when: () => boolean) => {
    syncs.push(() => (element.hidden = !when()));
    return element;
  };
  const heeds = (...names: ControlName[]) => () => names.some((name) => viewOf(app.state.view).controls(app.state, app.site).includes(name));

  const ownWords = () => viewOf(app.state.view).ownWords?.(app.state, app.site) ?? false;

  const element = h("header", {}, top(), tabs(), bar());
  return { element, sync: () => syncs.forEach((sync) => sync()) };

  function top(): HTMLElement {
    const find = h("input", { type: "search", placeholder: "Find a token  /", "data-control": "find", "aria-label": "Find a token" });
    const found = h("output", { class: "found", "aria-live": "polite" }, "");
    find.addEventListener("input", () => app.find(find.value));
    find.addEventListener("keydown", (event) => {
      if (event.key === "Enter") app.next(event.shiftKey ? -1 : 1);
    });
    syncs.push(() => {
      if (find.value !== app.search) find.value = app.search;
      found.textContent = app.search ? `${app.found()} found` : "";
    });
    const theme = select("theme", (value) => set({ theme: value as State["theme"] }));
    syncs.push(() => theme.set([["auto", "as the system"], ["light", "light"], ["dark", "dark"]], app.state.theme));
    const model = app.data.provenance.model;
    return h("div", { class: "top" },
      h("div", { class: "title" },
        h("h1", { title: shorten(visible(app.data.title), 300) }, shorten(visible(app.data.title), 240)),
        h("p", { class: "model" }, h("strong", {}, "normlens"), model ? ` · ${shorten(visible(String(model)), 200)}` : "")),
      h("div", { class: "group" }, pair(), find, found, field("Colours", theme.element)));
  }

  /** Which of several documents is shown. */
  function pair(): HTMLElement | null {
    const pages = app.host.pages;
    if (!pages) return null;
    const list = select("pair", (value) => pages.choose(Number(value)));
    list.set(pages.titles.map((title, index) => [String(index + 1), `${index + 1}: ${shorten(visible(title), 40)}`]), String(pages.shown));
    return field("Pair", list.element);
  }

  function tabs(): HTMLElement {
    const views = VIEWS.map((view) => h("button", { type: "button", "data-view": view.name, click: () => set({ view: view.name }) }, view.title));
    syncs.push(() => {
      const there = viewsOf(app.site.data, app.data).map((view) => view.name);
      for (const tab of views) {
        tab.hidden = !there.includes(tab.dataset.view!);
        tab.setAttribute("aria-current", tab.dataset.view === app.state.view ? "page" : "false");
      }
    });
    const sites = choice("site", "Site", [...app.sites.keys()].map((name) => [name, siteTab(name)] as [State["site"], string]), (site) => set({ site }));
    syncs.push(() => {
      const useful = [...app.sites.values()].filter((site) => viewsOf(site.data, app.data).some((view) => view.name === app.state.view));
      sites.set(app.state.site, app.data.explanation ? [...app.sites.values()].filter((site) => !useful.includes(site)).map((site) => site.name) : []);
      sites.element.hidden = app.sites.size < 2 || viewOf(app.state.view).everySite === true;
    });
    const table = h("button", { type: "button", "data-control": "table", click: () => set({ table: !app.state.table }) }, "Table");
    syncs.push(() => table.setAttribute("aria-pressed", String(app.state.table)));
    const files = (["svg", "png", "csv"] as const).map((kind) => h("button", { type: "button", "data-export": kind, title: `download ${kind === "csv" ? "the numbers of this view" : "this view"} as ${kind.toUpperCase()}`, click: () => void app.export(kind) }, kind.toUpperCase()));
    return h("nav", { "aria-label": "Views" }, ...views, sites.element, h("span", { class: "gap" }), table, h("div", { class: "choice", role: "group", "aria-label": "Download" }, ...files));
  }

  function bar(): HTMLElement {
    const group = (...children: Child[]) => h("div", { class: "group" }, ...children);
    const own = VIEWS.flatMap((view) => (view.choices ?? []).map((one) => {
      const control = choice(one.name, one.label, one.options, (value) => set({ choices: { ...app.state.choices, [one.name]: value } }));
      syncs.push(() => control.set(app.state.choices[one.name]));
      return shownFor(labelled(one.label, control.element), () => app.state.view === view.name && (one.when?.(app.state, app.site) ?? true));
    }));
    const settings = h("div", { class: "settings", id: "normlens-settings" },
      group(
        stepper("layer", "Layer", () => app.site.data.layers),
        shownFor(field("Step", step()), heeds("step")),
        elsewhere(),
        stepper("head", "Head", () => app.site.data.heads),
        measure("a", () => "Compare", heeds("a")),
        measure("b", () => (heeds("a")() ? "with" : "Measure"), heeds("b")),
        shownFor(field("Show", over()), heeds("over")),
        shownFor(field("Measure", ratio()), heeds("ratio"))),
      group(
        one("draw", "Draw as", [["arcs", "Links"], ["matrix", "Matrix"]], heeds("draw"), { min: null }),
        level(),
        one("scale", "Values", [["row", "Row share", "each row divided by its sum"], ["absolute", "Absolute", "values as measured"]], heeds("scale"), { min: null }),
        one("curve", "Scale", [["linear", "Linear"], ["sqrt", "√", "square root: small values show better; the legend says what a colour stands for"]], heeds("curve")),
        one("own", "Own part", [["shown", "Shown", "what a position keeps of itself, drawn like the rest"], ["faded", "Faded", "in grey and outside the scale, so that the rest can be seen"], ["hidden", "Hidden", "not drawn; shares are still those of the whole row"]], heeds("own")),
        ...own,
        shared(),
        smallest(),
        shownFor(span("query", () => (app.state.site === "cross" ? "Target" : "Positions")), () => !ownWords()),
        shownFor(span("key", () => "Source"), () => app.state.site === "cross" && !ownWords())));
    // On a narrow page the settings fold away behind a button; the style sheet says when.
    const fold = h("button", { type: "button", class: "fold", "data-control": "fold", "aria-controls": "normlens-settings", "aria-expanded": "false" }, "Settings");
    fold.addEventListener("click", () => {
      const open = settings.classList.toggle("open");
      fold.setAttribute("aria-expanded", String(open));
    });
    return h("div", { class: "folding" }, fold, settings);
  }

  /** A group of buttons with its name before it. */
  function labelled(text: string, control: HTMLElement): HTMLElement {
    return h("span", { class: "field" }, h("span", { "aria-hidden": "true" }, text), control);
  }

  function one<K extends "draw" | "scale" | "curve" | "own">(name: K, label: string, options: [State[K], string, string?][], when: () => boolean, also: Partial<State> = {}): HTMLElement {
    const control = choice<State[K]>(name, label, options, (value) => set({ ...also, [name]: value }));
    syncs.push(() => control.set(app.state[name]));
    return shownFor(labelled(label, control.element), when);
  }

  function level(): HTMLElement {
    const control = choice<State["level"]>("level", "Units", [["token", "Tokens"], ["word", "Words", app.data.explanation ? "the terms of a word's tokens are added, which is exact" : "subwords merged: contributing columns added, computed rows averaged"]], (value) => set({ level: value }));
    syncs.push(() => control.set(app.state.level, app.canMerge() ? [] : ["word"], "every word of this text is a single token"));
    return shownFor(labelled("Units", control.element), () => !ownWords());
  }

  function stepper(name: "layer" | "head", label: string, list: () => number[]): HTMLElement {
    const range = h("input", { type: "range", "data-control": name, min: 0, step: 1 });
    const out = h("output", {}, "");
    range.addEventListener("input", () => set({ [name]: list()[Number(range.value)] }));
    syncs.push(() => {
      range.max = String(Math.max(0, list().length - 1));
      range.value = String(Math.max(0, list().indexOf(app.state[name])));
      range.setAttribute("aria-valuetext", `${name} ${app.state[name]}`);
      out.textContent = `${app.state[name]} / ${list()[list().length - 1] ?? "–"}`;
    });
    return shownFor(h("label", { class: "field stepper" }, h("span", {}, label), range, out), heeds(name));
  }

  /** The same view on the other layers, each a link that opens in a new tab. */
  function elsewhere(): HTMLElement {
    const links = h("div", { class: "links" });
    const list = h("details", { class: "elsewhere" }, h("summary", {}, "Other layers in new tabs ↗"), links);
    syncs.push(() => {
      links.replaceChildren(...app.site.data.layers.filter((layer) => layer !== app.state.layer).map((layer) =>
        h("a", { href: app.address({ layer }), target: "_blank", rel: "noopener", "aria-label": `Open layer ${layer} in a new tab` }, String(layer))));
    });
    return shownFor(list, () => heeds("layer")() && app.address({}) !== null && app.site.data.layers.length > 1);
  }

  function measure(name: "a" | "b", label: () => string, when: () => boolean): HTMLElement {
    const control = select(name, (value) => set({ [name]: value as Measure }));
    const text = h("span", {}, "");
    syncs.push(() => {
      text.textContent = label();
      control.set(app.site.measures().map((m) => [m, app.site.text(m).name]), app.state[name]);
    });
    return shownFor(h("label", { class: "field" }, text, control.element), when);
  }

  function over(): HTMLElement {
    const control = select("over", (value) => set({ over: value }));
    syncs.push(() => {
      const all = app.site.measures();
      const perHead = all.filter((m) => app.site.text(m).perHead).map((m) => [m, `${app.site.text(m).name}, all heads`] as [string, string]);
      control.set([...perHead, ...(all.length > perHead.length ? [["layers", "Layer measures"] as [string, string]] : [])], app.state.over);
    });
    return control.element;
  }

  function ratio(): HTMLElement {
    const control = select("ratio", (value) => set({ ratio: value as Measure }));
    syncs.push(() => control.set(app.site.ratios().map((m) => [m, app.site.text(m).name]), app.state.ratio));
    return control.element;
  }

  function step(): HTMLElement {
    const control = select("step", (value) => set({ step: Number(value) }));
    const outputs = app.data.explanation?.outputs ?? [];
    syncs.push(() => control.set([...outputs.map((name, index) => [String(index + 1), `${index + 1}: ${shorten(visible(name), 24)}`] as [string, string]), ["0", "all steps added"]], String(app.state.step)));
    return control.element;
  }

  function shared(): HTMLElement {
    const box = h("input", { type: "checkbox", "data-control": "shared" });
    box.addEventListener("change", () => set({ shared: box.checked }));
    syncs.push(() => (box.checked = app.state.shared));
    return shownFor(h("label", { class: "check", title: "one scale for all layers and heads" }, box, "Same scale for all layers"), heeds("shared"));
  }

  function smallest(): HTMLElement {
    const range = h("input", { type: "range", min: 0, max: 100, step: 1, "data-control": "min" });
    const out = h("output", {}, "");
    const share = () => !app.data.explanation && (app.state.view === "flow" || app.state.scale === "row");
    // Squared, since most links are small; the last tenth of the way would hide everything.
    const limit = () => (app.data.explanation ? 0.5 * strongestLine(app.site, app.state.step) : app.state.view === "flow" ? 0.25 : share() ? 0.5 : Math.max(...[app.state.a, app.state.b].map((m) => Math.max(0, ...(app.site.data.maps[m]?.top ?? [1])))));
    range.addEventListener("input", () => set({ min: range.value === "0" ? null : Number((limit() * (Number(range.value) / 100) ** 2).toPrecision(3)) }));
    syncs.push(() => {
      range.value = app.state.min === null ? "0" : String(Math.round(100 * Math.sqrt(app.state.min / limit())));
      out.textContent = app.state.min === null ? "auto" : `≥ ${number(app.state.min, share())}`;
    });
    return shownFor(h("label", { class: "field stepper" }, h("span", {}, "Smallest link"), range, out), heeds("min"));
  }

  function span(axis: "query" | "key", label: () => string): HTMLElement {
    const from = h("input", { type: "number", min: 0, "data-control": `${axis}-from`, "aria-label": "first position shown" });
    const to = h("input", { type: "number", min: 1, "data-control": `${axis}-to`, "aria-label": "end of the span, not shown itself" });
    const text = h("span", {}, "");
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
      text.textContent = label();
      from.value = String(start + first());
      to.value = String(Math.min(size, stop) + first());
    });
    return h("span", { class: "field" }, text, from, "–", to);
  }
}
