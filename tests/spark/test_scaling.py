"""The part of `headrace bench scaling` that measures headrace: it reads all rows, runs all queries and removes its files."""

from __future__ import annotations

import pytest

from headrace.bench.queries.aggregations import FieldAggregations, write_workload_files
from headrace.bench.systems.over_files import measure_headrace

pytestmark = pytest.mark.spark


def test_measure_headrace_reads_every_row_once(spark, tmp_path):
    write_workload_files(tmp_path / "warm", 0, 2_000, 1_000, parquet=False)
    write_workload_files(tmp_path / "arrow", 2_000, 6_000, 2_000, parquet=False)
    lines: list[str] = []
    figures = measure_headrace(spark, tmp_path / "warm", tmp_path / "arrow", FieldAggregations().queries(3), 2_000, lines.append)
    assert figures.rows_per_second > 0
    assert figures.driver_mib_after > 50
    assert len(lines) == 3  # a line for each micro-batch
    assert all(line.startswith("headrace, 3 queries: 0 M rows") for line in lines)
    assert not (tmp_path / "arrow" / "inbox").exists()
