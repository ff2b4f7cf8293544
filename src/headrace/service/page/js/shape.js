// The choice of a chart and its data: pure functions of columns and rows, without drawing.

export const MOST_SERIES = 12;
export const MOST_BARS = 40;

const NUMERIC = /^(TINYINT|SMALLINT|INT|BIGINT|FLOAT|DOUBLE|DECIMAL)/;
const INTEGER = /^(TINYINT|SMALLINT|INT|BIGINT)$/;
const IDENTITY = /(^|_)id$/i;

/** Returns the names and numbers in every GROUP BY, in lower case. */
export function grouped(sql) {
  const clauses = [...sql.matchAll(/\bGROUP\s+BY\b([\s\S]*?)(?=\b(?:HAVING|SELECT|FROM|JOIN|UNION)\b|;|$)/gi)].map(
    (match) => match[1],
  );
  const words = clauses.flatMap((clause) => clause.match(/`(?:[^`]|``)+`|\w+/g) ?? []);
  return new Set(words.map((word) => word.replaceAll("`", "").toLowerCase()));
}

/**
 * Returns the roles of columns, as indices: the time, the keys that distinguish rows, and the values that can be drawn.
 *
 * Integers are values unless the query groups by them or they are named like ids; rows can be split by them, too.
 */
export function rolesOf(columns, sql = "") {
  const groups = grouped(sql);
  const at = (test) => columns.flatMap((column, index) => (test(column, index) ? [index] : []));
  const isGrouped = ({ name }, index) => groups.has(name.toLowerCase()) || groups.has(String(index + 1));
  const isKey = (column, index) =>
    ["STRING", "BOOLEAN", "DATE"].includes(column.type) ||
    (INTEGER.test(column.type) && (isGrouped(column, index) || IDENTITY.test(column.name)));
  const times = at(({ type }) => type === "TIMESTAMP");
  const named = (name) => times.find((index) => columns[index].name.toLowerCase() === name);
  const keys = at(isKey);
  return {
    time: named("window_end") ?? named("window_start") ?? times[0] ?? -1,
    keys: [...keys, ...at(({ type }, index) => INTEGER.test(type) && !keys.includes(index))],
    grouped: keys.filter((index) => isGrouped(columns[index], index)),
    values: at((column, index) => NUMERIC.test(column.type) && !isKey(column, index)),
    told: keys,
  };
}

/** Returns the default chart: `kind` is line, bars or table; `by` and `values` are columns. */
export function choose(roles) {
  const by = roles.grouped.length ? roles.grouped : roles.time < 0 ? roles.told.slice(0, 1) : [];
  const values = by.length ? roles.values.slice(0, 1) : roles.values.slice(0, MOST_SERIES);
  const kind = !values.length ? "table" : roles.time >= 0 ? "line" : by.length ? "bars" : "table";
  return { kind, by, values };
}

/** Returns a choice that can be drawn: one value if rows are split, no value that splits them, and a split for bars. */
export function settled({ kind, by, values }, roles) {
  const split = kind === "bars" && !by.length ? roles.keys.filter((index) => index !== values[0]).slice(0, 1) : by;
  const left = roles.values.filter((index) => !split.includes(index));
  const wanted = values.filter((index) => left.includes(index));
  const some = wanted.length ? wanted : left;
  return { kind, by: split, values: split.length ? some.slice(0, 1) : some.slice(0, MOST_SERIES) };
}

/** Returns the kinds of chart that the columns allow. */
export function kindsOf(roles) {
  const kinds = ["table"];
  if (roles.values.length && roles.keys.some((index) => index !== roles.values[0] || roles.values.length > 1))
    kinds.unshift("bars");
  if (roles.values.length && roles.time >= 0) kinds.unshift("line");
  return kinds;
}

const figure = (value) => (value === null || value === undefined || value === "NaN" ? null : Number(value));

/** Compares in natural order: 2 before 10, NULL last. */
export function natural(a, b) {
  if (a === "NULL" || b === "NULL") return (a === "NULL") - (b === "NULL");
  return a.localeCompare(b, "en", { numeric: true });
}

const label = (row, by) => by.map((index) => (row[index] === null ? "NULL" : String(row[index]))).join(" · ");

/**
 * Returns the labels with the largest sums, at most `most`, in natural order; and the number of others.
 *
 * Labels in `held` stay while they are among the `2 * most` largest, so that the chart does not change all the time.
 */
function largest(sums, most, held = []) {
  const ranked = [...sums].sort((a, b) => b[1] - a[1]).map(([name]) => name);
  const near = new Set(ranked.slice(0, 2 * most));
  const kept = held.filter((name) => near.has(name));
  const names = [...new Set([...kept, ...ranked])].slice(0, most);
  return { names: names.sort(natural), others: Math.max(0, ranked.length - most) };
}

/** Returns x in seconds and a list of y for each name; the last row of an x and name wins. */
export function linesOf(rows, columns, { time, by, values, held }) {
  const points = new Map();
  const sums = new Map();
  const names = by.length ? null : values.map((index) => columns[index].name);
  for (const row of rows) {
    const x = Date.parse(row[time]) / 1000;
    if (Number.isNaN(x)) continue;
    let found = points.get(x);
    if (!found) points.set(x, (found = new Map()));
    values.forEach((index, position) => {
      const y = figure(row[index]);
      const name = names ? names[position] : label(row, by);
      if (y === null || Number.isNaN(y)) return;
      found.set(name, y);
      if (!names) sums.set(name, (sums.get(name) ?? 0) + Math.abs(y));
    });
  }
  const kept = names ? { names, others: 0 } : largest(sums, MOST_SERIES, held);
  const x = [...points.keys()].sort((a, b) => a - b);
  const ys = kept.names.map((name) => x.map((at) => points.get(at).get(name) ?? null));
  return { x, ys, ...kept };
}

/** Returns the newest value of each label, for each of the value columns. */
export function barsOf(rows, columns, { by, values, held }) {
  const newest = new Map();
  for (const row of rows) newest.set(label(row, by), row);
  const first = values[0];
  const sums = new Map([...newest].map(([name, row]) => [name, Math.abs(figure(row[first]) ?? 0)]));
  const { names: labels, others } = largest(sums, MOST_BARS, held);
  const names = values.map((index) => columns[index].name);
  const ys = values.map((index) => labels.map((name) => figure(newest.get(name)[index])));
  return { labels, names, ys, others };
}
