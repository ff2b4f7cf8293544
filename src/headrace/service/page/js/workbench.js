// The editor and its controls, for a new or an existing query. The text is checked while the user types.

import * as api from "/page/js/api.js";
import { confirmed } from "/page/js/dialogs.js";
import { at, h, mark, say } from "/page/js/dom.js";
import { Editor } from "/page/js/editor.js";
import * as format from "/page/js/format.js";
import { exampleQuery } from "/page/js/language.js";
import { go, toNew, toQuery } from "/page/js/route.js";
import { get, queryNamed, set, watch } from "/page/js/state.js";

const DRAFT = "headrace-draft";
const PAUSE_MS = 300; // after the last key, before the text is checked

/** Follows the route: shows the named query, or a new one. */
export class Workbench {
  constructor(results) {
    this.results = results;
    this.query = null; // the shown query; null for a new one
    this.drafts = new Map(); // changed texts that were not sent, by query name
    this.busy = false;
    this.editor = new Editor(at("editor"), {
      streams: () => get("streams") ?? [],
      changed: (text) => this.changed(text),
      run: () => this.run(),
    });
    at("run").addEventListener("click", () => this.run());
    at("remove").addEventListener("click", () => this.remove(this.query.name));
    at("copy").addEventListener("click", () => this.copy());
    at("new-query").addEventListener("click", () => (go(toNew), this.editor.focus()));
    at("query-name").addEventListener("input", () => mark(at("query-name"), "aria-invalid", null));
    at("query-name").addEventListener("keydown", (event) => event.key === "Enter" && this.run());
    watch(["route"], () => this.follow());
    watch(["queries"], () => this.refresh());
    watch(["streams"], () => this.offerExample());
  }

  /** Shows the query of the route. */
  async follow() {
    const { view, name } = get("route");
    if (view !== "queries" || (name !== null && name === this.query?.name)) return;
    if (name === null) {
      this.show(null, sessionStorage.getItem(DRAFT) ?? "");
      this.offerExample();
      this.results.close();
      return;
    }
    const known = queryNamed(name);
    if (known) this.open(known);
    else await this.find(name);
  }

  async find(name) {
    say(at("workbench-title"), name);
    this.results.close({ expected: true });
    try {
      const query = await api.query(name);
      if (get("route").name === name) this.open(query);
    } catch (problem) {
      if (problem.status !== 404 || get("route").name !== name) return; // retried when the service answers
      go(toNew);
      this.tell(
        {
          message: `query '${name}' does not exist`,
          detail: "",
          hint: "choose a query from the list, or run a new one",
          line: 0,
        },
        "note",
      );
    }
  }

  open(query, options) {
    this.show(query, this.drafts.get(query.name) ?? query.sql);
    this.results.open(query, options);
  }

  show(query, text) {
    this.query = query;
    this.editor.show(text);
    this.tell(null);
    this.describe();
    if (text.trim()) this.checkSoon(0);
  }

  /** Writes an example into an empty editor for a new query, once streams are known. */
  offerExample() {
    if (this.query || this.editor.text.trim() || sessionStorage.getItem(DRAFT) || !get("streams")?.length) return;
    this.editor.show(exampleQuery(get("streams")));
    this.checkSoon(0);
  }

  /** Updates the shown query from the list. */
  refresh() {
    const { name } = get("route");
    if (!this.query) {
      if (name !== null && get("route").view === "queries") this.follow();
      return;
    }
    const found = queryNamed(this.query.name);
    if (!found) return this.gone();
    const replaced = found.id !== this.query.id;
    const untouched = !this.drafts.has(found.name);
    this.query = found;
    if (replaced) this.results.open(found, { fresh: true });
    if (replaced && untouched) this.editor.show(found.sql);
    this.describe();
  }

  async gone() {
    const { name, status } = this.query;
    if (["removed", "failed"].includes(status) || !get("queries")) return;
    const found = await api.query(name).catch(() => null);
    if (!found || found.name !== this.query?.name) return;
    this.query = found;
    this.describe();
  }

  /** Shows the status and statistics of the query, and enables its buttons. */
  describe() {
    const { query } = this;
    const changed = query && this.editor.text !== query.sql;
    const over = query?.status === "removed";
    mark(at("workbench"), "data-mode", query ? "query" : "new");
    say(at("workbench-title"), query ? query.name : "New query");
    at("query-name").hidden = Boolean(query);
    at("status").hidden = at("facts").hidden = at("remove").hidden = at("copy").hidden = !query;
    at("remove").disabled = query?.status === "removed";
    say(at("run-label"), this.busy ? (query ? "Replacing …" : "Adding …") : query ? "Replace" : "Run");
    at("run").disabled = this.busy || Boolean(query && (!changed || over));
    mark(at("run"), "title", query ? "Replace the query with this text" : "Add the query and watch its results");
    if (!query) return;
    say(at("status"), query.status);
    mark(at("status"), "data-status", query.status);
    showFacts(at("facts"), factsOf(query));
  }

  changed(text) {
    if (this.query) {
      if (text === this.query.sql) this.drafts.delete(this.query.name);
      else this.drafts.set(this.query.name, text);
    } else sessionStorage.setItem(DRAFT, text);
    this.describe();
    this.checkSoon(PAUSE_MS);
  }

