// The words of headrace's SQL (docs/sql.md), for highlighting and completion.

export const KEYWORDS = `
  SELECT FROM WHERE GROUP BY HAVING AS AND OR NOT IN IS NULL LIKE ILIKE RLIKE ESCAPE BETWEEN CASE WHEN THEN ELSE END
  JOIN INNER LEFT RIGHT FULL OUTER SEMI ANTI CROSS ON USING UNION ALL WITH DISTINCT FILTER WITHIN ORDER INTERVAL
  DIV TRUE FALSE CAST TRY_CAST EXTRACT`
  .trim()
  .split(/\s+/);

export const TYPES = "TINYINT SMALLINT INT BIGINT FLOAT DOUBLE DECIMAL BOOLEAN STRING DATE TIMESTAMP".split(" ");

/** Windows: name, snippet and description. */
export const WINDOWS = [
  ["TUMBLE", "TUMBLE(${stream}, '${1 second}')", "consecutive windows"],
  ["HOP", "HOP(${stream}, '${8 seconds}', '${4 seconds}')", "windows of a size, one per slide"],
  ["SESSION", "SESSION(${stream}, '${5 seconds}')", "per key, until a gap"],
  ["SLIDING", "SLIDING(${stream}, '${10 seconds}')", "for joins: rows at most this far apart"],
];

export const AGGREGATES = `
  COUNT SUM AVG MIN MAX MEDIAN COUNT_IF APPROX_COUNT_DISTINCT VAR_POP VAR_SAMP VARIANCE STDDEV STDDEV_POP STDDEV_SAMP
  PERCENTILE PERCENTILE_CONT PERCENTILE_DISC PERCENTILE_APPROX`
  .trim()
  .split(/\s+/);

export const FUNCTIONS = `
  IF COALESCE NVL NVL2 IFNULL NULLIF GREATEST LEAST ISNULL ISNOTNULL ABS CEIL FLOOR ROUND SQRT EXP LN LOG LOG10 LOG2 POW
  SIGN MOD NEGATIVE CONCAT UPPER LOWER LENGTH TRIM LTRIM RTRIM SUBSTRING REPLACE REVERSE STARTSWITH ENDSWITH CONTAINS
  YEAR QUARTER MONTH DAY HOUR MINUTE SECOND DAYOFWEEK DAYOFYEAR WEEKDAY DATE_PART DATE_TRUNC TRUNC DATE_ADD DATE_SUB
  DATEDIFF UNIX_SECONDS TO_DATE TO_TIMESTAMP`
  .trim()
  .split(/\s+/);

/** The columns of windows, in addition to those of the stream. */
export const BOUNDS = ["window_start", "window_end"];

const PLAIN = /^[A-Za-z_]\w*$/;

/** Returns a name as SQL, in back-quotes if necessary. */
export function quoted(name) {
  return PLAIN.test(name) ? name : `\`${name.replaceAll("`", "``")}\``;
}

const isFraction = ({ type }) => /^(DOUBLE|FLOAT|DECIMAL)/.test(type);
const isInteger = ({ type }) => /^(TINYINT|SMALLINT|INT|BIGINT)$/.test(type);
const isIdentity = ({ name }) => /(^|_)id$/i.test(name);

/** Returns an example query on the stream with most rows per second, grouped by a column with few values. */
export function exampleQuery(streams) {
  const [stream] = [...streams].sort((a, b) => (b.rows_per_second ?? 0) - (a.rows_per_second ?? 0));
  if (!stream) return "";
  const columns = stream.columns.filter(({ name }) => name !== stream.time);
  const group =
    columns.find(({ type }) => type === "STRING" || type === "BOOLEAN") ??
    columns.find((column) => isInteger(column) && !isIdentity(column));
  const value =
    columns.find(isFraction) ?? columns.find((column) => isInteger(column) && column !== group && !isIdentity(column));
  const outputs = ["window_start", group && quoted(group.name), value && `SUM(${quoted(value.name)}) AS total`, "COUNT(*) AS n"];
  const lines = [`SELECT ${outputs.filter(Boolean).join(", ")}`, `FROM TUMBLE(${quoted(stream.name)}, '1 second')`];
  return [...lines, ...(group ? [`GROUP BY ${quoted(group.name)}`] : [])].join("\n");
}
