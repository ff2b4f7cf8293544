// The route: the part of the address after #, so that reload and the back button work.

import { set } from "/page/js/state.js";

const VIEWS = new Set(["plan", "time", "reports"]);

/** Reads #/q/NAME, #/plan, #/time, #/reports, #/reports/NAME; anything else is a new query. */
export function parseRoute(hash) {
  const [view, rest] = hash.replace(/^#\/?/, "").split("/");
  const name = decoded(rest);
  return {
    view: VIEWS.has(view) ? view : "queries",
    name: view === "q" ? name : null,
    report: view === "reports" ? name : null,
  };
}

function decoded(text) {
  try {
    return decodeURIComponent(text ?? "") || null;
  } catch {
    return null; // not encoded by this page
  }
}

export const toNew = "#/new";
export const toReports = "#/reports";

export function toQuery(name) {
  return `#/q/${encodeURIComponent(name)}`;
}

export function toReport(name) {
  return `${toReports}/${encodeURIComponent(name)}`;
}

/** Navigates to a route. */
export function go(hash) {
  if (location.hash === hash) set("route", parseRoute(hash));
  else location.hash = hash;
}

/** Starts following the address. */
export function startRoute() {
  addEventListener("hashchange", () => set("route", parseRoute(location.hash)));
  set("route", parseRoute(location.hash));
}
