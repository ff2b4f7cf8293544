"""Shared == standalone == DuckDB, for nested queries: windows over the results of other windows."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from properties.harness import RandomReplanner
from properties.test_shared_equals_alone import EXAMPLES, PHASES, check
from support.nested_queries import nested_queries, queries_with_nesting
from support.strategies import Scenario, scenarios

_SETTINGS = settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), phases=PHASES)


@given(scenarios(max_queries=12, texts=queries_with_nesting()), st.integers(0, 1000))
@_SETTINGS
def test_nested_queries_with_other_queries_under_churn_disorder_crashes_and_replanning(scenario: Scenario, seed: int) -> None:
    check(scenario, RandomReplanner(seed), backend="local", partitions=3)


@given(scenarios(max_queries=3, max_batches=16, texts=nested_queries(seed=1)), st.integers(0, 1000))
@_SETTINGS
def test_few_nested_queries_over_long_streams(scenario: Scenario, seed: int) -> None:
    check(scenario, RandomReplanner(seed) if seed % 2 else None, backend="local", partitions=2)
