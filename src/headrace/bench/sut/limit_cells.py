"""Keep the state of the hand-written kernel: sums and counts by slice and key, combined when a window closes.

Slices are numbered by time. The state is a ring of `slices` slices from the oldest open one on; older slices are closed, and
their array rows are reused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.bench.queries.shape import AggregationShape, ColumnComparison
from headrace.bench.sut.limit_kernel import accumulate_matching_rows, accumulate_rows
from headrace.errors import HeadraceError

Integers = npt.NDArray[np.int64]

_INITIAL_KEYS = 1 << 10
_MAX_KEYS = 1 << 25
_SUPPORTED_FUNCTIONS = {"SUM", "AVG", "COUNT"}


class LimitState:
    """The partial sums and counts of a partition. The caller must hold a lock around each call."""

    def __init__(self, slices: int, keys: int, *, integer: bool) -> None:
        """Allocate `slices` open slices and, initially, `keys` keys."""
        self._sum_type = np.int64 if integer else np.float64
        self.counts = np.zeros((slices, max(keys, 1)), np.int64)
        self.sums = np.zeros((slices, max(keys, 1)), self._sum_type)

    def ensure_key(self, key: int) -> None:
        """Grow the arrays to hold a key; raise HeadraceError for keys too large for dense arrays."""
        keys = self.counts.shape[1]
        if key < keys:
            return
        if key >= _MAX_KEYS:
            raise HeadraceError(
                f"key {key} is too large for the hand-written kernel, whose arrays have an entry for every smaller key"
            )
        width = ((0, 0), (0, max(key + 1, 2 * keys) - keys))
        self.counts, self.sums = np.pad(self.counts, width), np.pad(self.sums, width)

    def sum_slices(self, slices: Sequence[int]) -> tuple[Integers, npt.NDArray[Any]]:
        """Return counts and sums by key over the given slices."""
        rows = [number % len(self.counts) for number in slices]
        return self.counts[rows].sum(axis=0), self.sums[rows].sum(axis=0)

    def clear_slices(self, slices: Sequence[int]) -> None:
        """Reset slices for reuse."""
        rows = [number % len(self.counts) for number in slices]
        self.counts[rows] = 0
        self.sums[rows] = 0


@dataclass(frozen=True, slots=True)
class RangePredicate:
    """A comparison with a number, as a closed interval or its complement."""

    column: str
    low: float
    high: float
    outside: bool

    @staticmethod
    def from_comparison(predicate: ColumnComparison, *, integer: bool) -> RangePredicate:
        """Return the interval for a comparison of an integer or floating-point column."""
        value = predicate.value
        below = math.ceil(value) - 1 if integer else math.nextafter(value, -math.inf)
        above = math.floor(value) + 1 if integer else math.nextafter(value, math.inf)
        low, high = {
            "<": (-math.inf, below),
            "<=": (-math.inf, value),
            ">": (above, math.inf),
            ">=": (value, math.inf),
            "=": (value, value),
            "<>": (value, value),
        }[predicate.operator]
        return RangePredicate(predicate.column, low, high, predicate.operator == "<>")


@dataclass(frozen=True, slots=True)
class LimitPlan:
    """The columns to read and aggregate; `key` is None for a single group, `value` is None if there is only COUNT(*)."""

    stream: str
    key: str | None
    value: str | None
    integer: bool
    predicate: RangePredicate | None
    time: str = "time"

    @staticmethod
    def from_shape(shape: AggregationShape, floats: Sequence[str]) -> LimitPlan:
        """Return the plan of a shape; raise HeadraceError if it is unsupported. `floats` are the floating-point columns."""
        summed = {measure.column for measure in shape.aggregates if measure.function != "COUNT"}
        if (
            any(measure.function not in _SUPPORTED_FUNCTIONS for measure in shape.aggregates)
            or len(summed) > 1
            or len(shape.keys) > 1
        ):
            raise HeadraceError("the hand-written kernel sums only one column by one key")
        value = next(iter(summed), None)
        test = None
        if shape.predicate is not None:
            test = RangePredicate.from_comparison(shape.predicate, integer=shape.predicate.column not in floats)
        return LimitPlan(shape.stream, next(iter(shape.keys), None), value, value not in floats, test)

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        candidates = (self.key, self.value, self.predicate.column if self.predicate else None, self.time)
        return list(dict.fromkeys(name for name in candidates if name is not None))

    def add_rows(self, state: LimitState, columns: dict[str, npt.NDArray[Any]], length: int) -> None:
        """Add rows to the state."""
        times = columns[self.time]
        keys = columns[self.key] if self.key else np.zeros(len(times), np.int32)
        values = columns[self.value] if self.value else keys
        state.ensure_key(int(keys.max()))
        if self.predicate is None:
            accumulate_rows(keys, values, times, length, state.counts, state.sums)
        else:
            test = self.predicate
            tested = columns[test.column]
            accumulate_matching_rows(
                keys, values, times, length, state.counts, state.sums, tested, test.low, test.high, test.outside
            )


def choose_initial_keys(keys: int) -> int:
    """Return the number of keys to allocate initially."""
    return max(_INITIAL_KEYS, min(keys, _MAX_KEYS))
