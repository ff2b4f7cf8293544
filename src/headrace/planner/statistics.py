"""Statistics of a stream for planning: measured on earlier batches, defaults until then.

Figures are rounded to powers of two, so that small changes between batches do not change the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.model.expression import Expression
from headrace.model.record import record
from headrace.model.window import HopWindow, Window
from headrace.planner.slicing import derive_progressions

_MICROS_PER_SECOND = 1_000_000
_LATEST_BATCH_WEIGHT = 0.5  # weight of the latest batch in a rate


@record("stream-statistics")
@dataclass(frozen=True, slots=True)
class StreamStatistics:
    """Rows per second of event time, and the number of distinct keys for each tuple of key expressions (as text)."""

    rate: int = 1 << 17
    key_counts: tuple[tuple[str, int], ...] = ()
    default_key_count: int = 1 << 10

    def count_distinct_keys(self, keys: Sequence[Expression]) -> int:
        """Return the number of distinct keys: measured, or the default; 1 without keys."""
        return dict(self.key_counts).get(format_key_tuple(keys), self.default_key_count) if keys else 1


DEFAULT_STATISTICS = StreamStatistics()


@dataclass(frozen=True, slots=True)
class OperatorLoad:
    """Work of an operator per second of event time: rows to process, slices to keep, keys in each slice."""

    rows: float
    slices: float
    keys: int


def format_key_tuple(keys: Sequence[Expression]) -> str:
    """Return the text under which a tuple of key expressions is counted."""
    return ", ".join(map(str, keys))


def estimate_load(windows: Iterable[Window | None], keys: Sequence[Expression], stats: StreamStatistics) -> OperatorLoad:
    """Return the load of branches that share an operator; rows without slices count as one slice per second."""
    return estimate_progression_load(derive_progressions({w for w in windows if isinstance(w, HopWindow)}), keys, stats)


def estimate_progression_load(
    steps: Iterable[tuple[int, int]], keys: Sequence[Expression], stats: StreamStatistics
) -> OperatorLoad:
    """Return the load of an operator whose slices have these edges."""
    return OperatorLoad(stats.rate, sum(_MICROS_PER_SECOND / step for _, step in steps) or 1.0, stats.count_distinct_keys(keys))


def build_statistics(rate: float, keys: Mapping[str, int]) -> StreamStatistics:
    """Return the statistics of a stream from its measured rate and key counts; the rate is 0 before the first measurement."""
    counted = tuple((name, _round_to_power_of_two(count)) for name, count in sorted(keys.items()))
    return StreamStatistics(_round_to_power_of_two(rate) if rate > 0 else DEFAULT_STATISTICS.rate, counted)


def merge_key_counts(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the largest count of any task for every tuple of keys: a lower bound, because tasks see parts of one key set."""
    largest: dict[str, int] = {}
    for task_counts in counts:
        for name, count in task_counts.items():
            largest[name] = max(count, largest.get(name, 0))
    return largest


def update_rate(previous: float, rows: int, advance: int) -> float:
    """Return the rate after a batch of `rows` rows that advanced event time by `advance` µs; a rate of 0 means unknown."""
    if advance <= 0 or rows <= 0:
        return previous
    current = rows * _MICROS_PER_SECOND / advance
    return current if previous == 0 else previous + _LATEST_BATCH_WEIGHT * (current - previous)


def _round_to_power_of_two(figure: float) -> int:
    return 1 << max(round(figure) - 1, 0).bit_length()
