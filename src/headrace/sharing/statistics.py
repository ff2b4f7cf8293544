"""Statistics of a stream for planning: measured on earlier batches, defaults until then.

Figures are rounded to powers of two, so that small changes between batches do not change the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.model.expression import Expression
from headrace.model.window import HopWindow, Window
from headrace.sharing.slicing import progressions

_SECOND = 1_000_000
_NEWEST = 0.5  # weight of the latest batch in a rate


@dataclass(frozen=True, slots=True)
class Statistics:
    """Rows per second of event time, and the number of distinct keys for each tuple of key expressions (as text)."""

    rate: int = 1 << 17
    keys: tuple[tuple[str, int], ...] = ()
    default_keys: int = 1 << 10

    def distinct(self, keys: Sequence[Expression]) -> int:
        """Return the number of distinct keys: measured, or the default; 1 without keys."""
        return dict(self.keys).get(key_text(keys), self.default_keys) if keys else 1


GUESS = Statistics()


@dataclass(frozen=True, slots=True)
class Load:
    """Work of an operator per second of event time: rows to process, slices to keep, keys in each slice."""

    rows: float
    slices: float
    keys: int


def key_text(keys: Sequence[Expression]) -> str:
    """Return the text under which a tuple of key expressions is counted."""
    return ", ".join(map(str, keys))


def load(windows: Iterable[Window | None], keys: Sequence[Expression], stats: Statistics) -> Load:
    """Return the load of branches that share an operator; rows without slices count as one slice per second."""
    steps = progressions({w for w in windows if isinstance(w, HopWindow)})
    return Load(stats.rate, sum(_SECOND / step for _, step in steps) or 1.0, stats.distinct(keys))


def measured(rate: float, keys: Mapping[str, int]) -> Statistics:
    """Return the statistics of a stream from its measured rate and key counts; the rate is 0 before the first measurement."""
    counted = tuple((name, _rounded(count)) for name, count in sorted(keys.items()))
    return Statistics(_rounded(rate) if rate > 0 else GUESS.rate, counted)


def most_keys(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the largest count of any task for every tuple of keys: a lower bound, because tasks see parts of one key set."""
    largest: dict[str, int] = {}
    for task_counts in counts:
        for name, count in task_counts.items():
            largest[name] = max(count, largest.get(name, 0))
    return largest


def next_rate(previous: float, rows: int, advance: int) -> float:
    """Return the rate after a batch of `rows` rows that advanced event time by `advance` µs; a rate of 0 means unknown."""
    if advance <= 0 or rows <= 0:
        return previous
    current = rows * _SECOND / advance
    return current if previous == 0 else previous + _NEWEST * (current - previous)


def _rounded(figure: float) -> int:
    return 1 << max(round(figure) - 1, 0).bit_length()
