/** The saved file: data from its own script element, the view in the address bar. */
import { open } from "./pages";
import type { Document, Pages } from "./types";

const host = document.getElementById("normlens")!;
const data = JSON.parse(document.getElementById("normlens-data")!.textContent!) as Document | Pages;
document.getElementById("normlens-data")!.remove();
host.replaceChildren();
const remember = (hash: string) => {
  try {
    history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  } catch {
    // Inside a notebook's frame there is no address to keep the view in.
  }
};
const address = /^(file|https?):$/.test(location.protocol) ? location.href.replace(/#.*$/s, "") : null;
const page = open(host, data, { hash: location.hash, keys: document, changed: remember, address });
addEventListener("hashchange", () => page.restore(location.hash));
