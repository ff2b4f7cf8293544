"""Generate windowed equi-joins and render them in all dialects.

A join connects a chain of streams, with selections and an optional aggregate:

    StreamChain(("a", "b", "c"), ((("key", "key"),), (("f1", "f2"), ("f3", "f3"))))    a.key = b.key, b.f1 = c.f2, b.f3 = c.f3

Rows join if they are in the same window. The SQL texts alias the streams s1 … sn in the order of the chain.

`compute_similarity` measures how similar a join is to a pattern join, and `StreamPool` draws joins of a requested similarity:

    similarity = common sources × common join attributes of these sources / (sources of the pattern)²

A chain of n sources has 2 (n − 1) join attributes, so for n > 2 the quotient can exceed 1; it is then capped at 1.

The generators draw queries from a seed; the first n queries do not depend on the requested count.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.bench.queries.aggregations import FIELD_MAX, find_largest_divisor
from headrace.bench.queries.dialects import (
    DUCKDB_BIGINT_SUM,
    FLINK_BIGINT_SUM,
    SECOND_US,
    ColumnComparison,
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
from headrace.bench.queries.query import BenchQuery
from headrace.errors import HeadraceError
from headrace.model.time import parse_duration

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


def compute_similarity(chain: StreamChain, pattern: StreamChain) -> float:
    """Return the similarity of a join to the pattern, in [0, 1]."""
    sources = set(chain.streams) & set(pattern.streams)
    attributes = chain.collect_attributes() & pattern.collect_attributes()
    return min(1.0, len(sources) * len(attributes) / len(pattern.streams) ** 2)


@dataclass(frozen=True, slots=True)
class StreamPool:
    """Streams with the same columns from which joins are drawn; every column can be a join column."""

    streams: tuple[str, ...]
    columns: tuple[str, ...]

    def draw_pattern(self, ways: int, rng: random.Random) -> StreamChain:
        """Draw a chain of different streams; an inner stream joins its neighbours by two different columns."""
        if not 2 <= ways <= len(self.streams) or len(self.columns) < 3:
            raise HeadraceError(
                f"cannot draw a pattern of {ways} streams from {len(self.streams)} streams of {len(self.columns)} columns"
            )
        slots = [rng.sample(self.columns, 2) for _ in range(ways)]
        links = tuple(((slots[position][1], slots[position + 1][0]),) for position in range(ways - 1))
        return StreamChain(tuple(rng.sample(self.streams, ways)), links)

    def draw_similar_chain(self, pattern: StreamChain, similarity_goal: float, rng: random.Random) -> StreamChain:
        """Draw a chain as long as the pattern, with the nearest similarity that whole numbers of sources and attributes allow."""
        ways = len(pattern.streams)
        others = [stream for stream in self.streams if stream not in pattern.streams]
        min_sources = max(1, ways - len(others))
        sources, attributes, first = _choose_overlap(ways, similarity_goal, rng.randint(min_sources, ways), rng)
        common = range(first, first + sources)
        rng.shuffle(others)
        streams = [pattern.streams[position] if position in common else others.pop() for position in range(ways)]
        kept = set(rng.sample(_list_slots(ways, common), attributes))
        pattern_columns = {
            stream: {column for name, column in pattern.collect_attributes() if name == stream} for stream in streams
        }
        slots = {slot: _column_of_slot(pattern, slot) for slot in kept}
        for slot in _list_slots(ways, range(ways)):
            if slot not in kept:
                stream = streams[slot[0]]
                slots[slot] = rng.choice([column for column in self.columns if column not in pattern_columns[stream]])
        return StreamChain(tuple(streams), tuple(((slots[position, 1], slots[position + 1, 0]),) for position in range(ways - 1)))


def _choose_overlap(ways: int, similarity_goal: float, sources: int, rng: random.Random) -> tuple[int, int, int]:
    """Return how many sources and attributes to keep, and the first source kept; add sources until the attributes fit."""
    while sources < ways:
        attributes = round(similarity_goal * ways**2 / sources)
        firsts = [
            first for first in range(ways - sources + 1) if len(_list_slots(ways, range(first, first + sources))) >= attributes
        ]
        if firsts:
            return sources, attributes, rng.choice(firsts)
        sources += 1
    return ways, min(round(similarity_goal * ways), 2 * (ways - 1)), 0


def _list_slots(ways: int, positions: Sequence[int]) -> list[tuple[int, int]]:
    """Return the join attributes at some positions: (position, 0) joins to the left, (position, 1) to the right."""
    return [(position, side) for position in positions for side in (0, 1) if 0 <= position - 1 + 2 * side < ways]


def _column_of_slot(chain: StreamChain, slot: tuple[int, int]) -> str:
    position, side = slot
    return chain.links[position][0][0] if side else chain.links[position - 1][0][1]


FIELD_COLUMNS = ("key", "f1", "f2", "f3", "f4", "f5")
_PREDICATE_OPERATORS = ("<", ">", "=", "<=", ">=")
_GEM_PACK_COUNT = 10
_MAX_JOINS = 5


@dataclass(frozen=True, slots=True)
class PurchaseAdJoins:
    """Purchases of gem packs proposed to the same user: the first query takes all packs, the others packs above drawn numbers."""

    size: str = "8 seconds"
    slide: str = "4 seconds"
    seed: int = 7

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        rng = _make_random(self.seed)
        chain = StreamChain(("purchases", "ads"), ((("user_id", "user_id"), ("gem_pack", "gem_pack")),))
        queries = []
        for number in range(1, count + 1):
            predicates = [ColumnComparison("gem_pack", ">", rng.randrange(_GEM_PACK_COUNT - 1)) for _ in chain.streams]
            join = WindowJoinSpec(
                chain, (None, None) if number == 1 else tuple(predicates), ((1, "user_id"), (1, "gem_pack"), (1, "price"))
            )
            queries.append(build_window_join(f"q{number}", join, parse_duration(self.size), parse_duration(self.slide)))
        return tuple(queries)


@dataclass(frozen=True, slots=True)
class FieldJoins:
    """The joins of AStream: two streams of generated fields joined by key, a predicate on each, windows of 1–10 s, all random."""

    left: str = "a"
    right: str = "b"
    seed: int = 7
    divisible: bool = False

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        rng = _make_random(self.seed)
        chain = StreamChain((self.left, self.right), ((("key", "key"),),))
        outputs = tuple((number, column) for number in (1, 2) for column in FIELD_COLUMNS)
        queries = []
        for number in range(1, count + 1):
            predicates = (_draw_predicate(rng, FIELD_COLUMNS[1:], FIELD_MAX), _draw_predicate(rng, FIELD_COLUMNS[1:], FIELD_MAX))
            size, slide = draw_window(rng, divisible=self.divisible)
            queries.append(build_window_join(f"q{number}", WindowJoinSpec(chain, predicates, outputs), size, slide))
        return tuple(queries)


@dataclass(frozen=True, slots=True)
class PatternJoins:
    """The joins of AJoin: `ways` streams joined in a chain by random columns, a predicate on each, tumbling windows of 1–3 s.

    Every query has the requested similarity with one common pattern. Streams are r1 … r`streams`; values are below `field_max`.
    """

    streams: int = 10
    ways: int = 2
    similarity: float = 0.5
    field_max: int = 500
    predicates: bool = True
    seed: int = 7

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        rng = _make_random(self.seed)
        pool = StreamPool(tuple(f"r{number}" for number in range(1, self.streams + 1)), FIELD_COLUMNS)
        pattern = pool.draw_pattern(self.ways, rng)
        outputs = tuple((number, column) for number in range(1, self.ways + 1) for column in FIELD_COLUMNS)
        queries = []
        for number in range(1, count + 1):
            chain = pool.draw_similar_chain(pattern, self.similarity, rng)
            predicates = tuple(_draw_predicate(rng, FIELD_COLUMNS, self.field_max) for _ in range(self.ways))
            length = rng.randint(1, 3) * SECOND_US
            join = WindowJoinSpec(chain, predicates if self.predicates else (None,) * self.ways, outputs)
            queries.append(build_window_join(f"q{number}", join, length, length))
        return tuple(queries)


@dataclass(frozen=True, slots=True)
class ComplexQueries:
    """A selection, 1 to `joins` joins by key, and the sum of a field by key, all in the same tumbling window of 1, 2 or 3 s.

    Streams are r1 … r6.
    """

    joins: int = _MAX_JOINS
    seed: int = 7

    def __post_init__(self) -> None:
        """Reject a number of joins out of range."""
        if not 1 <= self.joins <= _MAX_JOINS:
            raise HeadraceError(f"joins is {self.joins}, but must be 1 to {_MAX_JOINS}")

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        rng = _make_random(self.seed)
        queries = []
        for number in range(1, count + 1):
            ways = 1 + rng.randint(1, self.joins)
            streams = rng.sample([f"r{stream}" for stream in range(1, _MAX_JOINS + 2)], ways)
            chain = StreamChain(tuple(streams), ((("key", "key"),),) * (ways - 1))
            predicates = (_draw_predicate(rng, FIELD_COLUMNS[1:], FIELD_MAX), *([None] * (ways - 1)))
            length = rng.randint(1, 3) * SECOND_US
            queries.append(
                build_window_join(
                    f"q{number}",
                    WindowJoinSpec(chain, predicates, ((1, "key"),), JoinAggregateCall("SUM", (1, "f1"), "total")),
                    length,
                    length,
                )
            )
        return tuple(queries)


def draw_window(rng: random.Random, *, divisible: bool, longest: int = 10) -> tuple[int, int]:
    """Draw a window size and slide in whole seconds, slide ≤ size; return both in microseconds."""
    size = rng.randint(1, longest)
    slide = rng.randint(1, size)
    return size * SECOND_US, (find_largest_divisor(size, slide) if divisible else slide) * SECOND_US


def _draw_predicate(rng: random.Random, columns: tuple[str, ...], limit: int) -> ColumnComparison:
    return ColumnComparison(rng.choice(columns), rng.choice(_PREDICATE_OPERATORS), rng.randrange(limit))


def _make_random(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311  a workload, not a secret
