"""The Spark back-end: a long-running Structured Streaming query whose micro-batches are ours.

The coordinator publishes a batch; the composite source reports it as the latest offset; Spark plans its tasks and calls us
with them; one job runs both stages. What must survive a crash is in headrace's own checkpoint, so Spark's bookkeeping is
made anew for each run of the back-end: there is one recovery, not two.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.backends.spark import pipeline
from headrace.backends.spark.dataframe import DataFrameSource
from headrace.backends.spark.environment import start_spark
from headrace.backends.spark.source import NAME, RangeSource, publish
from headrace.connectors import Range
from headrace.errors import SessionError
from headrace.execution.job import Job, Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 5.0


class SparkBackend:
    """Runs jobs one at a time."""

    def __init__(self, spark: SparkSession, folder: Path, fault: Callable[[str], None], *, owned: bool) -> None:
        """`folder` is for files that need not survive; `owned` says whether the Spark session is ours to stop."""
        self._spark, self._folder, self._fault, self._owned = spark, folder, fault, owned
        self._query: StreamingQuery | None = None
        self._job: Job | None = None
        self._answer: list[Outcome] | BaseException | None = None
        self._answered = threading.Event()
        self._runs = 0
        shutil.rmtree(folder, ignore_errors=True)
        spark.dataSource.register(RangeSource)
        self._running()  # it takes seconds until a streaming query looks for offsets: the first rows need not wait for that

    @property
    def parallelism(self) -> int:
        """As many tasks as Spark runs at once."""
        return int(self._spark.sparkContext.defaultParallelism)

    def run(self, job: Job, tasks: Sequence[Sequence[Range]]) -> list[Outcome]:
        """Run a job as the next micro-batch of the streaming query."""
        self._fault("stage one")
        self._job, self._answer = job, None
        self._answered.clear()
        query = self._running()
        publish(self._current, job.batch, dict(job.positions), [[one.to_json() for one in task] for task in tasks])
        while not self._answered.wait(_LOOK_SECONDS):
            if not query.isActive and not self._answered.is_set():
                break
        answer = self._taken()
        if isinstance(answer, BaseException):
            self._stop()
            raise answer
        if answer is None:
            problem = str(query.exception())
            self._stop()
            raise SessionError("the streaming query stopped", detail=problem, hint="see Spark's log; the batch can be run again")
        self._fault("stage two")
        for path in (Path(job.directory) / "exchange").iterdir():
            path.unlink(missing_ok=True)
        return answer

    def _taken(self) -> list[Outcome] | BaseException | None:
        """Return what the thread of Spark left; None if it did not come to that."""
        return self._answer

    def _running(self) -> StreamingQuery:
        if self._query is None or not self._query.isActive:
            self._runs += 1
            self._folder.mkdir(parents=True, exist_ok=True)
            self._current = Path(tempfile.mkdtemp(prefix="run-", dir=self._folder))  # never that of a query still about to stop
            ranges = self._spark.readStream.format(NAME).option("folder", str(self._current)).load()
            writer = ranges.writeStream.foreachBatch(self._batch).queryName(f"headrace-{id(self)}-{self._runs}")
            self._query = writer.option("checkpointLocation", str(self._current / "spark")).start()
        return self._query

    def _batch(self, ranges: DataFrame, number: int) -> None:
        """Run the ranges of one micro-batch; Spark calls this in a thread of its own."""
        del number
        job, self._job = self._job, None
        if job is None:
            return
        try:
            self._answer = pipeline.run(ranges, job)
        except BaseException as error:  # noqa: BLE001  it is raised again in the caller of `run`
            self._answer = error
        self._answered.set()

    def stream_source(self, frame: DataFrame) -> DataFrameSource:
        """Wrap a streaming DataFrame as a source."""
        return DataFrameSource(frame)

    def _stop(self) -> None:
        if self._query is not None:
            self._query.stop()
            self._query = None

    def close(self) -> None:
        """Stop the streaming query, and Spark if it was started here."""
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._owned:
            self._spark.stop()


def create(*, checkpoint: Path, master: str, spark: Any, fault: Callable[[str], None]) -> SparkBackend:
    """Use the given Spark session, or start one."""
    session = spark if spark is not None else start_spark(master)
    return SparkBackend(session, checkpoint / "spark", fault, owned=spark is None)
