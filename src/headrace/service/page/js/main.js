// The entry point of the page: polls the service, and shows the view of the route.

import * as api from "/page/js/api.js";
import { startDialogs, tokenDialog } from "/page/js/dialogs.js";
import { at, mark, say } from "/page/js/dom.js";
import * as format from "/page/js/format.js";
import { startKeys } from "/page/js/keys.js";
import { startOverview } from "/page/js/overview.js";
import { PlanView } from "/page/js/plan.js";
import { every } from "/page/js/poll.js";
import { QueryList } from "/page/js/queries.js";
import { Reports } from "/page/js/reports.js";
import { startRescaling } from "/page/js/rescale.js";
import { Results } from "/page/js/results.js";
import { go, startRoute, toQuery } from "/page/js/route.js";
import { get, set, watch } from "/page/js/state.js";
import { startStreams } from "/page/js/streams.js";
import { startTheme } from "/page/js/theme.js";
import { TimeLine } from "/page/js/timeline.js";
import { Workbench } from "/page/js/workbench.js";

const STATES = {
  connecting: "connecting …",
  ok: "running",
  reconnecting: "reconnecting …",
  token: "token required",
  stopped: "stopped",
};

/** Polls a key, unless the service requires a token first. */
const asking = (key, ask) => async () => {
  if (get("connection") === "token") return;
  set(key, await ask());
};

function startAsking() {
  const health = every(3, async () => {
    try {
      const found = await api.health();
      set("health", found);
      const was = get("connection");
      if (found.status !== "ok") set("connection", "stopped");
      else if (was !== "token") set("connection", "ok");
    } catch (problem) {
      if (get("connection") !== "token") set("connection", "reconnecting");
      throw problem;
    }
  });
  const others = [
    every(
      1,
      asking("overview", () => api.overview()),
    ),
    every(
      2,
      asking("queries", () => api.queries()),
    ),
    every(
      5,
      asking("streams", () => api.streams()),
    ),
  ];
  return () => [health, ...others].forEach((ask) => ask());
}

function showConnection() {
  const connection = get("connection");
  const health = get("health");
  say(at("connection-text"), STATES[connection]);
  mark(at("connection"), "data-state", connection);
  mark(at("connection"), "title", health?.version ? `headrace ${health.version}, up for ${format.seconds(health.uptime_seconds)}` : null);
  const batch = get("overview")?.batch ?? health?.batch;
  say(at("batch"), connection === "ok" && batch >= 0 ? `batch ${format.count(batch)}` : "");
  const lost = connection === "reconnecting" || connection === "stopped";
  at("lost").hidden = !lost;
  say(
    at("lost-text"),
    connection === "stopped"
      ? `Micro-batches do not run. ${health?.detail ?? ""}`
      : "The service does not answer. The page shows the last known state and reconnects automatically.",
  );
}

function showView({ view }) {
  mark(document.body, "data-view", view);
  for (const one of ["queries", "plan", "time", "reports"]) {
    at(`view-${one}`).hidden = one !== view;
    mark(at(`tab-${one}`), "aria-current", one === view ? "page" : null);
  }
}

startRoute();
startTheme();
startDialogs();
startOverview();
startRescaling();
const results = new Results();
const workbench = new Workbench(results);
new QueryList({
  open: (name) => go(toQuery(name)),
  remove: (name) => workbench.remove(name),
});
startStreams((text) => (go(location.hash || "#/new"), workbench.editor.insert(text)));
new PlanView();
new TimeLine();
const reports = new Reports();
startKeys({
  run: () => workbench.run(),
  focusEditor: () => workbench.editor.focus(),
  pause: () => results.query && results.pause(!results.paused),
});
watch(["route"], showView);

const askNow = { all: () => {} };
api.onTokenWanted(
  tokenDialog(() => {
    set("connection", "connecting");
    askNow.all();
    workbench.follow();
    reports.again();
  }),
);
watch(["connection"], showConnection);
watch(["health", "overview"], showConnection);
at("retry").addEventListener("click", () => askNow.all());
askNow.all = startAsking();
if (navigator.platform.startsWith("Mac")) for (const key of document.querySelectorAll(".mod")) say(key, "⌘");
mark(document.body, "data-ready", true);
