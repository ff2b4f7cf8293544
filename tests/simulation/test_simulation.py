"""A few seeds of the simulation in every run of the tests; `make simulate` runs as many as you like.

append ─┬─ advance ─ crash, restart ─ advance ─┬─ rescale ─ … ─ faults stop ─ everything comes to rest ─ check
        └─ add, remove, replace                └─ disk full, power lost, source fails, zombie wakes, …
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from headrace.runtime.command_queue import CommandQueue
from headrace.storage import posix
from simulation import schedule as s
from simulation.checker import check_history
from simulation.history import AppendRecord, BatchInput, Delivery, History, QueryHistory, ViolationError
from simulation.planted_bugs import PLANTED_BUGS, PlantedBug
from simulation.run import run_schedule
from simulation.shrink import shrink_schedule
from simulation.workload import BASE, declare_streams, draw_schedule
from support.examples import scale_examples

SEEDS = scale_examples(30)
ROW = {"id": 1, "k": 0, "x": 1, "y": None, "s": "a", "time": BASE}


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_a_seed_breaks_no_promise(seed: int) -> None:
    schedule = draw_schedule(seed)
    outcome = run_schedule(schedule)
    assert not outcome.kind, f"{outcome.kind}: {outcome.detail}\n{schedule.format()}\nmake simulate SEEDS={schedule.seed}"


def test_a_seed_gives_the_same_run_again() -> None:
    first, again = (run_schedule(draw_schedule(26)) for _ in range(2))
    assert first.operations > 100
    assert (first.trace, first.operations) == (again.trace, again.operations)


# --- the simulation notices what it is for, and shrinks it ---------------------------------------------------------------------


def lose_commands(_: CommandQueue, __: object) -> None:
    """Stand for a queue that forgets the commands of an abandoned batch."""


def test_a_planted_bug_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommandQueue, "requeue", lose_commands)
    query = s.AddQuery("q", "SELECT id, x FROM alpha WHERE x > 1")
    steps = (s.Wait(1.0), query, s.Append("alpha", (ROW, {**ROW, "id": 2})), s.FailSource("alpha", "read", 1), s.Wait(2.0))
    schedule = s.Schedule(1, s.Settings({}), (*steps, s.Advance(), s.Rescale(2), s.Advance()))
    assert run_schedule(schedule).kind == "ignored query"
    smallest = shrink_schedule(schedule, lambda candidate: run_schedule(candidate).kind == "ignored query")
    assert [type(step) for step in smallest.steps] == [s.AddQuery, s.Append, s.FailSource, s.Advance]


def test_a_loss_of_power_undoes_what_was_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the sync of folders, a committed batch is gone after a loss of power."""
    steps = (s.Append("alpha", (ROW,)), s.Advance(), s.Crash(0, "all"), s.Append("alpha", (ROW | {"id": 2},)))
    schedule = s.Schedule(1, s.Settings({}), steps)
    assert not run_schedule(schedule).kind
    write = posix.write_atomically
    monkeypatch.setattr(posix, "write_atomically", lambda path, fill, *, sync=True, **more: write(path, fill, sync=False, **more))
    assert run_schedule(schedule).kind


@pytest.mark.parametrize("bug", PLANTED_BUGS, ids=lambda bug: bug.name)
def test_planted_bugs_still_fit(bug: PlantedBug) -> None:
    assert bug.find_functions()


WINDOWED = s.AddQuery("q", "SELECT window_start AS w0, COUNT(*) AS n FROM TUMBLE(alpha, '5 seconds')")
TO_FILES = s.AddQuery("q", "SELECT id, x FROM alpha", "jsonl")


@pytest.mark.parametrize("query", [WINDOWED, TO_FILES], ids=str)
def test_a_zombie_of_an_abandoned_attempt_does_no_harm(query: s.AddQuery) -> None:
    """The disk is full in the reduce stage ─ run again, the source fails ─ planned again with more rows ─ the first wakes up."""
    rows = [{**ROW, "id": second, "time": BASE + timedelta(seconds=second)} for second in (1, 2, 9)]
    for writes in range(2, 7):
        first = (query, s.Append("alpha", (rows[0],)), s.FillDisk(writes, 1), s.Advance())
        second = (s.FailSource("alpha", "read", 1), s.Append("alpha", (rows[1],)), s.Advance())
        last = (s.WakeZombie(0), s.Reopen(), s.Append("alpha", (rows[2],)), s.Advance())
        outcome = run_schedule(s.Schedule(1, s.Settings({}), (*first, *second, *last)))
        assert not outcome.kind, outcome.detail


