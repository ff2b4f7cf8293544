"""Whatever an operator raises for one query, the others go on exactly; the culprit fails with the reason, also after a crash."""

from __future__ import annotations

import contextlib
import math
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lives import Killed, SessionHarness, make_rows, read_columns

import headrace as hr
from headrace.engine import failures, map_stage, reduce_stage
from headrace.engine.compute import evaluator
from headrace.engine.worker_cache import WorkerCache
from headrace.errors import OperatorError, WorkerLostError
from headrace.planner.changelog import root_query_id
from headrace.runtime import coordinator
from headrace.runtime.isolation import find_culprit

COUNT = "SELECT window_start, COUNT(*) AS n FROM TUMBLE(s, '5 seconds')"
SUM = "SELECT window_start, SUM(n) AS n FROM TUMBLE(s, '5 seconds')"


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the function ABS raise what a kernel must not raise."""

    def raise_always(*_: object) -> None:
        raise ValueError("a kernel is broken")

    monkeypatch.setitem(evaluator.KERNELS, "abs", raise_always)


class BrokenOperator:
    """Raises in the operators of that name while one of the culprits uses them; `joint`: only while all of them do."""

    def __init__(self, patch: pytest.MonkeyPatch, operator: str, *, joint: bool = False) -> None:
        self.operator, self.joint, self.culprits, self.raised = operator, joint, set[int](), 0
        self.problem: Callable[[], BaseException] = lambda: RuntimeError("an operator is broken")
        for module in (map_stage, reduce_stage, coordinator):
            patch.setattr(module, "blame", self.blame)

    @contextlib.contextmanager
    def blame(self, operator: str, queries: Iterable[int], found: failures.QueryFailures | None = None) -> Iterator[None]:
        users = list(queries)
        with failures.blame(operator, users, found):
            yield
            present = self.culprits & {root_query_id(user) for user in users}
            if operator == self.operator and present and (not self.joint or present == self.culprits):
                self.raised += 1
                raise self.problem()


# --- the search --------------------------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 99), min_size=1), st.data())
@settings(deadline=None)
def test_the_culprit_is_one_without_which_the_batch_succeeds(suspects: set[int], data: st.DataObject) -> None:
    bad_sets = data.draw(st.lists(st.sets(st.sampled_from(sorted(suspects)), min_size=1), min_size=1))
    trials: list[frozenset[int]] = []

    def run_trial(held_out: frozenset[int]) -> str | None:
        trials.append(held_out)
        return next((str(bad) for bad in bad_sets if bad <= suspects - held_out), None)

    culprit, error = find_culprit(suspects, "first", run_trial) or (None, "")
    assert culprit in suspects
    older = {suspect for suspect in suspects if suspect < culprit}
    assert run_trial(frozenset(suspects - older)) is None
    assert run_trial(frozenset(suspects - older - {culprit})) is not None
    assert error in {"first", *map(str, bad_sets)}
    assert len(trials) - 2 <= 1 + math.ceil(math.log2(len(suspects)))


def test_nobody_is_blamed_if_the_batch_fails_without_all_suspects():
    assert find_culprit({1, 2}, "first", lambda _: "still broken") is None


# --- expressions -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT ABS(n) AS v FROM s",
        "SELECT n AS v FROM s WHERE ABS(n) > 0",
        "SELECT SUM(ABS(n)) AS v FROM TUMBLE(s, '5 seconds')",
        "SELECT ABS(n) AS v, COUNT(*) AS c FROM TUMBLE(s, '5 seconds') GROUP BY ABS(n)",
        "SELECT COUNT(*) AS v FROM TUMBLE(s, '5 seconds') WHERE ABS(n) = 1",
        "SELECT ABS(SUM(n)) AS v FROM TUMBLE(s, '5 seconds')",
        "SELECT COUNT(*) AS v FROM TUMBLE(s, '5 seconds') HAVING ABS(SUM(n)) > 0",
        "SELECT SUM(ABS(n)) AS v FROM SESSION(s, '1 second')",
        "SELECT COUNT(DISTINCT ABS(n)) AS v FROM TUMBLE(s, '5 seconds')",
        "SELECT l.n AS v FROM TUMBLE(s, '5 seconds') l JOIN TUMBLE(s, '5 seconds') r ON l.k = r.k AND ABS(l.n) <= ABS(r.n + l.n)",
        "SELECT l.n AS v FROM TUMBLE(s, '5 seconds') l JOIN TUMBLE(s, '5 seconds') r ON ABS(l.n) = ABS(r.n)",
        "SELECT ABS(l.n) AS v FROM TUMBLE(s, '5 seconds') l JOIN TUMBLE(s, '5 seconds') r ON l.k = r.k",
        "SELECT l.n AS v FROM SLIDING(s, '5 seconds') l JOIN SLIDING(s, '5 seconds') r ON l.k = r.k AND ABS(l.n + r.n) > 0",
        "SELECT l.n AS v FROM SLIDING(s, '5 seconds') l JOIN SLIDING(s, '5 seconds') r ON ABS(l.n) = ABS(r.n)",
        "SELECT MAX(v) AS v FROM TUMBLE((SELECT SUM(ABS(n)) AS v FROM TUMBLE(s, '1 second')), '5 seconds')",
    ],
)
def test_a_broken_kernel_fails_the_queries_that_evaluate_it(open_harness, sql: str):
    harness = open_harness()
    before = [harness.session.add(COUNT), harness.session.add("SELECT n FROM s WHERE n < 3")]
    bad = harness.session.add(sql)
    twins = [
        harness.session.add("SELECT l.n FROM TUMBLE(s, '5 seconds') l JOIN TUMBLE(s, '5 seconds') r ON l.k = r.k"),
        harness.session.add("SELECT l.n FROM SLIDING(s, '5 seconds') l JOIN SLIDING(s, '5 seconds') r ON l.k = r.k"),
        harness.session.add("SELECT SUM(n) AS n FROM SESSION(s, '1 second')"),
    ]
    for second in (1, 3, 6, 12, 20):
        harness.tick(second)
    assert bad.status == "failed"
    assert "ValueError: a kernel is broken" in bad.error
    assert "test_isolation.py" in bad.error  # the trace
    assert read_columns(before[0], "n") == [1, 1, 2]
    assert read_columns(before[1], "n") == [1] * 5
    assert [len(read_columns(twin, "n")) for twin in twins] == [6, 11, 4]
    assert {query.status for query in (*before, *twins)} == {"live"}


@pytest.mark.usefixtures("poison")
def test_expressions_of_failed_queries_are_not_evaluated_for_rows_of_their_epoch(harness: SessionHarness):
    #   rows 1 | 3 (fails) | 2: of the epoch of the failed query, whose predicate shares the cells of the others
    others = [harness.session.add(COUNT + f" WHERE n > {limit}") for limit in (0, 5)]
    harness.session.create_stream("t", hr.MemorySource("n INT, time TIMESTAMP"), time="time", watermark="10 seconds")
    bad = harness.session.add(COUNT + " WHERE n > 0 AND ABS(n) > 0")
    harness.tick(1)
    assert bad.status == "failed"
    calls: list[object] = []
    evaluator.KERNELS["abs"] = lambda *arguments: calls.append(arguments)
    harness.tick(1, 4)
    harness.tick(9)
    assert calls == []
    assert read_columns(others[0], "n") == [3]


# --- operators ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["aggregation", "window evaluation"])
def test_the_culprit_of_a_shared_operator_is_found_and_the_others_get_their_rows(
    open_harness, monkeypatch: pytest.MonkeyPatch, operator: str
):
    broken = BrokenOperator(monkeypatch, operator)
    harness = open_harness()
    queries = [harness.session.add(SUM + f" WHERE n > {limit}", name=f"q{limit}") for limit in range(9)]
    harness.tick(1, n=5)
    broken.culprits = {queries[6].id}
    harness.tick(2, 6, n=7)
    broken.culprits |= {queries[2].id}
    harness.tick(12, n=1)
    assert [query.status for query in queries] == ["live" if number not in {2, 6} else "failed" for number in range(9)]
    assert "an operator is broken" in queries[6].error
    for limit in (0, 1, 3, 4, 5, 7, 8):
        assert read_columns(queries[limit], "n") == [value for value in (7, 7 + 5 * (limit < 5)) if value > limit], limit


def test_of_queries_that_fail_only_together_the_newest_fails(open_harness, monkeypatch: pytest.MonkeyPatch):
    broken = BrokenOperator(monkeypatch, "aggregation", joint=True)
    broken.problem = MemoryError
    harness = open_harness()
    queries = [harness.session.add(SUM + f" WHERE n > {limit}") for limit in range(5)]
    broken.culprits = {queries[1].id, queries[3].id}
    harness.tick(1, n=9)
    assert [query.status for query in queries] == ["live", "live", "live", "failed", "live"]
    assert "out of memory" in queries[3].error


def test_a_query_that_fails_in_planning_fails_alone(open_harness, monkeypatch: pytest.MonkeyPatch):
    broken = BrokenOperator(monkeypatch, "planning")
    harness = open_harness()
    good = harness.session.add(SUM)
    harness.tick(1, n=2)
    broken.culprits = {good.id + 1, good.id + 2}
    bad, worse = harness.session.add(COUNT), harness.session.add(COUNT)
    harness.tick(2, n=3)
    broken.culprits = set()
    harness.tick(7)
    assert (good.status, bad.status, worse.status) == ("live", "failed", "failed")
    assert read_columns(good, "n") == [5]


def test_a_transient_failure_blames_nobody(open_harness, monkeypatch: pytest.MonkeyPatch):
    broken = BrokenOperator(monkeypatch, "aggregation")
    harness = open_harness()
    query = harness.session.add(SUM)
    other = harness.session.add(SUM + " WHERE n > 1")
    broken.culprits = {query.id}

    def heal() -> BaseException:
        broken.culprits = set()
        return RuntimeError("once")

    broken.problem = heal
    harness.tick(1, n=2)
    harness.tick(7)
    assert (query.status, other.status) == ("live", "live")
    assert read_columns(query, "n") == read_columns(other, "n") == [2]


def test_a_failure_without_a_culprit_is_raised_and_the_batch_runs_when_it_is_over(open_harness, monkeypatch):
    harness = open_harness()
    query = harness.session.add(SUM)
    harness.tick(1, n=2)
    run = harness.session._backend.run

    def lose_worker(*_: object) -> None:
        raise WorkerLostError("no worker is left")

    harness.session._backend.run = lose_worker
    harness.append_rows(7)
    with pytest.raises(WorkerLostError, match="no worker"):
        harness.session.advance()
    with pytest.raises(WorkerLostError, match="no worker"):
        harness.session.advance()
    harness.session._backend.run = run
    harness.session.advance()
    assert query.status == "live"
    assert read_columns(query, "n") == [2]


def test_a_removal_overtakes_a_batch_that_cannot_finish(open_harness, monkeypatch: pytest.MonkeyPatch):
    harness = open_harness()
    bad, good = harness.session.add(COUNT, name="bad"), harness.session.add(SUM)
    run = harness.session._backend.run

    def fail_with(job: Any, tasks: Any) -> Any:
        if bad.id in job.queries:
            raise OSError("not attributable")
        return run(job, tasks)

    harness.session._backend.run = fail_with
    harness.append_rows(1, n=2)
    with pytest.raises(OSError, match="not attributable"):
        harness.session.advance()
    new = harness.session.replace("bad", COUNT + " WHERE n > 1")
    harness.session.advance()
    harness.tick(7)
    assert (bad.status, new.status, good.status) == ("removed", "live", "live")
    assert read_columns(good, "n") == [2]
    assert read_columns(new, "n") == [1]


@pytest.mark.parametrize("step", ["log", "logged", "planned", "stage one", "stage two", "commit", "committed"])
@pytest.mark.parametrize("nth", [1, 2, 3, 5])
def test_a_crash_while_the_culprit_is_searched_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, nth: int
):
    broken = BrokenOperator(monkeypatch, "aggregation")
    harness = SessionHarness(tmp_path)
    queries = [harness.session.add(SUM + f" WHERE n > {limit}", name=f"q{limit}") for limit in range(4)]
    harness.tick(1, n=5)
    broken.culprits = {queries[2].id}
    harness.append_rows(2, 7, n=6)
    harness.fault.at(step, nth)
    with contextlib.suppress(Killed):
        harness.session.advance()
    harness.fault.at("")
    harness.restart()
    harness.session.advance()
    harness.tick(12)
    for name in ("q0", "q1", "q3"):
        assert harness.session.find(name).status == "live"
        assert read_columns(harness.session.query(name), "n") == [6, 11], name
    assert harness.session.find("q2").status == "failed"
    assert "an operator is broken" in harness.session.find("q2").error


def test_a_replay_agrees_with_the_logged_decision_without_another_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    broken = BrokenOperator(monkeypatch, "aggregation")
    harness = SessionHarness(tmp_path)
    queries = [harness.session.add(SUM + f" WHERE n > {limit}", name=f"q{limit}") for limit in range(4)]
    broken.culprits = {queries[2].id}
    harness.append_rows(1, n=5)
    harness.kill_during(harness.session.advance, "commit")
    raised = broken.raised
    harness.open_session()
    harness.tick(7)
    assert broken.raised == raised
    assert harness.session.find("q2").status == "failed"


def test_rows_that_a_failed_attempt_wrote_to_a_sink_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.engine.result_writer.FLUSH_BYTES", 1)
    broken = BrokenOperator(monkeypatch, "window join")
    harness = SessionHarness(tmp_path / "checkpoint")
    join = "SELECT l.k, l.n FROM TUMBLE(s, '5 seconds') l JOIN TUMBLE(s, '5 seconds') r ON l.k = r.k AND l.n = r.n WHERE l.n > {}"
    good = harness.session.add(join.format(0), sink=f"parquet:{tmp_path / 'out'}")
    bad = harness.session.add(join.format(1), sink=f"parquet:{tmp_path / 'bad'}")
    harness.tick(1, 2, n=3)
    broken.culprits = {bad.id}
    harness.tick(7)
    assert (good.status, bad.status) == ("live", "failed")
    assert pq.read_table(tmp_path / "out").num_rows == 4
    assert not list((tmp_path / "bad").glob("*.parquet"))


def test_an_attempt_sees_nothing_that_another_attempt_at_the_batch_loaded():
    cache, reads = WorkerCache(), []

    def read(file: str) -> str:
        reads.append(file)
        return f"{file} {len(reads)}"

    cache.begin_attempt(6, "x")
    cache.load("state", read)
    cache.begin_attempt(7, "a")
    assert cache.load("plan", read) == "plan 2"
    cache.begin_attempt(7, "b")
    assert (cache.load("plan", read), cache.load("state", read)) == ("plan 3", "state 1")
    cache.begin_attempt(8, "c")
    assert cache.load("plan", read) == "plan 3"


def test_errors_keep_the_queries_on_their_way_to_the_driver():
    error = pickle.loads(pickle.dumps(OperatorError("failed", detail="why", queries=(1, 2))))
    assert (str(error), error.queries) == ("failed\ndetail: why", (1, 2))


# --- the background thread ---------------------------------------------------------------------------------------------


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.005)


def test_the_background_thread_retries_a_failed_batch_until_it_succeeds(harness: SessionHarness):
    session = harness.session
    query = session.add("SELECT n FROM s")
    run, failing = session._backend.run, True

    def run_or_fail(job: Any, tasks: Any) -> Any:
        if failing:
            raise OSError("disk full")
        return run(job, tasks)

    session._backend.run = run_or_fail
    session.start()
    harness.append_rows(1, n=4)
    wait_until(lambda: session.problem is not None)
    assert session.problem == "disk full"
    assert "retrying" in repr(session)
    late = session.add("SELECT n AS m FROM s")  # the session takes queries meanwhile
    failing = False
    wait_until(lambda: session.problem is None and query.status == "live")
    late.wait_live(20)
    assert read_columns(query, "n") == [4]
    session.stop()


def test_removing_the_query_lets_the_background_thread_go_on(harness: SessionHarness):
    session = harness.session
    bad, good = session.add("SELECT n AS m FROM s", name="bad"), session.add("SELECT n FROM s")
    run = session._backend.run

    def run_or_fail(job: Any, tasks: Any) -> Any:
        if bad.id in job.queries:
            raise OSError("not attributable")
        return run(job, tasks)

    session._backend.run = run_or_fail
    session.start()
    harness.append_rows(1, n=4)
    wait_until(lambda: session.problem is not None)
    session.remove("bad")
    wait_until(lambda: read_columns(good, "n") == [4])
    session.stop()


def test_stop_raises_the_error_of_the_batch_that_would_have_been_retried(harness: SessionHarness):
    session = harness.session
    session.add("SELECT n FROM s")
    run, session._backend.run = session._backend.run, _raise_disk_full
    session.start()
    harness.append_rows(1)
    wait_until(lambda: session.problem is not None)
    with pytest.raises(OSError, match="disk full"):
        session.stop()
    session._backend.run = run
    session.advance()


def _raise_disk_full(*_: object) -> None:
    raise OSError("disk full")


# --- functions of users ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [SystemExit(3), RuntimeError("no"), RecursionError(), StopIteration()])
def test_a_function_that_ends_or_raises_fails_the_queries_that_call_it(harness: SessionHarness, problem: BaseException):
    def run_away(_: pa.Array) -> pa.Array:
        raise problem

    harness.session.register_function("run_away", run_away, "BIGINT", arguments=["BIGINT"])
    bad = [harness.session.add("SELECT run_away(n) AS v FROM s"), harness.session.add(COUNT + " WHERE run_away(n) > 0")]
    good = harness.session.add(SUM)
    harness.source.append(make_rows(1, n=4))
    harness.session.advance()
    harness.tick(7)
    assert [query.status for query in (*bad, good)] == ["failed", "failed", "live"]
    assert read_columns(good, "n") == [4]
