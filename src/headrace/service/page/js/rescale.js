// The dialog that changes the number of key partitions.

import * as api from "/page/js/api.js";
import { at, say } from "/page/js/dom.js";
import * as format from "/page/js/format.js";
import { get, set } from "/page/js/state.js";

/** Opens the dialog with the present setting. */
export function openRescaling() {
  const found = get("overview")?.partitions;
  at("rescale-auto").checked = found?.auto ?? false;
  at("rescale-number").value = found?.next ?? "";
  at("rescale-number").disabled = at("rescale-auto").checked;
  say(at("rescale-now"), found ? `Now ${format.count(found.partitions)}, for ${format.several(found.parallelism, "core", "cores")}.` : "");
  say(at("rescale-problem"), "");
  at("rescale").showModal();
}

async function submit(event) {
  event.preventDefault();
  const number = at("rescale-auto").checked ? "auto" : at("rescale-number").valueAsNumber;
  try {
    const partitions = await api.rescale(number);
    set("overview", { ...get("overview"), partitions });
    at("rescale").close();
  } catch (problem) {
    say(at("rescale-problem"), [problem.message, problem.hint].filter(Boolean).join(": "));
  }
}

/** Makes the dialog work. */
export function startRescaling() {
  at("rescale-form").addEventListener("submit", submit);
  at("rescale-auto").addEventListener("change", () => {
    at("rescale-number").disabled = at("rescale-auto").checked;
  });
}
