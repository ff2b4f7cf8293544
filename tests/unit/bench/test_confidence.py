"""Quantiles of Student's t against published tables, and confidence intervals over repeated runs."""

from __future__ import annotations

import math
import statistics

import pytest

from headrace.bench.measure.statistics import estimate_mean, student_t, student_t_probability


@pytest.mark.parametrize(
    ("level", "freedom", "t"),
    [
        (0.95, 1, 12.7062),
        (0.95, 2, 4.3027),
        (0.95, 3, 3.1824),
        (0.95, 4, 2.7764),
        (0.95, 9, 2.2622),
        (0.95, 10, 2.2281),
        (0.95, 29, 2.0452),
        (0.95, 120, 1.9799),
        (0.99, 1, 63.6567),
        (0.99, 5, 4.0321),
        (0.90, 2, 2.9200),
        (0.50, 7, 0.7111),
    ],
)
def test_student_t_matches_published_quantiles(level: float, freedom: int, t: float):
    assert student_t(level, freedom) == pytest.approx(t, abs=6e-5)


def test_student_t_approaches_the_normal_distribution():
    normal = statistics.NormalDist()
    assert student_t(0.95, 5000) == pytest.approx(normal.inv_cdf(0.975), abs=1e-3)
    assert student_t_probability(1.5, 5001) == pytest.approx(2 * normal.cdf(1.5) - 1, abs=1e-3)


def test_student_t_matches_closed_forms_for_one_and_two_degrees():
    for t in (0.1, 1.0, 7.0):
        assert student_t_probability(t, 1) == pytest.approx(2 / math.pi * math.atan(t))
        assert student_t_probability(t, 2) == pytest.approx(t / math.sqrt(2 + t * t))


def test_the_interval_of_five_runs():
    estimate = estimate_mean([10.0, 12.0, 11.0, 9.0, 13.0])
    assert (estimate.mean, estimate.runs, estimate.level) == (11.0, 5, 0.95)
    assert estimate.half_width == pytest.approx(2.7764 * math.sqrt(2.5 / 5), abs=1e-4)
    assert estimate.interval == pytest.approx((11 - 1.96324, 11 + 1.96324), abs=1e-4)
    assert estimate.to_json()["half_width"] == estimate.half_width


def test_equal_runs_have_an_interval_of_zero_width():
    assert estimate_mean([7.0, 7.0]).interval == (7.0, 7.0)


def test_a_single_run_has_a_mean_and_no_interval():
    estimate = estimate_mean([7.0])
    assert (estimate.mean, estimate.half_width, estimate.interval) == (7.0, None, None)


@pytest.mark.parametrize(("values", "level"), [([], 0.95), ([1.0], 0.0), ([1.0], 1.0)])
def test_empty_runs_and_invalid_levels_are_refused(values: list[float], level: float):
    with pytest.raises(ValueError, match="no confidence"):
        estimate_mean(values, level)


def test_a_single_run_has_no_interval():
    found = estimate_mean([3.5])
    assert (found.mean, found.half_width, found.runs, found.interval) == (3.5, None, 1, None)
