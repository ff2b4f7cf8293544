// Live results of one query: rows are received as they are emitted, and drawn at most five times per second.

import { Chart } from "/page/js/chart.js";
import { at, h, mark, painter, say } from "/page/js/dom.js";
import * as format from "/page/js/format.js";
import { follow, recent } from "/page/js/live.js";
import { Pace, Rows } from "/page/js/rows.js";
import { MOST_SERIES, barsOf, choose, kindsOf, linesOf, rolesOf, settled } from "/page/js/shape.js";
import { get, watch } from "/page/js/state.js";
import { Table } from "/page/js/table.js";

const KEPT = 5_000; // rows
const SHOWN = 200;
const SAMPLE_WINDOWS = 1_000; // rows of an event; a window's rows belong together
const SAMPLE_ROWS = 100; // for a query without windows, so that the kept rows cover some seconds
const STATES = {
  empty: "",
  connecting: "connecting …",
  live: "live",
  reconnecting: "reconnecting …",
  end: "ended",
  paused: "paused",
};
const KINDS = { line: "Lines", bars: "Bars", table: "Table" };

/** The panel below the editor. */
export class Results {
  constructor() {
    this.rows = new Rows(KEPT);
    this.table = new Table(at("table"));
    this.chart = new Chart(at("chart"), at("legend"));
    this.paint = painter(() => this.draw());
    this.following = null;
    this.query = null;
    at("pause").addEventListener("click", () => this.pause(!this.paused));
    at("results-value").addEventListener("change", ({ target }) => this.wish({ values: this.picked(target) }));
    at("results-by").addEventListener("change", ({ target }) => this.wish({ by: this.picked(target) }));
    setInterval(() => this.query && !this.paused && this.paint(), 1000);
    watch(["connection"], (connection) => connection === "ok" && this.following?.hurry());
    this.close();
    watch(["streams"], () => this.query === null && this.paint());
  }

  /** Shows no query; with `expected`, that a query is being opened. */
  close({ expected = false } = {}) {
    this.following?.stop();
    this.following = this.query = null;
    this.reset(expected ? "connecting" : "empty");
    this.draw();
  }

  /** Follows a query: a new one from its beginning, others from their last rows on. */
  async open(query, { fresh = false } = {}) {
    if (this.query?.id === query.id) return;
    this.following?.stop();
    this.query = query;
    this.reset("connecting");
    this.begin(query.columns);
    this.draw();
    const { rows, next } = fresh ? { rows: [], next: "beginning" } : await recent(query, KEPT);
    if (this.query !== query) return; // another query was opened meanwhile
    this.rows.push(rows);
    const windowed = query.columns.some(({ name }) => /^window_(start|end)$/i.test(name));
    this.following = follow(query, next, windowed ? SAMPLE_WINDOWS : SAMPLE_ROWS, {
      state: (state, wait) => this.become(state, wait),
      columns: (columns) => this.begin(columns),
      rows: (rows, leftOut) => this.take(rows, leftOut),
      missed: () => (this.missed = true),
      quiet: () => this.paint(),
      end: (end) => this.become("end", end),
    });
  }

  reset(state) {
    this.state = state;
    this.detail = null;
    this.columns = [];
    this.paused = false;
    this.rows.clear();
    this.pace = new Pace();
    this.leftOut = 0;
    this.missed = false; // whether rows were deleted before this page read them
    this.held = [];
    this.chart.hidden.clear();
    this.chart.clear();
  }

  begin(columns) {
    if (JSON.stringify(columns) === JSON.stringify(this.columns)) return;
    this.columns = columns;
    this.roles = rolesOf(columns, this.query.sql);
    this.choice = choose(this.roles);
    this.rows.clear();
    this.table.begin(columns);
    this.makeControls();
  }

  take(rows, leftOut) {
    this.rows.push(rows);
    this.leftOut += leftOut;
    this.pace.add(rows.length + leftOut, performance.now());
    if (!this.paused) this.paint();
  }

  become(state, detail) {
    this.state = state;
    this.detail = detail;
    this.paint();
  }

  pause(paused) {
    this.paused = paused;
    this.draw();
  }

  wish(changes) {
    this.choice = settled({ ...this.choice, ...changes }, this.roles);
    this.held = [];
    this.chart.clear();
    this.makeControls();
    this.draw();
  }

  picked(select) {
    return select.value === "" ? [] : select.value.split(",").map(Number);
  }

