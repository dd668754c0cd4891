/** The notebook: data and view are traits of the Python widget. */
import { open } from "./pages";
import type { Document, Pages } from "./types";

interface Model {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  on(name: string, callback: () => void): void;
  off(name: string, callback: () => void): void;
}

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const host = document.createElement("div");
  el.append(host);
  const data = JSON.parse(String(model.get("document"))) as Document | Pages;
  const page = open(host, data, {
    hash: String(model.get("view") ?? ""),
    keys: host,
    address: null,
    changed: (hash) => {
      if (model.get("view") === hash) return;
      model.set("view", hash);
      model.save_changes();
    },
  });
  const changed = () => page.restore(String(model.get("view") ?? ""));
  model.on("change:view", changed);
  return () => {
    model.off("change:view", changed);
    page.close();
  };
}

export default { render };
