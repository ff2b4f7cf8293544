"""A query that needs more than its budget fails with the figure; the others get their rows."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lives import make_rows, read_columns

import headrace as hr
from headrace.engine.compute.columns import EvaluationResult
from headrace.engine.compute.evaluator import Evaluator
from headrace.engine.compute.text_limits import limit_text
from headrace.engine.worker_limits import limit_seconds
from headrace.errors import NameTakenError, OperatorError, SchemaError
from headrace.model.expression import Call, Column, Literal

STRING = pa.string()

COUNT = "SELECT COUNT(*) AS n FROM TUMBLE(s, '5 seconds')"
CROSS = "SELECT l.n FROM {0}(s, '5 seconds') l JOIN {0}(s, '5 seconds') r ON l.n <> r.n"
EQUAL = "SELECT l.n FROM {0}(s, '5 seconds') l JOIN {0}(s, '5 seconds') r ON l.n = r.n"


def test_a_query_that_emits_too_many_rows_fails(open_harness):
    harness = open_harness(budget={"output_rows": 9}, partitions=2)
    bad = harness.session.add("SELECT n FROM s")
    rich = harness.session.add("SELECT n FROM s", budget={"output_rows": 100})
    good = harness.session.add("SELECT n FROM s WHERE n < 5")
    harness.source.append([row for n in range(8) for row in make_rows(1, k=n, n=n)])
    harness.session.advance()
    assert (bad.status, good.status) == ("live", "live")
    harness.source.append([row for n in range(12) for row in make_rows(2, k=n, n=n)])
    harness.session.advance()
    assert [query.status for query in (bad, rich, good)] == ["failed", "live", "live"]
    assert bad.error == "query emits 12 rows in a micro-batch, more than 9 (output_rows)"
    assert read_columns(bad, "n") == list(range(8))
    assert len(read_columns(rich, "n")) == 20
    assert read_columns(good, "n") == sorted([*range(5), *range(5)])


def test_limits_that_a_budget_does_not_name_are_those_of_the_session(open_harness):
    session = open_harness(budget={"output_rows": 9, "state_bytes": 99}).session
    query = session.add("SELECT n FROM s", name="q", budget={"output_rows": 5})
    assert (query.budget.output_rows, query.budget.state_bytes) == (5, 99)
    assert session.add("SELECT n FROM s").budget == session.budget == hr.QueryBudget(output_rows=9, state_bytes=99)


def test_a_budget_survives_replacement_and_restart(open_harness):
    harness = open_harness()
    harness.session.add("SELECT n FROM s", name="q", budget={"output_rows": 5})
    harness.session.advance()
    assert harness.session.replace("q", "SELECT n FROM s WHERE n > 0").budget.output_rows == 5
    harness.session.advance()
    recovered = harness.restart()
    assert recovered.query("q").budget.output_rows == 5
    with pytest.raises(NameTakenError, match="query 'q' already exists with another budget"):
        recovered.add("SELECT n FROM s WHERE n > 0", name="q", budget={"output_rows": 6})
    assert recovered.add("SELECT n FROM s WHERE n > 0", name="q").budget.output_rows == 5
    assert recovered.replace("q", "SELECT n FROM s", budget={"output_rows": 7}).budget.output_rows == 7


def test_rows_of_all_partitions_count(open_harness):
    harness = open_harness(budget={"output_rows": 9}, partitions=3)
    bad = harness.session.add("SELECT k, COUNT(*) AS n FROM TUMBLE(s, '5 seconds') GROUP BY k")
    harness.source.append([row for n in range(12) for row in make_rows(1, k=n)])
    harness.session.advance()
    harness.tick(7)
    assert bad.status == "failed"
    assert "12 rows" in bad.error


def test_a_query_that_emits_too_many_bytes_fails(open_harness):
    harness = open_harness(budget={"output_bytes": 200})
    bad, good = harness.session.add("SELECT n, k, time FROM s"), harness.session.add("SELECT n FROM s")
    harness.source.append([row for n in range(20) for row in make_rows(1, n=n)])
    harness.session.advance()
    assert (bad.status, good.status) == ("failed", "live")
    assert "(output_bytes)" in bad.error


@pytest.mark.parametrize("window", ["TUMBLE", "SLIDING"])
def test_a_join_that_compares_too_many_pairs_fails_before_it_compares_them(open_harness, window: str):
    harness = open_harness(budget={"join_pairs": 500}, partitions=2)
    good, bad = harness.session.add(EQUAL.format(window)), harness.session.add(CROSS.format(window))
    count = harness.session.add(COUNT)
    harness.source.append([row for n in range(40) for row in make_rows(1, n=n)])
    harness.session.advance()
    harness.tick(20)
    assert [query.status for query in (good, bad, count)] == ["live", "failed", "live"]
    assert "more than 500 pairs of rows" in bad.error
    assert len(read_columns(good, "n")) == 40 + (window == "SLIDING")
    assert read_columns(count, "n") == [40]


def test_a_query_with_too_much_state_fails_with_the_next_batch(open_harness):
    harness = open_harness()
    bad = harness.session.add("SELECT k, COUNT(*) AS n FROM TUMBLE(s, '1 hour') GROUP BY k", budget={"state_bytes": 1_000})
    good = harness.session.add("SELECT k, SUM(n) AS n FROM TUMBLE(s, '1 hour') GROUP BY k, n")
    harness.source.append([row for k in range(2_000) for row in make_rows(1, k=k)])
    harness.session.advance()
    harness.session.advance()
    assert (bad.status, good.status) == ("failed", "live")
    assert "(state_bytes)" in bad.error


def test_budgets_survive_a_restart(harness):
    harness.session.add("SELECT n FROM s", name="bad", budget=hr.QueryBudget(output_rows=2))
    harness.tick(1)
    harness.restart()
    harness.tick(2, 3, 4)
    assert "3 rows" in harness.session.find("bad").error


@pytest.mark.parametrize("budget", [{"output_rows": 0}, {"output_rows": "many"}, {"rows": 5}, {"output_rows": True}])
def test_an_invalid_budget_is_refused_without_effect(harness, budget: dict[str, Any]):
    with pytest.raises(SchemaError, match="budget"):
        harness.session.add("SELECT n FROM s", name="q", budget=budget)
    assert harness.session.queries() == []


def test_budgets_of_the_command_line():
    assert hr.QueryBudget.parse_texts(["output_rows=5", "join_pairs = 7"]) == hr.QueryBudget(output_rows=5, join_pairs=7)
    for text in ("output_rows", "output_rows=x", "output_rows=0", "rows=5"):
        with pytest.raises(SchemaError, match="budget"):
            hr.QueryBudget.parse_texts([text])


# --- texts -------------------------------------------------------------------------------------------------------------


def evaluate(expression: Call, *texts: str | None) -> EvaluationResult:
    table = {"t": pa.array(texts, pa.string())}
    return Evaluator(table, len(texts))._evaluate(expression)


def make_text(value: str) -> Literal:
    return Literal(value, STRING)


TEXT = Column("t", STRING)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (Call("replace", (TEXT, make_text("a"), make_text("x" * 30)), STRING), [None, "b", None]),
        (Call("replace", (TEXT, TEXT, make_text("x" * 101)), STRING), [None, None, None]),
        (Call("concat", (TEXT, make_text("x" * 97)), STRING), [None, "b" + "x" * 97, None]),
        (Call("concat", (TEXT, TEXT), STRING), ["aaaaaaaa", "bb", None]),
    ],
)
def test_only_rows_whose_text_would_be_too_long_fail(expression: Call, expected: list[str | None]):
    with limit_text(100):
        result = evaluate(expression, "aaaa", "b", None)
    assert result.value.to_pylist() == expected
    failed = [] if result.errors is None else [row for row, is_failed in enumerate(result.errors.to_pylist()) if is_failed]
    assert failed == [row for row, text in enumerate(expected[:2]) if text is None]


def test_a_text_bomb_fails_alone_and_costs_no_memory(open_harness):
    harness = open_harness()
    bomb = "CAST(n AS STRING)"
    for _ in range(12):
        bomb = f"REPLACE({bomb}, '1', '1111111111')"
    bad, good = (
        harness.session.add(f"SELECT COUNT(*) AS n FROM s_w WHERE LENGTH({bomb}) > 3".replace("s_w", "TUMBLE(s, '5 seconds')")),
        harness.session.add(COUNT),
    )
    allocated = pa.total_allocated_bytes()
    harness.tick(1, 2, 3)
    assert pa.total_allocated_bytes() - allocated < 200 << 20
    harness.tick(7)
    assert (bad.status, good.status) == ("failed", "live")
    assert "(max_text_bytes)" in bad.error
    assert read_columns(good, "n") == [3]


# --- time --------------------------------------------------------------------------------------------------------------


def spin(values: pa.Array) -> pa.Array:
    while (pc.max(values).as_py() or 0) > 5:
        pass
    return values


def test_a_function_that_does_not_return_fails_its_query(open_harness):
    harness = open_harness(max_batch_seconds=0.4)
    harness.session.register_function("spin", spin, "BIGINT", arguments="BIGINT")
    good, bad = harness.session.add(COUNT), harness.session.add("SELECT spin(n) AS v FROM s")
    harness.tick(1, n=3)
    harness.tick(2, n=7)
    harness.tick(8)
    assert (good.status, bad.status) == ("live", "failed")
    assert "longer than 0.4 seconds" in bad.error
    assert read_columns(good, "n") == [2]


def run_limited(limit: float, seconds: float) -> bool:
    """Return whether a loop of some seconds was interrupted."""
    try:
        with limit_seconds(limit):
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                pass
    except OperatorError:
        return True
    return False


def test_a_loop_is_interrupted_inside_the_block_or_not_at_all():
    for _ in range(100):
        run_limited(0.0005, 0.0005)
        for _ in range(50):  # an interruption that comes too late would end the test here
            pass
    assert run_limited(0.05, 60)
    assert not run_limited(60, 0.001)


# --- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "expected"), [(768 << 20, "MemoryError"), (0, "allocated")])
def test_an_allocation_beyond_the_limit_of_a_worker_raises(limit: int, expected: str):
    code = f"""
import numpy as np
from headrace.engine.worker_limits import limit_memory
limit_memory({limit})
try:
    np.empty(1 << 30, np.uint8)
    print("allocated")
except MemoryError:
    print("MemoryError")
"""
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.split() == [expected]


TRACED_PROGRAM = """
import sys, threading
from headrace.engine.worker_limits import limit_seconds

threading.Thread(target=threading.Event().wait, daemon=True).start()
with limit_seconds(60):
    pass
sys.settrace(lambda *event: None)
(lambda: None)()
sys.settrace(None)
print("ended")
"""


def test_code_after_a_limited_block_can_be_traced():
    # an interruption that is cancelled, not raised, makes CPython 3.11 repeat the first instruction of a traced function forever
    traced = subprocess.run([sys.executable, "-c", TRACED_PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert traced.stdout == "ended\n"
