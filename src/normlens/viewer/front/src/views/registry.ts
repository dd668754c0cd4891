/**
 * The views, in the order of their tabs. A view is one module that gives a `ViewModule`; adding one is a line here: its tab,
 * its key, its controls and its place in the address follow.
 */
import { alignment } from "./alignment";
import { compare } from "./compare";
import type { ViewModule } from "./context";
import { explain } from "./explain";
import { flow } from "./flow";
import { mixing } from "./mixing";
import { overview } from "./overview";
import type { Document, SiteData } from "../types";

export const VIEWS: readonly ViewModule[] = [explain, compare, overview, mixing, flow, alignment];

export function viewOf(name: string): ViewModule {
  return VIEWS.find((view) => view.name === name) ?? VIEWS[0];
}

/** The views that have something to show for a site. */
export function viewsOf(site: SiteData, document: Document): ViewModule[] {
  return VIEWS.filter((view) => view.available(site, document));
}
