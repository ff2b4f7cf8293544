"""Run headrace through its public API: one session, one shared pipeline, a result callback for each query.

Options: "rows_per_batch" as in `Session`, "interval" the minimum seconds between micro-batches, and those of `SparkDeployment`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.backends.spark.environment import CLUSTER_SETTINGS, SPARK_SETTINGS
from headrace.bench.driver.topic import FORMAT_OPTIONS
from headrace.bench.queries.query import BenchQuery
from headrace.bench.systems.adapter import (
    NO_DIALECT_TEXT,
    QueryStatusReporter,
    ResultSender,
    SutConfig,
    SutDescription,
    SutStream,
    count_by_window,
)
from headrace.bench.systems.process import serve
from headrace.bench.systems.spark_deployment import SparkDeployment
from headrace.connectors import KafkaSource, MemorySource, Source, TcpSource
from headrace.errors import HeadraceError
from headrace.model.types import Schema
from headrace.query import Query
from headrace.session import Session

_WARM_UP_BATCHES, _WARM_UP_ROWS, _WARM_UP_VALUES = 6, 600_000, 1_000  # several ranges per batch, so that every worker warms up
_JOIN_WARM_UP_ROWS = 100_000  # fewer rows, each with one partner in every other stream: results of joins grow with both
_DEFAULT_ROWS_PER_BATCH = 40_000_000  # a batch takes all available rows: a late batch is larger and costs less per row
_TOPIC_ROWS_PER_BATCH = 1_000_000  # of stored input, which is all available: about a second of work
_STATUS_POLL_S = 0.2  # seconds
_LIVE_TIMEOUT_S = 120.0


class HeadraceAdapter:
    """The adapter of headrace."""

    def __init__(self, multiway: str = "global", backend: str = "spark") -> None:
        """Create the adapter; `multiway` and `backend` are the parameters of `Session`."""
        self._multiway, self._backend = multiway, backend
        self._session: Session | None = None
        self._deployment: SparkDeployment | None = None
        self._status_watcher = QueryStatusWatcher()

    def start(self, config: SutConfig, reporter: QueryStatusReporter) -> SutDescription:
        """See `SutAdapter`; a temporary session starts the Spark workers before the first rows arrive."""
        self._reporter, self._result_sender = reporter, ResultSender(config.collector)
        default_rows = _DEFAULT_ROWS_PER_BATCH if config.topic is None else _TOPIC_ROWS_PER_BATCH
        rows_per_batch = int(config.options.get("rows_per_batch", default_rows))
        interval = float(config.options.get("interval", 0.0))
        self._open_session(config, rows_per_batch)
        assert self._session is not None
        for stream in config.streams:
            declare_stream(self._session, config, stream.name, open_stream(config, stream))
        queries = [query for bench_query in config.queries if (query := self._add_query(bench_query)) is not None]
        self._session.start(interval)
        for query in queries:
            query.wait_live(_LIVE_TIMEOUT_S)
        threading.Thread(target=self._status_watcher.report_until_closed, args=(self._session, reporter), daemon=True).start()
        settings = {
            "rows_per_batch": rows_per_batch,
            "interval": interval,
            "results": "one callback per query, after the commit",
        }
        versions = {"headrace": _get_version("headrace")}
        if self._deployment is None:
            return SutDescription(versions, {**settings, "backend": self._backend})
        spark = dict(CLUSTER_SETTINGS if config.cluster else SPARK_SETTINGS)
        versions["pyspark"] = _get_version("pyspark")
        return SutDescription(versions, {**settings, **self._deployment.describe(), "spark": spark})

    def _open_session(self, config: SutConfig, rows_per_batch: int) -> None:
        """Warm up the workers, then open the session that is measured."""
        options: dict[str, Any] = {"rows_per_batch": rows_per_batch}
        if self._backend == "spark":
            self._deployment = SparkDeployment(config)
            options["spark"] = self._deployment.start({})
            checkpoints = [self._deployment.make_checkpoint(name) for name in ("warm-up", "checkpoint")]
        else:
            options["backend"] = self._backend
            checkpoints = [str(config.scratch / name) for name in ("warm-up", "checkpoint")]
        warm_up_workers(checkpoints[0], config, options)
        self._session = Session(checkpoints[1], multiway=self._multiway, **options)

    def _add_query(self, bench_query: BenchQuery) -> Query | None:
        assert self._session is not None
        if not bench_query.sql.get("headrace"):
            self._reporter.report_refused(bench_query.name, NO_DIALECT_TEXT)
            return None
        try:
            return self._session.add(bench_query.sql["headrace"], name=bench_query.name, sink=self._make_sink(bench_query.name))
        except HeadraceError as error:
            self._reporter.report_refused(bench_query.name, str(error))
            return None

    def _make_sink(self, name: str) -> Callable[[pa.Table], None]:
        return lambda table: self._result_sender.send(name, count_by_window(table.column("window_end")))

    def limit_nodes(self) -> None:
        """See `SutAdapter`."""
        if self._deployment is not None:
            self._deployment.limit_nodes()

    def change(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        """See `SutAdapter`; the watcher thread reports the queries."""
        assert self._session is not None
        for name in removed:
            query = self._session.query(name)
            self._session.remove(name)
            self._status_watcher.expect_removed(query)
        for bench_query in added:
            new_query = self._add_query(bench_query)
            if new_query is not None:
                self._status_watcher.expect_live(new_query)

    def check(self) -> None:
        """See `SutAdapter`."""
        assert self._session is not None
        if self._deployment is not None:
            self._deployment.check()
        self._session.wait(lambda: False, 0)  # raises the error that ended the session
        problems = [self._session.problem, *(stream["error"] for stream in self._session.streams().values())]
        for problem in filter(None, problems):  # the session would retry, but the measurement is void
            raise HeadraceError("the session cannot go on", detail=problem)
        for query in self._session.queries():
            if query.status == "failed":
                raise HeadraceError(f"query '{query.name}' failed", detail=query.error or "")

    def close(self) -> None:
        """See `SutAdapter`."""
        if self._session is not None:
            self._session.close()
        if self._deployment is not None:
            self._deployment.close()


class QueryStatusWatcher:
    """Requested changes without a report; a thread reports each after the micro-batch that applies it."""

    def __init__(self) -> None:
        """Start without pending changes."""
        self._lock = threading.Lock()
        self._pending: list[tuple[Query, str]] = []  # each with its expected status

    def expect_live(self, query: Query) -> None:
        """Report the query once it is live."""
        with self._lock:
            self._pending.append((query, "live"))

    def expect_removed(self, query: Query) -> None:
        """Report the query once it is removed."""
        with self._lock:
            self._pending.append((query, "removed"))

    def report_until_closed(self, session: Session, reporter: QueryStatusReporter) -> None:
        """Report changes until the session ends; `HeadraceAdapter.check` raises its error."""
        with contextlib.suppress(HeadraceError):
            while not session.is_closed:
                session.wait(lambda: any(query.status == expected for query, expected in self._pending), _STATUS_POLL_S)
                self._report_settled(reporter)

    def _report_settled(self, reporter: QueryStatusReporter) -> None:
        with self._lock:
            settled = [(query, expected) for query, expected in self._pending if query.status == expected]
            self._pending = [(query, expected) for query, expected in self._pending if query.status != expected]
        for query, expected in settled:
            (reporter.report_live if expected == "live" else reporter.report_removed)(query.name)


def open_stream(config: SutConfig, stream: SutStream) -> Source:
    """Return the source of a stream: a queue of the driver, or a topic."""
    if config.topic is None:
        return TcpSource(config.driver, stream.name)
    return KafkaSource(
        config.topic.topic,
        brokers=config.topic.brokers,
        schema=stream.schema,
        format_options=FORMAT_OPTIONS,
        group=config.topic.group,
        on_error=str(config.options.get("on_error", "fail")),
    )


def declare_stream(session: Session, config: SutConfig, name: str, source: Any) -> None:
    """Create a stream over a source, with the time column and watermark of the benchmark."""
    spec = config.get_stream(name).spec
    session.create_stream(name, source, time=spec.time_column, watermark=f"{spec.watermark} seconds")


def warm_up_workers(checkpoint: str, config: SutConfig, options: Mapping[str, Any]) -> None:
    """Run synthetic rows through the same queries in a temporary session, to start Spark workers and load kernels.

    At the end all windows close, so that the kernels of joins and of results are loaded, too.
    """
    joins = any(" JOIN " in query.sql.get("headrace", "") for query in config.queries)
    rows = _JOIN_WARM_UP_ROWS if joins else _WARM_UP_ROWS
    distinct_values = rows * _WARM_UP_BATCHES if joins else _WARM_UP_VALUES
    with Session(checkpoint, **options) as session:
        sources = {stream.name: MemorySource(stream.schema) for stream in config.streams}
        for name, source in sources.items():
            declare_stream(session, config, name, source)
        for number, query in enumerate(config.queries):
            if query.sql.get("headrace"):
                try:
                    session.add(query.sql["headrace"], name=str(number), sink="noop")
                except HeadraceError:  # the measured session refuses it, too
                    continue
        for batch in range(_WARM_UP_BATCHES):
            for name, source in sources.items():
                source.append(make_rows(config.get_stream(name).schema, batch * rows, rows, distinct_values))
            session.advance()
        session.drain()


def make_rows(schema: Schema, first: int, rows: int, distinct_values: int = _WARM_UP_VALUES) -> pa.Table:
    """Return synthetic rows of a schema, one microsecond apart, with `distinct_values` distinct values in each column."""
    numbers = np.arange(first, first + rows)
    columns = []
    for field in schema:
        values = pa.array(numbers if pa.types.is_timestamp(field.type) else numbers % distinct_values)
        if pa.types.is_timestamp(field.type):
            columns.append(values.cast(pa.timestamp("us")).cast(field.type))
        else:
            columns.append(values.cast(field.type))
    return pa.table(columns, schema.to_arrow())


def _get_version(package: str) -> str:
    return importlib.metadata.version(package)


if __name__ == "__main__":
    serve(HeadraceAdapter())
