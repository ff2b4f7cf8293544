"""Slices: the finest cut of event time that no live window crosses.

Edges are the union of all starts and ends of the live queries' windows, within an epoch that starts at a changelog:

    HOP 8 s/4 s    |———————|———————|
    TUMBLE 3 s     |—————|—————|—————|
    changelog                  ↓
    slices         |     | | | | |…

A slice is known by its start. It lies wholly inside or outside every window, so a window is the slices that start in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from headrace.model.window import Sliding, first_start, last_start

Times = npt.NDArray[np.int64]
NEVER = int(np.iinfo(np.int64).min)  # stands for −∞ where a 64-bit time is needed
FOREVER = int(np.iinfo(np.int64).max)
_BUCKETS = 4096


def progressions(windows: Iterable[Sliding]) -> tuple[tuple[int, int], ...]:
    """Return the distinct (offset, step) sequences that hold every start and end of the windows, none within another."""
    found: set[tuple[int, int]] = set()
    for window in windows:
        found.add((0, window.slide))
        found.add((window.size % window.slide, window.slide))
    return tuple(sorted(p for p in found if not any(q != p and p[1] % q[1] == 0 and (p[0] - q[0]) % q[1] == 0 for q in found)))


def edges_between(steps: tuple[tuple[int, int], ...], low: int, high: int) -> Times:
    """Return all edges in [low, high] and the last one before, sorted."""
    parts = [np.arange((low - offset) // step * step + offset, high + 1, step, dtype=np.int64) for offset, step in steps]
    return np.unique(np.concatenate(parts))


def edges_for(low: int, high: int, times: Callable[[], Times], steps: tuple[tuple[int, int], ...], epoch_start: int) -> Times:
    """Return sorted slice starts such that each time's slice is the last one not after it.

    `low` and `high` are the least and greatest of the `times`, which are looked at only where they lie far apart: then
    only edges near rows are made, so that a single stray row does not conjure up decades of empty slices.
    """
    finest = min(step for _, step in steps)
    if (high - low) // finest <= _BUCKETS:
        edges = edges_between(steps, low, high)
    else:
        bucket = max(finest * 64, 1)
        starts = np.unique(times() // bucket) * bucket
        edges = np.unique(np.concatenate([edges_between(steps, int(s), int(s) + bucket) for s in starts]))
    if epoch_start > NEVER:
        edges = np.unique(np.append(edges[edges > epoch_start], epoch_start))
    return edges[: np.searchsorted(edges, high, side="right")]


def last_end(window: Sliding, since: int, slice_start: int) -> int | None:
    """Return the end of the last window (starting at `since` or later) that holds a slice; None if none does."""
    start = last_start(window, slice_start)
    return start + window.size if start >= since and slice_start < start + window.size else None


def closing(window: Sliding, since: int, slice_starts: Iterable[int], after: int, until: int) -> list[int]:
    """Return, ascending, the starts of windows that hold one of the slices and end in (after, until]."""
    found: set[int] = set()
    earliest = max(-(-since // window.slide), (after - window.size) // window.slide + 1) * window.slide
    latest = (until - window.size) // window.slide * window.slide
    for slice_start in slice_starts:
        first = max(first_start(window, slice_start), earliest)
        last = min(last_start(window, slice_start), latest)
        found.update(range(first, last + 1, window.slide))
    return sorted(found)
