"""Progress documents: figures of a micro-batch by step, stream, query and operator.

batch     0         1            2
rows      k = 1, 2  k = 1, late  k = 3        the window [0, 5) closes with the rows of batch 2
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import headrace as hr
from headrace.runtime.batch_figures import BatchFigures, OperatorFigures, StepTimer
from headrace.runtime.metrics import (
    DETAILED_BATCHES,
    MAX_LABELS,
    BatchHistory,
    BatchReport,
    CommittedBatch,
    TaskTotals,
    make_label,
)
from headrace.runtime.observation import build_progress

DAY = datetime(2026, 1, 1, tzinfo=UTC)
STEPS = {
    "planning",
    "log",
    "preparation",
    "run",
    "record",
    "commit",
    "publication",
    "cleanup",
    "map",
    "reduce",
    "delivery",
    "total",
}


def make_row(key: int, seconds: float) -> dict[str, Any]:
    return {"k": key, "x": key, "time": DAY + timedelta(seconds=seconds)}


@pytest.fixture
def session():
    with hr.Session(backend="local", partitions=2) as opened:
        source = hr.MemorySource("k INT, x INT, time TIMESTAMP")
        opened.create_stream("a", source, time="time", watermark="1 second")
        opened.add("SELECT k, SUM(x) AS t FROM TUMBLE(a, '5 seconds') GROUP BY k", name="sums")
        opened.add("SELECT k FROM a WHERE x = 3", name="rows")
        opened.append = source.append
        yield opened


def test_there_is_no_progress_before_the_first_batch(session) -> None:
    assert (session.last_progress, session.recent_progress) == (None, [])


def test_the_progress_has_rows_positions_watermark_and_late_rows(session) -> None:
    session.append([make_row(1, 1), make_row(2, 2)])
    session.advance()
    first = session.last_progress
    assert (first["batch"], first["input_rows"], first["emitted_rows"], first["live_queries"]) == (0, 2, 0, 2)
    assert (first["added"], first["input_rows_per_second"]) == (["sums", "rows"], None)
    assert first["streams"]["a"]["watermark"] == "2026-01-01T00:00:01.000Z"
    session.append([make_row(1, 8)])
    session.advance()
    session.append([make_row(3, 1), make_row(3, 9)])
    session.advance()
    last = session.last_progress
    stream = last["streams"]["a"]
    assert (stream["start"], stream["end"]) == ({"files": 2}, {"files": 3})
    assert (stream["input_rows"], stream["late_rows"], stream["lag_rows"]) == (2, 1, None)
    assert stream["watermark"] == "2026-01-01T00:00:08.000Z"
    assert last["emitted_by_query"] == {"rows": 2}
    assert session.recent_progress[1]["emitted_by_query"] == {"sums": 2}
    assert [document["batch"] for document in session.recent_progress] == [0, 1, 2]
    assert session.recent_progress[-1] == last
    assert last["input_rows_per_second"] > 0
    assert json.loads(json.dumps(last)) == last


def test_the_progress_has_operators_state_and_tasks(session) -> None:
    session.append([make_row(key, 1) for key in range(9)])
    session.advance()
    progress = session.last_progress
    assert (progress["partitions"], progress["map_tasks"]) == (2, 1)
    assert progress["operators"]["stateless"] == {"input_rows": 1, "emitted_rows": 1, "state_bytes": 0, "state_rows": 0}
    sums = progress["operators"]["aggregation"]
    assert (sums["input_rows"], sums["emitted_rows"], sums["state_rows"]) == (9, 0, 9)
    assert progress["state"] == {"bytes": sums["state_bytes"], "rows": 9}
    assert sums["state_bytes"] > 0


def test_state_of_sessions_and_joins_is_counted() -> None:
    with hr.Session(backend="local", partitions=2) as session:
        source = hr.MemorySource("k INT, x INT, time TIMESTAMP")
        session.create_stream("a", source, time="time")
        session.add("SELECT k, COUNT(*) AS n FROM SESSION(a, '9 seconds') GROUP BY k", name="sessions")
        session.add("SELECT l.x FROM TUMBLE(a, '9 s') l JOIN TUMBLE(a, '9 s') r ON l.k = r.k", name="window")
        source.append([make_row(key, 1) for key in range(4)])
        session.advance()
        operators = session.last_progress["operators"]
        assert (operators["sessions"]["state_rows"], operators["sessions"]["input_rows"]) == (4, 4)
        assert operators["join"]["state_rows"] == operators["join"]["input_rows"] >= 4


def test_the_durations_name_the_steps(session) -> None:
    session.append([make_row(1, 1)])
    session.advance()
    durations = session.last_progress["duration_ms"]
    assert durations.keys() == STEPS
    assert durations["total"] >= durations["run"]
    session.remove("rows")
    session.advance()
    assert session.last_progress["duration_ms"].keys() == STEPS - {"map", "reduce"}, "a batch without input runs no job"
    assert session.last_progress["removed"] == ["rows"]


def test_a_failed_query_is_in_the_progress(session) -> None:
    session.add("SELECT x FROM a", name="bad", budget={"output_rows": 1})
    session.append([make_row(1, 1), make_row(2, 9)])
    session.advance()
    progress = session.last_progress
    assert list(progress["failed"]) == ["bad"]
    assert "output_rows" in progress["failed"]["bad"]
    assert (progress["live_queries"], progress["emitted_by_query"]) == (2, {"sums": 1})


def test_a_source_that_knows_its_lag_reports_it() -> None:
    seconds = [1000.0]
    with hr.Session(backend="local", rows_per_batch=10) as session:
        source = hr.RateSource(rows_per_second=1, clock=lambda: seconds[0])
        session.create_stream("r", source, time="time")
        seconds[0] += 25
        session.advance()
        assert session.last_progress["streams"]["r"]["lag_rows"] == 15
        assert session.statistics.count_lag() == {"r": 15}


def test_a_source_whose_lag_cannot_be_known_harms_nothing(session, caplog) -> None:
    def raise_error(_: Any) -> int:
        raise RuntimeError("no answer")

    session.get_source("a").count_lag = raise_error
    session.append([make_row(3, 1)])
    session.advance()
    assert session.last_progress["streams"]["a"]["lag_rows"] is None
    assert "the lag of stream 'a' is not known" in caplog.text


def test_the_id_is_that_of_the_checkpoint_and_a_restart_changes_the_run_id(tmp_path) -> None:
    documents = []
    for _ in range(2):
        with hr.Session(tmp_path, backend="local", partitions=1) as opened:
            source = hr.MemorySource("x INT, time TIMESTAMP")
            opened.create_stream("a", source, time="time")
            opened.add("SELECT x FROM a")
            source.append([{"x": 1, "time": DAY}])
            opened.advance()
            assert [document["run_id"] for document in opened.recent_progress] == [opened.last_progress["run_id"]]
            documents.append(opened.last_progress)
    first, second = documents
    assert first["id"] == second["id"] != ""
    assert first["run_id"] != second["run_id"]


def make_batch(number: int, **report: Any) -> CommittedBatch:
    return CommittedBatch(BatchReport(number, 4, 0, **report), at=100.0 + number, seconds=0.5)


def test_rates_are_by_interval_and_by_duration() -> None:
    progress = build_progress(make_batch(3), make_batch(1), str)
    assert (progress["input_rows_per_second"], progress["processed_rows_per_second"]) == (2.0, 8.0)


def test_only_the_newest_batches_have_details() -> None:
    history = BatchHistory()
    for number in range(DETAILED_BATCHES + 5):
        figures = BatchFigures(steps={"log": 1.0})
        history.append(make_batch(number, emitted_by={1: 1}, reduce_seconds=(1.0,), map_seconds=(1.0,), figures=figures))
    reports = [batch.report for batch in history.list_all()]
    assert [bool(report.figures.steps) for report in reports] == [False] * 5 + [True] * DETAILED_BATCHES
    assert not any(report.emitted_by or report.reduce_seconds or report.map_seconds for report in reports[:5])


def test_the_recent_progress_is_bounded(session) -> None:
    for number in range(DETAILED_BATCHES + 2):
        session.append([make_row(3, number)])
        session.advance()
    assert [document["batch"] for document in session.recent_progress] == list(range(2, DETAILED_BATCHES + 2))
    assert all(document["streams"]["a"]["input_rows"] == 1 for document in session.recent_progress)
    assert all(document["input_rows_per_second"] for document in session.recent_progress)


def test_a_step_that_runs_twice_counts_as_a_whole() -> None:
    ticks = iter([0.0, 1.0, 5.0, 7.0])
    timer = StepTimer(lambda: next(ticks))
    for _ in range(2):
        with timer.measure("log"):
            pass
    assert (timer.take(), timer.take()) == ({"log": 3.0}, {})


def test_totals_have_few_labels_however_many_partitions_there_are() -> None:
    totals = TaskTotals()
    operators = {("join", partition): OperatorFigures(1, 1, 10, 1) for partition in range(500)}
    for batch in range(2):
        figures = BatchFigures(steps={"log": 0.5}, operators=operators)
        totals.add(BatchReport(batch, 0, 0, reduce_seconds=(1.0,) * 500, map_seconds=(0.25,) * 3, figures=figures))
    read = totals.read()
    assert len(read.reduce_seconds) == len(read.rows_in) == MAX_LABELS
    assert (read.reduce_seconds["0"], read.reduce_seconds[make_label(499)]) == (2.0, 2.0 * (500 - MAX_LABELS + 1))
    assert (read.rows_in["join", "0"], read.state_bytes["join", "0"]) == (2, 10), "rows add up, state does not"
    assert (read.step_seconds, read.map_seconds["2"]) == ({"log": 1.0}, 0.5)


def test_the_work_of_a_batch_is_divided_among_components(session) -> None:
    session.append([make_row(1, 0), make_row(3, 1), make_row(3, 9)])
    session.drain()
    documents = session.recent_progress
    found = {name for document in documents for name, value in document["component_ms"].items() if value > 0}
    assert {"input", "selection", "aggregation", "routing", "windows", "state", "output", "other"} <= found
    for document in documents:
        work = document["duration_ms"].get("run", 0)
        assert sum(document["component_ms"].values()) <= work + 1  # tasks are parts of the run, one after the other
