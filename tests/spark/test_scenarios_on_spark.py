"""Structured Streaming accepts the queries of every scenario that lists it; nothing is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.bench.queries.query import BenchQuery
from headrace.bench.scenarios.scenario import Scenario, list_scenarios, load_scenario

pytestmark = pytest.mark.spark
LONGEST = 4


def choose_queries(scenario: Scenario) -> list[BenchQuery]:
    """Return the first query, and those with the longest texts, which have most operators."""
    first, *others = scenario.peak_queries()
    return [first, *sorted(others, key=lambda query: -len(query.sql["spark"]))[:LONGEST]]


@pytest.mark.parametrize("name", [name for name in list_scenarios() if "spark" in load_scenario(name).systems])
def test_spark_accepts_the_queries_of_a_scenario(spark: Any, tmp_path: Path, name: str) -> None:
    scenario, jvm = load_scenario(name), spark._jvm
    for stream in scenario.used_streams():
        rows = spark.readStream.schema(stream.schema.to_ddl()).parquet(str(tmp_path))
        rows.withWatermark(stream.time_column, f"{stream.watermark} seconds").createOrReplaceTempView(stream.name)
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    append = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
    for query in choose_queries(scenario):
        result = spark.sql(query.sql["spark"])
        checker.checkForStreaming(result._jdf.queryExecution().analyzed(), append)  # as at the start of a streaming query
        assert {"window_end", "window"} & set(result.columns)
