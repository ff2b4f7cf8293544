"""The description of a micro-batch in Spark's UI."""

from __future__ import annotations

import pytest

from headrace.backends.spark.backend import describe_job
from headrace.connectors import Range
from headrace.engine.batch_job import BatchJob

pytestmark = pytest.mark.spark


def make_job(*queries: int, trial: bool = False) -> BatchJob:
    return BatchJob(batch=7, partitions=2, state_partitions=2, directory="/x", streams={}, queries=queries, trial=trial)


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
