// Keyboard shortcuts that work outside text inputs; Ctrl+Enter works inside them, too.

import { at } from "/page/js/dom.js";
import { go, toNew, toReports } from "/page/js/route.js";
import { get } from "/page/js/state.js";

function writes(event) {
  const target = event.composedPath()[0];
  return target instanceof HTMLElement && (target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName));
}

/** Starts the shortcuts, with the actions that focus the editor, pause results and run the query. */
export function startKeys({ focusEditor, pause, run }) {
  const keys = {
    "/": () => at(get("route").view === "reports" ? "report-search" : "query-search").focus(),
    "?": () => at("help").showModal(),
    n: () => (go(toNew), focusEditor()),
    e: () => (at("view-queries").hidden && go(toNew), focusEditor()),
    q: () => go(toNew),
    p: () => go("#/plan"),
    t: () => go("#/time"),
    r: () => go(toReports),
    " ": pause,
  };
  document.addEventListener("keydown", (event) => {
    const search = document.activeElement;
    if (event.key === "Escape" && search.type === "search") {
      if (search.value) {
        search.value = "";
        search.dispatchEvent(new Event("input"));
      } else search.blur();
      return;
    }
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !at("view-queries").hidden && !event.defaultPrevented) {
      if (!document.querySelector("dialog[open]")) run();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || writes(event) || document.querySelector("dialog[open]")) return;
    if (event.key === " " && document.activeElement !== document.body) return;
    if (!(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  });
  at("help-open").addEventListener("click", () => at("help").showModal());
}
