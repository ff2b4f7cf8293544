// Live results: server-sent events read by fetch (EventSource cannot send a token), resumed after a disconnect.

import { Problem, health, live, results } from "/page/js/api.js";
import { parse } from "/page/js/json.js";

const SILENCE_MS = 25_000; // the service sends a heartbeat every 10 s
const NAP_MS = 15_000; // a hidden page closes its connection, because a browser has six for all tabs together
const WAITS_MS = [300, 700, 1500, 3000, 5000];

const RECENT = "last-1000"; // rows

/** Returns the last rows of a query without sampling, and the position after them. */
export async function recent(query, most) {
  try {
    return await results(query, RECENT, most);
  } catch (error) {
    if (error instanceof Problem) return { rows: [], next: RECENT };
    throw error;
  }
}

/** Splits a text into events; returns them, and the rest to be completed by the next chunk. */
export function parseEvents(text) {
  const parts = text.replaceAll("\r\n", "\n").split("\n\n");
  const rest = parts.pop();
  const events = parts.map((part) => {
    const event = { kind: "message", id: null, data: "" };
    for (const line of part.split("\n")) {
      const [, field, value] = /^(\w*): ?(.*)$/.exec(line) ?? [];
      if (field === "event") event.kind = value;
      else if (field === "id") event.id = value;
      else if (field === "data") event.data += value;
    }
    return event;
  });
  return { events: events.filter((event) => event.data), rest };
}

/**
 * Follows a query from a position on, until it ends or `stop` of the returned object is called.
 *
 * `tell` gets columns(columns), rows(rows, leftOut), missed(), quiet(), state("connecting" | "live" | "reconnecting", waitMs) and
 * end({status, error}).
 */
export function follow(query, from, sample, tell) {
  const control = { stopped: false, abort: null, position: from, tries: 0 };
  const nap = () => {
    clearTimeout(control.nap);
    if (document.hidden) control.nap = setTimeout(() => control.abort?.abort(), NAP_MS);
  };
  document.addEventListener("visibilitychange", nap);
  run(query, sample, tell, control).finally(() => document.removeEventListener("visibilitychange", nap));
  return {
    stop() {
      control.stopped = true;
      control.abort?.abort();
    },
    /** Retries immediately. */
    hurry() {
      control.wake?.();
    },
  };
}

async function run(query, sample, tell, control) {
  tell.state("connecting");
  while (!control.stopped) {
    try {
      if (control.tries) await rewind(control);
      const end = await once(query, sample, tell, control);
      if (control.stopped) return;
      if (end && ["removed", "failed"].includes(end.status)) {
        tell.end(end);
        return;
      }
    } catch (error) {
      if (control.stopped) return;
      if (error instanceof Problem && [404, 422].includes(error.status)) {
        tell.end({ status: "missing", error: error.message });
        return;
      }
    }
    if (document.hidden) {
      await seen();
      control.tries ||= 1;
      continue;
    }
    const wait = WAITS_MS[Math.min(control.tries++, WAITS_MS.length - 1)] * (0.8 + 0.4 * Math.random());
    tell.state("reconnecting", wait);
    await pause(wait, control);
  }
}

/** Waits until the page becomes visible. */
function seen() {
  return new Promise((resolve) => {
    document.addEventListener("visibilitychange", resolve, { once: true });
  });
}

/** Starts from the beginning if the service is behind the known position, because it restarted without its checkpoint. */
async function rewind(control) {
  const { batch } = await health();
  if (Number.parseInt(control.position, 10) > batch + 1) control.position = "beginning";
}

async function once(query, sample, tell, control) {
  control.abort = new AbortController();
  let alarm = null;
  const alive = () => {
    clearTimeout(alarm);
    alarm = setTimeout(() => control.abort.abort(), SILENCE_MS);
  };
  try {
    alive();
    const response = await live(query, control.position, sample, control.abort.signal);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done || control.stopped) return null;
      alive();
      const { events, rest } = parseEvents(text + value);
      text = rest;
      for (const event of events) {
        if (event.id) control.position = event.id;
        const data = parse(event.data);
        if (event.kind === "end") return data;
        handle(event.kind, data, tell, control);
      }
    }
  } finally {
    clearTimeout(alarm);
    control.abort.abort();
  }
}

function handle(kind, data, tell, control) {
  if (kind === "columns") {
    control.tries = 0;
    tell.state("live");
    tell.columns(data);
  } else if (kind === "rows") tell.rows(data.rows, data.left_out ?? 0);
  else if (kind === "missed") tell.missed();
  else if (kind === "quiet") tell.quiet();
}

function pause(ms, control) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    control.wake = () => {
      clearTimeout(timer);
      resolve();
    };
  });
}