  makeControls() {
    const { kind, by, values } = this.choice;
    const kinds = kindsOf(this.roles);
    at("results-kinds").replaceChildren(
      ...kinds.map((one) =>
        h(
          "button",
          {
            type: "button",
            "aria-pressed": String(one === kind),
            on: { click: () => this.wish({ kind: one }) },
          },
          KINDS[one],
        ),
      ),
    );
    const name = (index) => this.columns[index].name;
    const free = this.roles.values.filter((index) => !by.includes(index));
    const valueOptions = free.map((index) => [String(index), name(index)]);
    if (!by.length && kind === "line" && free.length > 1)
      valueOptions.unshift([free.slice(0, MOST_SERIES).join(","), "all values"]);
    fillSelect(at("results-value"), valueOptions, values.join(","));
    const byOptions = this.roles.keys.map((index) => [String(index), `by ${name(index)}`]);
    const { grouped } = this.roles;
    if (grouped.length > 1) byOptions.unshift([grouped.join(","), `by ${grouped.map(name).join(", ")}`]);
    if (kind === "line") byOptions.push(["", "not split"]);
    fillSelect(at("results-by"), byOptions, by.join(","));
    at("results-value").hidden = kind === "table" || valueOptions.length < 2;
    at("results-by").hidden = kind === "table" || byOptions.length < 2;
    at("results-controls").hidden = kinds.length < 2;
  }

  draw() {
    const has = this.rows.length > 0;
    const kind = has ? this.choice.kind : "table";
    mark(at("results"), "data-state", this.state);
    mark(at("results"), "data-kind", kind);
    mark(at("results"), "data-filled", has);
    at("results-empty").hidden = has;
    at("results-body").hidden = !has;
    at("results-tools").hidden = !this.query;
    this.sayState();
    say(at("pause"), this.paused ? "Resume" : "Pause");
    mark(at("pause"), "aria-pressed", String(Boolean(this.paused)));
    if (!has) return;
    this.table.show(this.rows.newest(SHOWN));
    if (kind === "line")
      this.drawn(linesOf(this.rows, this.columns, { ...this.choice, time: this.roles.time, held: this.held }), "lines");
    else if (kind === "bars") this.drawn(barsOf(this.rows, this.columns, { ...this.choice, held: this.held }), "bars");
  }

  drawn(data, how) {
    this.held = how === "lines" ? data.names : data.labels;
    const shown = this.held.length;
    const all = format.count(shown + data.others);
    say(at("chart-note"), data.others ? `the ${shown} largest of ${all} ${how === "lines" ? "series" : "bars"}` : "");
    this.chart[how](data);
  }

  sayState() {
    const [title, text] = this.words();
    say(at("results-state"), STATES[this.paused ? "paused" : this.state]);
    mark(at("results-state"), "data-state", this.paused ? "paused" : this.state);
    say(at("empty-title"), title);
    say(at("empty-text"), text);
    say(at("results-failure"), this.state === "end" && this.detail.error ? this.detail.error : "");
    at("results-failure").hidden = !(this.state === "end" && this.detail.error && this.rows.length);
    const { added } = this.rows;
    const all = added + this.leftOut;
    const pace = `${format.rate(this.pace.perSecond(performance.now()))} rows/s`;
    say(at("results-pace"), this.state === "live" ? pace : "");
    say(at("results-count"), all ? format.several(all, "row seen", "rows seen") : "");
    const few = Math.min(SHOWN, this.rows.length);
    say(at("table-note"), `the newest ${few === 1 ? "row" : `${format.count(few)} rows`}, newest first`);
    const gaps = [
      this.leftOut && `sampled: ${format.percent(added / all)} shown`,
      this.missed && "some rows are no longer kept and were missed",
    ].filter(Boolean);
    at("results-sampled").hidden = !gaps.length;
    say(at("results-sampled"), gaps.join("; "));
  }

  /** Returns the title and text to show while there are no rows. */
  words() {
    if (this.state === "empty" && get("streams")?.length === 0)
      return [
        "No streams yet",
        "A query reads a stream. Declare a stream at the lower left; generated rows are the quickest way to start.",
      ];
    if (this.state === "empty")
      return [
        "No query is open",
        "Run the query in the editor, or choose one from the list. Its results appear here as they are emitted.",
      ];
    if (this.state === "connecting") return ["Opening …", "Loading the newest rows."];
    if (this.state === "reconnecting")
      return ["Reconnecting …", "The service does not answer. Results continue where they stopped as soon as it does."];
    if (this.state === "end") {
      const { status, error } = this.detail;
      if (status === "failed") return ["The query failed", error || "It emits no more rows."];
      if (status === "missing") return ["The query does not exist", error || ""];
      return ["The query was removed", "It emitted no rows."];
    }
    if (this.query?.status === "accepted") return ["Waiting to be installed", "The query starts with the next micro-batch."];
    return ["No rows yet", "The query is live. It emits rows when its first window closes, or when a row matches."];
  }
}

function fillSelect(select, options, value) {
  select.replaceChildren(...options.map(([key, text]) => h("option", { value: key }, text)));
  select.value = value;
}
