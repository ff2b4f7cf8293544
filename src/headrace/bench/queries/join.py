"""Windowed equi-joins of a chain of streams, with selections and, if asked, an aggregate on top, in all dialects.

    Chain(("a", "b", "c"), ((("key", "key"),), (("f1", "f2"), ("f3", "f3"))))      a.key = b.key, b.f1 = c.f2, b.f3 = c.f3

Rows join when they are in the same window. Streams are called s1 … sn in the texts, in the order of the chain.
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

Link = tuple[tuple[str, str], ...]  # pairs of columns that must be equal: of the stream on the left, of the one on the right
Place = tuple[int, str]  # a stream's place in the chain, counted from 1, and a column of it

SPARK_EDGES = ("s1.window.start AS window_start", "s1.window.end AS window_end")


@dataclass(frozen=True, slots=True)
class Chain:
    """Streams in the order in which they are joined, and how each is joined with the next."""

    streams: tuple[str, ...]
    links: tuple[Link, ...]

    def __post_init__(self) -> None:
        """Refuse a cross product."""
        if len(self.streams) < 2 or len(self.links) != len(self.streams) - 1 or not all(self.links):
            raise HeadraceError(f"{len(self.links)} links cannot join {len(self.streams)} streams")

    def attributes(self) -> set[tuple[str, str]]:
        """Return every stream with each column it is joined by."""
        sides = zip(pairwise(self.streams), self.links, strict=True)
        return {pair for (left, right), link in sides for one, two in link for pair in ((left, one), (right, two))}


@dataclass(frozen=True, slots=True)
class Top:
    """An aggregate over the joined rows; `place` is None for COUNT(*). A column that is summed holds integers."""

    function: str
    place: Place | None
    name: str

    def sql(self, quote: Quote, total: str) -> str:
        """Return the aggregate with its name."""
        column = "*" if self.place is None else _column(self.place, quote)
        return f"{(total if self.function == 'SUM' else self.function + '({})').format(column)} AS {self.name}"


@dataclass(frozen=True, slots=True)
class Join:
    """What is asked: outputs, or an aggregate by the outputs, of the rows the predicates let pass.

    `theta` is one more condition, over s1 … sn, whose names need no quotes anywhere.
    """

    chain: Chain
    predicates: tuple[Comparison | None, ...]
    outputs: tuple[Place, ...]
    top: Top | None = None
    theta: str = ""

    def where(self, quote: Quote) -> str:
        """Return the selections of all streams and the other condition."""
        found = [f"s{number}.{each.sql(quote)}" for number, each in enumerate(self.predicates, 1) if each is not None]
        return " AND ".join([*found, *([self.theta] if self.theta else [])])

    def selected(self, quote: Quote, total: str = "SUM({})") -> list[str]:
        """Return outputs, no two of one name, and aggregate; `total` is how the engine spells the sum of integers in 64 bit."""
        columns = [column for _, column in self.outputs]
        names = [
            f"{_column(place, quote)} AS s{place[0]}_{place[1]}" if place[1] in columns[:number] else _column(place, quote)
            for number, place in enumerate(self.outputs)
        ]
        return names if self.top is None else [*names, self.top.sql(quote, total)]

    def group(self, quote: Quote, *window: str) -> list[str]:
        """Return what is grouped by: outputs, then the window."""
        return [] if self.top is None else [*(_column(place, quote) for place in self.outputs), *window]

    def columns(self) -> dict[int, list[str]]:
        """Return the columns that are looked at, of each stream by its place; what `theta` looks at is not among them."""
        tops = [self.top.place] if self.top is not None and self.top.place is not None else []
        found: dict[int, set[str]] = {number: set() for number in range(1, len(self.chain.streams) + 1)}
        for number, column in [*self.outputs, *tops]:
            found[number].add(column)
        for number, predicate in enumerate(self.predicates, 1):
            found[number].update([predicate.column] if predicate is not None else [])
        for number, link in enumerate(self.chain.links, 1):
            found[number].update(one for one, _ in link)
            found[number + 1].update(two for _, two in link)
        return {number: sorted(names) for number, names in found.items()}

    def source(self, sides: Sequence[str], quote: Quote, *same: str) -> str:
        """Return FROM: sides joined by their links; columns in `same` must be equal too."""
        text = f"{sides[0]} s1"
        for number, (side, link) in enumerate(zip(sides[1:], self.chain.links, strict=True), 1):
            left, right = f"s{number}", f"s{number + 1}"
            equal = [*((name, name) for name in same), *((quote(one), quote(two)) for one, two in link)]
            text += f" JOIN {side} {right} ON {' AND '.join(f'{left}.{one} = {right}.{two}' for one, two in equal)}"
        return text


def joined(name: str, join: Join, size_us: int, slide_us: int) -> BenchQuery:
    """Return the join in all dialects that have such windows."""
    texts = {"headrace": headrace(join, size_us, slide_us), "spark": spark(join, size_us, slide_us)}
    if flink_takes(size_us, slide_us):
        texts["flink"] = flink(join, size_us, slide_us)
    texts["duckdb"] = duckdb(join)
    return BenchQuery(name, tuple(dict.fromkeys(join.chain.streams)), texts, size_us, slide_us)


def headrace(join: Join, size_us: int, slide_us: int) -> str:
    """Return the text headrace takes."""
    sides = [headrace_source(stream, size_us, slide_us) for stream in join.chain.streams]
    return select(
        ["window_start", "window_end", *join.selected(plain)], join.source(sides, plain), join.where(plain), join.group(plain)
    )


def spark(join: Join, size_us: int, slide_us: int, edges: Sequence[str] = SPARK_EDGES) -> str:
    """Return the text Spark takes; `edges` is what is told of the window."""
    if len(join.chain.streams) > 2:
        return _spark_nested(join, size_us, slide_us, edges)
    windowed = f"*, {spark_window(size_us, slide_us)} AS window"
    sides = [f"({select([windowed], stream)})" for stream in join.chain.streams]
    source = join.source(sides, plain, "window")
    return select([*edges, *join.selected(plain)], source, join.where(plain), join.group(plain, "s1.window"))


def _spark_nested(join: Join, size_us: int, slide_us: int, edges: Sequence[str]) -> str:
    """Return a join in which every step passes on one window.

    Spark refuses rows with two columns of event time as input of another join. What is used of a side besides its window is
    a structure called s1, s2 …, so that columns go by the same names as elsewhere.
    """
    used = join.columns()
    text = ""
    for number, stream in enumerate(join.chain.streams, 1):
        kept = [f"{spark_window(size_us, slide_us)} AS window", f"struct({', '.join(used[number])}) AS s{number}"]
        side = f"({select(kept, stream)})"
        if number == 1:
            text = side
            continue
        equal = [f"s{number - 1}.{one} = s{number}.{two}" for one, two in join.chain.links[number - 2]]
        both = f"{text} l JOIN {side} r ON {' AND '.join(['l.window = r.window', *equal])}"
        text = f"({select(['l.window AS window', *(f's{n}' for n in range(1, number + 1))], both)})"
    shown = [edge.replace("s1.window", "window") for edge in edges]
    return select([*shown, *join.selected(plain)], text, join.where(plain), join.group(plain, "window"))


def flink(join: Join, size_us: int, slide_us: int, edges: Sequence[str] = ("s1.window_end",)) -> str:
    """Return the text Flink takes; `edges` is what is told of the window."""
    sides = [f"({select(['*'], flink_source(stream, size_us, slide_us))})" for stream in join.chain.streams]
    source = join.source(sides, ticked, "window_start", "window_end")
    group = join.group(ticked, "s1.window_start", "s1.window_end")
    return select([*edges, *join.selected(ticked, FLINK_SUM)], source, join.where(ticked), group)


def duckdb(join: Join, edges: Sequence[str] = ("? AS window_end",)) -> str:
    """Return the text DuckDB takes, over the rows of one window."""
    sides = [quoted(stream) for stream in join.chain.streams]
    outputs = [*edges, *join.selected(quoted, DUCKDB_SUM)]
    return select(outputs, join.source(sides, quoted), join.where(quoted), join.group(quoted))


def _column(place: Place, quote: Quote) -> str:
    number, column = place
    return f"s{number}.{quote(column)}"
