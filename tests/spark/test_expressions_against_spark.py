"""Judges expressions over all pairs of types by Spark SQL: types and values differ exactly where the document says so.

By default every thirteenth expression is judged, and the example of every documented difference; `make expressions` judges all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from headrace.model.types import type_name
from support.expression_differences import KNOWN_DIFFERENCES, REJECTED, Difference
from support.expression_judge import Answer, ask_engine, bind_probes, describe_column, list_inputs, select_probes
from support.expression_probes import Probe, build_rows, list_probes

pytestmark = pytest.mark.spark

CHUNK = 200
SETTINGS = {  # interpreted, for compiling each expression would take most of the time
    "spark.sql.ansi.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
DOCUMENT = Path(__file__).parents[2] / "docs" / "sql.md"


@pytest.fixture
def plain_spark(spark: Any) -> Iterator[Any]:
    """A session without ANSI mode, whose log does not have the expressions that Spark rejects."""
    session = spark.newSession()
    for key, value in SETTINGS.items():
        session.conf.set(key, value)
    spark.sparkContext.setLogLevel("OFF")
    yield session
    spark.sparkContext.setLogLevel("ERROR")


def ask_spark(spark: Any, probes: Sequence[Probe]) -> dict[Probe, Answer]:
    """Return the answers of Spark SQL; the type of an expression that fails is `rejected`."""
    try:
        outputs = ", ".join(f"{probe.sql} AS x{n}" for n, probe in enumerate(probes))
        table = spark.sql(f"SELECT {outputs} FROM s").toArrow()
    except PySparkException:
        if len(probes) == 1:
            return {probes[0]: Answer(REJECTED, ())}
        middle = len(probes) // 2
        return ask_spark(spark, probes[:middle]) | ask_spark(spark, probes[middle:])
    return {
        probe: Answer(type_name(column.type), tuple(describe_column(column))) for probe, column in zip(probes, table, strict=True)
    }


def compare_answers(probe: Probe, engine: Answer, spark: Answer, rows: Sequence[Mapping[str, object]]) -> Iterator[Difference]:
    """Yield a difference for each row, or one without values if the types differ or Spark rejects the expression."""
    if engine.type != spark.type:
        yield Difference(probe, {}, engine.type, None, spark.type)
        return
    for row, ours, theirs in zip(rows, engine.rows, spark.rows, strict=True):
        if ours != theirs:
            yield Difference(probe, list_inputs(probe, row), engine.type, ours, theirs)


def judge_probes(spark: Any, probes: Sequence[Probe], table: pa.Table) -> list[Difference]:
    spark.createDataFrame(table).coalesce(1).createOrReplaceTempView("s")
    bound, _ = bind_probes(probes)
    judged = list(bound)
    answers: dict[Probe, Answer] = {}
    for begin in range(0, len(judged), CHUNK):
        answers |= ask_spark(spark, judged[begin : begin + CHUNK])
    rows = table.to_pylist()
    print(f"\n{len(probes)} expressions, {len(judged)} of them accepted, over {len(rows)} rows of limit values")
    return [case for probe in judged for case in compare_answers(probe, ask_engine(bound[probe], table), answers[probe], rows)]


def test_differences_from_spark_are_the_documented_ones(plain_spark: Any) -> None:
    examples = {known.example for known in KNOWN_DIFFERENCES}
    selected = {*select_probes(), *(probe for probe in list_probes() if probe.sql in examples)}
    differences = judge_probes(plain_spark, sorted(selected, key=str), build_rows())
    version = int(plain_spark.sparkContext._jvm.System.getProperty("java.version").split(".")[0])
    known = [rule for rule in KNOWN_DIFFERENCES if version < rule.until_java]
    unknown = [case for case in differences if not any(rule.explains(case) for rule in known)]
    assert not unknown, "\n".join(map(str, unknown[:50]))
    for rule in known:
        assert any(rule.explains(case) for case in differences if case.probe.sql == rule.example), rule.name


def test_every_difference_is_documented() -> None:
    section = DOCUMENT.read_text(encoding="utf-8").partition("## Differences from Spark SQL")[2].partition("\n## ")[0]
    assert section
    names = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("|")][2:]
    assert names == [known.name for known in KNOWN_DIFFERENCES]
