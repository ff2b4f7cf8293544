"""Generate windowed joins from a seed; the first n queries do not depend on the requested count."""

from __future__ import annotations

import random
from dataclasses import dataclass

from headrace.bench.queries.aggregations import find_largest_divisor
from headrace.bench.queries.dialect import SECOND_US
from headrace.bench.queries.join import JoinAggregateCall, StreamChain, WindowJoinSpec, build_window_join
from headrace.bench.queries.shape import ColumnComparison
from headrace.bench.queries.similarity import StreamPool
from headrace.bench.query import BenchQuery
from headrace.bench.workload import FIELD_MAX
from headrace.errors import HeadraceError
from headrace.model.duration import parse_duration

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
    """The AStream joins: two streams of fields by key, a random predicate on each, random windows of 1–10 s."""

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
    """The AJoin joins: a chain of `ways` streams by random columns, a predicate on each, tumbling windows of 1, 2 or 3 s.

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
