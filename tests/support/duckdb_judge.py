"""A second oracle: DuckDB computes from the complete finite input what a query must have emitted at the end.

It shares no code with the engine except the declaration of streams: this module parses the text and rewrites windows to plain SQL
(a join with a series of starts; sessions by `lag` and a running sum), and DuckDB evaluates the rest. It can judge a query only if
the query was live from the start and no row was late; otherwise it returns the reason.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp

from headrace.model.stream import Stream
from headrace.model.window import UNBOUNDED_LENGTH

Batch = Mapping[str, Sequence[Mapping[str, Any]]]

_UNITS = {"minutes": 60_000_000, "seconds": 1_000_000, "milliseconds": 1000}
_LENGTHS = r"((?:\s*,\s*'[^']*')+)\s*\)"
_FROM_WINDOW = re.compile(r"\b(TUMBLE|HOP|SESSION)\s*\(\s*(\w+)" + _LENGTHS, re.IGNORECASE)
_GROUP_WINDOW = re.compile(r"\b(window|session_window)\s*\(\s*time" + _LENGTHS, re.IGNORECASE)
_EDGE = re.compile(r"\b(?:window|session_window)\.(start|end)\b", re.IGNORECASE)
_NAIVE = pa.timestamp("us")


@dataclass(frozen=True, slots=True)
class Judgement:
    """The rows that the query must have emitted, or None and the reason why they are unknown."""

    rows: list[dict[str, Any]] | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Window:
    """A HOP window, or without `slide` a SESSION window with the gap `size`; in microseconds."""

    size: int
    slide: int | None

    @property
    def is_session(self) -> bool:
        return self.slide is None


class _CannotJudgeError(Exception):
    """The judge cannot rewrite or check the query."""


@dataclass(slots=True)
class DuckDBJudge:
    """Judges queries over one finite input; `verdicts` counts the judged queries ('judged') and the others by reason."""

    streams: Sequence[Stream]
    batches: Sequence[Batch]
    verdicts: Counter[str] = field(default_factory=Counter)
    _connection: duckdb.DuckDBPyConnection = field(default_factory=duckdb.connect)

    def __post_init__(self) -> None:
        """Load every row that has an event time."""
        for setting in ("error_on_division_by_zero", "ieee_floating_point_ops"):
            self._connection.execute(f"SET {setting} = false")
        self._connection.execute("SET threads = 1")
        for stream in self.streams:
            rows = [row for batch in self.batches for row in batch.get(stream.name, ()) if row[stream.time] is not None]
            self._connection.register(stream.name, _to_naive_table(stream, rows))

    def judge(self, sql: str) -> Judgement:
        """Return the rows that the query must have emitted when the input is drained."""
        try:
            judgement = Judgement(self._run(sql))
        except (_CannotJudgeError, duckdb.OutOfRangeException) as problem:
            judgement = Judgement(None, str(problem))
        self.verdicts[judgement.reason or "judged"] += 1
        return judgement

    def _run(self, sql: str) -> list[dict[str, Any]]:
        if sql.startswith("WITH "):
            return self._judge_nested(sql)
        if "SLIDING(" in sql and re.search(r"(TUMBLE|HOP|SESSION)\(", sql):
            raise _CannotJudgeError("windows over a join in SLIDING windows")
        if "SLIDING(" in sql:
            return self._fetch_rows(self._rewrite_sliding_join(sql))
        if " JOIN " in sql:
            return self._fetch_rows(self._rewrite_window_join(sql))
        text, window = _without_window(sql)
        tree = sqlglot.parse_one(text, read="spark")
        if window is not None:
            self._check_nothing_late(tree, window)
            tree = _with_windows(tree, window)
        return self._fetch_rows(tree)

    def _judge_nested(self, sql: str) -> list[dict[str, Any]]:
        """Judge each inner query (see `support.nested_queries`); the next query reads its rows as a stream."""
        inner = re.findall(r"(\w+) AS \(\n(.*)\n\)\n", sql)
        outer = sql.rpartition("\n)\n")[2]
        for name, text in inner:
            _check_windows(text)
            self._connection.register("inner_rows", self._fetch_table(text))
            time = "make_timestamp(epoch_us(w1) - 1) AS time"
            self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT *, {time} FROM inner_rows")
        _check_windows(outer)
        return self._run(outer)

    def _fetch_table(self, text: str) -> pa.Table:
        rows = self._run(text)
        if not rows:
            raise _CannotJudgeError("the inner query has no results")
        plain = [{k: v.replace(tzinfo=None) if isinstance(v, datetime) else v for k, v in row.items()} for row in rows]
        return pa.Table.from_pylist(plain)

    def _fetch_rows(self, tree: exp.Expr) -> list[dict[str, Any]]:
        tree = tree.transform(_rewrite_percentiles)
        cursor = self._connection.execute(tree.sql("duckdb").replace("TIMESTAMPTZ", "TIMESTAMP"))
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, map(_to_utc, row), strict=True)) for row in cursor.fetchall()]

    def _rewrite_window_join(self, sql: str) -> exp.Expr:
        """Return a join of inputs that carry their windows, on equal window ends."""
        sides: list[tuple[str, _Window]] = []

        def side(match: re.Match[str]) -> str:
            sides.append((match[2], _window(match[1], match[3])))
            return f"side{len(sides) - 1}"

        tree = sqlglot.parse_one(_FROM_WINDOW.sub(side, sql), read="spark")
        kinds = {f"{join.side} {join.kind}".upper() for join in tree.args["joins"]}
        if len(sides) > 2 and any("RIGHT" in kind or "FULL" in kind for kind in kinds):
            raise _CannotJudgeError("a row of a longer outer join may lack its first input")
        self._check_on_time({stream for stream, _ in sides}, strictly=False)
        for number, join in enumerate(tree.args["joins"], 1):
            same = sqlglot.parse_one(f"t0.window_end = t{number}.window_end")
            join.set("on", exp.and_(join.args.get("on") or exp.true(), same))
            join.set("kind", None if join.kind.upper() == "CROSS" else join.args.get("kind"))
        longest = max(window.size for _, window in sides)
        end = "coalesce(t0.window_end, t1.window_end)" if any("RIGHT" in k or "FULL" in k for k in kinds) else "t0.window_end"
        bounds = {"window_end": end, "window_start": f"make_timestamp(epoch_us({end}) - {longest})"}

        ends = {f"(epoch_us(window_end) - {window.size}) % {window.slide} = 0" for _, window in sides}
        common_ends = [sqlglot.parse_one(end_condition, read="duckdb") for end_condition in sorted(ends)]

        def place_windows(node: exp.Expr) -> exp.Expr:
            if isinstance(node, exp.Table) and node.name.startswith("side"):
                stream, window = sides[int(node.name.removeprefix("side"))]
                rows = _over(_sliding(exp.select("*", "epoch_us(time) AS __t").from_(stream), window), "*").where(*common_ends)
                return rows.subquery(node.alias or "side")
            if isinstance(node, exp.Column) and not node.table and node.name in bounds:
                return sqlglot.parse_one(bounds[node.name], read="duckdb")
            return node

        grouped = tree.find(exp.AggFunc) is not None
        if grouped:
            keys = [*(tree.args["group"].expressions if tree.args.get("group") else []), exp.column("window_end")]
            tree.set("group", exp.Group(expressions=keys))
        return tree.transform(place_windows)

    def _rewrite_sliding_join(self, sql: str) -> exp.Expr:
        """Return a join in SLIDING windows as a join over all rows: each row is within its range of every other row."""
        ranges: dict[str, int] = {}

        def plain(node: exp.Expr) -> exp.Expr:
            if not (isinstance(node, exp.Table) and isinstance(node.this, exp.Anonymous)):
                return node
            source, given = node.this.expressions[0], node.this.expressions[1].name.split()
            ranges[node.alias] = UNBOUNDED_LENGTH if given == ["UNBOUNDED"] else int(given[0]) * _UNITS[given[1]]
            if isinstance(source, exp.Column):
                rows = exp.select("*").from_(source.name)
            else:
                rows = source if isinstance(source, exp.Select) else source.this
            return rows.where("time IS NOT NULL").subquery(node.alias)

        tree = sqlglot.parse_one(sql, read="spark").transform(plain)
        self._check_on_time({table.name for table in tree.find_all(exp.Table)}, strictly=False)
        in_range = [f"epoch_us({a}.time) + {ranges[a]} >= epoch_us({b}.time)" for a in ranges for b in ranges if a != b]
        conditions = [sqlglot.parse_one(condition, read="duckdb") for condition in in_range]
        joins = tree.args.get("joins") or []
        if any(join.side or join.kind == "ANTI" for join in joins):  # of two inputs
            joins[0].on(*conditions, copy=False)
            return tree
        return tree.where(*conditions)

    def _check_nothing_late(self, tree: exp.Expr, window: _Window) -> None:
        self._check_on_time({table.name for table in tree.find_all(exp.Table)}, strictly=window.is_session)

    def _check_on_time(self, read: set[str], *, strictly: bool) -> None:
        """Raise if a row arrived behind the watermark; `strictly`: or at it (for sessions)."""
        streams = [stream for stream in self.streams if stream.name in read]
        if not streams:  # a stream of results has no late rows
            return
        newest = dict.fromkeys((stream.name for stream in streams), -math.inf)
        for batch in self.batches:
            watermark = min(newest[stream.name] - stream.delay for stream in streams)
            for stream in streams:
                times = [_micros(row[stream.time]) for row in batch.get(stream.name, ()) if row[stream.time] is not None]
                if any(time < watermark or (strictly and time == watermark) for time in times):
                    raise _CannotJudgeError("a row is late")
                newest[stream.name] = max([newest[stream.name], *times])


def _check_windows(text: str) -> None:
    if re.search(r"(FROM|JOIN) (results|more)\b", text) or "UNION" in text:
        raise _CannotJudgeError("results without a window of their own")
    if "SESSION" in text:
        raise _CannotJudgeError("sessions in a nested query")


def _to_naive_table(stream: Stream, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return the rows with naive UTC timestamps, for which DuckDB needs no extension."""
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=stream.schema.to_arrow())
    fields = [pa.field(each.name, _NAIVE if pa.types.is_timestamp(each.type) else each.type) for each in table.schema]
    return table.cast(pa.schema(fields))


