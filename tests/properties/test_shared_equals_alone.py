"""Shared == alone == DuckDB: the property everything else serves.

    add ─┬─ rows ─ advance ─ rows ─┬─ crash ─ recover ─ advance ─ … ─ drain
         └─ remove                 └─ add

Random streams with disorder, lateness, NULLs and skew; random queries that come and go between micro-batches; crashes
at random durable steps. Every query must have emitted exactly what the oracle, which runs it alone, emits.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from properties.harness import Restless, Run
from support.compare import same_rows
from support.duckdb_judge import DuckDBJudge, Judgement
from support.oracle import batches, run_oracle
from support.strategies import AddQuery, Advance, RemoveQuery, Scenario, scenarios

EXAMPLES = int(os.environ.get("HEADRACE_PROPERTY_RUNS", "25"))
PHASES = tuple(Phase) if os.environ.get("HEADRACE_SHRINK", "1") == "1" else (Phase.explicit, Phase.reuse, Phase.generate)
_SLOW = settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), phases=PHASES)


VERDICTS: Counter[str] = Counter()


def check(scenario: Scenario, restless: Restless | None = None, **options: object) -> int:
    """Play a scenario and compare every query with the oracle; return how many crashes there were."""
    oracle = run_oracle(scenario)
    second = DuckDBJudge(scenario.streams, batches(scenario), VERDICTS)
    lasting = _always_there(scenario)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(scenario, Path(folder) / "checkpoint", options, restless=restless)
        run.play()
        try:
            for name, sql in scenario.queries.items():
                try:
                    found = run.session.find(name)
                    if found is None:  # added and removed again before anything was logged, then crashed
                        assert not oracle.get_results(name)
                        continue
                    assert (found.status == "failed") == (name in oracle.errors), found.error
                    same_rows(run.results(name), oracle.get_results(name))
                    assert found.late == {s: n for s, n in oracle.get_late_counts(name).items() if n}
                    judgement = (
                        second.judge(sql) if name in lasting and found.status != "failed" else Judgement(None, "came late")
                    )
                    if judgement.rows is not None:
                        same_rows(run.results(name), judgement.rows, abs_=1e-6)
                except AssertionError as error:
                    raise AssertionError(f"{name}: {sql}\n{error}") from error
        finally:
            run.close()
    return run.fault.crashes


def _always_there(scenario: Scenario) -> set[str]:
    """Queries that DuckDB can judge: added before the first row, never removed."""
    names: set[str] = set()
    for step in scenario.steps:
        if isinstance(step, Advance):
            break
        if isinstance(step, AddQuery):
            names.add(step.name)
    return names - {step.name for step in scenario.steps if isinstance(step, RemoveQuery)}


@given(scenarios())
@_SLOW
def test_shared_equals_alone_under_churn_disorder_and_crashes(scenario: Scenario) -> None:
    check(scenario, backend="local", partitions=3)


@given(scenarios(max_queries=8, max_batches=20), st.integers(0, 1000))
@_SLOW
def test_few_queries_long_streams_other_partitions_now_and_then(scenario: Scenario, seed: int) -> None:
    check(scenario, Restless(seed) if seed % 2 else None, backend="local", partitions=1)
