"""The back-end for Spark Connect: the same stages by DataFrames, where there is no SparkContext and so are no RDDs.

A micro-batch is one query of Spark: a row for each map task, `mapInArrow` for the map stage, `repartitionById` for the shuffle
and `mapInArrow` for each level of the reduce stage. The functions in `pipeline` do the work; their rows become Arrow batches.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException

from headrace.backends.spark import pipeline
from headrace.backends.spark.cluster import (
    WorkerReport,
    explain_failure,
    make_request,
    pickle_by_value,
    probe_places,
    probe_workers,
)
from headrace.backends.spark.job_errors import make_job_error
from headrace.backends.spark.worker_probe import import_packages, run_probe_on_batches
from headrace.connectors import Range
from headrace.connectors.worker_places import WorkerPlace
from headrace.engine.batch_job import BatchJob, ReduceReport
from headrace.engine.worker_limits import exceeded_time_error
from headrace.errors import SessionError
from headrace.package_zip import find_own_zip, write_zip
from headrace.storage.fault_points import reach_fault_point
from headrace.storage.posix import PosixStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.backends.spark.pipeline import ShuffleRow

_SHIPPED = ("headrace",)
_COLUMNS = "target int, kind string, content binary"
_SCHEMA = pa.schema([("target", pa.int32()), ("kind", pa.string()), ("content", pa.binary())])
_PARALLELISM_QUERY = "EXPLAIN SELECT id FROM range(0, 10000)"  # it is planned, and not run
_REFRESH_SECONDS = 5.0


class ConnectBackend:
    """Runs micro-batches as queries of a Spark Connect session, one at a time; `close` leaves the session to its owner."""

    def __init__(self, spark: Any, *, exchange: str = "auto") -> None:
        """Use a Spark Connect session. `exchange` is as for `SparkBackend`, but "auto" is the shuffle."""
        self._spark, self._exchange = spark, exchange
        self._parallelism = self._find_parallelism()
        self._refresh_at = time.monotonic() + _REFRESH_SECONDS
        self._probe_job: BatchJob | None = None

    def _find_parallelism(self) -> int:
        """Return the number of partitions that Spark gives to a range: its default parallelism, which only the server knows."""
        plan = str(self._spark.sql(_PARALLELISM_QUERY).collect()[0][0])
        splits = re.search(r"splits=(\d+)", plan)
        if splits is None:
            raise SessionError("the server of Spark Connect does not tell its parallelism", detail=plan)
        return int(splits[1])

    @property
    def parallelism(self) -> int:
        """The number of tasks that Spark runs concurrently; it follows the executors, some seconds later."""
        if time.monotonic() >= self._refresh_at:
            with contextlib.suppress(PySparkException):  # it ends, or is busy: a batch says what is wrong
                self._parallelism = self._find_parallelism()
            self._refresh_at = time.monotonic() + _REFRESH_SECONDS
        return self._parallelism

    @property
    def exchange(self) -> str:
        """How large shuffle blocks travel: "files" or "shuffle"."""
        return "shuffle" if self._exchange == "auto" else self._exchange

    def run(self, job: BatchJob, tasks: Sequence[Sequence[Range]]) -> list[ReduceReport]:
        """Run a micro-batch, then remove its shuffle files; raises as `SparkBackend.run`."""
        reach_fault_point(job.directory, "stage one")
        expired = threading.Event()
        try:
            with self._interrupt_after(job.max_seconds, f"headrace-{job.attempt}", expired):
                rows = self._collect(replace(job, exchange=self.exchange), tasks)
        except PySparkException as error:
            if expired.is_set():
                raise exceeded_time_error(job.max_seconds) from error
            raise make_job_error(job.batch, str(error)) from error
        reach_fault_point(job.directory, "stage two")
        for key in job.store.list("shuffle") if self.exchange == "files" else ():
            job.store.delete(key)
        return pipeline.collect_reports(rows)

    def _collect(self, job: BatchJob, tasks: Sequence[Sequence[Range]]) -> list[ShuffleRow]:
        """Run all stages; return the rows of the last one."""
        rows = [(number, ("task", pickle.dumps(ranges))) for number, ranges in enumerate(tasks)]
        frame: DataFrame = self._spark.createDataFrame(pa.Table.from_batches(list(_encode_rows(rows)), _SCHEMA))
        frame = _shuffle(frame, len(tasks)).mapInArrow(lambda batches: _run_map_stage(job, batches), _COLUMNS)
        for level in range(job.extra_shuffles + 1):
            frame = _append_reduce_stage(_shuffle(frame, job.partitions), job, level)
        return list(_decode_rows(frame.toArrow().to_batches()))

    @contextlib.contextmanager
    def _interrupt_after(self, seconds: float, tag: str, expired: threading.Event) -> Iterator[None]:
        """Interrupt the operations of the block after a time; 0 seconds are unlimited. Sets `expired`."""

        def interrupt() -> None:
            expired.set()
            self._spark.interruptTag(tag)

        timer = threading.Timer(seconds, interrupt)
        timer.daemon = True
        if seconds:
            timer.start()
        self._spark.addTag(tag)
        try:
            yield
        finally:
            timer.cancel()
            self._spark.removeTag(tag)

    def probe(self, job: BatchJob, list_places: Callable[[], list[WorkerPlace]] = list) -> None:
        """Check that workers can run the micro-batches of a checkpoint; raises SessionError with those that cannot.

        `list_places` returns the places that workers use. The client of Spark Connect knows no executors: the probe has as many
        tasks as run at the same time.
        """
        if self._exchange == "files" and not isinstance(job.store, PosixStore):
            raise SessionError("exchange 'files' needs a checkpoint in a folder")
        self._probe_job = job
        self._ship_package(job)
        probe_workers(job, self._run_probe)
        self.probe_places(list_places())

    def _ship_package(self, job: BatchJob) -> None:
        """Send headrace to the workers as an artifact of the session if one does not have it, or has another version.

        Their Python needs the libraries of headrace; what it lacks is found by the probe.
        """
        own, _ = import_packages(_SHIPPED)
        reports, _ = self._run_probe(make_request(job, packages=_SHIPPED))
        if all(report.versions == own for report in reports):
            return
        with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
            written = find_own_zip()
            if written is None:
                written = Path(folder) / "headrace.zip"
                write_zip(written)
            digest = hashlib.sha256(written.read_bytes()).hexdigest()[:8]
            artifact = Path(folder) / f"headrace-{digest}.zip"  # a session refuses another content under the same name
            shutil.copyfile(written, artifact)
            self._spark.addArtifacts(str(artifact), pyfile=True)

    def probe_places(self, places: Sequence[WorkerPlace]) -> None:
        """Raise SessionError if a worker cannot use a folder or URL."""
        if self._probe_job is not None and places:
            probe_places(self._probe_job, places, self._run_probe)

    def _run_probe(self, request: Mapping[str, Any]) -> tuple[list[WorkerReport], int]:
        numbers = self._spark.range(0, self._parallelism, 1, self._parallelism)
        try:
            with pickle_by_value():
                frame = numbers.mapInArrow(partial(run_probe_on_batches, request), "report binary")
                rows = frame.toArrow()["report"].to_pylist()
        except PySparkException as error:
            raise explain_failure(str(error)) from error
        reports = (WorkerReport(**pickle.loads(row)) for row in rows)
        return list({(report.host, report.process): report for report in reports}.values()), 0

    def close(self) -> None:
        """Do nothing: the Spark Connect session belongs to its owner."""


def _append_reduce_stage(frame: DataFrame, job: BatchJob, level: int) -> DataFrame:
    return frame.mapInArrow(lambda batches: _run_reduce_stage(job, level, batches), _COLUMNS)


def _shuffle(frame: DataFrame, partitions: int) -> DataFrame:
    """Move every row to the partition that it names."""
    return frame.repartitionById(partitions, "target")


def _run_map_stage(job: BatchJob, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    tasks = ((number, pickle.loads(content)) for number, (_, content) in _decode_rows(batches))
    return _encode_rows(pipeline.read_select_slice_aggregate(job, tasks))


def _run_reduce_stage(job: BatchJob, level: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return _encode_rows(pipeline.merge_evaluate_route(job, level, _decode_rows(batches)))


def _encode_rows(rows: Iterable[ShuffleRow]) -> Iterator[pa.RecordBatch]:
    """Yield an Arrow batch for each row: a row may have several MiB, and a batch at most 2 GiB."""
    for target, (kind, content) in rows:
        yield pa.RecordBatch.from_arrays(
            [pa.array([target], pa.int32()), pa.array([kind]), pa.array([content], pa.binary())], schema=_SCHEMA
        )


def _decode_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[ShuffleRow]:
    for batch in batches:
        targets, kinds, contents = (column.to_pylist() for column in batch.columns)
        yield from ((target, (kind, content)) for target, kind, content in zip(targets, kinds, contents, strict=True))
