/** The page itself: one state, the controls that change it, the view that it gives. */
import { hasWords, items, type Item } from "./axis";
import { THEMES, type Theme } from "./colour";
import { controls, type Controls } from "./controls";
import { h } from "./dom";
import { compose, csv, download, png, svgText } from "./export";
import { Site } from "./grid";
import { onKey } from "./keys";
import { fromHash, initial, settle, spanOf, toHash, type State } from "./state";
import style from "./style.css";
import { shorten, visible } from "./text";
import type { Document } from "./types";
import type { Context, Focus, Shown } from "./views/context";
import { about, tableOf } from "./views/record";
import { viewOf } from "./views/registry";

/** The version of the data that this page reads. */
const VERSION = 2;

export interface Host {
  hash: string;
  /** Where keys are heard: the whole document for a page, the widget alone in a notebook. */
  keys: Document_ | HTMLElement;
  changed: (hash: string) => void;
  /** The page's own address without its view; null in a notebook, which has no page to open. */
  address: string | null;
  /** The documents of the page, where it holds several. */
  pages?: { titles: string[]; shown: number; choose: (number: number) => void };
}
type Document_ = globalThis.Document;

export class App {
  readonly sites: Map<string, Site>;
  readonly root: ShadowRoot;
  state: State;
  /** Text looked for, and which of its places Enter has reached. */
  search = "";
  private place = -1;
  private readonly first: State;
  private readonly frame: HTMLElement;
  private readonly main: HTMLElement;
  private readonly under: HTMLElement;
  /** Announces the chosen token: a view is drawn anew for each, and a live region must outlast its text. */
  private readonly status: HTMLElement;
  private readonly bar: Controls;
  private readonly watch: ResizeObserver;
  private readonly dark = matchMedia("(prefers-color-scheme: dark)");
  private readonly stop: () => void;
  private shown: Shown | null = null;
  private hovered: Focus | null = null;
  private width = 0;
  private asked = 0;

  constructor(container: HTMLElement, readonly data: Document, readonly host: Host) {
    if (data.format !== "normlens-view" || data.version !== VERSION) {
      container.textContent = `This page reads normlens-view version ${VERSION}; the data say ${String(data.format)} version ${String(data.version)}. Save it again with this version of normlens.`;
      throw new Error("unknown data format");
    }
    this.sites = new Map(data.sites.map((site) => [site.name, new Site(site, data.measures, data.alignment !== undefined)]));
    this.first = initial(data);
    this.state = fromHash(host.hash, this.first, data); // settles what the document does not hold
    this.root = container.attachShadow({ mode: "open" });
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(style);
    this.root.adoptedStyleSheets = [sheet];
    this.main = h("main", { class: "view", tabindex: -1 });
    this.under = h("section", { class: "under", "aria-label": "Table" });
    this.status = h("p", { class: "spoken", role: "status", "data-part": "status" });
    this.bar = controls(this);
    this.frame = h("div", { class: host.keys === globalThis.document ? "normlens whole" : "normlens", tabindex: host.keys === globalThis.document ? null : 0 }, this.bar.element, this.main, this.under, about(this.data), this.status);
    this.root.append(this.frame);
    this.watch = new ResizeObserver(() => {
      const width = this.main.clientWidth;
      if (Math.abs(width - this.width) > 1) this.draw();
    });
    this.watch.observe(this.main);
    const theme = () => this.draw();
    this.dark.addEventListener("change", theme);
    const unkey = onKey(this, host.keys);
    this.stop = () => {
      this.dark.removeEventListener("change", theme);
      unkey();
    };
    this.draw();
  }

  get site(): Site {
    return this.sites.get(this.state.site)!;
  }

  get theme(): Theme {
    const choice = this.state.theme;
    return THEMES[choice === "auto" ? (this.dark.matches ? "dark" : "light") : choice];
  }

  update(patch: Partial<State>): void {
    const before = this.state;
    this.state = settle({ ...before, ...patch }, this.data);
    if (this.state.site !== before.site && patch.query === undefined) this.state = { ...this.state, query: null, key: null };
    this.hovered = null;
    if (!this.asked) {
      this.asked = requestAnimationFrame(() => {
        this.asked = 0;
        this.draw();
        this.host.changed(toHash(this.state, this.first)); // the address says what is drawn
      });
    }
  }

  /** The address of this view with some choices changed, for a link; null where there is none. */
  address(patch: Partial<State>): string | null {
    if (this.host.address === null) return null;
    return `${this.host.address}#${toHash({ ...this.state, ...patch }, this.first)}`;
  }

  restore(hash: string): void {
    const next = fromHash(hash, this.first, this.data);
    if (JSON.stringify(next) === JSON.stringify(this.state)) return;
    this.state = next;
    this.draw();
  }

  close(): void {
    this.watch.disconnect();
    this.stop();
  }

  axis(which: "query" | "key", site = this.site): Item[] {
    return items(site.data[which], this.state.level, spanOf(this.state, site.name, which));
  }

  /** Both axes' lengths when more than the page draws at once; null when it can draw. */
  tooMany(): number | null {
    const most = Math.max(this.axis("query").length, this.axis("key").length);
    return most > this.data.limit ? most : null;
  }

