"""Render windowed equi-joins of a chain of streams, with selections and an optional aggregate, in all dialects.

    Chain(("a", "b", "c"), ((("key", "key"),), (("f1", "f2"), ("f3", "f3"))))      a.key = b.key, b.f1 = c.f2, b.f3 = c.f3

Rows join if they are in the same window. The SQL texts alias the streams s1 … sn in the order of the chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.bench.queries.dialect import (
    DUCKDB_SUM,
    FLINK_SUM,
    Quote,
    flink_source,
    flink_takes,
    headrace_source,
    plain,
    quoted,
    select,
    spark_window,
    ticked,
)
from headrace.bench.queries.shape import Comparison
from headrace.bench.query import BenchQuery
from headrace.errors import HeadraceError

Link = tuple[tuple[str, str], ...]  # equal columns of the left and the right stream
Place = tuple[int, str]  # the 1-based position of a stream in the chain, and a column

SPARK_EDGES = ("s1.window.start AS window_start", "s1.window.end AS window_end")


@dataclass(frozen=True, slots=True)
class Chain:
    """Streams in join order, and the column pairs that join each stream with the next."""

    streams: tuple[str, ...]
    links: tuple[Link, ...]

    def __post_init__(self) -> None:
        """Reject a cross product."""
        if len(self.streams) < 2 or len(self.links) != len(self.streams) - 1 or not all(self.links):
            raise HeadraceError(f"{len(self.links)} links cannot join {len(self.streams)} streams")

    def attributes(self) -> set[tuple[str, str]]:
        """Return all (stream, join column) pairs."""
        sides = zip(pairwise(self.streams), self.links, strict=True)
        return {
            pair
            for (left, right), link in sides
            for left_name, right_name in link
            for pair in ((left, left_name), (right, right_name))
        }


@dataclass(frozen=True, slots=True)
class Top:
    """An aggregate over the joined rows; `column` is None for COUNT(*). Summed columns hold integers."""

    function: str
    place: Place | None
    name: str

    def sql(self, quote: Quote, total: str) -> str:
        """Return the aggregate with its alias."""
        column = "*" if self.place is None else _column(self.place, quote)
        return f"{(total if self.function == 'SUM' else self.function + '({})').format(column)} AS {self.name}"


@dataclass(frozen=True, slots=True)
class Join:
    """A windowed join: its outputs, or an aggregate grouped by its outputs, over the rows that satisfy the predicates.

    `theta` is an additional condition over s1 … sn; its names must be valid without quotes in every dialect.
    """

    chain: Chain
    predicates: tuple[Comparison | None, ...]
    outputs: tuple[Place, ...]
    top: Top | None = None
    theta: str = ""

    def where(self, quote: Quote) -> str:
        """Return the conjunction of the selections of all streams and `theta`."""
        conditions = [
            f"s{number}.{predicate.sql(quote)}" for number, predicate in enumerate(self.predicates, 1) if predicate is not None
        ]
        return " AND ".join([*conditions, *([self.theta] if self.theta else [])])

    def selected(self, quote: Quote, total: str = "SUM({})") -> list[str]:
        """Return uniquely named outputs and the aggregate; `total` is the engine's template for a 64-bit integer sum."""
        columns = [column for _, column in self.outputs]
        outputs = [
            f"{_column(place, quote)} AS s{place[0]}_{place[1]}" if place[1] in columns[:number] else _column(place, quote)
            for number, place in enumerate(self.outputs)
        ]
        return outputs if self.top is None else [*outputs, self.top.sql(quote, total)]

    def group(self, quote: Quote, *window: str) -> list[str]:
        """Return the grouping columns: the outputs, then the window columns; empty without an aggregate."""
        return [] if self.top is None else [*(_column(place, quote) for place in self.outputs), *window]

    def columns(self) -> dict[int, list[str]]:
        """Return the columns used of each stream, by position in the chain; columns used only by `theta` are missing."""
        aggregated = [self.top.place] if self.top is not None and self.top.place is not None else []
        used: dict[int, set[str]] = {number: set() for number in range(1, len(self.chain.streams) + 1)}
        for number, column in [*self.outputs, *aggregated]:
            used[number].add(column)
        for number, predicate in enumerate(self.predicates, 1):
            used[number].update([predicate.column] if predicate is not None else [])
        for number, link in enumerate(self.chain.links, 1):
            used[number].update(left for left, _ in link)
            used[number + 1].update(right for _, right in link)
        return {number: sorted(names) for number, names in used.items()}

    def source(self, sides: Sequence[str], quote: Quote, *same_columns: str) -> str:
        """Return the FROM clause: the sides joined by their links and by equality of `same_columns`."""
        text = f"{sides[0]} s1"
        for number, (side, link) in enumerate(zip(sides[1:], self.chain.links, strict=True), 1):
            left, right = f"s{number}", f"s{number + 1}"
            equal = [*((name, name) for name in same_columns), *((quote(a), quote(b)) for a, b in link)]
            text += f" JOIN {side} {right} ON {' AND '.join(f'{left}.{a} = {right}.{b}' for a, b in equal)}"
        return text


