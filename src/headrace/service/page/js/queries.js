// The list of queries, with search and sorting; only visible rows have elements.

import { at, h, mark, painter, say } from "/page/js/dom.js";
import * as format from "/page/js/format.js";
import { get, set, watch } from "/page/js/state.js";

const HEIGHT = 46; // of a row, as in the style sheet
const BEYOND = 6; // rows drawn above and below the visible ones

const byNumber = (of) => (a, b) => (of(b) ?? -Infinity) - (of(a) ?? -Infinity) || b.id - a.id;

/** The sort orders of the list: title, comparison, the value shown with it, and its tooltip. */
const SORTS = {
  newest: { title: "newest first", order: (a, b) => b.id - a.id },
  name: {
    title: "by name",
    order: (a, b) => a.name.localeCompare(b.name, "en", { numeric: true }),
  },
  pace: {
    title: "by rows per second",
    order: byNumber((q) => q.rows_per_second),
    figure: (q) => `${format.rate(q.rows_per_second)}/s`,
  },
  emitted: { title: "by rows emitted", order: byNumber((q) => q.emitted) },
  cost: {
    title: "by cost",
    order: byNumber((q) => q.cost?.share),
    figure: (q) => format.percent(q.cost?.share),
  },
  latency: {
    title: "by latency",
    order: byNumber((q) => q.latency_seconds?.p50),
    figure: (q) => format.seconds(q.latency_seconds?.p50),
    about: (q) => q.latency_seconds && `95 %: ${format.seconds(q.latency_seconds.p95)}`,
  },
  state: {
    title: "by state size",
    order: byNumber((q) => q.state_bytes),
    figure: (q) => format.bytes(q.state_bytes),
  },
};

/** Returns the queries with all words of a text in their name, SQL, status or owner, sorted. */
export function select(queries, text, sort) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (q) => words.every((word) => `${q.name}\n${q.sql}\n${q.status}\n${q.owner ?? ""}`.toLowerCase().includes(word));
  return queries.filter(fits).sort((SORTS[sort] ?? SORTS.newest).order);
}

/** The list in the side bar; `open(name)` shows a query, `remove(name)` removes it after a confirmation. */
export class QueryList {
  constructor({ open, remove }) {
    this.open = open;
    this.remove = remove;
    this.list = at("query-list");
    this.inner = this.list.appendChild(h("div", { class: "list-inner", role: "presentation" }));
    this.pool = [];
    this.shown = [];
    this.active = null;
    const sort = at("query-sort");
    sort.append(...Object.entries(SORTS).map(([key, { title }]) => h("option", { value: key }, title)));
    sort.value = localStorage.getItem("headrace-sort") in SORTS ? localStorage.getItem("headrace-sort") : "newest";
    const paint = painter(() => this.draw(), 20);
    sort.addEventListener("change", () => {
      localStorage.setItem("headrace-sort", sort.value);
      this.arrange();
    });
    at("query-search").addEventListener("input", () => this.arrange());
    at("query-search").addEventListener("keydown", (event) => this.fromSearch(event));
    this.list.addEventListener("scroll", paint);
    this.list.addEventListener("keydown", (event) => this.key(event));
    this.list.addEventListener("pointerleave", () => set("lit", null));
    this.list.addEventListener("blur", () => set("lit", null));
    new ResizeObserver(paint).observe(this.list);
    watch(["queries"], () => this.arrange());
    watch(["route"], () => this.arrange());
  }

  arrange() {
    const queries = get("queries");
    this.shown = select(queries ?? [], at("query-search").value, at("query-sort").value);
    const { name } = get("route");
    if (!this.shown.some((query) => query.name === this.active)) this.active = name ?? this.shown[0]?.name ?? null;
    const live = (queries ?? []).filter((query) => query.status === "live").length;
    say(at("query-count"), queries === null ? "" : format.count(queries.length));
    mark(at("query-count"), "title", queries === null ? null : `${format.count(live)} live`);
    const state = queries === null ? "loading" : !queries.length ? "empty" : !this.shown.length ? "none" : "some";
    mark(at("query-list-frame"), "data-state", state);
    mark(this.list, "aria-busy", String(queries === null));
    this.inner.style.height = `${this.shown.length * HEIGHT}px`;
    this.draw();
  }

