// Benchmark reports of the service: a searchable list, and the chosen report in a frame without network access.

import * as api from "/page/js/api.js";
import { at, h, mark, say } from "/page/js/dom.js";
import * as format from "/page/js/format.js";
import { every } from "/page/js/poll.js";
import { toReport } from "/page/js/route.js";
import { get, watch } from "/page/js/state.js";

const FRAME = "/page/report_frame.html";
const STEPS = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };

/** Returns the reports with all words of a text in their name or metadata. */
export function select(reports, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const said = (one) => [one.name, one.title, one.headline, ...one.scenarios, ...one.systems].join("\n").toLowerCase();
  return reports.filter((one) => words.every((word) => said(one).includes(word)));
}

/** The view; it polls only while it is shown. */
export class Reports {
  constructor() {
    this.found = null;
    this.open = null; // the name of the report that is shown or loading
    this.opening = null;
    at("report-search").addEventListener("input", () => this.draw());
    at("report-side").addEventListener("keydown", (event) => this.key(event));
    for (const retry of ["reports-retry", "report-retry"]) at(retry).addEventListener("click", () => this.again());
    this.refresh = every(5, () => this.load());
    watch(["route"], ({ view, report }) => {
      if (view !== "reports") return;
      this.refresh();
      if (report !== this.open || report === null) this.show(report);
    });
  }

  /** Retries failed requests. */
  again() {
    this.refresh();
    if (at("report").dataset.state === "failed") this.show(this.open);
  }

  async load() {
    if (get("route").view !== "reports" || get("connection") === "token") return;
    try {
      this.found = await api.reports();
    } catch (problem) {
      say(at("reports-problem"), problem.message);
      if (this.found === null) mark(at("view-reports"), "data-state", "failed");
      throw problem;
    }
    mark(at("view-reports"), "data-state", this.found.length ? "some" : "empty");
    this.draw();
  }

  /** Draws the list if it changed, and keeps the focus. */
  draw() {
    const shown = select(this.found ?? [], at("report-search").value);
    const key = JSON.stringify([shown, this.open]);
    if (key === this.drawn) return;
    this.drawn = key;
    say(at("report-count"), format.count(this.found?.length ?? 0));
    mark(at("report-side"), "data-state", this.found?.length && !shown.length ? "none" : "some");
    const focused = document.activeElement?.closest("#report-list a")?.getAttribute("href");
    const stop = shown.some(({ name }) => name === this.open) ? this.open : shown[0]?.name;
    at("report-list").replaceChildren(...shown.map((one) => h("li", null, entry(one, this.open, stop))));
    this.links.find((link) => link.getAttribute("href") === focused)?.focus();
  }

  get links() {
    return [...at("report-list").querySelectorAll("a")];
  }

  /** Handles the arrow keys in the list, and from the search into the list. */
  key(event) {
    const { links } = this;
    const from = links.indexOf(document.activeElement);
    const searching = document.activeElement === at("report-search");
    if (searching && event.key === "Enter") links[0]?.click();
    else if (!(event.key in STEPS) || (searching && event.key !== "ArrowDown")) return;
    else if (from === 0 && event.key === "ArrowUp") at("report-search").focus();
    else links[Math.max(0, Math.min(links.length - 1, from + STEPS[event.key]))]?.focus();
    event.preventDefault();
  }

  /** Opens a report; null closes the one that is open. */
  async show(name) {
    this.open = name;
    this.opening?.abort();
    const control = (this.opening = new AbortController());
    at("report-page").replaceChildren();
    mark(at("report"), "data-state", name === null ? "empty" : "loading");
    mark(at("view-reports"), "data-open", name !== null);
    this.draw();
    if (name === null) return;
    try {
      const text = await api.report(name, control.signal);
      await fill(h("iframe", { sandbox: "allow-scripts", src: FRAME, title: `Report ${name}` }), text);
      if (!control.signal.aborted) mark(at("report"), "data-state", "some");
    } catch (problem) {
      if (control.signal.aborted) return;
      if (problem.status === undefined) throw problem;
      say(at("report-problem"), problem.message);
      mark(at("report"), "data-state", "failed");
    }
  }
}

/** Adds the frame to the page and posts the report to it; its origin is opaque, so the target origin is "*". */
async function fill(frame, text) {
  const loaded = new Promise((resolve) => frame.addEventListener("load", resolve, { once: true }));
  at("report-page").replaceChildren(frame);
  await loaded;
  frame.contentWindow?.postMessage(text, "*");
}

function entry(one, open, stop) {
  const { name, title, headline, systems, started_at: when } = one;
  const facts = `${systems.join(", ")} · ${format.several(one.runs, "run", "runs")} · ${format.bytes(one.size_bytes)}`;
  return h(
    "a",
    { href: toReport(name), "aria-current": name === open && "true", tabindex: name === stop ? 0 : -1 },
    h("span", { class: "report-name" }, name),
    h("time", { datetime: when, title: format.iso(when), class: "dim figures" }, format.date(when)),
    h("span", { class: "report-title" }, title),
    headline && h("span", { class: "report-headline" }, headline),
    h("span", { class: "report-facts" }, facts, one.failed > 0 && h("b", null, ` · ${format.count(one.failed)} failed`)),
  );
}
