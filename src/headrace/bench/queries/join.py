"""Render windowed equi-joins of a chain of streams, with selections and an optional aggregate, in all dialects.

    Chain(("a", "b", "c"), ((("key", "key"),), (("f1", "f2"), ("f3", "f3"))))      a.key = b.key, b.f1 = c.f2, b.f3 = c.f3

Rows join if they are in the same window. The SQL texts alias the streams s1 … sn in the order of the chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.bench.queries.dialect import (
    DUCKDB_BIGINT_SUM,
    FLINK_BIGINT_SUM,
    NameQuoter,
    backtick_name,
    build_flink_source,
    build_headrace_source,
    build_select,
    build_spark_window,
    is_flink_window,
    keep_name,
    quote_name,
)
from headrace.bench.queries.shape import ColumnComparison
from headrace.bench.query import BenchQuery
from headrace.errors import HeadraceError

ColumnPairs = tuple[tuple[str, str], ...]  # equal columns of the left and the right stream
ChainColumn = tuple[int, str]  # the 1-based position of a stream in the chain, and a column

SPARK_WINDOW_COLUMNS = ("s1.window.start AS window_start", "s1.window.end AS window_end")


@dataclass(frozen=True, slots=True)
class StreamChain:
    """Streams in join order, and the column pairs that join each stream with the next."""

    streams: tuple[str, ...]
    links: tuple[ColumnPairs, ...]

    def __post_init__(self) -> None:
        """Reject a cross product."""
        if len(self.streams) < 2 or len(self.links) != len(self.streams) - 1 or not all(self.links):
            raise HeadraceError(f"{len(self.links)} links cannot join {len(self.streams)} streams")

    def collect_attributes(self) -> set[tuple[str, str]]:
        """Return all (stream, join column) pairs."""
        sides = zip(pairwise(self.streams), self.links, strict=True)
        return {
            pair
            for (left, right), link in sides
            for left_name, right_name in link
            for pair in ((left, left_name), (right, right_name))
        }


@dataclass(frozen=True, slots=True)
class JoinAggregateCall:
    """An aggregate over the joined rows; `column` is None for COUNT(*). Summed columns hold integers."""

    function: str
    column: ChainColumn | None
    name: str

    def to_sql(self, quote: NameQuoter, total: str) -> str:
        """Return the aggregate with its alias."""
        column = "*" if self.column is None else _render_column(self.column, quote)
        return f"{(total if self.function == 'SUM' else self.function + '({})').format(column)} AS {self.name}"


@dataclass(frozen=True, slots=True)
class WindowJoinSpec:
    """A windowed join: its outputs, or an aggregate grouped by its outputs, over the rows that satisfy the predicates.

    `theta` is an additional condition over s1 … sn; its names must be valid without quotes in every dialect.
    """

    chain: StreamChain
    predicates: tuple[ColumnComparison | None, ...]
    outputs: tuple[ChainColumn, ...]
    aggregate: JoinAggregateCall | None = None
    theta: str = ""

    def render_where(self, quote: NameQuoter) -> str:
        """Return the conjunction of the selections of all streams and `theta`."""
        conditions = [
            f"s{number}.{predicate.to_sql(quote)}" for number, predicate in enumerate(self.predicates, 1) if predicate is not None
        ]
        return " AND ".join([*conditions, *([self.theta] if self.theta else [])])

    def render_outputs(self, quote: NameQuoter, total: str = "SUM({})") -> list[str]:
        """Return uniquely named outputs and the aggregate; `total` is the engine's template for a 64-bit integer sum."""
        columns = [column for _, column in self.outputs]
        outputs = [
            f"{_render_column(place, quote)} AS s{place[0]}_{place[1]}"
            if place[1] in columns[:number]
            else _render_column(place, quote)
            for number, place in enumerate(self.outputs)
        ]
        return outputs if self.aggregate is None else [*outputs, self.aggregate.to_sql(quote, total)]

    def render_group_by(self, quote: NameQuoter, *window: str) -> list[str]:
        """Return the grouping columns: the outputs, then the window columns; empty without an aggregate."""
        return [] if self.aggregate is None else [*(_render_column(place, quote) for place in self.outputs), *window]

    def collect_columns(self) -> dict[int, list[str]]:
        """Return the columns used of each stream, by position in the chain; columns used only by `theta` are missing."""
        aggregated = [self.aggregate.column] if self.aggregate is not None and self.aggregate.column is not None else []
        used: dict[int, set[str]] = {number: set() for number in range(1, len(self.chain.streams) + 1)}
        for number, column in [*self.outputs, *aggregated]:
            used[number].add(column)
        for number, predicate in enumerate(self.predicates, 1):
            used[number].update([predicate.column] if predicate is not None else [])
        for number, link in enumerate(self.chain.links, 1):
            used[number].update(left for left, _ in link)
            used[number + 1].update(right for _, right in link)
        return {number: sorted(names) for number, names in used.items()}

    def render_from(self, sides: Sequence[str], quote: NameQuoter, *same_columns: str) -> str:
        """Return the FROM clause: the sides joined by their links and by equality of `same_columns`."""
        text = f"{sides[0]} s1"
        for number, (side, link) in enumerate(zip(sides[1:], self.chain.links, strict=True), 1):
            left, right = f"s{number}", f"s{number + 1}"
            equal = [*((name, name) for name in same_columns), *((quote(a), quote(b)) for a, b in link)]
            text += f" JOIN {side} {right} ON {' AND '.join(f'{left}.{a} = {right}.{b}' for a, b in equal)}"
        return text


