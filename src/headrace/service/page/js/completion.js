// Completion at the cursor: streams, columns of the streams in the text, functions and keywords.

import { AGGREGATES, BOUNDS, FUNCTIONS, KEYWORDS, WINDOWS, quoted } from "/page/js/language.js";
import { snippetCompletion } from "/page/vendor/codemirror.js";

const NAME = "(`(?:[^`]|``)+`|\\w+)";
const WINDOWED = new RegExp(`\\b(?:TUMBLE|HOP|SESSION|SLIDING)\\s*\\(\\s*${NAME}[^()]*\\)(?:\\s+(?:AS\\s+)?${NAME})?`, "gi");
const PLAIN = new RegExp(`(?:\\b(?:FROM|JOIN)|,)\\s*${NAME}(?:\\s+(?:AS\\s+)?${NAME})?`, "gi");
const BEFORE_STREAM = /(?:\b(?:FROM|JOIN)\s+|\b(?:TUMBLE|HOP|SESSION|SLIDING)\s*\(\s*)(`?\w*)$/i;
const AFTER_DOT = new RegExp(`${NAME}\\.(\`?\\w*)$`);

const plain = (name) => (name?.startsWith("`") ? name.slice(1, -1).replaceAll("``", "`") : name);
const same = (a, b) => a.toLowerCase() === b.toLowerCase();

/** Returns the streams in a text with their names there: [alias or name, stream]. */
export function named(text, streams) {
  const found = new Map();
  for (const pattern of [WINDOWED, PLAIN]) {
    for (const [, name, alias] of text.matchAll(pattern)) {
      const stream = streams.find((one) => same(one.name, plain(name)));
      if (!stream) continue;
      const word = alias && !KEYWORDS.includes(alias.toUpperCase()) ? plain(alias) : stream.name;
      found.set(word.toLowerCase(), [word, stream]);
    }
  }
  return [...found.values()];
}

/** Returns whether a text ends inside a string, where nothing is suggested. */
export function insideString(text) {
  return (text.replaceAll(/--[^\n]*/g, "").match(/'/g) ?? []).length % 2 === 1;
}

const columnOption = ({ name, type }, boost) => ({
  label: name,
  apply: quoted(name),
  type: "property",
  detail: type,
  boost,
});

const streamOption = (stream, boost) => ({
  label: stream.name,
  apply: quoted(stream.name),
  type: "class",
  detail: "stream",
  info: stream.columns.map(({ name, type }) => `${name} ${type}`).join(", "),
  boost,
});

const call = (name, detail) => snippetCompletion(`${name}(\${})`, { label: name, type: "function", detail });

const ALWAYS = [
  ...WINDOWS.map(([label, text, detail]) => snippetCompletion(text, { label, type: "function", detail, boost: -1 })),
  ...AGGREGATES.map((name) => call(name, "aggregate")),
  ...FUNCTIONS.map((name) => call(name, "function")),
  ...KEYWORDS.map((label) => ({ label, type: "keyword", boost: -2 })),
];

/** Returns the options at a position of a text, and the start of the word they replace; null for none. */
export function optionsAt(text, position, streams, asked) {
  const before = text.slice(0, position);
  if (insideString(before)) return null;
  const present = named(text, streams);
  const dotted = AFTER_DOT.exec(before);
  if (dotted) {
    const [, stream] = present.find(([word]) => same(word, plain(dotted[1]))) ?? [];
    if (!stream) return null;
    return { from: position - dotted[2].length, options: stream.columns.map((column) => columnOption(column, 1)) };
  }
  const place = BEFORE_STREAM.exec(before);
  const windows = ALWAYS.filter((option) => option.detail && WINDOWS.some(([name]) => name === option.label));
  if (place) {
    const options = streams.map((stream) => streamOption(stream, 5));
    return {
      from: position - place[1].length,
      options: /\($/.test(before.slice(0, position - place[1].length).trimEnd()) ? options : [...options, ...windows],
    };
  }
  const word = /`?\w*$/.exec(before)[0];
  if (!word && !asked) return null;
  const tables = (present.length ? present.map(([, stream]) => stream) : streams).flatMap((stream) => stream.columns);
  const columns = [...new Map(tables.map((column) => [column.name.toLowerCase(), column])).values()];
  const bounds = BOUNDS.map((label) => ({ label, type: "property", detail: "TIMESTAMP", boost: 2 }));
  const aliases = present.map(([label, stream]) => ({
    label,
    type: "class",
    detail: `stream ${stream.name}`,
  }));
  return {
    from: position - word.length,
    options: [...columns.map((column) => columnOption(column, 3)), ...bounds, ...aliases, ...ALWAYS],
  };
}

/** Returns a completion source for CodeMirror; it calls `streams()` each time. */
export function completions(streams) {
  return (context) => {
    const found = optionsAt(context.state.doc.toString(), context.pos, streams(), context.explicit);
    return found && { ...found, validFor: /^`?\w*$/ };
  };
}
