"""Generate windowed aggregations from a seed; the first n queries do not depend on the requested count."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count as numbers
from itertools import islice

from headrace.bench.queries.dialect import SECOND_US
from headrace.bench.queries.shape import BenchAggregate, ColumnComparison
from headrace.bench.query import BenchQuery, build_window_aggregation
from headrace.bench.workload import FIELD_MAX
from headrace.model.duration import parse_duration

_PREDICATE_OPERATORS = ("<", ">", "=", "<=", ">=")


@dataclass(frozen=True, slots=True)
class PurchaseAggregations:
    """Revenue by key: the first query sums all purchases, each other one those above a price drawn from [0, 100)."""

    stream: str = "purchases"
    key: str = "gem_pack"
    size: str = "8 seconds"
    slide: str = "4 seconds"
    seed: int = 7

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        return tuple(islice(self._generate_all(), count))

    def _generate_all(self) -> Iterator[BenchQuery]:
        rng = random.Random(self.seed)  # noqa: S311  a workload, not a secret
        size, slide = parse_duration(self.size), parse_duration(self.slide)
        for number in numbers(1):
            predicate = None if number == 1 else ColumnComparison("price", ">", rng.randrange(10_000) / 100)
            yield build_window_aggregation(
                f"q{number}", self.stream, [self.key], [BenchAggregate("SUM", "price", "revenue")], predicate, size, slide
            )


@dataclass(frozen=True, slots=True)
class FieldAggregations:
    """The AStream aggregations: sum of a field by key, a random predicate, random windows of 1–10 s.

    `divisible` lowers each slide to a divisor of its size; every engine supports such windows.
    """

    stream: str = "fields"
    seed: int = 7
    divisible: bool = False

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        return tuple(islice(self._generate_all(), count))

    def _generate_all(self) -> Iterator[BenchQuery]:
        rng = random.Random(self.seed)  # noqa: S311  a workload, not a secret
        total = [BenchAggregate("SUM", "f1", "total", integer=True)]
        for number in numbers(1):
            column, operator = f"f{rng.randint(1, 5)}", rng.choice(_PREDICATE_OPERATORS)
            predicate, size = ColumnComparison(column, operator, rng.randrange(FIELD_MAX)), rng.randint(1, 10)
            slide = rng.randint(1, size)
            slide = find_largest_divisor(size, slide) if self.divisible else slide
            yield build_window_aggregation(
                f"q{number}", self.stream, ["key"], total, predicate, size * SECOND_US, slide * SECOND_US
            )


def find_largest_divisor(number: int, limit: int) -> int:
    """Return the largest divisor of `number` that does not exceed `limit`."""
    return next(divisor for divisor in range(limit, 0, -1) if number % divisor == 0)
