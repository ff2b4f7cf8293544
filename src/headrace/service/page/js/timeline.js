// The timeline: micro-batches, and above them epochs, re-optimizations, and queries added, removed or failed.

import * as api from "/page/js/api.js";
import { at, h, mark, s, say } from "/page/js/dom.js";
import * as format from "/page/js/format.js";
import { every } from "/page/js/poll.js";
import { get, watch } from "/page/js/state.js";

const LISTED = 200;
const LEFT = 118;
const RIGHT = 34;
const LANE = 26;
const BARS = 84;
const LANES = [
  ["epoch", "epochs"],
  ["replan", "re-optimizations"],
  ["added", "added"],
  ["removed", "removed"],
  ["failed", "failed"],
];
const WORDS = { epoch: "epoch", replan: "re-optimized", added: "added", removed: "removed", failed: "failed" };

/** Returns events derived from micro-batches, for a service without an event log. */
export function eventsOf(batches) {
  return batches.flatMap((batch) =>
    ["added", "removed", "failed"]
      .filter((kind) => batch[kind] > 0)
      .map((kind) => ({
        at: batch.at,
        kind,
        batch: batch.batch,
        text: `${format.several(batch[kind], "query", "queries")} ${kind}`,
      })),
  );
}

/** Returns the seconds between ticks for at most `count` ticks. */
export function tickStep(span, count) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600];
  return steps.find((step) => span / step <= count) ?? 7200;
}

/** The view; it polls only while it is shown. */
export class TimeLine {
  constructor() {
    this.batches = null;
    this.events = null;
    at("time-span").addEventListener("change", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(at("time-picture"));
    this.refresh = every(2, () => this.load());
    watch(["route"], ({ view }) => view === "time" && this.refresh());
  }

  async load() {
    if (get("route").view !== "time" || get("connection") === "token") return;
    this.batches = await api.batches(1000);
    this.events = await api.events().catch((problem) => {
      if (problem.status !== 404) throw problem;
      return eventsOf(this.batches);
    });
    this.draw();
  }

  draw() {
    if (get("route").view !== "time") return;
    const loaded = this.batches !== null && this.events !== null;
    const some = loaded && this.batches.length + this.events.length > 0;
    mark(at("view-time"), "data-state", !loaded ? "loading" : some ? "some" : "empty");
    if (!some) return;
    const end =
      Math.max(
        ...this.batches.slice(-1).map((one) => format.instant(one.at)),
        ...this.events.map((one) => format.instant(one.at)),
      ) / 1000;
    const first = Math.min(
      ...this.batches.slice(0, 1).map((one) => one.at - one.seconds),
      ...this.events.map((one) => format.instant(one.at) / 1000),
    );
    const span = Math.min(Number(at("time-span").value), Math.max(10, end - first + 1));
    this.picture(end - span, end);
    this.list();
  }

  picture(begin, end) {
    const width = Math.max(500, at("time-picture").clientWidth);
    const height = LANES.length * LANE + BARS + 34;
    const x = (when) => LEFT + ((format.instant(when) / 1000 - begin) / (end - begin)) * (width - LEFT - RIGHT);
    const inside = (one) => format.instant(one.at) / 1000 >= begin;
    const events = this.events.filter(inside);
    const batches = this.batches.filter(inside);
    at("time-picture").replaceChildren(
      s(
        "svg",
        {
          width,
          height,
          viewBox: `0 0 ${width} ${height}`,
          role: "img",
          "aria-label": `Timeline: ${format.count(batches.length)} micro-batches, ${format.count(events.length)} events`,
        },
        axis(begin, end, x, height),
        LANES.map(([, title], index) => laneOf(title, index, width)),
        batchBars(batches, x, LANES.length * LANE + 8),
        LANES.flatMap(([kind], index) => events.filter((one) => one.kind === kind).map((one) => marker(one, x(one.at), index))),
      ),
    );
  }

  list() {
    const newest = [...this.events].sort((a, b) => format.instant(b.at) - format.instant(a.at)).slice(0, LISTED);
    const key = JSON.stringify(newest);
    if (key === this.listed) return;
    this.listed = key;
    at("event-rows").replaceChildren(
      ...newest.map((one) =>
        h(
          "tr",
          null,
          h("td", { title: format.iso(one.at) }, format.time(one.at)),
          h("td", null, h("span", { class: `event-kind event-${one.kind}` }, WORDS[one.kind] ?? one.kind)),
          h("td", { class: "numeric" }, format.count(one.batch)),
          h("td", null, one.text ?? ""),
        ),
      ),
    );
    say(at("event-note"), newest.length ? "" : "No events yet.");
  }
}

function axis(begin, end, x, height) {
  const step = tickStep(end - begin, 8);
  const ticks = [];
  for (let when = Math.ceil(begin / step) * step; when <= end; when += step) ticks.push(when);
  return ticks.map((when) =>
    s(
      "g",
      { class: "tick" },
      s("line", { x1: x(when), x2: x(when), y1: 0, y2: height - 20 }),
      s("text", { x: x(when), y: height - 5 }, format.time(when)),
    ),
  );
}

function laneOf(title, index, width) {
  const y = index * LANE + LANE / 2;
  return s(
    "g",
    { class: "lane" },
    s("line", { x1: LEFT, x2: width - RIGHT, y1: y, y2: y }),
    s("text", { x: LEFT - 10, y: y + 4 }, title),
  );
}

function batchBars(batches, x, top) {
  const longest = Math.max(0.001, ...batches.map((one) => one.seconds));
  const bars = batches.map((one) => {
    const height = Math.max(1, (one.seconds / longest) * (BARS - 14));
    const right = x(one.at);
    const width = Math.max(1.5, Math.min(14, right - x(one.at - one.seconds)) - 0.5);
    const rows = `${format.count(one.rows)} rows in, ${format.count(one.emitted)} out`;
    const about = `batch ${format.count(one.batch)}: ${format.seconds(one.seconds)}, ${rows}`;
    return s(
      "rect",
      { x: right - width, y: top + BARS - height, width, height, class: one.failed ? "batch failed" : "batch" },
      s("title", null, about),
    );
  });
  const note = `up to ${format.seconds(longest)}`;
  return s(
    "g",
    { class: "lane" },
    s("text", { x: LEFT - 10, y: top + BARS - 20 }, "micro-batches"),
    s("text", { x: LEFT - 10, y: top + BARS - 5, class: "lane-note" }, note),
    bars,
  );
}

function marker(event, x, lane) {
  const y = lane * LANE + LANE / 2;
  const shapes = {
    epoch: () => s("rect", { x: x - 1.5, y: y - 9, width: 3, height: 18 }),
    replan: () => s("path", { d: `M${x} ${y - 7}l7 7l-7 7l-7-7z` }),
    added: () => s("path", { d: `M${x} ${y - 6}l6 11h-12z` }),
    removed: () => s("path", { d: `M${x} ${y + 6}l6-11h-12z` }),
    failed: () => s("path", { d: `M${x - 5} ${y - 5}l10 10m0-10l-10 10`, class: "cross" }),
  };
  return s(
    "g",
    { class: `event event-${event.kind}` },
    (shapes[event.kind] ?? shapes.epoch)(),
    s("title", null, `${format.time(event.at)}  ${event.text ?? event.kind}`),
  );
}
