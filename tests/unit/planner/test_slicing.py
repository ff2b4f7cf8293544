"""Slices: no window edge lies inside a slice, and every row is in exactly one slice."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.time import MAX_TIME, MIN_TIME
from headrace.model.window import HopWindow, ends_of_window, window_starts_containing
from headrace.planner.slicing import compute_slice_edges, derive_progressions, find_closing_windows, find_last_window_end

windows = st.builds(HopWindow, st.integers(1, 50), st.integers(1, 30))
times = st.lists(st.integers(-300, 300), min_size=1, max_size=30)


@given(st.lists(windows, min_size=1, max_size=5), times, st.none() | st.integers(-300, 0))
def test_every_slice_lies_inside_or_outside_each_window(windows_: list[HopWindow], at: list[int], epoch: int | None) -> None:
    """
    window      |————————|
    slices   |——|—|——————|————|      never  |———#———|  across an edge
    """
    times_ = np.array([t for t in at if epoch is None or t >= epoch] or [0])
    edges = compute_slice_edges(
        int(times_.min()), int(times_.max()), lambda: times_, derive_progressions(windows_), MIN_TIME if epoch is None else epoch
    )
    for time in times_.tolist():
        start = int(edges[np.searchsorted(edges, time, side="right") - 1])
        assert start <= time
        for window in windows_:
            if epoch is None or start > epoch:
                assert list(window_starts_containing(window, start)) == list(window_starts_containing(window, time))


def test_an_outlier_row_does_not_create_slices_for_the_gap() -> None:
    edges = compute_slice_edges(0, 10**15, lambda: np.array([0, 10**15]), derive_progressions([HopWindow(10, 5)]), MIN_TIME)
    assert len(edges) < 1000


@given(windows, times, st.integers(-300, 300), st.integers(-300, 300), st.integers(0, 200))
def test_find_closing_windows_equals_a_scan_of_all_windows(
    window: HopWindow, slices: list[int], since: int, after: int, more: int
) -> None:
    starts = {start for time in slices for start in window_starts_containing(window, time)}
    expected = sorted(s for s in starts if s >= since and after < s + window.size <= after + more)
    assert find_closing_windows(window, since, slices, after, after + more) == expected


@given(windows, st.integers(-300, 300), st.integers(-300, 300))
def test_find_last_window_end_equals_a_scan_of_all_windows(window: HopWindow, since: int, time: int) -> None:
    ends = [start + window.size for start in window_starts_containing(window, time) if start >= since]
    assert find_last_window_end(window, since, time) == (max(ends) if ends else None)


def test_all_windows_close_at_max_time() -> None:
    assert find_closing_windows(HopWindow(10, 5), MIN_TIME, [3], MIN_TIME, MAX_TIME) == [-5, 0]


@given(windows, st.integers(-300, 300), st.integers(0, 200))
def test_window_ends_are_those_of_a_scan_of_all_windows(window: HopWindow, after: int, more: int) -> None:
    """
    windows    |————————|
                    |————————|
    after ————————↑ |   ↑    |  until: the ends in (after, until]
    """
    ends = ends_of_window(window)
    expected = [end for end in range(after + 1, after + more + 1) if (end - window.size) % window.slide == 0]
    assert list(ends.ends_between(after, after + more)) == expected
    containing = [start + window.size for start in window_starts_containing(window, after)]
    assert list(ends.ends_containing(window.size, after)) == containing
