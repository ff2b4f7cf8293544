"""Run headrace through its public API: one session, one shared pipeline, a result callback for each query.

Options: "rows_per_batch", "sliding_plan", "sliding_target", "sliding_sharing", "join_slices", "late_materialization",
"partitions", "exchange" and "window_joins" as in `Session`, "interval" the minimum seconds between micro-batches, and those of
`SparkDeployment`. For ablation: with "sharing" = "none" every query has a session of its own, and so a scan, a pipeline and a
checkpoint; all of them use one Spark. "grouping", "reordering" and "optimizer" (both) = false switch planning of joins in TUMBLE
and HOP windows off. The settings of a run tell under "ablation" what was switched off.
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
from headrace.connectors.tcp import TcpConnection
from headrace.errors import HeadraceError
from headrace.model.types import Schema
from headrace.query import Query
from headrace.runtime.listeners import SessionListener
from headrace.session import Session

_WARM_UP_BATCHES, _WARM_UP_ROWS, _WARM_UP_VALUES = 6, 600_000, 1_000  # several ranges per batch, so that every worker warms up
_JOIN_WARM_UP_ROWS, _JOIN_WARM_UP_STEP = 50_000, 16  # fewer rows, each with one partner in every other stream, also by bands
_THETA_WARM_UP_ROWS = 2_000  # every row may be compared with every other one
_DEFAULT_ROWS_PER_BATCH = 40_000_000  # a batch takes all available rows: a late batch is larger and costs less per row
_TOPIC_ROWS_PER_BATCH = 5_000_000  # of stored input, which is all available: about a second of work
_SHARING = ("all", "none")
_SWITCHES = ("grouping", "reordering", "optimizer")
_SESSION_OPTIONS = (
    "sliding_plan",
    "sliding_target",
    "sliding_sharing",
    "join_slices",
    "late_materialization",
    "partitions",
    "exchange",
)
_SILENCE_S = 3.0  # seconds
_STATUS_POLL_S = 0.2  # seconds
_LIVE_TIMEOUT_S = 120.0


class HeadraceAdapter:
    """The adapter of headrace."""

    def __init__(self, *, sliding_plan: str = "auto", sliding_sharing: bool = True, backend: str = "spark") -> None:
        """Create the adapter; all are parameters of `Session`."""
        self._sliding_joins: dict[str, Any] = {"sliding_plan": sliding_plan, "sliding_sharing": sliding_sharing}
        self._backend = backend
        self._sessions: dict[str, Session] = {}  # by query, or by "" for the session that all of them share
        self._deployment: SparkDeployment | None = None
        self._status_watcher, self._components = QueryStatusWatcher(), ComponentTotals()

    def start(self, config: SutConfig, reporter: QueryStatusReporter) -> SutDescription:
        """See `SutAdapter`; a temporary session starts the Spark workers before the first rows arrive."""
        self._reporter, self._result_sender = reporter, ResultSender(config.collector)
        default_rows = _DEFAULT_ROWS_PER_BATCH if config.topic is None else _TOPIC_ROWS_PER_BATCH
        self._config, self._rows_per_batch = config, int(config.options.get("rows_per_batch", default_rows))
        self._interval, self._sharing = float(config.options.get("interval", 0.0)), parse_sharing_option(config)
        self._warm_up()
        if self._sharing == "all":
            self._open_session("")
        queries = [query for bench_query in config.queries if (query := self._add_query(bench_query)) is not None]
        for name in self._sessions:
            self._start_session(name)
        for query in queries:
            query.wait_live(_LIVE_TIMEOUT_S)
        settings = {
            "rows_per_batch": self._rows_per_batch,
            "interval": self._interval,
            "sharing": self._sharing,
            **self._session_options(),
            **({"ablation": ablation} if (ablation := describe_ablation(config.options)) else {}),
            "results": "one callback per query, after the commit",
        }
        versions = {"headrace": _get_version("headrace")}
        if self._deployment is None:
            return SutDescription(versions, {**settings, "backend": self._backend})
        spark = dict(CLUSTER_SETTINGS if config.cluster else SPARK_SETTINGS)
        versions["pyspark"] = _get_version("pyspark")
        return SutDescription(versions, {**settings, **self._deployment.describe(), "spark": spark})

    def _session_options(self) -> dict[str, Any]:
        """Return the options that a session gets unchanged."""
        options = self._config.options
        given = {name: options[name] for name in _SESSION_OPTIONS if name in options}
        window_joins = parse_window_joins(options)
        return given | ({"window_joins": window_joins} if window_joins else {})

    def _warm_up(self) -> None:
        """Start Spark if it is the back-end, and warm up the workers."""
        self._backend_options: dict[str, Any] = {"rows_per_batch": self._rows_per_batch}
        if self._backend == "spark":
            self._deployment = SparkDeployment(self._config)
            self._backend_options["spark"] = self._deployment.start({})
        else:
            self._backend_options["backend"] = self._backend
        warm_up_workers(self._make_checkpoint("warm-up"), self._config, self._backend_options)

    def _make_checkpoint(self, name: str) -> str:
        return str(self._config.scratch / name) if self._deployment is None else str(self._deployment.make_checkpoint(name))

    def _open_session(self, name: str) -> Session:
        """Open the session of a query, or the one of all queries, with the streams of the benchmark."""
        options = {**self._sliding_joins, **self._backend_options, **self._session_options()}
        session = Session(self._make_checkpoint(f"checkpoint-{name}" if name else "checkpoint"), **options)
        session.add_listener(self._components)
        self._sessions[name] = session
        for stream in self._config.streams:
            declare_stream(session, self._config, stream.name, open_stream(self._config, stream, _group_of(name)))
        return session

    def _start_session(self, name: str) -> None:
        session = self._sessions[name]
        session.start(self._interval)
        threading.Thread(target=self._status_watcher.report_until_closed, args=(session, self._reporter), daemon=True).start()

    def _add_query(self, bench_query: BenchQuery) -> Query | None:
        """Add a query to its session, which is opened if it has none yet; None if it is refused."""
        name = bench_query.name
        if not bench_query.sql.get("headrace"):
            self._reporter.report_refused(name, NO_DIALECT_TEXT)
            return None
        session = self._sessions[""] if self._sharing == "all" else self._open_session(name)
        try:
            return session.add(bench_query.sql["headrace"], name=name, sink=self._make_sink(name))
        except HeadraceError as error:
            self._reporter.report_refused(name, str(error))
            if self._sharing == "none":
                self._close_session(name)
            return None

    def _close_session(self, name: str) -> None:
        """Close the session of a query, and leave its consumer groups, for which the driver would retain rows."""
        self._sessions.pop(name).close()
        if self._config.topic is None:
            with contextlib.closing(TcpConnection(self._config.driver)) as driver:
                for stream in self._config.streams:
                    driver.send_request("leave", stream=stream.name, group=_group_of(name))

    def _make_sink(self, name: str) -> Callable[[pa.Table], None]:
        return lambda table: self._result_sender.send(name, count_by_window(table.column("window_end")))

    def limit_nodes(self) -> None:
        """See `SutAdapter`."""
        if self._deployment is not None:
            self._deployment.limit_nodes()

    def change(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        """See `SutAdapter`; the watcher thread reports the queries."""
        for name in removed:
            if self._sharing == "none":
                self._close_session(name)
                self._reporter.report_removed(name)
                continue
            query = self._sessions[""].query(name)
            self._sessions[""].remove(name)
            self._status_watcher.expect_removed(query)
        for bench_query in added:
            new_query = self._add_query(bench_query)
            if new_query is not None:
                self._status_watcher.expect_live(new_query)
                if self._sharing == "none":
                    self._start_session(bench_query.name)

    def read_component_seconds(self) -> Mapping[str, float]:
        """See `SutAdapter`; of all committed batches."""
        return self._components.read()

    def check(self) -> None:
        """See `SutAdapter`."""
        if self._deployment is not None:
            self._deployment.check()
        for session in self._sessions.values():
            check_session(session)

    def close(self) -> None:
        """See `SutAdapter`."""
        for session in self._sessions.values():
            session.close()
        if self._deployment is not None:
            self._deployment.close()


class ComponentTotals(SessionListener):
    """Sums the work of all batches by component, from their progress documents; thread-safe."""

    def __init__(self) -> None:
        """Start with zeros."""
        self._lock, self._seconds = threading.Lock(), dict[str, float]()

    def on_batch(self, progress: dict[str, Any]) -> None:
        """See `SessionListener`."""
        with self._lock:
            for component, milliseconds in progress["component_ms"].items():
                self._seconds[component] = self._seconds.get(component, 0.0) + milliseconds / 1_000

    def read(self) -> dict[str, float]:
        """Return the seconds so far."""
        with self._lock:
            return dict(self._seconds)


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


def check_session(session: Session) -> None:
    """Raise HeadraceError if a session or one of its queries has failed, or a stream for longer than the driver may be busy."""

    def list_stream_errors() -> list[str]:
        return [stream["error"] for stream in session.streams().values() if stream["error"]]

    session.wait(lambda: not list_stream_errors(), _SILENCE_S)  # raises the error that ended the session
    for problem in filter(None, [session.problem, *list_stream_errors()]):  # the session would retry, but the measurement is void
        raise HeadraceError("the session cannot go on", detail=problem)
    for query in session.queries():
        if query.status == "failed":
            raise HeadraceError(f"query '{query.name}' failed", detail=query.error or "")


def parse_sharing_option(config: SutConfig) -> str:
    """Return the option "sharing"; raise HeadraceError for an unknown value, or over a topic, which has one consumer group."""
    sharing = str(config.options.get("sharing", _SHARING[0]))
    if sharing not in _SHARING:
        raise HeadraceError(f"unknown sharing '{sharing}'", detail=f"known: {', '.join(_SHARING)}")
    if sharing != _SHARING[0] and config.topic is not None:
        raise HeadraceError("sharing cannot be switched off over a topic: its progress is that of one consumer group")
    return sharing


def parse_window_joins(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the optimizer of window joins: "window_joins", and what switches turn off.

    Raises HeadraceError for a switch that is neither true nor false.
    """
    for name in _SWITCHES:
        if not isinstance(options.get(name, True), bool):
            raise HeadraceError(f"invalid option {name}={options[name]}", hint="choose true or false")
    is_planned = options.get("optimizer", True)
    switched_off = {name: False for name in ("grouping", "reordering") if not (is_planned and options.get(name, True))}
    return {**options.get("window_joins", {}), **switched_off}


