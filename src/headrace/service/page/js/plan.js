// The diagram of the shared plan: pointing at a query, or focusing it, highlights the operators it uses.

import * as api from "/page/js/api.js";
import { at, mark, s, say } from "/page/js/dom.js";
import * as format from "/page/js/format.js";
import { layout } from "/page/js/plan_layout.js";
import { every } from "/page/js/poll.js";
import { go, toQuery } from "/page/js/route.js";
import { get, queryNamed, set, watch } from "/page/js/state.js";

const MOST_QUERIES = 300; // more are not readable; the list and its search have all of them
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

/** Returns the plan with at most `most` queries, and the number left out. */
export function thinned(operators, edges, most = MOST_QUERIES) {
  const queries = operators.filter(({ kind }) => kind === "query");
  const left = new Set(queries.slice(most).map(({ id }) => id));
  if (!left.size) return { operators, edges, left: 0 };
  return {
    operators: operators.filter(({ id }) => !left.has(id)),
    edges: edges.filter(([from, to]) => !left.has(from) && !left.has(to)),
    left: left.size,
  };
}

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
    const told = JSON.stringify([plan.operators, plan.edges]);
    say(at("plan-text"), plan.text);
    if (!plan.operators) this.asText(true);
    at("plan-as").hidden = !plan.operators;
    if (told === this.drawn) return;
    this.drawn = told;
    this.draw(plan.operators ?? [], plan.edges ?? []);
  }

  asText(text) {
    at("plan-text").hidden = !text;
    at("plan-picture").hidden = text;
    say(at("plan-as"), text ? "Show as diagram" : "Show as text");
  }

  draw(operators, edges) {
    const part = thinned(operators, edges);
    const empty = !part.operators.length;
    const users = part.operators.filter(({ kind }) => kind === "query");
    mark(at("view-plan"), "data-state", empty && this.drawn !== "[null,null]" ? "empty" : "some");
    const shared = part.operators.filter(
      ({ kind, queries }) => !["stream", "query"].includes(kind) && (queries?.length ?? 0) > 1,
    ).length;
    const inside = part.operators.length - users.length - part.operators.filter(({ kind }) => kind === "stream").length;
    const sizes = [format.several(users.length + part.left, "query", "queries"), format.several(inside, "operator", "operators")];
    const summary = `${sizes.join(", ")}, ${format.count(shared)} of them shared`;
    say(at("plan-summary"), empty ? "" : part.left ? `${summary}; ${format.count(part.left)} queries are not drawn` : summary);
    const { nodes, links, width, height } = layout(part.operators, part.edges);
    const lines = links.map(({ from, to }) => ({ element: link(from, to), queries: between(from, to) }));
    const boxes = nodes.map((node) => ({ element: this.box(node), node, queries: usersOf(node) }));
    this.elements = [...lines, ...boxes];
    const focused = this.queries?.find(({ element }) => element === document.activeElement)?.node.id;
    this.queries = boxes.filter(({ node }) => node.kind === "query").sort((a, b) => a.node.y - b.node.y);
    this.queries.forEach(({ element }, index) => mark(element, "tabindex", index ? "-1" : "0"));
    at("plan-picture").replaceChildren(
      s(
        "svg",
        {
          width,
          height,
          viewBox: `0 0 ${width} ${height}`,
          role: "group",
          "aria-label": "The shared plan",
        },
        lines.map(({ element }) => element),
        boxes.map(({ element }) => element),
      ),
    );
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

/** Returns the queries whose rows flow from one node to the other. */
function between(from, to) {
  const source = usersOf(from);
  const target = usersOf(to);
  return source.size ? new Set([...target].filter((name) => source.has(name))) : target;
}

function noteOf(node) {
  const users = node.kind === "stream" ? "" : ` · ${format.several(usersOf(node).size, "query", "queries")}`;
  return `${NAMES[node.kind] ?? node.kind}${users}`;
}

function link(from, to) {
  const [x1, y1, x2, y2] = [from.x + from.width, from.y + from.height / 2, to.x, to.y + to.height / 2];
  const bend = Math.max(30, (x2 - x1) / 2);
  return s("path", {
    class: "link-line",
    d: `M${x1} ${y1.toFixed(1)}C${x1 + bend} ${y1.toFixed(1)} ${x2 - bend} ${y2.toFixed(1)} ${x2} ${y2.toFixed(1)}`,
  });
}
