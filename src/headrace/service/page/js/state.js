// The state of the page: views subscribe to the keys they show, and re-render when these change.

/** `null` means "not loaded yet". `connection` is connecting, ok, reconnecting, token or stopped. */
const state = {
  connection: "connecting",
  health: null,
  overview: null,
  queries: null,
  streams: null,
  route: { view: "queries", name: null, report: null },
  lit: null, // the query whose operators are highlighted
};
const listeners = new Map();

/** Returns the value of a key. */
export function get(key) {
  return state[key];
}

/** Sets the value of a key and calls its listeners, unless the value is unchanged. */
export function set(key, value) {
  if (Object.is(state[key], value)) return;
  state[key] = value;
  for (const listener of listeners.get(key) ?? []) listener(value);
}

/** Calls `listener` now, and whenever one of the keys changes. */
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
