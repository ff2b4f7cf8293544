// What the page knows, in one place: views listen to the parts they show, and nobody else writes into them.

/** `null` is "not known yet". `connection` is connecting, ok, reconnecting, token or stopped. */
const state = {
  connection: "connecting",
  health: null,
  overview: null,
  queries: null,
  streams: null,
  route: { view: "queries", name: null, report: null },
  lit: null, // the query whose operators are lit up
};
const listeners = new Map();

/** Returns a part of the state. */
export function get(key) {
  return state[key];
}

/** Sets a part, and tells whoever listens to it; setting what is there already tells nobody. */
export function set(key, value) {
  if (Object.is(state[key], value)) return;
  state[key] = value;
  for (const listener of listeners.get(key) ?? []) listener(value);
}

/** Calls `listener` whenever one of the parts changes, and now. */
export function watch(keys, listener) {
  for (const key of keys) {
    if (!listeners.has(key)) listeners.set(key, new Set());
    listeners.get(key).add(listener);
  }
  listener(state[keys[0]]);
}

/** Returns the query of that name, if the list has one. */
export function queryNamed(name) {
  return state.queries?.find((query) => query.name === name) ?? null;
}
