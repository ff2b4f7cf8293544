"""Shared == standalone, for joins in SLIDING windows: any conditions, 2 to 5 inputs, other queries, and all options of plans."""

from __future__ import annotations

import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.model.sliding_join_options import PlanSearch, PlanTarget, SlidingJoinOptions
from properties.harness import RandomReplanner
from properties.test_shared_equals_alone import EXAMPLES, PHASES, check
from support.bit_compaction import compact_often
from support.sliding_queries import (
    outer_sliding_joins,
    outer_sliding_joins_in_windows,
    queries_with_sliding_joins,
    sliding_joins,
    sliding_joins_in_windows,
)
from support.strategies import Scenario, scenarios

_SETTINGS = settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), phases=PHASES)


OPTIONS = st.builds(
    SlidingJoinOptions,
    st.sampled_from(PlanSearch),
    st.sampled_from(PlanTarget),
    st.sampled_from((math.inf, math.inf, 0.0, 5_000.0)),
    st.sampled_from((True, True, False)),
)


@given(
    scenarios(max_queries=8, max_batches=16, texts=st.one_of(outer_sliding_joins(), outer_sliding_joins(), sliding_joins())),
    st.integers(0, 1000),
    st.sampled_from((1, 3)),
)
@_SETTINGS
def test_outer_sliding_joins_under_churn_disorder_crashes_and_replanning(scenario: Scenario, seed: int, partitions: int) -> None:
    with compact_often():
        check(scenario, RandomReplanner(seed) if seed % 4 else None, backend="local", partitions=partitions)


@given(scenarios(max_queries=10, max_batches=16, texts=queries_with_sliding_joins()), st.integers(0, 1000))
@_SETTINGS
def test_sliding_joins_whose_bits_are_compacted_often(scenario: Scenario, seed: int) -> None:
    with compact_often():
        check(scenario, RandomReplanner(seed) if seed % 2 else None, backend="local", partitions=2)


@given(
    scenarios(max_queries=6, max_batches=16, texts=st.one_of(sliding_joins_in_windows(), sliding_joins())), st.integers(0, 1000)
)
@_SETTINGS
def test_windows_over_sliding_joins_under_churn_disorder_crashes_and_replanning(scenario: Scenario, seed: int) -> None:
    check(scenario, RandomReplanner(seed), backend="local", partitions=2)


@given(
    scenarios(max_queries=6, max_batches=16, texts=st.one_of(outer_sliding_joins_in_windows(), outer_sliding_joins())),
    st.integers(0, 1000),
)
@_SETTINGS
def test_windows_over_outer_sliding_joins(scenario: Scenario, seed: int) -> None:
    check(scenario, RandomReplanner(seed) if seed % 2 else None, backend="local", partitions=2)


@given(scenarios(max_queries=10, texts=queries_with_sliding_joins()), st.integers(0, 1000), OPTIONS)
@_SETTINGS
def test_sliding_joins_with_other_queries_under_churn_disorder_crashes_and_replanning(
    scenario: Scenario, seed: int, options: SlidingJoinOptions
) -> None:
    check(scenario, RandomReplanner(seed, options), backend="local", partitions=3, **options.to_arguments())


@given(scenarios(max_queries=3, max_batches=16, texts=sliding_joins(seed=1)), st.integers(0, 1000), OPTIONS)
@_SETTINGS
def test_few_sliding_joins_over_long_streams(scenario: Scenario, seed: int, options: SlidingJoinOptions) -> None:
    check(scenario, RandomReplanner(seed, options), backend="local", partitions=2, **options.to_arguments())