def describe_ablation(options: Mapping[str, Any]) -> str:
    """Return what the options of a run switch off; empty if nothing."""
    switched_off = ["sharing"] if options.get("sharing", _SHARING[0]) != _SHARING[0] else []
    switched_off += ["sliding_sharing"] if not options.get("sliding_sharing", True) else []
    planning = [name for name in ("grouping", "reordering") if not parse_window_joins(options).get(name, True)]
    return ", ".join([*switched_off, *(["optimizer"] if len(planning) == 2 else planning)])


def _group_of(name: str) -> str:
    """Return the consumer group of the session of a query, or of the session of all queries."""
    return f"headrace-{name}" if name else "headrace"


def open_stream(config: SutConfig, stream: SutStream, group: str) -> Source:
    """Return the source of a stream: a queue of the driver, read as a consumer group, or a topic."""
    if config.topic is None:
        return TcpSource(config.driver, stream.name, group=group)
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
    texts = [query.sql.get("headrace", "") for query in config.queries]
    joins = any(" JOIN " in text for text in texts)
    rows = _JOIN_WARM_UP_ROWS if joins else _WARM_UP_ROWS
    rows = _THETA_WARM_UP_ROWS if any(" BETWEEN " in text for text in texts) else rows
    distinct_values, step = (rows * _WARM_UP_BATCHES, _JOIN_WARM_UP_STEP) if joins else (_WARM_UP_VALUES, 1)
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
                source.append(make_rows(config.get_stream(name).schema, batch * rows, rows, distinct_values, step))
            session.advance()
        session.drain()


def make_rows(schema: Schema, first: int, rows: int, distinct_values: int = _WARM_UP_VALUES, step: int = 1) -> pa.Table:
    """Return synthetic rows of a schema, one microsecond apart, with so many distinct values `step` apart in each column."""
    numbers = np.arange(first, first + rows)
    columns = []
    for field in schema:
        values = pa.array(numbers if pa.types.is_timestamp(field.type) else numbers % distinct_values * step)
        if pa.types.is_timestamp(field.type):
            columns.append(values.cast(pa.timestamp("us")).cast(field.type))
        else:
            columns.append(values.cast(field.type))
    return pa.table(columns, schema.to_arrow())


def _get_version(package: str) -> str:
    return importlib.metadata.version(package)


if __name__ == "__main__":
    serve(HeadraceAdapter())