def joined(name: str, join: Join, size_us: int, slide_us: int) -> BenchQuery:
    """Return the join in all dialects that support its window."""
    texts = {"headrace": headrace(join, size_us, slide_us), "spark": spark(join, size_us, slide_us)}
    if flink_takes(size_us, slide_us):
        texts["flink"] = flink(join, size_us, slide_us)
    texts["duckdb"] = duckdb(join)
    return BenchQuery(name, tuple(dict.fromkeys(join.chain.streams)), texts, size_us, slide_us)


def headrace(join: Join, size_us: int, slide_us: int) -> str:
    """Return the join in headrace SQL."""
    sides = [headrace_source(stream, size_us, slide_us) for stream in join.chain.streams]
    return select(
        ["window_start", "window_end", *join.selected(plain)], join.source(sides, plain), join.where(plain), join.group(plain)
    )


def spark(join: Join, size_us: int, slide_us: int, window_columns: Sequence[str] = SPARK_EDGES) -> str:
    """Return the join in Spark SQL; `window_columns` are the window columns of the result."""
    if len(join.chain.streams) > 2:
        return _spark_nested(join, size_us, slide_us, window_columns)
    windowed = f"*, {spark_window(size_us, slide_us)} AS window"
    sides = [f"({select([windowed], stream)})" for stream in join.chain.streams]
    source = join.source(sides, plain, "window")
    return select([*window_columns, *join.selected(plain)], source, join.where(plain), join.group(plain, "s1.window"))


def _spark_nested(join: Join, size_us: int, slide_us: int, window_columns: Sequence[str]) -> str:
    """Return a nested join in which every step passes on a single window column.

    Spark rejects rows with two event-time columns as input of another join. The other columns of each side are packed into a
    struct named s1, s2 …, so that column references equal those of the other dialects.
    """
    used = join.columns()
    text = ""
    for number, stream in enumerate(join.chain.streams, 1):
        projected = [f"{spark_window(size_us, slide_us)} AS window", f"struct({', '.join(used[number])}) AS s{number}"]
        side = f"({select(projected, stream)})"
        if number == 1:
            text = side
            continue
        equal = [f"s{number - 1}.{left_name} = s{number}.{right_name}" for left_name, right_name in join.chain.links[number - 2]]
        both = f"{text} l JOIN {side} r ON {' AND '.join(['l.window = r.window', *equal])}"
        text = f"({select(['l.window AS window', *(f's{n}' for n in range(1, number + 1))], both)})"
    result_windows = [column.replace("s1.window", "window") for column in window_columns]
    return select([*result_windows, *join.selected(plain)], text, join.where(plain), join.group(plain, "window"))


def flink(join: Join, size_us: int, slide_us: int, window_columns: Sequence[str] = ("s1.window_end",)) -> str:
    """Return the join in Flink SQL; `window_columns` are the window columns of the result."""
    sides = [f"({select(['*'], flink_source(stream, size_us, slide_us))})" for stream in join.chain.streams]
    source = join.source(sides, ticked, "window_start", "window_end")
    group = join.group(ticked, "s1.window_start", "s1.window_end")
    return select([*window_columns, *join.selected(ticked, FLINK_SUM)], source, join.where(ticked), group)


def duckdb(join: Join, window_columns: Sequence[str] = ("? AS window_end",)) -> str:
    """Return the join in DuckDB SQL, over the rows of one window."""
    sides = [quoted(stream) for stream in join.chain.streams]
    outputs = [*window_columns, *join.selected(quoted, DUCKDB_SUM)]
    return select(outputs, join.source(sides, quoted), join.where(quoted), join.group(quoted))


def _column(reference: Place, quote: Quote) -> str:
    number, column = reference
    return f"s{number}.{quote(column)}"
