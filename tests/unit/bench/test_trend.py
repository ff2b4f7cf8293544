"""Robust slopes, and envelopes of saws."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.bench.measure.statistics import longest_time_above, measure_growth, measure_trend, rolling_envelope

TIME = np.arange(0.0, 60.0, 0.1)


def test_a_line_has_its_slope():
    found = measure_trend(TIME, 3 + 0.25 * TIME)
    assert found is not None
    assert found.slope == pytest.approx(0.25)
    assert found.span == pytest.approx(59.9)
    assert found.rising_share == 1.0


def test_noise_does_not_change_it():
    noise = np.random.default_rng(1).normal(0, 1, len(TIME))
    found = measure_trend(TIME, 0.1 * TIME + noise)
    assert found is not None
    assert found.slope == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("start", [5.0, 30.0, 50.0])
def test_a_short_burst_does_not_either(start: float):
    burst = np.where((start <= TIME) & (start + 6 > TIME), 40.0, 0.0)
    found = measure_trend(TIME, burst)
    assert found is not None
    assert found.slope == 0.0


def test_two_points_have_no_trend():
    assert measure_trend(np.array([0.0, 1.0]), np.array([0.0, 5.0])) is None
    assert measure_growth(np.array([0.0, 1.0]), np.array([0.0, 5.0])) is None


def test_growth_must_be_fast_large_and_lasting():
    found = measure_trend(TIME, 0.03 * TIME)
    assert found is not None
    assert found.is_growing(0.02, 1.0)
    assert not found.is_growing(0.04, 1.0)  # not so fast
    assert not found.is_growing(0.02, 2.0)  # not so much: 1.8 in all
    waves = measure_trend(TIME, 0.03 * TIME + 3 * np.sin(TIME))
    assert waves is not None
    assert waves.rising_share < 0.75
    assert not waves.is_growing(0.02, 1.0)


def test_what_levels_off_does_not_keep_on():
    kept, levelled, begun = (measure_growth(TIME, value) for value in (TIME, 20 * (1 - np.exp(-TIME / 6)), np.maximum(TIME, 30)))
    assert kept is not None
    assert levelled is not None
    assert begun is not None
    assert [found.overall.is_growing(0.02, 0.5) for found in (kept, levelled, begun)] == [True, True, True]
    assert [found.is_ongoing(0.02, 0.5) for found in (kept, levelled, begun)] == [True, False, True]
    assert [found.is_starting(0.02, 0.5) for found in (kept, levelled, begun)] == [True, False, True]


def test_of_three_points_there_is_no_second_half():
    found = measure_growth(np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 2.0]))
    assert found is not None
    assert found.second_half is None
    assert found.is_ongoing(0.02, 0.5)
    assert not found.is_starting(0.02, 0.5)


def test_the_marks_of_a_saw_are_steady():
    saw = TIME % 2.0
    when, lowest, highest = rolling_envelope(TIME, saw, 2.0)
    assert len(when) == len(TIME) - 19
    assert when[-1] == TIME[-1]
    assert lowest == pytest.approx(np.zeros(len(when)), abs=0.11)
    assert highest == pytest.approx(np.full(len(when), 1.9), abs=0.11)


def test_an_envelope_wider_than_everything_is_one_mark():
    when, lowest, highest = rolling_envelope(np.array([1.0, 2.0, 3.0]), np.array([5.0, 4.0, 6.0]), 100.0)
    assert (when.tolist(), lowest.tolist(), highest.tolist()) == ([3.0], [4.0], [6.0])


def test_the_longest_time_above_a_limit():
    time = np.arange(10.0)
    assert longest_time_above(time, np.array([0, 3, 3, 0, 3, 3, 3, 3, 0, 3.0]), 2.0) == 3.0
    assert longest_time_above(time, np.full(10, 3.0), 2.0) == 9.0
    assert longest_time_above(time, np.full(10, 2.0), 2.0) == 0.0
