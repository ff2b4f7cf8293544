"""Shared == standalone == DuckDB: the central property of the engine.

    add ─┬─ rows ─ advance ─ rows ─┬─ crash ─ recover ─ advance ─ … ─ drain
         └─ remove                 └─ add

Random streams with disorder, late rows, NULLs and skew; random queries that are added and removed between micro-batches; crashes
at random durable steps. Every query must emit exactly the rows that the oracle emits, which runs it standalone.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from properties.harness import RandomLoad, RandomReplanner, Run
from properties.judges import check_run
from support.examples import scale_examples
from support.strategies import Scenario, scenarios

EXAMPLES = scale_examples(25)
PHASES = tuple(Phase) if os.environ.get("HEADRACE_SHRINK", "1") == "1" else (Phase.explicit, Phase.reuse, Phase.generate)
_SETTINGS = settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), phases=PHASES)


def check(scenario: Scenario, replanner: RandomReplanner | None = None, load: RandomLoad | None = None, **options: object) -> int:
    """Run a scenario with a checkpoint in a new folder and compare every query with the oracle; return the number of crashes."""
    with tempfile.TemporaryDirectory() as folder:
        return check_run(Run(scenario, Path(folder) / "checkpoint", options, replanner=replanner, load=load))


@given(scenarios())
@_SETTINGS
def test_shared_equals_standalone_under_churn_disorder_and_crashes(scenario: Scenario) -> None:
    check(scenario, backend="local", partitions=3)


@given(scenarios(max_queries=8, max_batches=20), st.integers(0, 1000))
@_SETTINGS
def test_few_queries_over_long_streams_with_rescaling(scenario: Scenario, seed: int) -> None:
    check(scenario, RandomReplanner(seed) if seed % 2 else None, backend="local", partitions=1)


@given(scenarios(max_queries=8, max_batches=20), st.integers(0, 1000))
@_SETTINGS
def test_results_do_not_depend_on_automatic_changes_of_the_partition_count(scenario: Scenario, seed: int) -> None:
    check(scenario, None, RandomLoad(seed), backend="local", partitions="auto")
