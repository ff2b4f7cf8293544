// Streams in the side bar: their columns, which a click inserts into the editor, and sample rows.

import * as api from "/page/js/api.js";
import { openDeclaring } from "/page/js/declare.js";
import { at, h, mark, say } from "/page/js/dom.js";
import * as format from "/page/js/format.js";
import { quoted } from "/page/js/language.js";
import { watch } from "/page/js/state.js";
import { Table } from "/page/js/table.js";

/** Starts the list; `insert(text)` inserts text into the editor. */
export function startStreams(insert) {
  const made = new Map();
  at("declare").addEventListener("click", openDeclaring);
  at("declare-first").addEventListener("click", openDeclaring);
  watch(["streams"], (streams) => {
    mark(at("streams"), "data-state", streams === null ? "loading" : streams.length ? "some" : "empty");
    say(at("stream-count"), streams === null ? "" : format.count(streams.length));
    for (const stream of streams ?? []) {
      if (!made.has(stream.name)) made.set(stream.name, make(stream, insert));
      update(made.get(stream.name), stream);
    }
    for (const [name, { element }] of made) {
      if (streams?.some((stream) => stream.name === name)) continue;
      element.remove();
      made.delete(name);
    }
  });
}

function make(stream, insert) {
  const pace = h("span", { class: "stream-pace" });
  const name = h("span", { class: "stream-name" }, stream.name);
  const use = h(
    "button",
    {
      type: "button",
      class: "link",
      on: { click: () => insert(quoted(stream.name)) },
    },
    "insert name",
  );
  const look = h(
    "button",
    {
      type: "button",
      class: "link",
      on: { click: () => showSample(stream.name) },
    },
    "sample rows",
  );
  const columns = stream.columns.map((column) =>
    h(
      "li",
      null,
      h(
        "button",
        {
          type: "button",
          class: "column",
          title: "Insert into the editor",
          on: { click: () => insert(quoted(column.name)) },
        },
        column.name,
      ),
      h("span", { class: "type" }, column.type.toLowerCase(), column.name === stream.time ? " · event time" : ""),
    ),
  );
  const facts = h("p", { class: "stream-facts" });
  const element = h(
    "details",
    { class: "stream" },
    h("summary", null, name, pace),
    h("ul", null, columns),
    facts,
    h("p", null, use, " ", look),
  );
  at("stream-list").append(element);
  return { element, pace, facts };
}

function update({ pace, facts }, stream) {
  say(pace, stream.status === "degraded" ? "degraded" : `${format.rate(stream.rows_per_second)} rows/s`);
  const parts = [`${format.count(stream.rows)} rows so far`, `watermark delay ${format.seconds(stream.delay_seconds)}`];
  const late = Object.values(stream.late ?? {}).reduce((sum, number) => sum + number, 0);
  if (late) parts.push(format.several(late, "late row", "late rows"));
  if (stream.untimed) parts.push(`${format.count(stream.untimed)} without event time`);
  const skipped = Object.keys(stream.skipped ?? {}).length;
  if (skipped) parts.push(format.several(skipped, "file skipped", "files skipped"));
  const unit = stream.source?.kind === "kafka" ? "message" : "line";
  if (stream.skipped_rows) parts.push(format.several(stream.skipped_rows, `${unit} skipped`, `${unit}s skipped`));
  const lost = Object.values(stream.lost ?? {}).reduce((sum, number) => sum + number, 0);
  if (lost) parts.push(format.several(lost, "message lost", "messages lost"));
  if (stream.lag_rows) parts.push(format.several(stream.lag_rows, "row not read yet", "rows not read yet"));
  const status = stream.status ?? "ok";
  if (status !== "ok") parts.unshift(status);
  say(facts, parts.join(" · "));
  const behind = stream.partitions?.filter((part) => part.lag_rows).map((part) => `partition ${part.partition}: ${part.lag_rows}`);
  const about = [stream.latest && `newest event time: ${stream.latest}`, behind?.length && `not read: ${behind.join(", ")}`];
  mark(facts, "title", stream.error ?? (about.filter(Boolean).join(" · ") || null));
}

async function showSample(name) {
  const note = at("sample-note");
  say(at("sample-title"), `Rows of ${name}`);
  say(note, "Loading …");
  at("sample-rows").replaceChildren();
  at("sample").showModal();
  try {
    const { columns, rows } = await api.sample(name);
    say(note, rows.length ? "Rows of the last micro-batch, newest first." : "The last micro-batch had no rows of this stream.");
    const table = new Table(at("sample-rows"));
    table.begin(columns);
    table.show(rows.reverse());
  } catch (problem) {
    say(note, problem.message);
  }
}
