"""Windows and durations: what is valid, how they are written, and which windows contain a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import product

import pytest

from headrace.model.time import DurationError, parse_duration, to_microseconds
from headrace.model.watermark import compute_reached_time
from headrace.model.window import (
    UNBOUNDED_LENGTH,
    HopWindow,
    SessionWindow,
    SlidingWindow,
    WindowEnds,
    ends_of_window,
    find_common_ends,
    first_window_start,
    format_duration,
    last_window_start,
    window_starts_containing,
)

SECOND = 1_000_000
WINDOWS = [HopWindow(size, slide) for size, slide in product((1, 2, 3, 4, 6, 7, 9), (1, 2, 3, 4, 6))]
TIMES = range(-20, 21)


def list_starts(window: HopWindow, time: int) -> list[int]:
    """The starts of the windows that contain a time, by the definition."""
    return [start for start in range(-60, 60) if start % window.slide == 0 and start <= time < start + window.size]


def list_ends(window: HopWindow) -> set[int]:
    return {start + window.size for start in range(-200, 200) if start % window.slide == 0}


@pytest.mark.parametrize(("size", "slide"), [(0, 1), (1, 0), (-1, 1), (1, -1)])
def test_hop_windows_have_a_positive_size_and_slide(size: int, slide: int):
    with pytest.raises(ValueError, match="must be positive"):
        HopWindow(size, slide)


def test_gaps_are_positive_and_lengths_are_not_negative():
    with pytest.raises(ValueError, match="must be positive"):
        SessionWindow(0)
    for length, lateness in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="must not be negative"):
            SlidingWindow(length, lateness)
    assert (HopWindow(1, 1).size, SessionWindow(1).gap, SlidingWindow(0).length) == (1, 1, 0)


@pytest.mark.parametrize(
    ("window", "text"),
    [
        (HopWindow(5 * SECOND, 5 * SECOND), "TUMBLE(5 s)"),
        (HopWindow(90 * SECOND, 60 * SECOND), "HOP(90 s, 1 min)"),
        (SessionWindow(1500), "SESSION(1500 µs)"),
        (SlidingWindow(2_000), "SLIDING(2 ms)"),
        (SlidingWindow(3_600 * SECOND, SECOND), "SLIDING(1 h, 1 s)"),
        (SlidingWindow(UNBOUNDED_LENGTH), "SLIDING(UNBOUNDED)"),
    ],
)
def test_a_window_is_shown_as_it_is_written(window: object, text: str):
    assert str(window) == text


@pytest.mark.parametrize(
    ("duration", "text"), [(0, "0 s"), (1, "1 µs"), (86_400 * SECOND, "1 d"), (172_800 * SECOND, "2 d"), (7_200 * SECOND, "2 h")]
)
def test_a_duration_is_shown_in_its_largest_unit(duration: int, text: str):
    assert format_duration(duration) == text


def test_the_windows_that_contain_a_time():
    for window, time in product(WINDOWS, TIMES):
        starts = window_starts_containing(window, time)
        assert list(starts) == list_starts(window, time)
        assert last_window_start(window, time) == max(start for start in range(-60, time + 1) if start % window.slide == 0)
        if starts:
            assert first_window_start(window, time) == starts[0]


def test_the_ends_of_windows():
    for window in WINDOWS:
        ends = ends_of_window(window)
        assert list(ends.ends_between(-50, 50)) == sorted(end for end in list_ends(window) if -50 < end <= 50)
        for time in TIMES:
            assert list(ends.ends_containing(window.size, time)) == [start + window.size for start in list_starts(window, time)]


def test_ends_are_after_the_first_time_and_until_the_second():
    assert list(WindowEnds(1, 5).ends_between(1, 11)) == [6, 11]
    assert list(WindowEnds(1, 5).ends_between(0, 10)) == [1, 6]


def test_the_common_ends_of_windows():
    for first, second in product(WINDOWS, WINDOWS):
        common = {end for end in list_ends(first) & list_ends(second) if -100 < end <= 100}
        ends = find_common_ends([first, second])
        assert set(ends.ends_between(-100, 100) if ends else ()) == common
        assert ends is None or 0 <= ends.offset < ends.step
    assert find_common_ends([HopWindow(5, 4), HopWindow(7, 6), HopWindow(10, 9)]) == WindowEnds(1, 36)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("8 seconds", 8 * SECOND),
        ("interval '1 minute 30 seconds'", 90 * SECOND),
        ("1.5 ms", 1_500),
        ("2µs", 2),
        ("1 week", 604_800 * SECOND),
        ("3 DAYS", 259_200 * SECOND),
        ("2h 5m 1s", 7_501 * SECOND),
        ("0 s", 0),
    ],
)
def test_durations(text: str, duration: int):
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", "  ", "5", "seconds", "1 month", "-1 s", "1 s and 2 ms", "0.5 µs", "1 ss1"])
def test_what_is_no_duration(text: str):
    with pytest.raises(DurationError, match="invalid duration"):
        parse_duration(text)


def test_an_instant_without_a_zone_is_in_utc():
    instant = datetime(1970, 1, 1, 0, 0, 1, 5)  # noqa: DTZ001  what is tested
    assert to_microseconds(instant) == to_microseconds(instant.replace(tzinfo=UTC)) == SECOND + 5
    assert to_microseconds(instant.replace(tzinfo=timezone(timedelta(seconds=2)))) == -SECOND + 5


def test_idle_partitions_hold_back_no_time():
    times = {0: 10, 1: 7, 2: 3}
    assert compute_reached_time(0, times, ()) == 3
    assert compute_reached_time(0, times, {2}) == 7
    assert compute_reached_time(9, times, {2}) == 9
    assert compute_reached_time(9, times, {0, 1, 2}) == 9
