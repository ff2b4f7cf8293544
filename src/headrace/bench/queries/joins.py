"""Generate windowed joins from a seed; the first n queries do not depend on the requested count."""

from __future__ import annotations

import random
from dataclasses import dataclass

from headrace.bench.queries.aggregations import largest_divisor
from headrace.bench.queries.dialect import SECOND
from headrace.bench.queries.join import Chain, Join, Top, joined
from headrace.bench.queries.shape import Comparison
from headrace.bench.queries.similarity import Pool
from headrace.bench.query import BenchQuery
from headrace.bench.workload import FIELD_MAX
from headrace.errors import HeadraceError
from headrace.model.duration import parse_duration

COLUMNS = ("key", "f1", "f2", "f3", "f4", "f5")
_OPERATORS = ("<", ">", "=", "<=", ">=")
_GEM_PACKS = 10
_MAX_JOINS = 5


@dataclass(frozen=True, slots=True)
class PurchasesAds:
    """Purchases of gem packs proposed to the same user: the first query takes all packs, the others packs above drawn numbers."""

    size: str = "8 seconds"
    slide: str = "4 seconds"
    seed: int = 7

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        rng = _chance(self.seed)
        chain = Chain(("purchases", "ads"), ((("user_id", "user_id"), ("gem_pack", "gem_pack")),))
        queries = []
        for number in range(1, count + 1):
            predicates = [Comparison("gem_pack", ">", rng.randrange(_GEM_PACKS - 1)) for _ in chain.streams]
            join = Join(
                chain, (None, None) if number == 1 else tuple(predicates), ((1, "user_id"), (1, "gem_pack"), (1, "price"))
            )
            queries.append(joined(f"q{number}", join, parse_duration(self.size), parse_duration(self.slide)))
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
        rng = _chance(self.seed)
        chain = Chain((self.left, self.right), ((("key", "key"),),))
        outputs = tuple((number, column) for number in (1, 2) for column in COLUMNS)
        queries = []
        for number in range(1, count + 1):
            predicates = (_predicate(rng, COLUMNS[1:], FIELD_MAX), _predicate(rng, COLUMNS[1:], FIELD_MAX))
            size, slide = window(rng, divisible=self.divisible)
            queries.append(joined(f"q{number}", Join(chain, predicates, outputs), size, slide))
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
        rng = _chance(self.seed)
        pool = Pool(tuple(f"r{number}" for number in range(1, self.streams + 1)), COLUMNS)
        pattern = pool.pattern(self.ways, rng)
        outputs = tuple((number, column) for number in range(1, self.ways + 1) for column in COLUMNS)
        queries = []
        for number in range(1, count + 1):
            chain = pool.similar(pattern, self.similarity, rng)
            predicates = tuple(_predicate(rng, COLUMNS, self.field_max) for _ in range(self.ways))
            length = rng.randint(1, 3) * SECOND
            join = Join(chain, predicates if self.predicates else (None,) * self.ways, outputs)
            queries.append(joined(f"q{number}", join, length, length))
        return tuple(queries)


@dataclass(frozen=True, slots=True)
class Complex:
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
        rng = _chance(self.seed)
        queries = []
        for number in range(1, count + 1):
            ways = 1 + rng.randint(1, self.joins)
            streams = rng.sample([f"r{stream}" for stream in range(1, _MAX_JOINS + 2)], ways)
            chain = Chain(tuple(streams), ((("key", "key"),),) * (ways - 1))
            predicates = (_predicate(rng, COLUMNS[1:], FIELD_MAX), *([None] * (ways - 1)))
            length = rng.randint(1, 3) * SECOND
            queries.append(
                joined(f"q{number}", Join(chain, predicates, ((1, "key"),), Top("SUM", (1, "f1"), "total")), length, length)
            )
        return tuple(queries)


def window(rng: random.Random, *, divisible: bool, longest: int = 10) -> tuple[int, int]:
    """Draw a window size and slide in whole seconds, slide ≤ size; return both in microseconds."""
    size = rng.randint(1, longest)
    slide = rng.randint(1, size)
    return size * SECOND, (largest_divisor(size, slide) if divisible else slide) * SECOND


def _predicate(rng: random.Random, columns: tuple[str, ...], limit: int) -> Comparison:
    return Comparison(rng.choice(columns), rng.choice(_OPERATORS), rng.randrange(limit))


def _chance(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311  a workload, not a secret
