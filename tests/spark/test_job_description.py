"""The description of a micro-batch in Spark's UI."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.backends.spark import backend
from headrace.backends.spark.backend import describe_job
from headrace.connectors import Range
from headrace.engine.batch_job import BatchJob
from headrace.model.partition_map import PartitionMap

pytestmark = pytest.mark.spark


def make_job(*queries: int, trial: bool = False) -> BatchJob:
    two = PartitionMap(2)
    return BatchJob(batch=7, partition_map=two, state_map=two, directory="/x", streams={}, queries=queries, trial=trial)


def make_range(stream: str, rows: int) -> Range:
    return Range(stream, "rate", "", 0, rows, rows)


def test_a_job_names_its_batch_queries_streams_and_rows() -> None:
    tasks = [[make_range("purchases", 800_000), make_range("ads", 100_000)], [make_range("purchases", 300_000)]]
    assert describe_job(make_job(*range(12)), tasks) == "headrace, batch 7: 12 queries over purchases, ads; 1.2 M rows"
    assert describe_job(make_job(1), [[make_range("a", 1)]]) == "headrace, batch 7: 1 query over a; 1 row"
    assert describe_job(make_job(1, trial=True), [()]) == "headrace, batch 7: 1 query; no input (trial)"


def test_many_streams_are_cut() -> None:
    text = describe_job(make_job(), [[make_range(f"s{number}", 2_500) for number in range(9)]])
    assert text == "headrace, batch 7: 0 queries over s0, s1, s2, s3, s4 …; 22.5 k rows"


def list_stage_names(tracker: Any) -> list[str]:
    return [info.name for number in range(5_000) if (info := tracker.getStageInfo(number)) is not None]


def test_the_stages_of_a_batch_are_named_by_what_they_do(spark: Any) -> None:
    with hr.Session(spark=spark) as session:
        source = hr.MemorySource("x INT, time TIMESTAMP")
        session.create_stream("s", source, time="time")
        session.add("SELECT SUM(x) AS total FROM TUMBLE(s, '1 second')")
        source.append([{"x": 1, "time": "2026-01-01T00:00:00Z"}])
        session.advance()
    tracker = spark.sparkContext.statusTracker()
    names = set(list_stage_names(tracker))
    assert {"map: read, select, aggregate", "reduce: merge, evaluate windows, write results"} <= names
    assert not any("pipeline.py" in name for name in names)


def test_a_small_batch_has_one_stage(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "SMALL_BATCH_ROWS", 10)
    monkeypatch.setattr(backend, "SMALL_BATCH_STATE_BYTES", 1_000)
    tracker = spark.sparkContext.statusTracker()
    with hr.Session(spark=spark) as session:
        source = hr.MemorySource("x INT, time TIMESTAMP")
        session.create_stream("s", source, time="time")
        session.add("SELECT x, SUM(x) AS total FROM TUMBLE(s, '1 hour') GROUP BY x")

        def list_new_stages(numbers: range) -> list[str]:
            before = len(list_stage_names(tracker))
            source.append([{"x": number, "time": "2026-01-01T00:00:00Z"} for number in numbers])
            session.advance()
            return list_stage_names(tracker)[before:]

        assert list_new_stages(range(10)) == ["small batch: map and reduce in one task"]
        assert len(list_new_stages(range(11))) == 2
        assert len(list_new_stages(range(1_000))) == 2
        assert len(list_new_stages(range(1))) == 2, "it has few rows, and much state"
