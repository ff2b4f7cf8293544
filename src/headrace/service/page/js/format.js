// Formatting of numbers and times for people; "–" for unknown values.

export const NONE = "–";
const THIN = "\u202f"; // a narrow space that does not break

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const twoDigits = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const significant = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const clock = new Intl.DateTimeFormat("en-GB", {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const calendar = new Intl.DateTimeFormat("en-GB", {
  day: "numeric",
  month: "short",
  year: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  hourCycle: "h23",
});

const thin = (text) => text.replaceAll(",", THIN);
const known = (value) => typeof value === "bigint" || (typeof value === "number" && Number.isFinite(value));

/** 1234567 → 1 234 567 */
export function count(value) {
  return known(value) ? thin(grouped.format(value)) : NONE;
}

/** A rate: integers from 100 on, three significant digits below. */
export function rate(value) {
  if (!known(value)) return NONE;
  return value >= 100 ? count(value) : thin(significant.format(value));
}

/** A value of a chart or a table: integers in full, others with a few significant digits. */
export function number(value) {
  if (!known(value)) return NONE;
  if (Number.isInteger(value)) return count(value);
  const size = Math.abs(value);
  if (size < 1e-4 || size >= 1e15) return value.toExponential(3);
  return thin((size >= 1 ? twoDigits : significant).format(value));
}

/** A duration, in a suitable unit. */
export function seconds(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size > 0 && size < 0.00095) return `${significant.format(value * 1e6)}${THIN}µs`;
  if (size < 0.0095) return `${thin(significant.format(value * 1000))}${THIN}ms`;
  if (size < 0.9995) return `${Math.round(value * 1000)}${THIN}ms`;
  if (size < 60) return `${significant.format(value)}${THIN}s`;
  const minutes = Math.floor(size / 60);
  if (minutes < 60) return `${minutes}${THIN}min ${Math.floor(size % 60)}${THIN}s`;
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)}${THIN}h ${minutes % 60}${THIN}min`;
  return `${rate(size / 86_400)}${THIN}d`;
}

/** Bytes, in binary units. */
export function bytes(value) {
  if (!known(value)) return NONE;
  const unit = Math.min(4, Math.max(0, Math.floor(Math.log2(Math.max(value, 1)) / 10)));
  return `${significant.format(value / 1024 ** unit)}${THIN}${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

/** A fraction, in per cent. */
export function percent(value) {
  return known(value) ? `${significant.format(value * 100)}${THIN}%` : NONE;
}

/** Milliseconds since 1970 of a time of the service: seconds since 1970, or ISO 8601; NaN for anything else. */
export function instant(value) {
  return known(value) ? value * 1000 : Date.parse(value ?? "");
}

/** HH:MM:SS in local time. */
export function time(value) {
  const at = instant(value);
  return Number.isNaN(at) ? NONE : clock.format(at);
}

/** The date and time in local time. */
export function date(value) {
  const at = instant(value);
  return Number.isNaN(at) ? NONE : calendar.format(at);
}

/** The full time in ISO 8601, for a tooltip. */
export function iso(value) {
  const at = instant(value);
  return Number.isNaN(at) ? "" : typeof value === "string" ? value : new Date(at).toISOString();
}

/** "1 row", "2 rows". */
export function several(value, one, more) {
  return `${count(value)} ${value === 1 ? one : more}`;
}
