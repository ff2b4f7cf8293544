// Requests to the service: the token, errors with their parts, and the state of the connection.

import { parse } from "/page/js/json.js";
import { get, set } from "/page/js/state.js";

const TOKEN = "headrace-token";
let tokenWanted = () => {};

/** An error response. `status` is the HTTP status, 0 without a response; the other parts come from the service. */
export class Problem extends Error {
  constructor(status, told) {
    super(told.error || `the service answered ${status}`);
    this.status = status;
    this.place = told.place || "";
    this.detail = told.detail || "";
    this.hint = told.hint || "";
    [this.line, this.column] = placeOf(told);
  }
}

/** Returns the line and column of an error in SQL, counted from 1; zeros if it has no place. */
export function placeOf(told) {
  if (told.line > 0) return [told.line, told.column || 1];
  const match = /^line (\d+), column (\d+)/.exec(told.place || "");
  return match ? [Number(match[1]), Number(match[2])] : [0, 0];
}

/** Registers `ask`, which is called when the service requires a token, with a message if it rejected the current one. */
export function onTokenWanted(ask) {
  tokenWanted = ask;
}

/** Stores a token until the tab is closed. */
export function keepToken(token) {
  sessionStorage.setItem(TOKEN, token);
}

function headers(accept, body) {
  const token = sessionStorage.getItem(TOKEN);
  return {
    Accept: accept,
    ...(body === undefined ? {} : { "Content-Type": "application/json" }),
    ...(token ? { Authorization: `Bearer ${token}` } : {}),
  };
}

/** Sends a request; returns a successful response, otherwise throws a Problem. */
export async function send(method, path, { body, signal, accept = "application/json" } = {}) {
  const token = sessionStorage.getItem(TOKEN);
  let response;
  try {
    const text = body === undefined ? undefined : JSON.stringify(body);
    response = await fetch(path, { method, headers: headers(accept, body), body: text, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (get("connection") !== "token") set("connection", "reconnecting");
    throw new Problem(0, { error: "the service does not answer" });
  }
  if (response.status === 401) {
    if (sessionStorage.getItem(TOKEN) === token) {
      // otherwise the user entered another token during this request
      set("connection", "token");
      tokenWanted(token ? "The service does not accept this token." : "");
    }
  } else if (get("connection") !== "stopped") {
    set("connection", "ok");
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  throw new Problem(response.status, typeof told === "object" && told !== null ? told : {});
}

async function json(method, path, options) {
  const response = await send(method, path, options);
  return response.status === 204 ? null : parse(await response.text());
}

const named = (name) => `/v1/queries/${encodeURIComponent(name)}`;

/** Returns the health of the service, also with status 503; without a valid token it is only the status. */
export async function health() {
  const sent = get("connection") === "token" ? {} : headers("application/json"); // a rejected token is not sent again
  const response = await fetch("/v1/health", { headers: sent, cache: "no-store" }).catch(() => null);
  if (response?.status === 401) return { status: "ok" }; // other requests ask for a valid token
  const found = await response?.json().catch(() => null);
  if (!found || typeof found.status !== "string") throw new Problem(response?.status ?? 0, found ?? {});
  return found;
}

export const overview = () => json("GET", "/v1/overview");
export const queries = () => json("GET", "/v1/queries");
export const query = (name) => json("GET", named(name));
export const streams = () => json("GET", "/v1/streams");
export const sample = (stream) => json("GET", `/v1/streams/${encodeURIComponent(stream)}/sample?rows=50`);
export const declare = (stream) => json("POST", "/v1/streams", { body: stream });
export const check = (sql, signal) => json("POST", "/v1/check", { body: { sql }, signal });
export const add = (sql, name) => json("POST", "/v1/queries?wait=10", { body: name ? { sql, name } : { sql } });
export const replace = (name, sql) => json("PUT", `${named(name)}?wait=10`, { body: { sql } });
export const remove = (name) => json("DELETE", named(name));
export const rescale = (partitions) => json("POST", "/v1/rescale", { body: { partitions } });
export const plan = () => json("GET", "/v1/plan");
export const batches = (most) => json("GET", `/v1/batches?most=${most}`);
export const events = () => json("GET", "/v1/events");
export const reports = () => json("GET", "/v1/reports");

/** Returns the HTML of a report. */
export async function report(name, signal) {
  const response = await send("GET", `/v1/reports/${encodeURIComponent(name)}`, { signal, accept: "text/html" });
  return response.text();
}

/** Returns a page of results after a position: "17.0" is the start of batch 17. */
export function results({ name, id }, after, limit) {
  return json("GET", `${named(name)}/results?${new URLSearchParams({ id, after, limit })}`);
}

/** Opens the live results of a query, from a position on. */
export function live({ name, id }, from, sampled, signal) {
  const given = new URLSearchParams({ id, from, sample: sampled });
  return send("GET", `${named(name)}/live?${given}`, { signal, accept: "text/event-stream" });
}
