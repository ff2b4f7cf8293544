// Where one is: in the part of the address behind #, so that a reload and the back button do what they should.

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
    return null; // not one of ours
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
