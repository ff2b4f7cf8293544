// The diagram of the shared plan, drawn at the places that the service computes: pointing at a query, or focusing it, highlights
// the operators it uses.

import * as api from "/page/js/api.js";
import { at, mark, s, say } from "/page/js/dom.js";
import * as format from "/page/js/format.js";
import { every } from "/page/js/poll.js";
import { go, toQuery } from "/page/js/route.js";
import { get, queryNamed, set, watch } from "/page/js/state.js";

const LEAST_SCALE = 0.78;
const NOTHING = { width: 0, height: 0, boxes: [], groups: [], wires: [], omitted_queries: 0 };
const NAMES = {
  stream: "stream",
  aggregation: "aggregation",
  sessions: "sessions",
  routing: "routing",
  buckets: "join buffer",
  store: "state store",
  probe: "probe",
  query: "query",
};

/** The view; it polls the plan only while it is shown. */
export class PlanView {
  constructor() {
    this.drawn = "";
    this.elements = [];
    at("plan-as").addEventListener("click", () => this.asText(at("plan-text").hidden));
    this.refresh = every(3, () => this.load());
    watch(["route"], ({ view }) => view === "plan" && this.refresh());
    watch(["lit"], (name) => this.light(name));
    at("plan-picture").addEventListener("keydown", (event) => this.key(event));
  }

  async load() {
    if (get("route").view !== "plan" || get("connection") === "token") return;
    const plan = await api.plan();
    const told = JSON.stringify([plan.operators, plan.drawing]);
    say(at("plan-text"), plan.text);
    if (!plan.operators) this.asText(true);
    at("plan-as").hidden = !plan.operators;
    if (told === this.drawn) return;
    this.drawn = told;
    this.draw(plan.operators ?? [], plan.drawing ?? NOTHING);
  }

  asText(text) {
    at("plan-text").hidden = !text;
    at("plan-picture").hidden = text;
    say(at("plan-as"), text ? "Show as diagram" : "Show as text");
  }