def build_window_join(name: str, join: WindowJoinSpec, size_us: int, slide_us: int) -> BenchQuery:
    """Return the join in all dialects that support its window."""
    texts = {"headrace": render_headrace_join(join, size_us, slide_us), "spark": render_spark_join(join, size_us, slide_us)}
    if is_flink_window(size_us, slide_us):
        texts["flink"] = render_flink_join(join, size_us, slide_us)
    texts["duckdb"] = render_duckdb_join(join)
    return BenchQuery(name, tuple(dict.fromkeys(join.chain.streams)), texts, size_us, slide_us)


def render_headrace_join(join: WindowJoinSpec, size_us: int, slide_us: int) -> str:
    """Return the join in headrace SQL."""
    sides = [build_headrace_source(stream, size_us, slide_us) for stream in join.chain.streams]
    return build_select(
        ["window_start", "window_end", *join.render_outputs(keep_name)],
        join.render_from(sides, keep_name),
        join.render_where(keep_name),
        join.render_group_by(keep_name),
    )


def render_spark_join(
    join: WindowJoinSpec, size_us: int, slide_us: int, window_columns: Sequence[str] = SPARK_WINDOW_COLUMNS
) -> str:
    """Return the join in Spark SQL; `window_columns` are the window columns of the result."""
    if len(join.chain.streams) > 2:
        return _render_nested_spark_join(join, size_us, slide_us, window_columns)
    windowed = f"*, {build_spark_window(size_us, slide_us)} AS window"
    sides = [f"({build_select([windowed], stream)})" for stream in join.chain.streams]
    source = join.render_from(sides, keep_name, "window")
    return build_select(
        [*window_columns, *join.render_outputs(keep_name)],
        source,
        join.render_where(keep_name),
        join.render_group_by(keep_name, "s1.window"),
    )


def _render_nested_spark_join(join: WindowJoinSpec, size_us: int, slide_us: int, window_columns: Sequence[str]) -> str:
    """Return a nested join in which every step passes on a single window column.

    Spark rejects rows with two event-time columns as input of another join. The other columns of each side are packed into a
    struct named s1, s2 …, so that column references equal those of the other dialects.
    """
    used = join.collect_columns()
    text = ""
    for number, stream in enumerate(join.chain.streams, 1):
        projected = [f"{build_spark_window(size_us, slide_us)} AS window", f"struct({', '.join(used[number])}) AS s{number}"]
        side = f"({build_select(projected, stream)})"
        if number == 1:
            text = side
            continue
        equal = [f"s{number - 1}.{left_name} = s{number}.{right_name}" for left_name, right_name in join.chain.links[number - 2]]
        both = f"{text} l JOIN {side} r ON {' AND '.join(['l.window = r.window', *equal])}"
        text = f"({build_select(['l.window AS window', *(f's{n}' for n in range(1, number + 1))], both)})"
    result_windows = [column.replace("s1.window", "window") for column in window_columns]
    return build_select(
        [*result_windows, *join.render_outputs(keep_name)],
        text,
        join.render_where(keep_name),
        join.render_group_by(keep_name, "window"),
    )


def render_flink_join(
    join: WindowJoinSpec, size_us: int, slide_us: int, window_columns: Sequence[str] = ("s1.window_end",)
) -> str:
    """Return the join in Flink SQL; `window_columns` are the window columns of the result."""
    sides = [f"({build_select(['*'], build_flink_source(stream, size_us, slide_us))})" for stream in join.chain.streams]
    source = join.render_from(sides, backtick_name, "window_start", "window_end")
    group = join.render_group_by(backtick_name, "s1.window_start", "s1.window_end")
    return build_select(
        [*window_columns, *join.render_outputs(backtick_name, FLINK_BIGINT_SUM)], source, join.render_where(backtick_name), group
    )


def render_duckdb_join(join: WindowJoinSpec, window_columns: Sequence[str] = ("? AS window_end",)) -> str:
    """Return the join in DuckDB SQL, over the rows of one window."""
    sides = [quote_name(stream) for stream in join.chain.streams]
    outputs = [*window_columns, *join.render_outputs(quote_name, DUCKDB_BIGINT_SUM)]
    return build_select(
        outputs, join.render_from(sides, quote_name), join.render_where(quote_name), join.render_group_by(quote_name)
    )


def _render_column(reference: ChainColumn, quote: NameQuoter) -> str:
    number, column = reference
    return f"s{number}.{quote(column)}"