  checkSoon(ms) {
    clearTimeout(this.timer);
    this.checking?.abort();
    mark(at("answer"), "data-stale", true);
    this.timer = setTimeout(() => this.check(), ms);
  }

  /** Asks the service to check the text. */
  async check() {
    const { text } = this.editor;
    if (!text.trim()) return this.tell(null);
    const control = (this.checking = new AbortController());
    try {
      const { columns } = await api.check(text, control.signal);
      if (!control.signal.aborted) this.tell(null, "columns", columns);
    } catch (problem) {
      if (control.signal.aborted || problem.status === undefined) return;
      if (problem.status === 422) this.tell(problem, "problem");
    }
  }

  /** Adds the query, or replaces the shown one. */
  async run() {
    const { query } = this;
    const { text } = this.editor;
    if (at("run").disabled || !text.trim()) return;
    clearTimeout(this.timer);
    this.checking?.abort();
    this.busy = true;
    this.describe();
    try {
      const made = query ? await api.replace(query.name, text) : await api.add(text, at("query-name").value.trim());
      this.busy = false;
      this.taken(made);
    } catch (problem) {
      this.busy = false;
      if (problem.status === undefined) throw problem;
      if (problem.status === 409 && !query) mark(at("query-name"), "aria-invalid", "true");
      this.tell(problem, "problem");
      this.editor.focus();
    } finally {
      this.describe();
    }
  }

  taken(made) {
    this.drafts.delete(made.name);
    if (!this.query) sessionStorage.removeItem(DRAFT);
    at("query-name").value = "";
    set("queries", [...(get("queries") ?? []).filter(({ name }) => name !== made.name), made]);
    this.open(made, { fresh: true });
    go(toQuery(made.name));
  }

  copy() {
    sessionStorage.setItem(DRAFT, this.editor.text);
    go(toNew);
    this.editor.focus();
  }

  /** Removes a query after a confirmation. */
  async remove(name) {
    const text = "It emits no more rows. Its results stay in the checkpoint.";
    if (!(await confirmed(`Remove '${name}'?`, text, "Remove"))) return;
    try {
      await api.remove(name);
    } catch (problem) {
      return this.tell(problem, "problem");
    }
    this.drafts.delete(name);
    set("queries", get("queries")?.filter((query) => query.name !== name) ?? null);
    if (this.query?.name === name) go(toNew);
  }

  /** Shows a problem below the editor and marks it in the text; or the output columns of the query. */
  tell(problem, kind = "none", columns = []) {
    const inSql = kind === "problem" && (problem.line > 0 || problem.status === 422);
    if (inSql) this.editor.markProblem(problem);
    else this.editor.clear();
    mark(at("answer"), "data-stale", null);
    mark(at("answer"), "data-kind", problem ? kind : columns.length ? "columns" : "none");
    if (problem) at("answer").replaceChildren(...problemLines(problem));
    else if (columns.length)
      at("answer").replaceChildren(h("span", { class: "dim" }, "output: "), ...columns.flatMap(columnWords));
    else at("answer").replaceChildren();
  }
}

function problemLines({ message, detail, hint, line, column }) {
  const place = line > 0 ? h("span", { class: "place" }, `line ${line}, column ${column}`) : null;
  const lines = [h("p", { class: "message" }, place, message)];
  if (detail) lines.push(h("p", null, detail));
  if (hint) lines.push(h("p", { class: "hint" }, hint));
  return lines;
}

function columnWords({ name, type }) {
  return [h("span", { class: "chip" }, h("b", null, name), " ", type.toLowerCase()), " "];
}

/** Updates the facts in place, so that an element under the pointer stays. */
function showFacts(place, facts) {
  while (place.children.length > facts.length) place.lastChild.remove();
  while (place.children.length < facts.length) place.append(h("span"));
  facts.forEach(([text, about], index) => {
    say(place.children[index], text);
    mark(place.children[index], "title", about);
  });
}

/** Returns the statistics of a query: texts, some with a tooltip. */
function factsOf(query) {
  const { cost, latency_seconds: latency, state_bytes: state, deployment_seconds: deployment } = query;
  const late = Object.values(query.late ?? {}).reduce((sum, number) => sum + number, 0);
  const facts = [
    [format.several(query.emitted, "row", "rows")],
    [`${format.rate(query.rows_per_second)} rows/s`],
    [
      `latency ${format.seconds(latency?.p50)}`,
      `median, from the end of a window or the time of a row until results are readable; 95 %: ${format.seconds(latency?.p95)}`,
    ],
    [`state ${format.bytes(state)}`, "its part of the state of open windows"],
    [
      `cost ${cost ? `${format.seconds(cost.shared)}/s, standalone ${format.seconds(cost.alone)}/s` : format.NONE}`,
      `estimated work per second: its part of the shared work, and if it ran alone; ${format.percent(cost?.share)} of all work`,
    ],
  ];
  if (typeof deployment === "number") facts.push([`live after ${format.seconds(deployment)}`, "since the request"]);
  if (late) facts.push([format.several(late, "late row", "late rows")]);
  if (query.owner) facts.push([`added by ${query.owner}`]);
  return facts;
}