  draw(operators, drawing) {
    const empty = !operators.length;
    const inside = operators.filter(({ kind }) => !["stream", "query"].includes(kind));
    const users = operators.filter(({ kind }) => kind === "query");
    mark(at("view-plan"), "data-state", empty && this.drawn !== "[null,null]" ? "empty" : "some");
    const shared = inside.filter(({ queries }) => (queries?.length ?? 0) > 1).length;
    const sizes = [format.several(users.length, "query", "queries"), format.several(inside.length, "operator", "operators")];
    const summary = `${sizes.join(", ")}, ${format.count(shared)} of them shared`;
    const omitted = drawing.omitted_queries;
    say(at("plan-summary"), empty ? "" : omitted ? `${summary}; ${format.count(omitted)} queries are not drawn` : summary);
    const { width, height } = drawing;
    const known = new Map(operators.map((operator) => [operator.id, operator]));
    const lines = drawing.wires.map(({ path, queries }) => ({ element: line(path), queries: new Set(queries) }));
    const frames = drawing.groups.map((group) => ({ element: frame(group), queries: new Set(group.queries) }));
    const nodes = drawing.boxes.map((place) => ({ ...known.get(place.id), ...place }));
    const boxes = nodes.map((node) => ({ element: this.box(node), node, queries: usersOf(node) }));
    this.elements = [...frames, ...lines, ...boxes];
    const focused = this.queries?.find(({ element }) => element === document.activeElement)?.node.id;
    this.queries = boxes.filter(({ node }) => node.kind === "query").sort((a, b) => a.node.y - b.node.y);
    this.queries.forEach(({ element }, index) => mark(element, "tabindex", index ? "-1" : "0"));
    const picture = s(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "The shared plan" },
      frames.map(({ element }) => element),
      lines.map(({ element }) => element),
      boxes.map(({ element }) => element),
    );
    picture.style.maxWidth = `${width}px`;
    picture.style.minWidth = `${width * LEAST_SCALE}px`; // a wide plan is drawn smaller, as long as it is readable
    at("plan-picture").replaceChildren(picture);
    this.queries.find(({ node }) => node.id === focused)?.element.focus();
    this.light(get("lit"));
  }

  box(node) {
    const isQuery = node.kind === "query";
    const name = isQuery ? nameOf(node) : null;
    const about = () =>
      isQuery ? [name, queryNamed(name)?.sql ?? node.detail] : [`${node.label}, used by ${someOf(usersOf(node))}`, node.detail];
    const tell = () => say(at("plan-detail"), about().filter(Boolean).join("\n"));
    const clip = (text, most) => (text && text.length > most ? `${text.slice(0, most - 1)}…` : (text ?? ""));
    const texts = isQuery
      ? [s("text", { x: 10, y: 16 }, clip(name, Math.floor(node.width / 7.4)))]
      : [
          s("text", { x: 10, y: 18, class: "box-label" }, clip(node.label ?? node.id, 27)),
          s("text", { x: 10, y: node.height - 9, class: "box-note" }, clip(noteOf(node), 32)),
        ];
    const group = s(
      "g",
      {
        class: `box box-${node.kind}`,
        transform: `translate(${node.x} ${node.y.toFixed(1)})`,
        role: isQuery ? "link" : "img",
        "aria-label": `${NAMES[node.kind] ?? node.kind} ${name ?? node.label ?? ""}`,
      },
      s("rect", { width: node.width, height: node.height, rx: isQuery ? 12 : 5 }),
      texts,
    );
    group.addEventListener("pointerenter", () => (tell(), isQuery && set("lit", name)));
    group.addEventListener("pointerleave", () => isQuery && set("lit", null));
    if (isQuery) {
      group.addEventListener("focus", () => (tell(), set("lit", name)));
      group.addEventListener("blur", () => set("lit", null));
      group.addEventListener("click", () => go(toQuery(name)));
    } else {
      group.addEventListener("pointerenter", () => this.lightAll(usersOf(node)));
      group.addEventListener("pointerleave", () => this.light(get("lit")));
    }
    return group;
  }

  /** Highlights the operators of a query and dims the rest; null highlights nothing. */
  light(name) {
    this.lightAll(name === null ? null : new Set([name]));
    const pointed = at("plan-picture").matches(":hover, :focus-within");
    if (name !== null && !pointed)
      at("plan-picture").querySelector(".box.lit:not(.box-stream)")?.scrollIntoView({ block: "nearest" });
  }

  lightAll(names) {
    const some = names !== null && this.elements.some(({ queries }) => meet(queries, names));
    mark(at("plan-picture"), "data-lit", some);
    for (const { element, queries } of this.elements) element.classList.toggle("lit", some && meet(queries, names));
  }

  key(event) {
    const place = this.queries?.findIndex(({ element }) => element === document.activeElement) ?? -1;
    if (place < 0) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      const next = this.queries[Math.max(0, Math.min(this.queries.length - 1, place + step))].element;
      mark(document.activeElement, "tabindex", "-1");
      mark(next, "tabindex", "0");
      next.focus();
    } else if (event.key === "Enter") go(toQuery(nameOf(this.queries[place].node)));
    else return;
    event.preventDefault();
  }
}

const nameOf = (node) => node.queries?.[0] ?? node.label;
const usersOf = (node) => new Set(node.kind === "query" ? [nameOf(node)] : (node.queries ?? []));
const someOf = (names) =>
  [...[...names].slice(0, 12), ...(names.size > 12 ? [`${format.count(names.size - 12)} more`] : [])].join(", ");
const meet = (a, b) => [...b].some((one) => a.has(one));

function noteOf(node) {
  const users = node.kind === "stream" ? "" : ` · ${format.several(usersOf(node).size, "query", "queries")}`;
  return `${NAMES[node.kind] ?? node.kind}${users}`;
}

const line = (path) => s("path", { class: "link-line", d: path });
const frame = ({ x, y, width, height }) => s("rect", { class: "box-group", x, y, width, height, rx: 10 });