def _micros(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _to_utc(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def _without_window(sql: str) -> tuple[str, _Window | None]:
    """Return the text over plain columns `window_start` and `window_end`, and its window, in either syntax."""
    if match := _FROM_WINDOW.search(sql):
        return sql[: match.start()] + match[2] + sql[match.end() :], _window(match[1], match[3])
    if match := _GROUP_WINDOW.search(sql):
        text = sql[: match.start()] + "window_start, window_end" + sql[match.end() :]
        return _EDGE.sub(r"window_\1", text), _window(match[1], match[2])
    return sql, None


def _window(name: str, lengths: str) -> _Window:
    sizes = [int(number) * _UNITS[unit] for number, unit in re.findall(r"'(\d+) (\w+)'", lengths)]
    return _Window(sizes[0], None if "session" in name.lower() else sizes[-1])


def _with_windows(tree: exp.Expr, window: _Window) -> exp.Select:
    """Return the aggregation over rows that carry their window; WHERE moves below, because sessions depend on it."""
    if not isinstance(tree, exp.Select) or tree.find(exp.Join):
        raise _CannotJudgeError("not a plain aggregation")
    group, where = tree.args.get("group"), tree.args.get("where")
    edges = {"window_start", "window_end"}
    keys = [key for key in (group.expressions if group else ()) if key.name not in edges]
    rows = exp.select("*", "epoch_us(time) AS __t").from_(tree.args["from_"].this.copy())
    rows = rows.where(where.this.copy()) if where else rows
    windowed = _sessions(rows, keys, window.size) if window.is_session else _sliding(rows, window)
    result = tree.copy()
    result.set("where", None)
    result.set(
        "group", exp.Group(expressions=[*(key.copy() for key in keys), exp.column("window_start"), exp.column("window_end")])
    )
    return result.from_(windowed.subquery("windowed"))


def _sliding(rows: exp.Select, window: _Window) -> exp.Select:
    """Return a copy of a row for each of its windows: starts descend from the last one ≤ t while t < start + size."""
    size, slide = window.size, window.slide
    last = f"__t - ((__t % {slide}) + {slide}) % {slide}"
    series = f"unnest(generate_series({last}, __t - {size} + 1, -{slide})) AS __start"
    starts = _over(rows, "*", series)
    return _over(starts, "*", "make_timestamp(__start) AS window_start", f"make_timestamp(__start + {size}) AS window_end")


def _sessions(rows: exp.Select, keys: Sequence[exp.Expr], gap: int) -> exp.Select:
    """Number the rows that begin a session, per key; rows with the same number are one session."""
    by = ", ".join(["1", *(f"({key.transform(_rewrite_percentiles).sql('duckdb')})" for key in keys)])
    begins = f"CASE WHEN __t - lag(__t) OVER (PARTITION BY {by} ORDER BY __t) <= {gap} THEN 0 ELSE 1 END AS __begins"
    numbered = _over(_over(rows, "*", begins), "*", f"sum(__begins) OVER (PARTITION BY {by} ORDER BY __t) AS __session")
    each = f"OVER (PARTITION BY {by}, __session)"
    first, last = f"make_timestamp(min(__t) {each})", f"make_timestamp(max(__t) {each} + {gap})"
    return _over(numbered, "*", f"{first} AS window_start", f"{last} AS window_end")


def _over(rows: exp.Select, *outputs: str) -> exp.Select:
    return exp.select(*(sqlglot.parse_one(output, read="duckdb") for output in outputs)).from_(rows.subquery("rows_below"))


def _rewrite_percentiles(node: exp.Expr) -> exp.Expr:
    """Rewrite percentiles, which the transpiler gets wrong: they interpolate, over doubles."""
    if isinstance(node, exp.Median):
        return _quantile("quantile_cont", node.this, exp.Literal.number("0.5"))
    if isinstance(node, exp.Quantile):
        return _quantile("quantile_cont", node.this, node.args["quantile"])
    if isinstance(node, exp.WithinGroup):
        name = "quantile_cont" if isinstance(node.this, exp.PercentileCont) else "quantile_disc"
        return _quantile(name, node.expression.expressions[0].this, node.this.this)
    return node


def _quantile(name: str, value: exp.Expr, share: exp.Expr) -> exp.Expr:
    argument = exp.cast(value.copy(), "double") if name == "quantile_cont" else value.copy()
    return exp.Anonymous(this=name, expressions=[argument, share.copy()])
