// Benchmark reports that lie with the service: links to them, and nothing where there are none to be had.

import * as api from "/page/js/api.js";
import { at, h, mark } from "/page/js/dom.js";

/** Asks once; the tab is shown only if the service knows of reports at all. */
export async function startReports() {
  let found;
  try {
    found = await api.reports();
  } catch {
    return;
  }
  at("tab-reports").hidden = false;
  mark(at("view-reports"), "data-state", found.length ? "some" : "empty");
  at("report-list").replaceChildren(
    ...found.map(({ name, url, at: made, about }) =>
      h(
        "li",
        null,
        h("a", { href: safe(url), target: "_blank", rel: "noopener" }, name),
        (about || made) && h("span", { class: "dim" }, about || new Date(made * 1000).toLocaleString()),
      ),
    ),
  );
}

/** Returns an address only if it is one of this service. */
function safe(url) {
  const full = new URL(url, location.href);
  return full.origin === location.origin ? full.href : "#";
}
