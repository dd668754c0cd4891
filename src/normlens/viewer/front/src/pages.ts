/** One document, or several of which one is shown: the pairs of an alignment. */
import { App, type Host } from "./app";
import type { Document, Pages } from "./types";

export interface Opened {
  restore: (hash: string) => void;
  close: () => void;
}

/** Draw the data into a container; `pair=3` in the address is the third of several documents. */
export function open(container: HTMLElement, data: Document | Pages, host: Omit<Host, "pages">): Opened {
  const documents = "pages" in data ? data.pages : [data];
  let app: App;
  let shown = 0;
  const draw = (hash: string) => {
    const given = new URLSearchParams(hash.replace(/^#/, ""));
    shown = Math.min(documents.length, Math.max(1, Math.floor(Number(given.get("pair")) || 1)));
    let own = container;
    if (documents.length > 1) {
      own = document.createElement("div"); // a shadow root stays with its element: each document has its own
      container.replaceChildren(own);
    }
    const address = (view: string) => [documents.length > 1 && shown > 1 ? `pair=${shown}` : "", view].filter(Boolean).join("&");
    const pages = documents.length < 2 ? undefined : {
      titles: documents.map((one) => one.title),
      shown,
      choose: (number: number) => {
        app.close();
        draw(`pair=${number}`);
        host.changed(address(""));
      },
    };
    app = new App(own, documents[shown - 1], { ...host, hash, pages, changed: (view) => host.changed(address(view)) });
  };
  draw(host.hash);
  return {
    restore: (hash) => {
      const pair = Number(new URLSearchParams(hash.replace(/^#/, "")).get("pair")) || 1;
      if (pair === shown) return app.restore(hash);
      app.close();
      draw(hash);
    },
    close: () => app.close(),
  };
}
