"""Slices: the coarsest partition of event time that no live window boundary cuts.

Edges are the union of all starts and ends of the live queries' windows, within an epoch that starts at a changelog:

    HOP 8 s/4 s    |———————|———————|
    TUMBLE 3 s     |—————|—————|—————|
    changelog                  ↓
    slices         |     | | | | |…

A slice is identified by its start. It lies completely inside or outside every window; a window is the slices that start in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from headrace.model.time import MIN_TIME
from headrace.model.window import HopWindow, first_window_start, last_window_start

EventTimes = npt.NDArray[np.int64]
_MAX_DENSE_SLICES = 4096


def derive_progressions(windows: Iterable[HopWindow]) -> tuple[tuple[int, int], ...]:
    """Return the distinct (offset, step) progressions that contain every start and end of the windows, none within another."""
    pairs: set[tuple[int, int]] = set()
    for window in windows:
        pairs.add((0, window.slide))
        pairs.add((window.size % window.slide, window.slide))
    return tuple(
        sorted(
            pair
            for pair in pairs
            if not any(other != pair and pair[1] % other[1] == 0 and (pair[0] - other[0]) % other[1] == 0 for other in pairs)
        )
    )


def list_edges_between(steps: tuple[tuple[int, int], ...], low: int, high: int) -> EventTimes:
    """Return all edges in [low, high] and the last edge before them, sorted."""
    parts = [np.arange((low - offset) // step * step + offset, high + 1, step, dtype=np.int64) for offset, step in steps]
    return np.unique(np.concatenate(parts))


def compute_slice_edges(
    low: int, high: int, times: Callable[[], EventTimes], steps: tuple[tuple[int, int], ...], epoch_start: int
) -> EventTimes:
    """Return sorted slice starts such that the slice of each time is the last start not after it.

    `low` and `high` are the minimum and maximum of `times`, which is called only where they lie far apart: then only edges near
    rows are generated, so that one stray row does not create decades of empty slices.
    """
    finest = min(step for _, step in steps)
    if (high - low) // finest <= _MAX_DENSE_SLICES:
        edges = list_edges_between(steps, low, high)
    else:
        span = max(finest * 64, 1)
        starts = np.unique(times() // span) * span
        edges = np.unique(np.concatenate([list_edges_between(steps, int(s), int(s) + span) for s in starts]))
    if epoch_start > MIN_TIME:
        edges = np.unique(np.append(edges[edges > epoch_start], epoch_start))
    return edges[: np.searchsorted(edges, high, side="right")]


def find_last_window_end(window: HopWindow, since: int, slice_start: int) -> int | None:
    """Return the end of the last window (starting at `since` or later) that contains a slice; None if there is none."""
    start = last_window_start(window, slice_start)
    return start + window.size if start >= since and slice_start < start + window.size else None


def find_closing_windows(window: HopWindow, since: int, slice_starts: Iterable[int], after: int, until: int) -> list[int]:
    """Return, ascending, the starts of windows that contain one of the slices and end in (after, until]."""
    starts: set[int] = set()
    earliest = max(-(-since // window.slide), (after - window.size) // window.slide + 1) * window.slide
    latest = (until - window.size) // window.slide * window.slide
    for slice_start in slice_starts:
        first = max(first_window_start(window, slice_start), earliest)
        last = min(last_window_start(window, slice_start), latest)
        starts.update(range(first, last + 1, window.slide))
    return sorted(starts)
