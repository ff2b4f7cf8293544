"""The Spark back-end: runs each micro-batch as a Spark job, and pickles UDFs.

The checkpoint of headrace holds everything that must survive a crash. Spark schedules the tasks, runs them in long-lived Python
workers, and shuffles their output. UDFs are pickled with Spark's cloudpickle: the code and everything it refers to, so that
workers do not need the user's modules.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.backends.spark import pipeline
from headrace.backends.spark.cluster import (
    count_allocatable_slots,
    count_executors,
    import_in_workers,
    list_executors,
    probe_places,
    probe_workers,
    run_rounds,
    wait_for_executors,
)
from headrace.backends.spark.connect import ConnectBackend
from headrace.backends.spark.dataframe_source import DataFrameSource
from headrace.backends.spark.environment import (
    acquire_spark,
    check_agreement,
    find_remote_session,
    find_running_spark,
    format_setting,
    is_local_master,
    is_remote_chosen,
    launch_jvm,
    release_spark,
)
from headrace.backends.spark.job_errors import make_job_error
from headrace.connectors import Range
from headrace.connectors.worker_places import WorkerPlace
from headrace.engine.all_stages import is_small_batch
from headrace.engine.batch_job import BatchJob, ReduceReport
from headrace.engine.worker_limits import exceeded_time_error
from headrace.errors import SessionError
from headrace.planner.changelog import root_query_id
from headrace.storage.fault_points import reach_fault_point
from headrace.storage.posix import PosixStore

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession


_LOG = logging.getLogger("headrace")
EXCHANGES = ("auto", "files", "shuffle")
_WORKER_MEMORY_SHARE = 0.8  # of the machine, for all worker processes together
_SHOWN_STREAMS = 5  # in the description of a job
_POLL_SECONDS = 0.1
_WARM_SECONDS = 30.0
SMALL_BATCH_ROWS = 50_000
SMALL_BATCH_STATE_BYTES = 8 << 20
_PROBE_AGAIN_SECONDS = 10.0


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
        self._is_closed, self._parallelism = False, 1
        self._known_places: set[WorkerPlace] = set()
        self._list_places: Callable[[], list[WorkerPlace]] = list
        self._next_probe = 0.0
        self._probed_executors: frozenset[str] = frozenset()
        self._probe_job: BatchJob | None = None
        self._worker_memory = int(_WORKER_MEMORY_SHARE * _read_memory_bytes() / self.parallelism) if self._is_local else 0

    @property
    def parallelism(self) -> int:
        """The number of tasks that Spark runs concurrently; after `close`, the last one."""
        if not self._is_closed:
            self._parallelism = int(self._spark.sparkContext.defaultParallelism)
        return self._parallelism

    @property
    def max_map_tasks(self) -> int:
        """The number of tasks that the executors of dynamic allocation could run at most; without it, the parallelism.

        Spark asks for executors for tasks that wait, so that a batch of as many tasks as there are cores never gets more.
        """
        parallelism = self.parallelism
        return (
            parallelism if self._is_local or self._is_closed else count_allocatable_slots(self._spark.sparkContext, parallelism)
        )

    @property
    def exchange(self) -> str:
        """How large shuffle blocks travel: "files", "shuffle", or "auto" before the workers of a cluster were probed."""
        return "files" if self._is_local and self._exchange == "auto" else self._exchange

    def probe(self, job: BatchJob, list_places: Callable[[], list[WorkerPlace]] = list) -> None:
        """Check that all workers can run the micro-batches of a checkpoint, and choose the exchange.

        `list_places` returns the places that workers use, whenever executors have joined. Raises SessionError with the workers
        that cannot. On a local master there is nothing to check.
        """
        has_folder = isinstance(job.store, PosixStore)
        if self._exchange == "files" and not has_folder:
            raise SessionError(
                "exchange 'files' needs a checkpoint in a folder", hint="leave it out: shuffle blocks then pass through Spark"
            )
        self._probe_job, self._list_places = job, list_places
        if not self._is_local:
            wait_for_executors(self._spark.sparkContext, complete=False)
            self._probe_new_executors()
        if self._exchange == "auto":
            self._exchange = "files" if has_folder else "shuffle"

    def wait_until_complete(self) -> None:
        """Wait until the executors that Spark starts with have registered; raises SessionError if there are none."""
        if not self._is_local:
            wait_for_executors(self._spark.sparkContext, complete=True)

    def warm_up(self, is_wanted: Callable[[], bool]) -> None:
        """Let the workers import what every task needs, as soon as there are executors, as long as `is_wanted`.

        It is repeated, because Spark ends workers that are idle for a minute. It raises nothing: what fails here is found
        again, and explained, by `probe`.
        """
        context, due = self._spark.sparkContext, 0.0
        while is_wanted():
            if time.monotonic() >= due and (self._is_local or count_executors(context)):
                import_in_workers(context)
                due = time.monotonic() + _WARM_SECONDS
            time.sleep(_POLL_SECONDS)

    def _probe_new_executors(self, *, at_once: bool = False) -> None:
        """Probe the workers if there are executors that have registered since the last probe.

        Executors of which one has not reported, because it is busy, count as not probed: they are probed again after some
        seconds, or `at_once`. Raises SessionError with those that cannot run micro-batches.
        """
        present = list_executors(self._spark.sparkContext)
        if self._probe_job is None or present <= self._probed_executors or not (at_once or time.monotonic() >= self._next_probe):
            return
        missing = probe_workers(self._probe_job, partial(run_rounds, self._spark.sparkContext))
        missing = max(missing, self._probe_places(self._list_places()))
        if missing:
            _LOG.warning("%d executors did not report to the probe; they are probed again later", missing)
            self._next_probe = time.monotonic() + _PROBE_AGAIN_SECONDS
        else:
            self._probed_executors = present

    def _probe_places(self, places: Sequence[WorkerPlace]) -> int:
        """Probe places, if there are any; return the number of executors that have not reported."""
        if not places or self._probe_job is None:
            return 0
        missing = probe_places(self._probe_job, places, partial(run_rounds, self._spark.sparkContext))
        self._known_places.update(() if missing else places)
        return missing

    def probe_places(self, places: Sequence[WorkerPlace]) -> None:
        """Raise SessionError if a worker of a cluster cannot use a folder or URL.

        Of a pattern of files it is the folder above. The folder of a sink is created, as workers would.
        """
        if not self._is_local:
            missing = self._probe_places([place for place in places if place not in self._known_places])
            if missing:
                self._probed_executors = frozenset()  # the next batch probes again

    def run(self, job: BatchJob, tasks: Sequence[Sequence[Range]]) -> list[ReduceReport]:
        """Run a micro-batch, then remove its shuffle files.

        Executors that have joined since the last micro-batch are probed first. Raises the HeadraceError of a task,
        WorkerLostError if a worker ended, and SessionError if the Spark job fails otherwise, or an executor cannot run it.
        """
        reach_fault_point(job.directory, "stage one")
        context = self._spark.sparkContext
        if not self._is_local:
            self._probe_new_executors()
        group = f"headrace-{job.attempt}"
        context.setJobGroup(group, describe_job(job, tasks), interruptOnCancel=True)
        expired = threading.Event()
        try:
            with _cancel_after(job.max_seconds, context, group, expired):
                run_stages = pipeline.run_in_one_task if self._is_small(job, tasks) else pipeline.run
                reports = run_stages(context, replace(job, worker_memory=self._worker_memory, exchange=self.exchange), tasks)
        except (Py4JError, PySparkException) as error:
            if expired.is_set():
                raise exceeded_time_error(job.max_seconds) from error
            if not self._is_local:
                with contextlib.suppress(Py4JError, AttributeError):  # Spark has ended
                    self._probe_new_executors(at_once=True)  # one that joined meanwhile may be the cause: the probe says why
            raise make_job_error(job.batch, str(error)) from error
        finally:
            for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
                context.setLocalProperty(name, None)  # type: ignore[arg-type]  # None removes the property
        reach_fault_point(job.directory, "stage two")
        for key in job.store.list("shuffle") if self.exchange == "files" else ():
            job.store.delete(key)
        return reports

    def _is_small(self, job: BatchJob, tasks: Sequence[Sequence[Range]]) -> bool:
        """Return whether one task does a batch faster than the tasks of several stages.

        Not on a cluster: the state of a partition is on the disks of the executors that had it last.
        """
        return self._is_local and is_small_batch(job, tasks, SMALL_BATCH_ROWS, SMALL_BATCH_STATE_BYTES)

    def stream_source(self, frame: DataFrame) -> DataFrameSource:
        """Wrap a streaming DataFrame as a source."""
        return DataFrameSource(frame)

    def close(self) -> None:
        """Release Spark if this back-end acquired it: one that headrace started is stopped after its last session.

        A second call has no effect.
        """
        if self._owns_spark and not self._is_closed:
            self._parallelism, self._is_closed = self.parallelism, True
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


def _read_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def prepare(*, master: str | None, spark: Any, spark_config: Mapping[str, Any]) -> None:
    """Start the JVM of the driver, if `create` is going to need one; nothing is started on a cluster yet."""
    if spark is None and not is_remote_chosen() and find_running_spark() is None:
        launch_jvm(master, {name: format_setting(value) for name, value in spark_config.items()})


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
