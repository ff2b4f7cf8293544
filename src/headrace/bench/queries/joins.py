"""Sets of windowed joins, made from a seed: the first n queries are the same however many are asked for."""

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
    """Purchases of what was proposed to the same user: the first of all gem packs, the others above two that are drawn."""

    size: str = "8 seconds"
    slide: str = "4 seconds"
    seed: int = 7

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        chance = _chance(self.seed)
        chain = Chain(("purchases", "ads"), ((("user_id", "user_id"), ("gem_pack", "gem_pack")),))
        found = []
        for number in range(1, count + 1):
            drawn = [Comparison("gem_pack", ">", chance.randrange(_GEM_PACKS - 1)) for _ in chain.streams]
            join = Join(chain, (None, None) if number == 1 else tuple(drawn), ((1, "user_id"), (1, "gem_pack"), (1, "price")))
            found.append(joined(f"q{number}", join, parse_duration(self.size), parse_duration(self.slide)))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class FieldJoins:
    """The AStream joins: two streams of fields by key, a random predicate on each, random windows of 1–10 s."""

    left: str = "a"
    right: str = "b"
    seed: int = 7
    divisible: bool = False

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        chance = _chance(self.seed)
        chain = Chain((self.left, self.right), ((("key", "key"),),))
        outputs = tuple((number, column) for number in (1, 2) for column in COLUMNS)
        found = []
        for number in range(1, count + 1):
            predicates = (_predicate(chance, COLUMNS[1:], FIELD_MAX), _predicate(chance, COLUMNS[1:], FIELD_MAX))
            size, slide = window(chance, divisible=self.divisible)
            found.append(joined(f"q{number}", Join(chain, predicates, outputs), size, slide))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class PatternJoins:
    """The AJoin joins: a chain of `ways` streams by random columns, a predicate on each, tumbling windows of 1, 2 or 3 s.

    Every query has the wanted similarity with the same pattern. Streams are r1 … r`streams`; values are below `field_max`.
    """

    streams: int = 10
    ways: int = 2
    similarity: float = 0.5
    field_max: int = 500
    predicates: bool = True
    seed: int = 7

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        chance = _chance(self.seed)
        pool = Pool(tuple(f"r{number}" for number in range(1, self.streams + 1)), COLUMNS)
        pattern = pool.pattern(self.ways, chance)
        outputs = tuple((number, column) for number in range(1, self.ways + 1) for column in COLUMNS)
        found = []
        for number in range(1, count + 1):
            chain = pool.similar(pattern, self.similarity, chance)
            drawn = tuple(_predicate(chance, COLUMNS, self.field_max) for _ in range(self.ways))
            length = chance.randint(1, 3) * SECOND
            join = Join(chain, drawn if self.predicates else (None,) * self.ways, outputs)
            found.append(joined(f"q{number}", join, length, length))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Complex:
    """A selection, 1 to `joins` joins by key, and the sum of a field by key, all in the same tumbling window of 1, 2 or 3 s.

    Streams are r1 … r6.
    """

    joins: int = _MAX_JOINS
    seed: int = 7

    def __post_init__(self) -> None:
        """Refuse more joins than there may be."""
        if not 1 <= self.joins <= _MAX_JOINS:
            raise HeadraceError(f"joins is {self.joins}, but must be 1 to {_MAX_JOINS}")

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        chance = _chance(self.seed)
        found = []
        for number in range(1, count + 1):
            ways = 1 + chance.randint(1, self.joins)
            streams = chance.sample([f"r{each}" for each in range(1, _MAX_JOINS + 2)], ways)
            chain = Chain(tuple(streams), ((("key", "key"),),) * (ways - 1))
            predicates = (_predicate(chance, COLUMNS[1:], FIELD_MAX), *([None] * (ways - 1)))
            length = chance.randint(1, 3) * SECOND
            found.append(
                joined(f"q{number}", Join(chain, predicates, ((1, "key"),), Top("SUM", (1, "f1"), "total")), length, length)
            )
        return tuple(found)


def window(chance: random.Random, *, divisible: bool, longest: int = 10) -> tuple[int, int]:
    """Draw size and slide in whole seconds, the slide not above the size; returned in microseconds."""
    size = chance.randint(1, longest)
    slide = chance.randint(1, size)
    return size * SECOND, (largest_divisor(size, slide) if divisible else slide) * SECOND


def _predicate(chance: random.Random, columns: tuple[str, ...], below: int) -> Comparison:
    return Comparison(chance.choice(columns), chance.choice(_OPERATORS), chance.randrange(below))


def _chance(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311  a workload, not a secret