  canMerge(): boolean {
    return hasWords(this.site.data.query) || hasWords(this.site.data.key);
  }

  find(text: string): void {
    this.search = text;
    this.place = -1;
    this.draw();
  }

  matches(list: Item[]): Set<number> {
    const wanted = this.search.trim().toLocaleLowerCase();
    if (!wanted) return new Set();
    return new Set([...list.keys()].filter((index) => list[index].text.toLocaleLowerCase().includes(wanted) || list[index].raw.toLocaleLowerCase().includes(wanted)));
  }

  /** Pin the next place of the searched text: computed positions first, then, across languages, contributing ones. */
  next(step: number): void {
    const query = this.axis("query");
    const key = this.axis("key");
    const places: Partial<State>[] = [...this.matches(query)].map((index) => ({ query: query[index].members[0], key: null }));
    if (this.state.site === "cross") places.push(...[...this.matches(key)].map((index) => ({ query: null, key: key[index].members[0] })));
    if (!places.length) return;
    this.place = (this.place + step + places.length) % places.length;
    this.update(places[this.place]);
  }

  /** Pin the token after or before the pinned one. */
  walk(step: number): void {
    const list = this.axis("query");
    const at = list.findIndex((item) => this.state.query !== null && item.members.includes(this.state.query));
    const next = at < 0 ? (step > 0 ? 0 : list.length - 1) : Math.min(list.length - 1, Math.max(0, at + step));
    if (list.length) this.update({ query: list[next].members[0], key: null });
  }

  /** Open what the view has chosen, as a click on it does. */
  open(): boolean {
    this.shown?.open?.();
    return this.shown?.open !== undefined;
  }

  found(): number {
    const both = this.state.site === "cross" ? this.matches(this.axis("key")).size : 0;
    return this.matches(this.axis("query")).size + both;
  }

  heading(): string {
    return this.data.title ? shorten(visible(this.data.title), 90) : "normlens";
  }

  record(): string {
    const { provenance } = this.data;
    const known = ["model", "dtype", "normlens", "version", "transformers", "torch"].filter((name) => typeof provenance[name] === "string" || typeof provenance[name] === "number");
    return [`normlens view`, ...known.map((name) => `${name} ${visible(String(provenance[name]))}`)].join(" · ");
  }

  async export(kind: "svg" | "png" | "csv"): Promise<void> {
    if (!this.shown) return;
    const name = `normlens-${this.state.view}-${this.state.site}-layer${this.state.layer}.${kind}`;
    if (kind === "csv") {
      const { columns, rows } = this.shown.table;
      download(name, new Blob([csv(columns, rows())], { type: "text/csv;charset=utf-8" }));
      return;
    }
    const node = compose(this.shown, this.heading(), this.record(), this.theme);
    download(name, kind === "svg" ? new Blob([svgText(node)], { type: "image/svg+xml" }) : await png(node));
  }

  draw(): void {
    this.width = this.main.clientWidth || 960;
    this.frame.dataset.theme = this.theme.name;
    this.frame.dataset.view = this.state.view;
    this.frame.dataset.narrow = String(this.width < 600);
    this.bar.sync();
    const many = this.tooMany();
    if (many !== null) {
      this.shown = null;
      this.main.replaceChildren(h("p", { class: "message", role: "status" }, `This input has ${many.toLocaleString("en")} ${this.state.level}s; the page draws ${this.data.limit} at a time. Choose a span of positions above, for example 0 to ${this.data.limit}.`));
      this.under.replaceChildren();
      return;
    }
    const query = this.axis("query");
    const key = this.axis("key");
    if (!query.length || !key.length) {
      this.shown = null;
      this.main.replaceChildren(h("p", { class: "message", role: "status" }, "The chosen span holds no position. Choose another one above."));
      this.under.replaceChildren();
      return;
    }
    const context: Context = {
      site: this.site,
      state: this.state,
      theme: this.theme,
      width: this.width,
      query,
      key,
      document: this.data,
      sites: this.sites,
      axis: (site, which) => this.axis(which, site),
      matches: (list) => this.matches(list),
      found: { rows: this.matches(query), columns: this.matches(key) },
      hover: (focus) => this.point(focus),
      pin: (focus) => {
        const same = focus.query === this.state.query && focus.key === this.state.key;
        this.update(same ? { query: null, key: null } : focus);
      },
      update: (patch) => this.update(patch),
    };
    const inside = (this.root.activeElement as Element | null)?.classList.contains("thumb");
    this.shown = viewOf(this.state.view).draw(context);
    this.main.replaceChildren(this.shown.element);
    // Who walks through the overview with the arrows stays in it.
    if (inside) this.main.querySelector<SVGElement>(".thumb[data-chosen]")?.focus();
    this.under.replaceChildren(...(this.state.table ? [tableOf(this.shown)] : []));
    this.point(this.hovered);
    const chosen = this.state.query !== null || this.state.key !== null;
    this.status.textContent = chosen ? (this.main.querySelector("[data-part=line]")?.textContent ?? "") : "";
  }

  private point(focus: Focus | null): void {
    this.hovered = focus;
    this.shown?.focus(focus ?? { query: this.state.query, key: this.state.key });
  }
}
