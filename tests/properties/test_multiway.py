"""Shared == alone, for joins in sliding windows: by any conditions, of 2 to 5 relations, beside other queries."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from properties.harness import Restless
from properties.test_shared_equals_alone import EXAMPLES, PHASES, check
from support.sliding_queries import queries_with_sliding_joins, sliding_joins
from support.strategies import Scenario, scenarios

_SLOW = settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), phases=PHASES)


@given(scenarios(max_queries=10, texts=queries_with_sliding_joins()), st.integers(0, 1000))
@_SLOW
def test_multiway_joins_beside_other_queries_under_churn_disorder_crashes_and_replanning(scenario: Scenario, seed: int) -> None:
    check(scenario, Restless(seed), backend="local", partitions=3)


@given(scenarios(max_queries=3, max_batches=16, texts=sliding_joins(seed=1)), st.integers(0, 1000))
@_SLOW
def test_few_multiway_joins_long_streams(scenario: Scenario, seed: int) -> None:
    check(scenario, Restless(seed), backend="local", partitions=2)
