"""Judges of a run of a scenario: the oracle, which runs each query alone, and DuckDB for what it can express."""

from __future__ import annotations

from collections import Counter

from properties.harness import Run
from support.compare import assert_same_rows
from support.duckdb_judge import DuckDBJudge, Judgement
from support.oracle import list_batches, run_oracle
from support.strategies import AddQuery, Advance, RemoveQuery, Scenario


def check_run(run: Run) -> int:
    """Play a run and compare every query with the oracle; return the number of crashes."""
    scenario = run.scenario
    oracle = run_oracle(scenario)
    judge = DuckDBJudge(scenario.streams, list_batches(scenario), Counter())
    always_live = _find_always_live(scenario)
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
                    judge.judge(sql) if name in always_live and query.status != "failed" else Judgement(None, "not always live")
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
