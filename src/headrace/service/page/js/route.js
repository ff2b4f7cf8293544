// Where one is: in the part of the address behind #, so that a reload and the back button do what they should.

import { set } from "/page/js/state.js";

const VIEWS = new Set(["plan", "time", "reports"]);

/** Reads #/q/NAME, #/plan, #/time, #/reports; anything else is a new query. */
export function parseRoute(hash) {
  const [view, name] = hash.replace(/^#\/?/, "").split("/");
  if (VIEWS.has(view)) return { view, name: null };
  if (view === "q" && name) {
    try {
      return { view: "queries", name: decodeURIComponent(name) };
    } catch {
      // not one of ours
    }
  }
  return { view: "queries", name: null };
}

export const toNew = "#/new";

export function toQuery(name) {
  return `#/q/${encodeURIComponent(name)}`;
}

/** Goes there. */
export function go(hash) {
  if (location.hash === hash) set("route", parseRoute(hash));
  else location.hash = hash;
}

/** Follows the address from now on. */
export function startRoute() {
  addEventListener("hashchange", () => set("route", parseRoute(location.hash)));
  set("route", parseRoute(location.hash));
}
