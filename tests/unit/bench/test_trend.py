"""Robust trends, growth, and rolling envelopes."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.bench.measure.statistics import longest_time_above, measure_growth, measure_trend, rolling_envelope

TIME = np.arange(0.0, 60.0, 0.1)


def test_the_trend_of_a_line_is_its_slope():
    trend = measure_trend(TIME, 3 + 0.25 * TIME)
    assert trend is not None
    assert trend.slope == pytest.approx(0.25)
    assert trend.span == pytest.approx(59.9)
    assert trend.rising_share == 1.0


def test_noise_does_not_change_the_trend():
    noise = np.random.default_rng(1).normal(0, 1, len(TIME))
    trend = measure_trend(TIME, 0.1 * TIME + noise)
    assert trend is not None
    assert trend.slope == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("start", [5.0, 30.0, 50.0])
def test_a_short_burst_does_not_change_the_trend(start: float):
    burst = np.where((start <= TIME) & (start + 6 > TIME), 40.0, 0.0)
    trend = measure_trend(TIME, burst)
    assert trend is not None
    assert trend.slope == 0.0


def test_two_points_have_no_trend():
    assert measure_trend(np.array([0.0, 1.0]), np.array([0.0, 5.0])) is None
    assert measure_growth(np.array([0.0, 1.0]), np.array([0.0, 5.0])) is None


def test_growth_must_be_fast_large_and_lasting():
    trend = measure_trend(TIME, 0.03 * TIME)
    assert trend is not None
    assert trend.is_growing(0.02, 1.0)
    assert not trend.is_growing(0.04, 1.0)  # too slow
    assert not trend.is_growing(0.02, 2.0)  # too small: 1.8 in total
    waves = measure_trend(TIME, 0.03 * TIME + 3 * np.sin(TIME))
    assert waves is not None
    assert waves.rising_share < 0.75
    assert not waves.is_growing(0.02, 1.0)


def test_growth_that_levels_off_is_not_ongoing():
    steady, levelled, delayed = (
        measure_growth(TIME, value) for value in (TIME, 20 * (1 - np.exp(-TIME / 6)), np.maximum(TIME, 30))
    )
    assert steady is not None
    assert levelled is not None
    assert delayed is not None
    assert [growth.overall.is_growing(0.02, 0.5) for growth in (steady, levelled, delayed)] == [True, True, True]
    assert [growth.is_ongoing(0.02, 0.5) for growth in (steady, levelled, delayed)] == [True, False, True]
    assert [growth.is_starting(0.02, 0.5) for growth in (steady, levelled, delayed)] == [True, False, True]


def test_three_points_have_no_second_half():
    growth = measure_growth(np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 2.0]))
    assert growth is not None
    assert growth.second_half is None
    assert growth.is_ongoing(0.02, 0.5)
    assert not growth.is_starting(0.02, 0.5)


def test_the_envelope_of_a_sawtooth_is_steady():
    sawtooth = TIME % 2.0
    when, lowest, highest = rolling_envelope(TIME, sawtooth, 2.0)
    assert len(when) == len(TIME) - 19
    assert when[-1] == TIME[-1]
    assert lowest == pytest.approx(np.zeros(len(when)), abs=0.11)
    assert highest == pytest.approx(np.full(len(when), 1.9), abs=0.11)


def test_an_envelope_wider_than_the_series_is_one_point():
    when, lowest, highest = rolling_envelope(np.array([1.0, 2.0, 3.0]), np.array([5.0, 4.0, 6.0]), 100.0)
    assert (when.tolist(), lowest.tolist(), highest.tolist()) == ([3.0], [4.0], [6.0])


def test_the_longest_time_above_a_limit():
    time = np.arange(10.0)
    assert longest_time_above(time, np.array([0, 3, 3, 0, 3, 3, 3, 3, 0, 3.0]), 2.0) == 3.0
    assert longest_time_above(time, np.full(10, 3.0), 2.0) == 9.0
    assert longest_time_above(time, np.full(10, 2.0), 2.0) == 0.0


def test_neighbours_count_if_they_are_a_third_of_the_span_apart():
    trend = measure_trend(np.array([0.0, 1.0, 2.0]), np.array([0.0, 4.0, 3.0]))
    assert trend is not None
    assert trend.rising_share == pytest.approx(2 / 3)  # the pairs rise by 4, fall by 1, and rise by 3


def test_points_at_one_time_have_no_trend():
    assert measure_trend(np.full(5, 7.0), np.arange(5.0)) is None


def test_the_envelope_of_a_single_sample_is_the_sample():
    when, lowest, highest = rolling_envelope(np.array([1.0]), np.array([5.0]), 2.0)
    assert (when.tolist(), lowest.tolist(), highest.tolist()) == ([1.0], [5.0], [5.0])


def test_the_second_half_is_half_of_the_time():
    time = np.arange(0.0, 101.0)
    growth = measure_growth(time, np.where(time < 50, 50.0, time))
    assert growth is not None
    assert growth.second_half is not None
    assert (growth.overall.span, growth.second_half.span) == (100.0, 50.0)
    assert growth.second_half.slope == pytest.approx(1.0)


def test_points_of_one_moment_have_no_trend():
    assert measure_trend(np.zeros(3), np.arange(3.0)) is None
    assert measure_trend(np.array([0.0, 5.0, 5.0]), np.arange(3.0)) is not None
