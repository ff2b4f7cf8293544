"""What is known of a stream when its queries are planned: measured on the batches before, guessed until then.

Figures are rounded to powers of two, so that a plan does not change because a batch was a little larger than the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.model.expression import Expression
from headrace.model.window import Sliding, Window
from headrace.sharing.slicing import progressions

_SECOND = 1_000_000
_NEWEST = 0.5  # weight of the last batch in a rate


@dataclass(frozen=True, slots=True)
class Statistics:
    """Rows in a second of event time, and how many distinct keys each tuple of key expressions (as text) has."""

    rate: int = 1 << 17
    keys: tuple[tuple[str, int], ...] = ()
    default_keys: int = 1 << 10

    def distinct(self, keys: Sequence[Expression]) -> int:
        """Return the number of distinct keys: measured, or a guess; 1 where there are none."""
        return dict(self.keys).get(key_text(keys), self.default_keys) if keys else 1


GUESS = Statistics()


@dataclass(frozen=True, slots=True)
class Load:
    """What an operator has to do in one second of event time: rows to take, slices to keep, keys in each."""

    rows: float
    slices: float
    keys: int


def key_text(keys: Sequence[Expression]) -> str:
    """Return the name under which a tuple of key expressions is counted."""
    return ", ".join(map(str, keys))


def load(windows: Iterable[Window | None], keys: Sequence[Expression], stats: Statistics) -> Load:
    """Return the load of members that share an operator; rows without slices are taken one second at a time."""
    steps = progressions({w for w in windows if isinstance(w, Sliding)})
    return Load(stats.rate, sum(_SECOND / step for _, step in steps) or 1.0, stats.distinct(keys))


def measured(rate: float, keys: Mapping[str, int]) -> Statistics:
    """Return the statistics of a stream of which so much was seen; nothing was seen while the rate is 0."""
    counted = tuple((name, _rounded(count)) for name, count in sorted(keys.items()))
    return Statistics(_rounded(rate) if rate > 0 else GUESS.rate, counted)


def most_keys(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return for every tuple of keys the most that any task saw: tasks see parts of one set, so it is a lower bound."""
    found: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            found[name] = max(count, found.get(name, 0))
    return found


def next_rate(before: float, rows: int, advance: int) -> float:
    """Return the rate after a batch of so many rows that moved event time by `advance` µs; 0: none known yet."""
    if advance <= 0 or rows <= 0:
        return before
    now = rows * _SECOND / advance
    return now if before == 0 else before + _NEWEST * (now - before)


def _rounded(figure: float) -> int:
    return 1 << max(round(figure) - 1, 0).bit_length()
