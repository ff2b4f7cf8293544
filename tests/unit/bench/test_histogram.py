"""Histograms: exact extremes and means, percentiles within 1 %, merging in any order."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.bench.measure.statistics import MAX_VALUE, Histogram, bucket_of, bucket_upper_bound

VALUES = st.lists(st.integers(0, 10**12), min_size=1, max_size=60)
SHARES = (0.0, 0.5, 0.9, 0.95, 0.99, 1.0)


def find_percentile(values: list[int], share: float) -> int:
    return sorted(values)[max(1, int(np.ceil(share * len(values)))) - 1]


def test_buckets_have_no_gaps():
    buckets = np.arange(2000)
    upper_bounds = bucket_upper_bound(buckets)
    assert np.array_equal(bucket_of(upper_bounds), buckets)
    assert np.array_equal(bucket_of(upper_bounds[:-1] + 1), buckets[1:])


def test_bucket_width_is_bounded_up_to_the_largest_value():
    values = np.unique(np.geomspace(1, MAX_VALUE, 5000).astype(np.int64))
    upper_bounds = bucket_upper_bound(bucket_of(values))
    assert (upper_bounds >= values).all()
    assert ((upper_bounds - values) <= values / 128).all()


def test_small_values_are_exact():
    assert Histogram.from_values(np.arange(256)).get_percentiles([0.5]) == [127]


@settings(deadline=None)
@given(VALUES)
def test_percentiles_are_within_one_percent(values: list[int]):
    for share, percentile in zip(SHARES, Histogram.from_values(values).get_percentiles(SHARES), strict=True):
        exact = find_percentile(values, share)
        assert exact <= percentile <= exact * 1.01 or percentile == exact


@settings(deadline=None)
@given(VALUES)
def test_extremes_and_mean_are_exact(values: list[int]):
    histogram = Histogram.from_values(values)
    assert (histogram.lowest, histogram.highest, histogram.count) == (min(values), max(values), len(values))
    assert histogram.total == pytest.approx(sum(values))
    assert histogram.get_percentiles([1.0]) == [max(values)]


@settings(deadline=None)
@given(VALUES, VALUES)
def test_merging_equals_adding_all_values(left: list[int], right: list[int]):
    assert Histogram.from_values(left).merge(Histogram.from_values(right)) == Histogram.from_values(left + right)
    assert Histogram.from_values(left).add(right) == Histogram.from_values(right).add(left)
    assert (
        Histogram.from_values(left).merge(Histogram())
        == Histogram().merge(Histogram.from_values(left))
        == Histogram.from_values(left)
    )


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 10**9), st.integers(0, 20)), min_size=1, max_size=30))
def test_a_weight_equals_repeated_values(pairs: list[tuple[int, int]]):
    values, weights = zip(*pairs, strict=True)
    assert Histogram.from_values(values, weights) == Histogram.from_values(np.repeat(values, weights))


def test_negative_values_count_as_zero_and_are_reported():
    histogram = Histogram.from_values([-30, -1, 40], [2, 1, 1])
    assert (histogram.negative, histogram.lowest, histogram.count, histogram.total) == (3, 0, 4, 40.0)


def test_values_above_the_maximum_are_clamped():
    assert Histogram.from_values([2**60]).highest == MAX_VALUE


def test_the_summary_is_in_seconds():
    summary = Histogram.from_values(np.arange(1, 101) * 1_000_000).summarize()
    assert summary is not None
    assert (summary.count, summary.mean, summary.lowest, summary.highest) == (100, 50.5, 1.0, 100.0)
    assert [summary.p50, summary.p90, summary.p95, summary.p99] == pytest.approx([50, 90, 95, 99], rel=0.01)
    assert summary.to_json()["p95"] == summary.p95


def test_an_empty_histogram_has_no_summary():
    assert Histogram.from_values([]).summarize() is None
    assert Histogram.from_values([5], [0]) == Histogram()
    with pytest.raises(ValueError, match="empty"):
        Histogram().get_percentiles([0.5])


@settings(deadline=None)
@given(VALUES)
def test_a_histogram_round_trips_through_json(values: list[int]):
    histogram = Histogram.from_values(values)
    assert Histogram.from_json(json.loads(json.dumps(histogram.to_json()))) == histogram


def test_negative_values_are_counted_in_both_histograms():
    first, second = Histogram.from_values([-1, 0, 5]), Histogram.from_values([-3, -2, 1], [1, 4, 1])
    assert (first.negative, second.negative) == (1, 5)
    assert first.merge(second).negative == 6
