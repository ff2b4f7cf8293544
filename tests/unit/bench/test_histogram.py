"""Histograms: exact where they say so, within 1 % everywhere, the same whatever the order of adding."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.bench.measure.statistics import MAX_VALUE, Histogram, bucket_of, bucket_upper_bound

VALUES = st.lists(st.integers(0, 10**12), min_size=1, max_size=60)
SHARES = (0.0, 0.5, 0.9, 0.95, 0.99, 1.0)


def at_rank(values: list[int], share: float) -> int:
    return sorted(values)[max(1, int(np.ceil(share * len(values)))) - 1]


def test_buckets_follow_one_another_without_gaps():
    buckets = np.arange(2000)
    tops = bucket_upper_bound(buckets)
    assert np.array_equal(bucket_of(tops), buckets)
    assert np.array_equal(bucket_of(tops[:-1] + 1), buckets[1:])


def test_buckets_are_narrow_up_to_the_largest():
    values = np.unique(np.geomspace(1, MAX_VALUE, 5000).astype(np.int64))
    tops = bucket_upper_bound(bucket_of(values))
    assert (tops >= values).all()
    assert ((tops - values) <= values / 128).all()


def test_small_values_are_exact():
    assert Histogram.from_values(np.arange(256)).get_percentiles([0.5]) == [127]


@settings(deadline=None)
@given(VALUES)
def test_percentiles_are_within_one_percent(values: list[int]):
    for share, found in zip(SHARES, Histogram.from_values(values).get_percentiles(SHARES), strict=True):
        exact = at_rank(values, share)
        assert exact <= found <= exact * 1.01 or found == exact


@settings(deadline=None)
@given(VALUES)
def test_extremes_and_mean_are_exact(values: list[int]):
    found = Histogram.from_values(values)
    assert (found.lowest, found.highest, found.count) == (min(values), max(values), len(values))
    assert found.total == pytest.approx(sum(values))
    assert found.get_percentiles([1.0]) == [max(values)]


@settings(deadline=None)
@given(VALUES, VALUES)
def test_merging_is_counting_everything(left: list[int], right: list[int]):
    assert Histogram.from_values(left).merge(Histogram.from_values(right)) == Histogram.from_values(left + right)
    assert Histogram.from_values(left).add(right) == Histogram.from_values(right).add(left)
    assert (
        Histogram.from_values(left).merge(Histogram())
        == Histogram().merge(Histogram.from_values(left))
        == Histogram.from_values(left)
    )


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 10**9), st.integers(0, 20)), min_size=1, max_size=30))
def test_a_weight_is_as_many_values(pairs: list[tuple[int, int]]):
    values, weights = zip(*pairs, strict=True)
    assert Histogram.from_values(values, weights) == Histogram.from_values(np.repeat(values, weights))


def test_what_lies_before_its_cause_is_zero_and_counted():
    found = Histogram.from_values([-30, -1, 40], [2, 1, 1])
    assert (found.negative, found.lowest, found.count, found.total) == (3, 0, 4, 40.0)


def test_what_is_too_large_to_be_exact_is_the_largest():
    assert Histogram.from_values([2**60]).highest == MAX_VALUE


def test_the_summary_is_in_seconds():
    summary = Histogram.from_values(np.arange(1, 101) * 1_000_000).summarize()
    assert summary is not None
    assert (summary.count, summary.mean, summary.lowest, summary.highest) == (100, 50.5, 1.0, 100.0)
    assert [summary.p50, summary.p90, summary.p95, summary.p99] == pytest.approx([50, 90, 95, 99], rel=0.01)
    assert summary.to_json()["p95"] == summary.p95


def test_nothing_counted_gives_no_figures():
    assert Histogram.from_values([]).summarize() is None
    assert Histogram.from_values([5], [0]) == Histogram()
    with pytest.raises(ValueError, match="empty"):
        Histogram().get_percentiles([0.5])


@settings(deadline=None)
@given(VALUES)
def test_it_survives_being_written(values: list[int]):
    found = Histogram.from_values(values)
    assert Histogram.from_json(json.loads(json.dumps(found.to_json()))) == found
