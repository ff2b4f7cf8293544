"""Slices: no window crosses one, and every row has exactly one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.time import MAX_TIME, MIN_TIME
from headrace.model.window import HopWindow, window_starts_containing
from headrace.planner.slicing import compute_slice_edges, derive_progressions, find_closing_windows, find_last_window_end

windows = st.builds(HopWindow, st.integers(1, 50), st.integers(1, 30))
times = st.lists(st.integers(-300, 300), min_size=1, max_size=30)


@given(st.lists(windows, min_size=1, max_size=5), times, st.none() | st.integers(-300, 0))
def test_a_slice_lies_wholly_inside_or_outside_every_window(found: list[HopWindow], at: list[int], epoch: int | None) -> None:
    """
    window      |————————|
    slices   |——|—|——————|————|      never  |———#———|  across an edge
    """
    kept = np.array([t for t in at if epoch is None or t >= epoch] or [0])
    edges = compute_slice_edges(
        int(kept.min()), int(kept.max()), lambda: kept, derive_progressions(found), MIN_TIME if epoch is None else epoch
    )
    for time in kept.tolist():
        start = int(edges[np.searchsorted(edges, time, side="right") - 1])
        assert start <= time
        for window in found:
            if epoch is None or start > epoch:
                assert list(window_starts_containing(window, start)) == list(window_starts_containing(window, time))


def test_a_stray_row_does_not_conjure_up_decades_of_slices() -> None:
    edges = compute_slice_edges(0, 10**15, lambda: np.array([0, 10**15]), derive_progressions([HopWindow(10, 5)]), MIN_TIME)
    assert len(edges) < 1000


@given(windows, times, st.integers(-300, 300), st.integers(-300, 300), st.integers(0, 200))
def test_closing_finds_what_looking_at_every_window_finds(
    window: HopWindow, slices: list[int], since: int, after: int, more: int
) -> None:
    every = {start for time in slices for start in window_starts_containing(window, time)}
    expected = sorted(s for s in every if s >= since and after < s + window.size <= after + more)
    assert find_closing_windows(window, since, slices, after, after + more) == expected


@given(windows, st.integers(-300, 300), st.integers(-300, 300))
def test_last_end(window: HopWindow, since: int, time: int) -> None:
    ends = [start + window.size for start in window_starts_containing(window, time) if start >= since]
    assert find_last_window_end(window, since, time) == (max(ends) if ends else None)


def test_everything_closes_at_the_end() -> None:
    assert find_closing_windows(HopWindow(10, 5), MIN_TIME, [3], MIN_TIME, MAX_TIME) == [-5, 0]
