"""The Spark back-end: runs each micro-batch as a Spark job, and pickles UDFs.

The checkpoint of headrace holds everything that must survive a crash. Spark schedules the tasks, runs them in long-lived Python
workers, and shuffles their output. UDFs are pickled with Spark's cloudpickle: the code and everything it refers to, so that
workers do not need the user's modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.backends.spark import pipeline
from headrace.backends.spark.dataframe_source import DataFrameSource
from headrace.backends.spark.environment import start_spark
from headrace.connectors import Range
from headrace.engine.batch_job import BatchJob, ReduceReport
from headrace.errors import SessionError, WorkerLostError
from headrace.storage.fault_points import reach_fault_point

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_LOST_WORKER_TEXTS = ("Python worker exited unexpectedly", "ExecutorLostFailure", "Python worker failed to connect back")


class SparkBackend:
    """Runs micro-batches as Spark jobs, one at a time."""

    def __init__(self, spark: SparkSession, *, owns_spark: bool) -> None:
        """Use a Spark session; `close` stops it only if this back-end owns it."""
        self._spark, self._owns_spark = spark, owns_spark

    @property
    def parallelism(self) -> int:
        """The number of tasks that Spark runs concurrently."""
        return int(self._spark.sparkContext.defaultParallelism)

    def run(self, job: BatchJob, tasks: Sequence[Sequence[Range]]) -> list[ReduceReport]:
        """Run a micro-batch, then remove its shuffle files.

        Raises the HeadraceError of a task, WorkerLostError if a worker ended, and SessionError if the Spark job fails otherwise.
        """
        reach_fault_point(job.directory, "stage one")
        context = self._spark.sparkContext
        context.setJobDescription(f"headrace, batch {job.batch}")
        try:
            reports = pipeline.run(context, job, tasks)
        except (Py4JError, PySparkException) as error:
            detail, hint = _extract_cause(str(error)), "see Spark's log; the batch can be run again"
            kind = WorkerLostError if any(text in str(error) for text in _LOST_WORKER_TEXTS) else SessionError
            raise kind(f"batch {job.batch} failed on Spark", detail=detail, hint=hint) from error
        finally:
            context.setJobDescription(None)  # type: ignore[arg-type]  # None removes the description
        reach_fault_point(job.directory, "stage two")
        for key in job.store.list("shuffle"):
            job.store.delete(key)
        return reports

    def stream_source(self, frame: DataFrame) -> DataFrameSource:
        """Wrap a streaming DataFrame as a source."""
        return DataFrameSource(frame)

    def close(self) -> None:
        """Stop Spark if this back-end started it."""
        if self._owns_spark:
            self._spark.stop()


def _extract_cause(message: str) -> str:
    """Return the worker's error message, without the stack trace of the JVM."""
    cause = message[message.rfind("Traceback (most recent call last)") :] if "Traceback" in message else message
    return cause.split("\n\tat ", 1)[0].strip()


def create(*, master: str, spark: Any) -> SparkBackend:
    """Create the back-end on the given Spark session, or on a new one."""
    return SparkBackend(start_spark(master) if spark is None else spark, owns_spark=spark is None)