  /** Creates and fills the visible rows. */
  draw() {
    const first = Math.max(0, Math.floor(this.list.scrollTop / HEIGHT) - BEYOND);
    const last = Math.min(this.shown.length, Math.ceil((this.list.scrollTop + this.list.clientHeight) / HEIGHT) + BEYOND);
    while (this.pool.length < last - first) this.pool.push(this.makeRow());
    this.pool.forEach((row, index) => {
      const query = this.shown[first + index];
      row.element.hidden = first + index >= last;
      if (first + index < last) this.fillRow(row, query, first + index);
    });
    const active = this.shown.find((query) => query.name === this.active);
    mark(this.list, "aria-activedescendant", active ? `query-${active.id}` : null);
  }

  makeRow() {
    const parts = Object.fromEntries(["dot", "name", "figure", "sql"].map((part) => [part, h("span", { class: `row-${part}` })]));
    const element = h("div", { role: "option", class: "query-row" }, parts.dot, parts.name, parts.figure, parts.sql);
    const row = { element, parts, name: null };
    element.addEventListener("click", () => this.choose(row.name));
    element.addEventListener("pointerenter", () => set("lit", row.name));
    this.inner.append(element);
    return row;
  }

  fillRow(row, query, index) {
    const { element, parts } = row;
    row.name = query.name;
    element.style.transform = `translateY(${index * HEIGHT}px)`;
    mark(element, "id", `query-${query.id}`);
    mark(element, "aria-selected", String(get("route").name === query.name));
    mark(element, "aria-posinset", index + 1);
    mark(element, "aria-setsize", this.shown.length);
    mark(element, "data-active", query.name === this.active);
    const waiting = query.sinks?.find((sink) => sink.state === "degraded");
    const several = waiting && format.several(waiting.waiting_batches, "micro-batch waits", "micro-batches wait");
    const problem = waiting && `${waiting.description} is degraded, ${several}: ${waiting.problem}`;
    mark(element, "title", query.error || problem || query.sql);
    mark(parts.dot, "data-status", query.status);
    mark(parts.dot, "title", query.status);
    say(parts.name, query.name);
    const { figure, about } = SORTS[at("query-sort").value] ?? SORTS.newest;
    say(parts.figure, figure ? figure(query) : format.several(query.emitted, "row", "rows"));
    mark(parts.figure, "title", about?.(query));
    say(parts.sql, query.status === "failed" ? query.error || "failed" : problem || query.sql.replaceAll(/\s+/g, " "));
  }

  choose(name) {
    this.active = name;
    this.open(name);
    this.draw();
  }

  fromSearch(event) {
    if (event.key === "ArrowDown" || (event.key === "Enter" && this.shown.length)) {
      event.preventDefault();
      this.active = this.shown[0]?.name ?? null;
      this.list.focus();
      if (event.key === "Enter") this.choose(this.active);
      else this.move(0);
    }
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.list.clientHeight / HEIGHT) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps) this.move(steps[event.key]);
    else if (event.key === "Enter" || event.key === " ") this.active && this.choose(this.active);
    else if (event.key === "Delete") this.active && this.remove(this.active);
    else return;
    event.preventDefault();
  }

  move(by) {
    const from = this.shown.findIndex((query) => query.name === this.active);
    const to = Math.max(0, Math.min(this.shown.length - 1, from + by));
    if (!this.shown.length) return;
    this.active = this.shown[to].name;
    set("lit", this.active);
    const top = to * HEIGHT;
    if (top < this.list.scrollTop) this.list.scrollTop = top;
    else if (top + HEIGHT > this.list.scrollTop + this.list.clientHeight)
      this.list.scrollTop = top + HEIGHT - this.list.clientHeight;
    this.draw();
  }
}
