"""An operator that fails for one query: the others emit exactly the rows that the oracle emits, whatever the operator is.

    add ─ rows ─ advance ─ rows ─ advance (an operator raises for one query) ─ trials ─ commit without it ─ … ─ drain

Random queries of every kind, with churn, disorder and crashes. The fault is in one of the places that attribute exceptions to the
queries of an operator (`engine/failures.py:blame`), from a random call on.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headrace.engine import failures, map_stage, reduce_stage
from headrace.planner.changelog import root_query_id
from properties.harness import Run
from support.compare import assert_same_rows
from support.examples import scale_examples
from support.join_queries import queries_with_joins
from support.nested_queries import queries_with_nesting
from support.oracle import run_oracle
from support.sliding_queries import queries_with_sliding_joins
from support.strategies import AddQuery, RemoveQuery, Scenario, scenarios

ALL_SCENARIOS = st.one_of(
    scenarios(max_queries=8),
    *(
        scenarios(max_queries=8, texts=texts)
        for texts in (queries_with_joins(), queries_with_sliding_joins(), queries_with_nesting())
    ),
)


class OperatorFault:
    """The operator that the culprit uses after the first `skipped` times breaks: it raises whenever the culprit uses it."""

    def __init__(self, culprit: int, skipped: int) -> None:
        self.culprit, self.skipped, self.broken_operator = culprit, skipped, ""

    @contextlib.contextmanager
    def blame(self, operator: str, queries: Iterable[int], found: failures.QueryFailures | None = None) -> Iterator[None]:
        users = list(queries)
        with failures.blame(operator, users, found):
            yield
            if self.culprit in map(root_query_id, users):
                self.skipped -= 1
                if self.skipped < 0:
                    self.broken_operator = self.broken_operator or operator
                if operator == self.broken_operator:
                    raise RuntimeError("an operator is broken")


class RunWithFailures(Run):
    """A run in which a query to remove may have failed before: a session that was recovered since does not list it."""

    def apply(self, step: AddQuery | RemoveQuery) -> None:
        if isinstance(step, AddQuery) or step.name in {query.name for query in self.session.queries()}:
            super().apply(step)


@given(ALL_SCENARIOS, st.integers(0, 5), st.integers(0, 40))
@settings(
    deadline=None,
    max_examples=scale_examples(60),
    suppress_health_check=list(HealthCheck),
    phases=[phase for phase in Phase if phase is not Phase.shrink],
)
def test_others_are_exact_when_an_operator_fails_for_one_query(scenario: Scenario, culprit: int, skipped: int) -> None:
    fault = OperatorFault(culprit, skipped)
    oracle = run_oracle(scenario)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(map_stage, "blame", fault.blame)
        patch.setattr(reduce_stage, "blame", fault.blame)
        run = RunWithFailures(scenario, Path(folder) / "checkpoint", {"backend": "local", "partitions": 2})
        run.play()
        try:
            for name in scenario.queries:
                query = run.session.find(name)
                if query is None:
                    continue
                if query.id == culprit:
                    if fault.broken_operator and query.status != "removed":
                        assert query.status == "failed", name
                    continue
                assert (query.status == "failed") == (name in oracle.errors), f"{name}: {query.error}"
                assert_same_rows(run.results(name), oracle.get_results(name))
        finally:
            run.close()
