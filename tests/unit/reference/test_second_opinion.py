"""Compare the reference oracle with DuckDB: both run the same SQL over the same finite input."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.model.stream import Stream
from support.compare import assert_same_rows
from support.duckdb_judge import DuckDBJudge
from support.examples import scale_examples
from support.join_queries import joins, joins_without_equality
from support.oracle import list_batches, run_oracle
from support.queries import aggregations, queries
from support.rows import SCHEMA, RowCode, decode, row_codes
from support.strategies import AddQuery, Advance, Drain, Rows, Scenario, scenarios

DAY = 86_400_000_000
TOLERANCE = 1e-6  # DuckDB averages decimals as doubles, Spark rounds to six digits


def from_the_start(texts: list[str], parts: list[list[RowCode]], delay: int) -> Scenario:
    """Return a scenario that adds all queries, then feeds the batches to both streams in turn."""
    steps, clock = [AddQuery(f"q{index}", text) for index, text in enumerate(texts)], 0
    for index, codes in enumerate(parts):
        rows, clock = decode(codes, clock)
        steps += [Rows("beta" if index % 3 == 2 else "alpha", tuple(rows)), Advance()]
    streams = tuple(Stream(name, SCHEMA, "time", delay) for name in ("alpha", "beta"))
    return Scenario(streams, (*steps, Advance(), Drain()))


def compare(scenario: Scenario, verdicts: Counter[str]) -> None:
    engine, judge = run_oracle(scenario), DuckDBJudge(scenario.streams, list_batches(scenario), verdicts)
    assert engine.errors == {}
    for name, text in scenario.queries.items():
        judgement = judge.judge(text)
        if judgement.rows is None:
            continue
        try:
            assert_same_rows(engine.get_results(name), judgement.rows, abs_=TOLERANCE)
        except AssertionError as difference:
            raise AssertionError(f"{text}\n{difference}") from None


def many_rows(*, special: bool) -> st.SearchStrategy[list[list[RowCode]]]:
    return st.lists(st.lists(row_codes(special=special), min_size=1, max_size=15), min_size=1, max_size=5)


SETTINGS = settings(max_examples=scale_examples(40), suppress_health_check=list(HealthCheck), derandomize=True, database=None)


def test_results_match_duckdb_without_late_rows():
    verdicts: Counter[str] = Counter()

    @SETTINGS
    @given(st.lists(queries(), min_size=1, max_size=6), many_rows(special=False))
    def check(texts, parts):
        compare(from_the_start(texts, parts, DAY), verdicts)

    check()
    assert verdicts["judged"] >= 0.95 * verdicts.total(), verdicts


def test_results_match_duckdb_with_watermarks_nan_and_missing_times():
    verdicts: Counter[str] = Counter()

    @SETTINGS
    @given(st.lists(aggregations(), min_size=1, max_size=6), many_rows(special=True), st.sampled_from([0, 2_000_000, 20_000_000]))
    def check(texts, parts, delay):
        compare(from_the_start(texts, parts, delay), verdicts)

    check()
    assert verdicts["judged"] >= 0.3 * verdicts.total(), verdicts


@pytest.mark.parametrize("texts", [joins(seed=2), joins_without_equality(seed=2)], ids=["any-condition", "without-equality"])
def test_joins_match_duckdb(texts):
    verdicts: Counter[str] = Counter()

    @SETTINGS
    @given(st.lists(texts, min_size=1, max_size=2), many_rows(special=True))
    def check(chosen, parts):
        compare(from_the_start(chosen, parts, DAY), verdicts)

    check()
    assert verdicts["judged"] >= 0.7 * verdicts.total(), verdicts


@pytest.mark.parametrize("limit", [5, 60])
def test_generated_scenarios_run_without_errors(limit):
    @settings(max_examples=scale_examples(20), suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(scenarios(max_queries=limit))
    def check(scenario):
        assert len(scenario.queries) <= limit
        assert run_oracle(scenario).errors == {}

    check()
