"""Shared == alone == DuckDB, for windows over the results of other windows."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from properties.harness import Restless
from properties.test_shared_equals_alone import EXAMPLES, PHASES, check
from support.stacked_queries import queries_with_stacks, stacks
from support.strategies import Scenario, scenarios

_SLOW = settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), phases=PHASES)


@given(scenarios(max_queries=12, texts=queries_with_stacks()), st.integers(0, 1000))
@_SLOW
def test_windows_over_windows_beside_other_queries_under_churn_disorder_crashes_and_replanning(
    scenario: Scenario, seed: int
) -> None:
    check(scenario, Restless(seed), backend="local", partitions=3)


@given(scenarios(max_queries=3, max_batches=16, texts=stacks(seed=1)), st.integers(0, 1000))
@_SLOW
def test_few_of_them_long_streams(scenario: Scenario, seed: int) -> None:
    check(scenario, Restless(seed) if seed % 2 else None, backend="local", partitions=2)