def test_a_loss_of_power_does_not_bring_the_output_of_a_failed_query_back() -> None:
    """One key overflows, the other has written its file ─ the query fails ─ loss of power."""
    text = "SELECT window_start AS w0, k AS g, SUM(x) + 9223372036854775800 AS t FROM TUMBLE(beta, '4 seconds') GROUP BY k"
    values = [(4, 2, 0, -0.3), (5, 0, 9, -2.75), (8, 1, 9, 4.25)]
    rows = tuple({**ROW, "id": n, "k": k, "x": x, "time": BASE + timedelta(seconds=at)} for n, k, x, at in values)
    steps = (s.AddQuery("q", text, "jsonl"), s.Rescale(2), s.Append("beta", rows), s.Advance(1049136897))
    more = (s.Wait(5.0), s.Advance(490257964), s.Crash(1, "all"), s.Reopen())
    outcome = run_schedule(s.Schedule(314, s.Settings({}, parallelism=1), (*steps, *more)))
    assert not outcome.kind, outcome.detail


# --- the checker, with histories written by hand -------------------------------------------------------------------------------

QUERY = QueryHistory("q", 0, "SELECT id, x FROM alpha", "memory", "live", None, 0, 2, {}, 2)


def make_history() -> History:
    """Return a history that keeps every promise: two batches with one row each, and a query that selects both."""
    history = History(declare_streams(s.Settings({})))
    later = {**ROW, "id": 2}
    history.appends = [AppendRecord("alpha", (ROW,), acknowledged=True), AppendRecord("alpha", (later,), acknowledged=True)]
    history.batches = [BatchInput({"alpha": [1]}), BatchInput({"alpha": [2]})]
    history.queries = [QUERY]
    history.record_read(("q", 0), -1, 1, {0: [{"id": 1, "x": 1}], 1: [{"id": 2, "x": 1}]})
    history.stream_counts = {"alpha": {"rows": 2, "untimed": 0}}
    return history


def break_history(kind: str, history: History) -> None:
    match kind:
        case "lost rows":
            history.batches[1].ids = {}
        case "doubled rows":
            history.batches[1].ids = {"alpha": [2, 1]}
        case "reordered appends":
            history.batches.reverse()
        case "torn append":
            history.appends = [AppendRecord("alpha", (ROW, {**ROW, "id": 2}), acknowledged=True)]
        case "lost ticks":
            history.batches[0].ticks = [(1, 2)]
        case "results":
            history.results["q", 0][0] = []
        case "failure":
            history.queries = [replace(QUERY, status="failed", error="overflow")]
        case "late rows":
            history.queries = [replace(QUERY, late={"alpha": 1})]
        case "emitted count":
            history.queries = [replace(QUERY, emitted=3)]
        case "counts of a stream":
            history.stream_counts["alpha"]["untimed"] = 1
        case "lost delivery":
            history.queries = [replace(QUERY, sink="callback")]
            history.deliveries["q"] = [Delivery(0, [{"id": 1, "x": 1}])]
        case "delivery order":
            history.queries = [replace(QUERY, sink="callback")]
            history.deliveries["q"] = [Delivery(0, [{"id": number, "x": 1}]) for number in (1, 2, 1)]
        case "doubled delivery":
            history.queries = [replace(QUERY, sink="callback")]
            history.deliveries["q"] = [Delivery(0, [{"id": number, "x": 1}]) for number in (1, 1, 2)]
        case "unexpected delivery":
            history.queries = [replace(QUERY, sink="callback")]
            history.deliveries["q"] = [Delivery(0, [{"id": 1, "x": 7}])]
        case "replacement":
            history.queries = [
                replace(QUERY, end=1, status="removed", emitted=1),
                replace(QUERY, id=1, first_batch=2, emitted=0, replaced=("q", 0)),
            ]
            history.results["q", 0].pop(1)


def test_a_good_history_passes() -> None:
    check_history(make_history())


KINDS = (
    "lost rows", "doubled rows", "reordered appends", "torn append", "lost ticks", "results", "failure", "late rows",
    "emitted count", "counts of a stream", "lost delivery", "delivery order", "doubled delivery",
    "unexpected delivery", "replacement",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_checker_notices(kind: str) -> None:
    history = make_history()
    break_history(kind, history)
    with pytest.raises(ViolationError) as violation:
        check_history(history)
    assert violation.value.kind == kind


def test_a_reader_notices_changed_results() -> None:
    history = make_history()
    with pytest.raises(ViolationError, match="changed results"):
        history.record_read(("q", 0), 0, 1, {1: [{"id": 3, "x": 1}]})
    with pytest.raises(ViolationError, match="positions"):
        history.record_read(("q", 0), 0, 1, {2: []})
