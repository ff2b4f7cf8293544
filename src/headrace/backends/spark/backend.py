"""The Spark back-end: runs each micro-batch as a Spark job, and pickles UDFs.

The checkpoint of headrace holds everything that must survive a crash. Spark schedules the tasks, runs them in long-lived Python
workers, and shuffles their output. UDFs are pickled with Spark's cloudpickle: the code and everything it refers to, so that
workers do not need the user's modules.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.backends.spark import pipeline
from headrace.backends.spark.dataframe_source import DataFrameSource
from headrace.backends.spark.environment import start_spark
from headrace.connectors import Range
from headrace.engine.batch_job import BatchJob, ReduceReport
from headrace.engine.worker_limits import exceeded_time_error
from headrace.errors import SessionError, WorkerLostError
from headrace.planner.changelog import root_query_id
from headrace.storage.fault_points import reach_fault_point

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession


_WORKER_MEMORY_SHARE = 0.8  # of the machine, for all worker processes together
_SHOWN_STREAMS = 5  # in the description of a job
_LOST_WORKER_TEXTS = ("Python worker exited unexpectedly", "ExecutorLostFailure", "Python worker failed to connect back")


class SparkBackend:
    """Runs micro-batches as Spark jobs, one at a time."""

    def __init__(self, spark: SparkSession, *, owns_spark: bool) -> None:
        """Use a Spark session; `close` stops it only if this back-end owns it.

        On a local master, the worker processes share most of the memory of the machine; on a cluster, Spark's
        `spark.executor.pyspark.memory` limits them.
        """
        self._spark, self._owns_spark = spark, owns_spark
        master = str(spark.sparkContext.master)
        is_local = master == "local" or master.startswith("local[")
        self._worker_memory = int(_WORKER_MEMORY_SHARE * _read_memory_bytes() / self.parallelism) if is_local else 0

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
        group = f"headrace-{job.attempt}"
        context.setJobGroup(group, describe_job(job, tasks), interruptOnCancel=True)
        expired = threading.Event()
        try:
            with _cancel_after(job.max_seconds, context, group, expired):
                reports = pipeline.run(context, replace(job, worker_memory=self._worker_memory), tasks)
        except (Py4JError, PySparkException) as error:
            if expired.is_set():
                raise exceeded_time_error(job.max_seconds) from error
            detail, hint = _extract_cause(str(error)), "see Spark's log; the batch can be run again"
            kind = WorkerLostError if any(text in str(error) for text in _LOST_WORKER_TEXTS) else SessionError
            raise kind(f"batch {job.batch} failed on Spark", detail=detail, hint=hint) from error
        finally:
            for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
                context.setLocalProperty(name, None)  # type: ignore[arg-type]  # None removes the property
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


def describe_job(job: BatchJob, tasks: Sequence[Sequence[Range]]) -> str:
    """Return the description of a batch in Spark's UI: its number, queries, streams and about how many rows it reads."""
    ranges = [item for task in tasks for item in task]
    names = list(dict.fromkeys(item.stream for item in ranges))
    streams = ", ".join(names[:_SHOWN_STREAMS]) + (" …" if len(names) > _SHOWN_STREAMS else "")
    queries = len({root_query_id(number) for number in job.queries})
    rows = sum(item.rows for item in ranges)
    amount = f"{rows / 1e6:.1f} M" if rows >= 1_000_000 else f"{rows / 1e3:.1f} k" if rows >= 10_000 else str(rows)
    read = f" over {streams}; {amount} row{'s' * (rows != 1)}" if names else "; no input"
    return f"headrace, batch {job.batch}: {queries} quer{'ies' if queries != 1 else 'y'}{read}{' (trial)' * job.trial}"


@contextlib.contextmanager
def _cancel_after(seconds: float, context: SparkContext, group: str, expired: threading.Event) -> Iterator[None]:
    """Cancel the jobs of a group after a time, unless the block has ended; 0 seconds are unlimited. Sets `expired`."""

    def cancel() -> None:
        expired.set()
        context.cancelJobGroup(group)

    timer = threading.Timer(seconds, cancel)
    timer.daemon = True
    if seconds:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _read_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _extract_cause(message: str) -> str:
    """Return the worker's error message, without the stack trace of the JVM."""
    cause = message[message.rfind("Traceback (most recent call last)") :] if "Traceback" in message else message
    return cause.split("\n\tat ", 1)[0].strip()


def create(*, master: str, spark: Any) -> SparkBackend:
    """Create the back-end on the given Spark session, or on a new one."""
    return SparkBackend(start_spark(master) if spark is None else spark, owns_spark=spark is None)
