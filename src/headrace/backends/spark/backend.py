"""The Spark back-end: runs each micro-batch as a Spark job, and pickles UDFs.

The checkpoint of headrace holds everything that must survive a crash. Spark schedules the tasks, runs them in long-lived Python
workers, and shuffles their output. UDFs are pickled with Spark's cloudpickle: the code and everything it refers to, so that
workers do not need the user's modules.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.backends.spark import pipeline
from headrace.backends.spark.cluster import probe_folder, probe_workers, wait_for_executors
from headrace.backends.spark.connect import ConnectBackend
from headrace.backends.spark.dataframe_source import DataFrameSource
from headrace.backends.spark.environment import (
    acquire_spark,
    check_agreement,
    find_remote_session,
    format_setting,
    is_local_master,
    release_spark,
)
from headrace.backends.spark.job_errors import make_job_error
from headrace.connectors import Range
from headrace.connectors.file_access import is_glob
from headrace.engine.batch_job import BatchJob, ReduceReport
from headrace.engine.worker_limits import exceeded_time_error
from headrace.errors import SessionError
from headrace.planner.changelog import root_query_id
from headrace.storage.fault_points import reach_fault_point
from headrace.storage.posix import PosixStore

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession


EXCHANGES = ("auto", "files", "shuffle")
_WORKER_MEMORY_SHARE = 0.8  # of the machine, for all worker processes together
_SHOWN_STREAMS = 5  # in the description of a job


class SparkBackend:
    """Runs micro-batches as Spark jobs, one at a time."""

    def __init__(self, spark: SparkSession, *, owns_spark: bool, exchange: str = "auto") -> None:
        """Use a Spark session; `close` releases it if this back-end acquired it.

        On a local master, the worker processes share most of the memory of the machine; on a cluster, Spark's
        `spark.executor.pyspark.memory` limits them. `exchange` says how large shuffle blocks travel: as "files" of the
        checkpoint, passed by name, or through Spark's "shuffle"; "auto" is files if all workers share the folder.
        """
        self._spark, self._owns_spark, self._exchange = spark, owns_spark, exchange
        self._is_local = is_local_master(str(spark.sparkContext.master))
        self._known_folders: set[str] = set()
        if not self._is_local:
            wait_for_executors(spark.sparkContext)
        self._worker_memory = int(_WORKER_MEMORY_SHARE * _read_memory_bytes() / self.parallelism) if self._is_local else 0

    @property
    def parallelism(self) -> int:
        """The number of tasks that Spark runs concurrently."""
        return int(self._spark.sparkContext.defaultParallelism)

    @property
    def exchange(self) -> str:
        """How large shuffle blocks travel: "files", "shuffle", or "auto" before the workers of a cluster were probed."""
        return "files" if self._is_local and self._exchange == "auto" else self._exchange

    def probe(self, job: BatchJob) -> None:
        """Check that all workers can run the micro-batches of a checkpoint, and choose the exchange.

        Raises SessionError with the workers that cannot. On a local master there is nothing to check.
        """
        has_folder = isinstance(job.store, PosixStore)
        if self._exchange == "files" and not has_folder:
            raise SessionError(
                "exchange 'files' needs a checkpoint in a folder", hint="leave it out: shuffle blocks then pass through Spark"
            )
        if not self._is_local:
            probe_workers(self._spark.sparkContext, job)
        if self._exchange == "auto":
            self._exchange = "files" if has_folder else "shuffle"

    def probe_folder(self, folder: str, use: str) -> None:
        """Raise SessionError if a worker of a cluster does not see a folder of this machine; `use` says what it is for.

        Of a pattern of files it is the folder above. The folder of a sink is created, as workers would.
        """
        if not self._is_local and folder not in self._known_folders:
            probe_folder(self._spark.sparkContext, _find_folder(folder), use)
            self._known_folders.add(folder)

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
                reports = pipeline.run(context, replace(job, worker_memory=self._worker_memory, exchange=self.exchange), tasks)
        except (Py4JError, PySparkException) as error:
            if expired.is_set():
                raise exceeded_time_error(job.max_seconds) from error
            raise make_job_error(job.batch, str(error)) from error
        finally:
            for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
                context.setLocalProperty(name, None)  # type: ignore[arg-type]  # None removes the property
        reach_fault_point(job.directory, "stage two")
        for key in job.store.list("shuffle") if self.exchange == "files" else ():
            job.store.delete(key)
        return reports

    def stream_source(self, frame: DataFrame) -> DataFrameSource:
        """Wrap a streaming DataFrame as a source."""
        return DataFrameSource(frame)

    def close(self) -> None:
        """Release Spark if this back-end acquired it: one that headrace started is stopped after its last session."""
        if self._owns_spark:
            release_spark(self._spark)


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


def _find_folder(path: str) -> Path:
    """Return the folder of a file or of a pattern, or the path itself."""
    folder = next((parent for parent in reversed(Path(path).parents) if is_glob(parent.name)), None)
    if folder is not None:
        return folder.parent
    return Path(path).parent if is_glob(path) or Path(path).is_file() else Path(path)


def _read_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def create(*, master: str | None, spark: Any, spark_config: Mapping[str, Any], exchange: str) -> SparkBackend | ConnectBackend:
    """Create the back-end on the given Spark session, else on the one that is running, else on a new one.

    A Spark Connect session, given or running, gets a back-end without RDDs. Raises SessionError if the Spark to use is running
    with another master or other settings.
    """
    if exchange not in EXCHANGES:
        raise SessionError(f"unknown exchange '{exchange}'", detail=f"exchanges: {', '.join(EXCHANGES)}")
    config = {name: format_setting(value) for name, value in spark_config.items()}
    remote = find_remote_session(spark, master, config)
    if remote is not None:
        return ConnectBackend(remote, exchange=exchange)
    if spark is not None:
        check_agreement(spark, master, config)
        return SparkBackend(spark, owns_spark=False, exchange=exchange)
    acquired = acquire_spark(master, config)
    try:
        return SparkBackend(acquired, owns_spark=True, exchange=exchange)
    except BaseException:
        release_spark(acquired)
        raise
