// Declaring a stream: one form, whose fields are those of the kind of source.

import * as api from "/page/js/api.js";
import { at, h, say } from "/page/js/dom.js";
import { get, set } from "/page/js/state.js";

/** What a kind of source needs, beside a name: [key, label, value to begin with, options of the input]. */
const KINDS = {
  rate: {
    title: "made-up rows",
    about: "Rows of an example, as many a second as wanted. Their event time begins now.",
    fields: [
      ["generator", "Rows of", "purchases", { choices: ["purchases", "ads", "fields"] }],
      ["rows_per_second", "Rows a second", "2000", { type: "number", min: 1, step: "any" }],
    ],
    time: "time",
  },
  memory: {
    title: "rows sent by requests",
    about: "Programs send rows to POST /v1/streams/NAME/rows.",
    fields: [["columns", "Columns", "user_id INT, price DOUBLE, time TIMESTAMP", {}]],
    time: "time",
  },
  files: {
    title: "files",
    about: "Files that the service can read: a file, a directory or a pattern. New ones are read as they appear.",
    fields: [
      ["path", "Path", "", { required: true }],
      ["columns", "Columns (if the files do not tell)", "", { required: false }],
    ],
    time: "time",
  },
  tcp: {
    title: "a server that speaks headrace's protocol",
    about: "Rows of a stream of another program.",
    fields: [
      ["address", "HOST:PORT", "127.0.0.1:9000", {}],
      ["stream", "Its name there", "", {}],
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
    ["watermark", "Out of order by up to", "500 ms", {}],
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
