/** The keyboard: arrows for layers and heads, `/` to find, digits for views. */
import type { App } from "./app";
import { viewsOf } from "./views/registry";

export const KEYS: [string, string][] = [
  ["↑ ↓", "layer"],
  ["← →", "head"],
  ["1 … 9", "view, in the order of the tabs"],
  ["Enter", "open the chosen layer and head"],
  ["/", "find a token; Enter for the next"],
  ["j k", "next or previous token"],
  ["m", "links or matrix"],
  ["w", "tokens or words"],
  ["t", "table of the view"],
  ["Esc", "clear the chosen token"],
];

export function onKey(app: App, target: EventTarget): () => void {
  const listen = (raw: Event) => {
    const event = raw as KeyboardEvent;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const from = event.composedPath()[0] as HTMLElement;
    const typing = from instanceof HTMLInputElement || from instanceof HTMLSelectElement || from instanceof HTMLTextAreaElement;
    if (typing && event.key !== "Escape") return;
    if (event.key === "Enter" && from.closest("button, a, summary, .thumb")) return; // these have a meaning for it
    if (!act(app, event.key)) return;
    event.preventDefault();
    // A notebook has its own meaning for most keys.
    event.stopPropagation();
  };
  target.addEventListener("keydown", listen);
  return () => target.removeEventListener("keydown", listen);
}

function act(app: App, key: string): boolean {
  const { state, site } = app;
  const step = (list: number[], value: number, by: number) => list[Math.min(list.length - 1, Math.max(0, list.indexOf(value) + by))] ?? value;
  switch (key) {
    case "ArrowUp":
      app.update({ layer: step(site.data.layers, state.layer, -1) });
      return true;
    case "ArrowDown":
      app.update({ layer: step(site.data.layers, state.layer, 1) });
      return true;
    case "ArrowLeft":
      app.update({ head: step(site.data.heads, state.head, -1) });
      return site.data.heads.length > 0;
    case "ArrowRight":
      app.update({ head: step(site.data.heads, state.head, 1) });
      return site.data.heads.length > 0;
    case "/":
      app.root.querySelector<HTMLInputElement>("[data-control=find]")?.focus();
      return true;
    case "j":
    case "k":
      app.walk(key === "j" ? 1 : -1);
      return true;
    case "Enter":
      return app.open();
    case "m":
      app.update({ draw: state.draw === "arcs" ? "matrix" : "arcs" });
      return true;
    case "w":
      if (app.canMerge()) app.update({ level: state.level === "token" ? "word" : "token" });
      return true;
    case "t":
      app.update({ table: !state.table });
      return true;
    case "Escape":
      app.find("");
      app.update({ query: null, key: null });
      (app.root.activeElement as HTMLElement | null)?.blur();
      return true;
    default: {
      const view = /^[1-9]$/.test(key) ? viewsOf(site.data, app.data)[Number(key) - 1] : undefined;
      if (view) app.update({ view: view.name });
      return view !== undefined;
    }
  }
}
