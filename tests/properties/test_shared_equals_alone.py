"""Shared == standalone == DuckDB: the central property of the engine.

    add ─┬─ rows ─ advance ─ rows ─┬─ crash ─ recover ─ advance ─ … ─ drain
         └─ remove                 └─ add

Random streams with disorder, late rows, NULLs and skew; random queries that are added and removed between micro-batches; crashes
at random durable steps. Every query must emit exactly the rows that the oracle emits, which runs it standalone.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from properties.harness import RandomLoad, RandomReplanner, Run
from support.compare import assert_same_rows
from support.duckdb_judge import DuckDBJudge, Judgement
from support.examples import scale_examples
from support.oracle import list_batches, run_oracle
from support.strategies import AddQuery, Advance, RemoveQuery, Scenario, scenarios

EXAMPLES = scale_examples(25)
PHASES = tuple(Phase) if os.environ.get("HEADRACE_SHRINK", "1") == "1" else (Phase.explicit, Phase.reuse, Phase.generate)
_SETTINGS = settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), phases=PHASES)

VERDICTS: Counter[str] = Counter()


def check(scenario: Scenario, replanner: RandomReplanner | None = None, load: RandomLoad | None = None, **options: object) -> int:
    """Run a scenario and compare every query with the oracle; return the number of crashes."""
    oracle = run_oracle(scenario)
    judge = DuckDBJudge(scenario.streams, list_batches(scenario), VERDICTS)
    always_live = _find_always_live(scenario)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(scenario, Path(folder) / "checkpoint", options, replanner=replanner, load=load)
        run.play()
        try:
            for name, sql in scenario.queries.items():
                try:
                    query = run.session.find(name)
                    if query is None:  # added and removed before anything was logged, then crashed
                        assert not oracle.get_results(name)
                        continue
                    assert (query.status == "failed") == (name in oracle.errors), query.error
                    assert_same_rows(run.results(name), oracle.get_results(name))
                    assert query.late == {s: n for s, n in oracle.get_late_counts(name).items() if n}
                    judgement = (
                        judge.judge(sql)
                        if name in always_live and query.status != "failed"
                        else Judgement(None, "not always live")
                    )
                    if judgement.rows is not None:
                        assert_same_rows(run.results(name), judgement.rows, abs_=1e-6)
                except AssertionError as error:
                    raise AssertionError(f"{name}: {sql}\n{error}") from error
        finally:
            run.close()
    return run.fault.crashes


def _find_always_live(scenario: Scenario) -> set[str]:
    """Return the queries that DuckDB can judge: added before the first row, never removed."""
    names: set[str] = set()
    for step in scenario.steps:
        if isinstance(step, Advance):
            break
        if isinstance(step, AddQuery):
            names.add(step.name)
    return names - {step.name for step in scenario.steps if isinstance(step, RemoveQuery)}


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
