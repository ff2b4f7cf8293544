"""The Spark back-end: a micro-batch is a Spark job.

What must survive a crash is in headrace's own checkpoint; Spark is asked to deal out tasks, to run them in workers that stay,
and to exchange what they made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.backends.spark import pipeline
from headrace.backends.spark.dataframe import DataFrameSource
from headrace.backends.spark.environment import start_spark
from headrace.connectors import Range
from headrace.errors import SessionError
from headrace.execution.job import Job, Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SparkBackend:
    """Runs jobs one at a time."""

    def __init__(self, spark: SparkSession, fault: Callable[[str], None], *, owned: bool) -> None:
        """`owned` says whether the Spark session is ours to stop."""
        self._spark, self._fault, self._owned = spark, fault, owned

    @property
    def parallelism(self) -> int:
        """As many tasks as Spark runs at once."""
        return int(self._spark.sparkContext.defaultParallelism)

    def run(self, job: Job, tasks: Sequence[Sequence[Range]]) -> list[Outcome]:
        """Run a job; its files in the exchange folder go when it is done."""
        self._fault("stage one")
        context = self._spark.sparkContext
        context.setJobDescription(f"headrace, batch {job.batch}")
        try:
            answer = pipeline.run(context, job, tasks)
        except (Py4JError, PySparkException) as error:
            detail, hint = _cause(str(error)), "see Spark's log; the batch can be run again"
            raise SessionError(f"batch {job.batch} failed on Spark", detail=detail, hint=hint) from error
        finally:
            context.setJobDescription(None)  # type: ignore[arg-type]  # takes it away
        self._fault("stage two")
        for path in (Path(job.directory) / "exchange").iterdir():
            path.unlink(missing_ok=True)
        return answer

    def stream_source(self, frame: DataFrame) -> DataFrameSource:
        """Wrap a streaming DataFrame as a source."""
        return DataFrameSource(frame)

    def close(self) -> None:
        """Stop Spark if it was started here."""
        if self._owned:
            self._spark.stop()


def _cause(message: str) -> str:
    """Return what a worker said, without the path of the message through the JVM."""
    said = message[message.rfind("Traceback (most recent call last)") :] if "Traceback" in message else message
    return said.split("\n\tat ", 1)[0].strip()


def create(*, master: str, spark: Any, fault: Callable[[str], None]) -> SparkBackend:
    """Use the given Spark session, or start one."""
    return SparkBackend(start_spark(master) if spark is None else spark, fault, owned=spark is None)
