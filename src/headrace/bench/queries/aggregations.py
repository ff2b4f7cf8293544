"""Windowed aggregations generated from a seed, and the rows of the AStream workload as files (a key and five random fields).

The first n queries do not depend on the requested count.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count as numbers
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.bench.queries.dialects import SECOND_US, BenchAggregate, ColumnComparison
from headrace.bench.queries.query import BenchQuery, build_window_aggregation
from headrace.connectors import generate
from headrace.model.time import parse_duration

WORKLOAD_KEYS = 1_000
FIELD_MAX = 1_000
ROWS_PER_SECOND = 1_000_000  # of event time: a ten-second window holds ten million rows


def write_workload_files(
    folder: Path, first: int, rows: int, rows_per_file: int, *, parquet: bool, keys: int = WORKLOAD_KEYS
) -> list[Path]:
    """Write rows from number `first` on as Arrow files, or as Parquet for engines that do not read Arrow."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    last = first + rows
    for number, start in enumerate(range(first, last, rows_per_file)):
        stop = min(start + rows_per_file, last)
        table = generate("fields", 0, start, stop, rows_per_second=ROWS_PER_SECOND, keys=keys, field_max=FIELD_MAX)
        path = folder / f"{number:05d}.{'parquet' if parquet else 'arrow'}"
        if parquet:
            pq.write_table(table, path)
        else:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=1 << 20)
        paths.append(path)
    return paths


_PREDICATE_OPERATORS = ("<", ">", "=", "<=", ">=")


@dataclass(frozen=True, slots=True)
class PurchaseAggregations:
    """Revenue by key: the first query sums `column` of all rows, each other one of those above a price drawn from [0, 100)."""

    stream: str = "purchases"
    key: str = "gem_pack"
    size: str = "8 seconds"
    slide: str = "4 seconds"
    seed: int = 7
    column: str = "price"

    def queries(self, count: int) -> tuple[BenchQuery, ...]:
        """Return the first `count` queries."""
        return tuple(islice(self._generate_all(), count))

    def _generate_all(self) -> Iterator[BenchQuery]:
        rng = random.Random(self.seed)  # noqa: S311  a workload, not a secret
        size, slide = parse_duration(self.size), parse_duration(self.slide)
        for number in numbers(1):
            predicate = None if number == 1 else ColumnComparison(self.column, ">", rng.randrange(10_000) / 100)
            yield build_window_aggregation(
                f"q{number}", self.stream, [self.key], [BenchAggregate("SUM", self.column, "revenue")], predicate, size, slide
            )


@dataclass(frozen=True, slots=True)
class FieldAggregations:
    """The AStream aggregations: sum of a field by key, a random predicate, random windows of 1–10 s.

    `divisible` lowers each slide to a divisor of its size; every engine supports such windows. `unit` is that of sizes and
    slides, in seconds.
    """

    stream: str = "fields"
    seed: int = 7
    divisible: bool = False
    unit: int = 1

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
                f"q{number}", self.stream, ["key"], total, predicate, size * self.unit * SECOND_US, slide * self.unit * SECOND_US
            )


def find_largest_divisor(number: int, limit: int) -> int:
    """Return the largest divisor of `number` that does not exceed `limit`."""
    return next(divisor for divisor in range(limit, 0, -1) if number % divisor == 0)
