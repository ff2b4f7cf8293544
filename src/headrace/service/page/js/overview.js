// The overview at the top: input and output rates, latency, queries, watermark. Tiles exist before their values are loaded.

import { at, h, mark, s, say } from "/page/js/dom.js";
import * as format from "/page/js/format.js";
import { openRescaling } from "/page/js/rescale.js";
import { watch } from "/page/js/state.js";

const WIDTH = 96;
const HEIGHT = 26;

/** The tiles: title, value, note below it, and the field of the history that its sparkline shows. */
const TILES = [
  {
    id: "in",
    title: "Rows in",
    unit: "/s",
    value: (o) => format.rate(o.rows_per_second),
    note: () => "read from streams",
    line: "rows_per_second",
  },
  {
    id: "out",
    title: "Rows out",
    unit: "/s",
    value: (o) => format.rate(o.emitted_per_second),
    note: () => "emitted by all queries",
    line: "emitted_per_second",
  },
  {
    id: "latency",
    title: "Latency",
    unit: "median",
    value: (o) => format.seconds(o.latency_seconds?.p50),
    note: (o) => `95 %: ${format.seconds(o.latency_seconds?.p95)}`,
  },
  {
    id: "live",
    title: "Live queries",
    unit: "",
    value: (o) => format.count(o.live),
    note: (o) => (o.waiting ? `${format.count(o.waiting)} waiting` : "none waiting"),
    line: "live",
  },
  {
    id: "watermark",
    title: "Watermark",
    unit: "",
    value: (o) => format.time(o.watermark),
    note: (o) => (o.watermark ? `${format.seconds(o.lag_seconds)} behind` : "no rows yet"),
    tip: (o) => format.iso(o.watermark),
  },
  {
    id: "batch",
    title: "Micro-batch",
    unit: "",
    value: (o) => format.seconds(o.batch_seconds ?? o.history?.at(-1)?.batch_seconds),
    note: () => "duration of the last",
    line: "batch_seconds",
  },
  {
    id: "partitions",
    title: "Partitions",
    unit: "",
    value: (o) => format.count(o.partitions?.partitions),
    note: (o) => partitionsNote(o.partitions),
    act: { label: "Change", title: "Change the number of key partitions", run: openRescaling },
  },
];

/** Says what comes next: another number, or that the number is automatic. */
function partitionsNote(found) {
  if (!found) return "";
  if (found.next !== found.partitions) return `${format.count(found.next)} with the next batch`;
  if (found.greatest_share > 1.001 * found.least_share)
    return `${format.percent(found.least_share)} to ${format.percent(found.greatest_share)} of the keys each`;
  return found.auto ? "automatic" : `for ${format.several(found.parallelism, "core", "cores")}`;
}

/** Returns the points of a line through values, in a box; "" for fewer than two values. */
export function sparkline(values, width = WIDTH, height = HEIGHT) {
  const known = values.filter((value) => Number.isFinite(value));
  if (known.length < 2) return "";
  const top = Math.max(...known);
  const low = Math.min(0, ...known);
  const scale = top === low ? 0 : (height - 4) / (top - low);
  return known
    .map(
      (value, index) => `${((index * width) / (known.length - 1)).toFixed(1)},${(height - 2 - (value - low) * scale).toFixed(1)}`,
    )
    .join(" ");
}

/** Creates the tiles and keeps them up to date. */
export function startOverview() {
  const tiles = TILES.map((tile) => {
    const value = h("span", { class: "tile-value" }, format.NONE);
    const note = h("span", { class: "tile-note" });
    const line = s("polyline", { class: "spark" });
    const drawing = s(
      "svg",
      {
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        width: WIDTH,
        height: HEIGHT,
        "aria-hidden": "true",
        preserveAspectRatio: "none",
      },
      line,
    );
    const act = tile.act && h("button", { type: "button", class: "link", title: tile.act.title, on: { click: tile.act.run } }, tile.act.label);
    const figure = h("dd", null, value, h("span", { class: "tile-unit" }, act ?? tile.unit), note);
    at("overview").append(
      h("div", { class: "tile", "data-tile": tile.id }, h("dt", null, tile.title), figure, tile.line && drawing),
    );
    return { ...tile, show: { value, note, line } };
  });
  watch(["overview"], (overview) => {
    for (const tile of tiles) update(tile, overview ?? {});
  });
}

function update({ value, note, tip, line, show }, overview) {
  say(show.value, value(overview));
  say(show.note, note(overview));
  if (tip) mark(show.value, "title", tip(overview) || null);
  if (line) mark(show.line, "points", sparkline((overview.history ?? []).slice(0, -1).map((one) => one[line])));
}
