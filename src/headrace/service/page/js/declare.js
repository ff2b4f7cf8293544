// The form that declares a stream; its fields depend on the kind of source.

import * as api from "/page/js/api.js";
import { at, h, say } from "/page/js/dom.js";
import { get, set } from "/page/js/state.js";

/** The fields of each kind of source, besides the name: [key, label, initial value, options of the input]. */
const KINDS = {
  rate: {
    title: "generated rows",
    about: "Example rows at a chosen rate. Their event time starts now.",
    fields: [
      ["generator", "Generator", "purchases", { choices: ["purchases", "ads", "fields"] }],
      ["rows_per_second", "Rows per second", "2000", { type: "number", min: 1, step: "any" }],
    ],
    time: "time",
  },
  memory: {
    title: "rows sent by requests",
    about: "Clients send rows to POST /v1/streams/NAME/rows.",
    fields: [["columns", "Columns", "user_id INT, price DOUBLE, time TIMESTAMP", {}]],
    time: "time",
  },
  files: {
    title: "files",
    about: "Files that the service can read: a file, a directory or a glob pattern. New files are read as they appear.",
    fields: [
      ["path", "Path", "", { required: true }],
      ["columns", "Columns (unless the files contain a schema)", "", { required: false }],
    ],
    time: "time",
  },
  tcp: {
    title: "a TCP server",
    about: "A stream of a server that speaks headrace's TCP protocol.",
    fields: [
      ["address", "HOST:PORT", "127.0.0.1:9000", {}],
      ["stream", "Stream on the server", "", {}],
    ],
    time: "time",
  },
};

/** Opens the form. */
export function openDeclaring() {
  if (!at("declare-kind").options.length) prepare();
  show();
  say(at("declare-problem"), "");
  at("declaring").showModal();
}

function prepare() {
  const kind = at("declare-kind");
  kind.append(...Object.entries(KINDS).map(([key, { title }]) => h("option", { value: key }, title)));
  kind.addEventListener("change", show);
  at("declare-form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
}

function show() {
  const { about, fields, time } = KINDS[at("declare-kind").value];
  say(at("declare-about"), about);
  const all = [
    ["name", "Name", suggestion(), {}],
    ...fields,
    ["time", "Event-time column", time, {}],
    ["watermark", "Watermark delay", "500 ms", {}],
  ];
  at("declare-fields").replaceChildren(...all.map(field));
}

function suggestion() {
  const taken = new Set(get("streams")?.map(({ name }) => name));
  return ["purchases", "purchases_2", "purchases_3"].find((name) => !taken.has(name)) ?? "";
}

function field([key, label, value, { choices, required = true, ...more }]) {
  const input = choices
    ? h(
        "select",
        { name: key },
        choices.map((choice) => h("option", null, choice)),
      )
    : h("input", { name: key, value, autocomplete: "off", required, ...more });
  return h("label", null, label, input);
}

async function send() {
  const given = Object.fromEntries([...new FormData(at("declare-form"))].filter(([, value]) => value !== ""));
  if (given.rows_per_second) given.rows_per_second = Number(given.rows_per_second);
  at("declare-send").disabled = true;
  try {
    const made = await api.declare(given);
    set("streams", [...(get("streams") ?? []), made]);
    at("declaring").close();
  } catch (problem) {
    say(at("declare-problem"), [problem.message, problem.detail, problem.hint].filter(Boolean).join(". "));
  } finally {
    at("declare-send").disabled = false;
  }
}
