"""Shared == standalone == DuckDB, for window joins: scenarios in which most queries are joins in TUMBLE and HOP windows."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.model.late_materialization import LateMaterialization
from properties.harness import RandomReplanner
from properties.test_shared_equals_alone import EXAMPLES, PHASES, check
from support.attribute_joins import attribute_joins
from support.bit_compaction import compact_often
from support.join_queries import joins, joins_without_equality, queries_with_joins
from support.strategies import Scenario, scenarios

_SETTINGS = settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), phases=PHASES)

_SLICES = st.sampled_from(
    (
        {"join_slices": "kept"},
        {"join_slices": "kept", "join_slices_bytes": 3000},  # there is room for few rows
        {"join_slices": "auto"},
        {"join_slices": "found"},
    )
)


@given(scenarios(max_queries=12, texts=queries_with_joins()), st.integers(0, 1000), _SLICES)
@_SETTINGS
def test_window_joins_with_other_queries_under_churn_disorder_crashes_and_replanning(
    scenario: Scenario, seed: int, slices: dict[str, Any]
) -> None:
    check(scenario, RandomReplanner(seed), backend="local", partitions=3, **slices)


@given(scenarios(max_queries=12, max_batches=16, texts=queries_with_joins()), st.integers(0, 1000), _SLICES)
@_SETTINGS
def test_window_joins_whose_bits_are_compacted_often(scenario: Scenario, seed: int, slices: dict[str, Any]) -> None:
    with compact_often():
        check(scenario, RandomReplanner(seed) if seed % 2 else None, backend="local", partitions=2, **slices)


@given(scenarios(max_queries=3, max_batches=16, texts=joins(seed=1)), st.integers(0, 1000), _SLICES)
@_SETTINGS
def test_few_window_joins_over_long_streams(scenario: Scenario, seed: int, slices: dict[str, Any]) -> None:
    check(scenario, RandomReplanner(seed) if seed % 2 else None, backend="local", partitions=2, **slices)


@given(scenarios(max_queries=8, max_batches=8, texts=joins_without_equality()), st.integers(0, 1000), _SLICES)
@_SETTINGS
def test_window_joins_without_an_equality(scenario: Scenario, seed: int, slices: dict[str, Any]) -> None:
    check(scenario, RandomReplanner(seed) if seed % 2 else None, backend="local", partitions=2, **slices)


@given(scenarios(max_queries=8, max_batches=12, texts=attribute_joins()), st.sampled_from(LateMaterialization), _SLICES)
@_SETTINGS
def test_streams_that_are_joined_by_several_attributes(
    scenario: Scenario, setting: LateMaterialization, slices: dict[str, Any]
) -> None:
    check(scenario, backend="local", partitions=3, late_materialization=str(setting), **slices)


@given(scenarios(max_queries=10, max_batches=16, texts=attribute_joins()), st.integers(0, 1000), _SLICES)
@_SETTINGS
def test_storage_of_rows_that_changes_with_partitions_join_orders_and_bits(
    scenario: Scenario, seed: int, slices: dict[str, Any]
) -> None:
    with compact_often():
        check(scenario, RandomReplanner(seed), backend="local", partitions=3, **slices)
