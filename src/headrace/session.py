"""The Python API: sessions with their streams and queries.

    s = hr.Session()
    src = hr.MemorySource("user_id INT, price DOUBLE, time TIMESTAMP")
    s.create_stream("purchases", src, time="time", watermark="2 seconds")
    q = s.add("SELECT window_start, SUM(price) AS total FROM TUMBLE(purchases, '5 seconds')")
    src.append([...]); s.advance(); q.results()

All methods are thread-safe. Micro-batches run one at a time, in the thread that calls `advance` or in the thread of `start`.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias

import pyarrow as pa

from headrace.connectors import CallbackSink, Range, Source, parse_sink
from headrace.display import SessionDisplay, StreamDisplay, format_event_time, format_session, render_session
from headrace.dsl.select import Select
from headrace.dsl.stream import StreamFlow, create_flow
from headrace.dsl.udf import ArgumentTypes, Function, build_function
from headrace.errors import NameTakenError, SchemaError, SessionError
from headrace.model.stream import Stream
from headrace.model.time import MIN_TIME, parse_duration
from headrace.model.types import Schema
from headrace.planner.explain.plan_graph import GRAPH_FORMATS, build_physical_graph
from headrace.planner.explain.text import explain
from headrace.query import Query, QueryRecord, QueryRegistry, check_past, check_sink, display_query
from headrace.runtime.backend import load_backend, to_source
from headrace.runtime.binding import bind_query
from headrace.runtime.commands import AddQuery, RemoveQuery
from headrace.runtime.coordinator import Coordinator
from headrace.runtime.delivery import ResultDelivery
from headrace.runtime.engine_state import QueryState
from headrace.runtime.metrics import BatchReport
from headrace.runtime.query_stats import SessionStatistics
from headrace.runtime.udf_registry import drop_udf, register_udf
from headrace.sql import Catalog
from headrace.storage.checkpoint import Checkpoint
from headrace.storage.result_log import ResultReader, Retention

QueryText: TypeAlias = str | Select | StreamFlow
"""A query as users pass it: SQL text, or a query of the DSL, which is translated to SQL."""


def sql_of(query: QueryText) -> str:
    """Return the SQL text of a query."""
    return query if isinstance(query, str) else query.sql


_IDLE_SECONDS = 0.02
_BATCHES_KEPT = 1_000
DETAILED_BATCHES = 60
ROWS_PER_BATCH = 4_000_000


class CommittedBatch(NamedTuple):
    """A committed micro-batch: its report, its commit time in seconds since 1970, and its duration in seconds."""

    report: BatchReport
    at: float
    seconds: float


class Session:
    """A shared pipeline with its streams and queries.

    Use it as a context manager, or call `close` at the end.
    """

    def __init__(
        self,
        checkpoint: str | Path | None = None,
        *,
        master: str = "local[*]",
        spark: Any = None,
        backend: str = "spark",
        partitions: int | None = None,
        rows_per_batch: int = ROWS_PER_BATCH,
        multiway: str = "global",
    ) -> None:
        """Open a session; with an existing checkpoint, its queries and streams continue where they stopped.

        - `checkpoint`: the checkpoint directory. By default a temporary directory that `close` removes.
        - `master`: the Spark master to start with.
        - `spark`: a running SparkSession to use instead of starting one; `close` does not stop it.
        - `backend`: "spark", "local" (the same stages in this process) or "reference" (the oracle, slow).
        - `partitions`: the number of key partitions. By default the number in the checkpoint, or the back-end's parallelism.
        - `rows_per_batch`: the approximate maximum of rows that a micro-batch reads from each stream.
        - `multiway`: the sharing among joins in SLIDING windows: "global" (one plan of least total cost for all), "common" (the
          best plan for each join alone, with equal sub-plans shared) or "none". Results do not depend on it.

        Raises CheckpointError if the checkpoint is in use, damaged or of another format, and SessionError for an invalid
        setting or if Spark cannot be started.
        """
        self._is_temporary = checkpoint is None
        self._checkpoint = Checkpoint(checkpoint if checkpoint is not None else tempfile.mkdtemp(prefix="headrace-"))
        try:
            self._backend = load_backend(backend, master=master, spark=spark)
            self._coordinator = Coordinator(self._checkpoint, self._backend, partitions, rows_per_batch, multiway)
        except BaseException:
            self._checkpoint.close()
            raise
        self._batch_lock, self._lock = threading.RLock(), threading.RLock()
        self._state_changed = threading.Condition(self._lock)
        self._command_queue = self._coordinator.command_queue
        self._registry = QueryRegistry()
        self.statistics = SessionStatistics(
            self._coordinator, lambda: [(done.report, done.at) for done in self.done()[-DETAILED_BATCHES - 1 :]]
        )
        self.result_reader = ResultReader(self._checkpoint.store, lambda: self._coordinator.state.results)
        self._thread: threading.Thread | None = None
        self._stop_requested = threading.Event()
        self._error: BaseException | None = None
        self._closed = False
        self._recent_batches: deque[CommittedBatch] = deque(maxlen=_BATCHES_KEPT)
        try:
            self._delivery = ResultDelivery(self._checkpoint.store, is_new=self._coordinator.state.batch < 0)
            self._registry.recover(self._coordinator.state, self._coordinator.unfinished_entry)
            self._deliver_results()
        except BaseException:
            self._checkpoint.close()
            raise

    def _deliver_results(self) -> None:
        """Deliver committed rows to the console and callbacks, unless a recovered query still waits for its callback."""
        if any(record.awaits_callback and record.status in {"accepted", "live"} for record in self._registry.records.values()):
            return
        state = self._coordinator.state
        for number, message in self._delivery.deliver(self._registry.records, state.deliveries, state.batch).items():
            self._fail_query(number, message)
        self._coordinator.delivered_batch = self._delivery.delivered_batch

    def create_stream(self, name: str, source: Source, *, time: str, watermark: str = "0 seconds") -> None:
        """Declare a stream over a source.

        `time` names the event-time column. `watermark` is the maximum disorder, such as "2 seconds": rows that arrive later than
        that are late. In a session recovered from a checkpoint, this call attaches the source of a known stream again.

        Several streams may have the same source object: each of them reads every row once. A stream that is declared later starts
        with the oldest row that the source retains; a MemorySource retains the rows that one of its streams has not read yet.

        Raises NameTakenError if the stream is already declared, SchemaError for an empty name or an invalid time column, and
        CheckpointError if the checkpoint has a different declaration of the stream, or had it share its source with others.
        """
        self._check_open()
        with self._batch_lock, self._lock:
            if name in self._coordinator.sources:
                raise NameTakenError(f"stream '{name}' already exists", detail=f"streams: {', '.join(self._coordinator.sources)}")
            if not isinstance(name, str) or not name.strip():
                raise SchemaError("a stream needs a name")
            source = to_source(source, self._backend)
            self._coordinator.attach_source(name, source)
            self._coordinator.declare_stream(Stream(name, source.schema, time, parse_duration(watermark)), source)

    def add(self, sql: QueryText, *, name: str | None = None, sink: Any = None, past: bool = False, owner: str = "") -> Query:
        """Check and accept a query; it is live from the next micro-batch on. Return its handle.

        - `sql`: SQL text, or a query made with `hr.select` or `hr.stream`.
        - `name`: a unique name; by default `q1`, `q2`, and so on.
        - `sink`: the destination of the results: None or "memory", "console", "noop", "parquet:DIR", "jsonl:DIR", a function of
          an Arrow table, or a sink such as `hr.ParquetSink`.
        - `past`: backfill a join in SLIDING windows with rows that are stored for live queries, if their state covers all inputs.
        - `owner`: recorded with the query, without further effect.

        `Query.wait_live` waits until the query is live. In a recovered session, adding a live query again with the same name and
        text returns the existing query.

        Raises SqlError for an invalid query, NameTakenError if the name or the sink's directory is in use, SinkError for an
        unknown sink, and SessionError if `past` is not possible for the query. A refused query has no effect on others.
        """
        self._check_open()
        text = sql_of(sql)
        with self._lock:
            query_name, target = self._registry.choose_name(name), parse_sink(sink)
            if query_name in self._registry:
                record = self._registry.reattach_query(query_name, text, target)
                self._deliver_results()
                return Query(self, record)
            plan = bind_query(text, self.catalog)
            check_past(plan, past=past)
            check_sink(query_name, target, self._registry.list_active())
            record = self._registry.add_record(query_name, text, target, plan.schema, owner, self.last_batch + 1)
            sink_json = None if isinstance(target, CallbackSink) else target.to_json()
            self._command_queue.append(AddQuery(record.id, query_name, text, sink_json, past, owner))
            return Query(self, record)

    def remove(self, name: str) -> None:
        """Remove a query: it emits nothing from the next micro-batch on; results emitted before are kept.

        Raises NotFoundError if no query has that name.
        """
        self._check_open()
        with self._lock:
            record = self._registry.release_name(name)
            if self._command_queue.withdraw_addition(record.id):  # the query never became live
                record.status = "removed"
            elif record.status != "failed":
                self._command_queue.append(RemoveQuery(record.id))
            self._state_changed.notify_all()

    def replace(self, name: str, sql: QueryText, *, sink: Any = None, owner: str = "") -> Query:
        """Replace a query atomically: the old one ends and the new one starts in the same micro-batch. Return the new handle.

        Parameters and errors are those of `add`; raises NotFoundError if no query has that name. If the new query is refused, the
        old one continues unchanged.
        """
        self._check_open()
        with self._lock, self._command_queue.hold_together():
            self.check(sql_of(sql))
            target = parse_sink(sink)
            check_sink(name, target, (record for record in self._registry.list_active() if record.name != name))
            self.remove(name)
            return self.add(sql, name=name, sink=target, owner=owner)

    def query(self, name: str) -> Query:
        """Return the query of that name; raises NotFoundError if no query has it."""
        with self._lock:
            return Query(self, self._registry.get(name))

    def find(self, name: str, number: int | None = None) -> Query | None:
        """Return the newest query of that name, even if it was removed or failed; None if there is no such query.

        With `number`, return the query with that `id` and name, even if a newer query has the name.
        """
        with self._lock:
            record = self._registry.find_newest(name, number)
            return None if record is None else Query(self, record)

    def queries(self) -> list[Query]:
        """Return all queries that were not removed, oldest first."""
        with self._lock:
            return [Query(self, record) for record in self._registry.list_active()]

    def streams(self) -> dict[str, dict[str, Any]]:
        """Return the declaration and counts of each stream, by name.

        The counts are `rows`, `untimed` (rows without event time), `skipped` (files, each with the reason) and `max_event_time`.
        """
        reports = {}
        for name, state in self._coordinator.state.declared_streams().items():
            skipped = getattr(self._coordinator.sources.get(name), "skipped", {})
            reports[name] = {**state.describe(), "skipped": {**skipped, **state.skipped}}
        return reports

    def stream(self, name: str) -> StreamFlow:
        """Return a flow of the rows of a stream, to filter, window, group, join and add as a query.

        Every step of the flow is checked at once and raises SqlError if it is invalid.
        """
        return create_flow(name, self.add, self.check)

    def register_function(
        self,
        function: Function | str,
        code: Callable[..., Any] | None = None,
        returns: str = "",
        *,
        arguments: ArgumentTypes = None,
    ) -> Function:
        """Register a function (UDF) that queries can call, and return it.

        `function` is a function made by `hr.function`; or a name, together with `code`, the type that it `returns`, and
        optionally the types of its `arguments`, as for `hr.function`. A recovered session already has the functions of its
        checkpoint. A new function replaces a registered one of the same name.

        Raises NameTakenError if a query calls the function to replace, and SchemaError for an invalid name or type, or for code
        that cannot be stored.
        """
        registered = function if isinstance(function, Function) else build_function(function, code, returns, arguments)
        self._check_open()
        with self._batch_lock, self._lock:
            register_udf(self._coordinator, registered.name, registered.code, registered.result, registered.arguments)
        return registered

    def drop_function(self, name: str) -> None:
        """Drop a registered function; raises NotFoundError if it is not registered, and NameTakenError while a query calls it."""
        self._check_open()
        with self._batch_lock, self._lock:
            drop_udf(self._coordinator, name)

    def advance(self) -> BatchReport:
        """Run one micro-batch now, and return its report.

        It applies the pending query changes and reads the new rows of all streams, up to `rows_per_batch`. Without either, no
        batch runs and the report is empty.
        """
        self._check_open()
        with self._batch_lock:
            return self._run_batch()

    def _run_batch(self, *, final: bool = False) -> BatchReport:
        if self._coordinator.unfinished_entry is not None:
            self._finish_batch(self._coordinator.advance(), time.monotonic())
        if not self._command_queue and not final and not self._coordinator.has_work():
            return BatchReport(self._coordinator.state.batch, 0, 0)
        started = time.monotonic()
        report = self._coordinator.advance(final=final)
        self._finish_batch(report, started)
        return report

    def _finish_batch(self, report: BatchReport, started: float) -> None:
        """After a commit, update the query records, deliver rows to callbacks, and fail the queries whose callback fails."""
        state = self._coordinator.state
        with self._lock:
            for number in {*report.added, *report.removed, *report.failed}:
                if number in self._registry.records and number in state.queries:
                    self._registry.records[number].apply_state(state.queries[number], state.batch, fresh=True)
            self._deliver_results()
            for number in report.failed:
                self._registry.records[number].discard_output(report.batch)
            self._registry.drop_ended(state.queries, len(state.queries))
            self._recent_batches.append(CommittedBatch(report, time.time(), time.monotonic() - started))
            if (
                len(self._recent_batches) > DETAILED_BATCHES
            ):  # row counts of thousands of queries over a thousand batches would take much memory
                old = self._recent_batches[-DETAILED_BATCHES - 1]
                self._recent_batches[-DETAILED_BATCHES - 1] = old._replace(report=replace(old.report, emitted_by={}))
            self._state_changed.notify_all()

    def _fail_query(self, number: int, message: str) -> None:
        record = self._registry.records[number]
        record.status, record.error = "failed", message
        self._command_queue.append(RemoveQuery(number, message))

    def drain(self) -> None:
        """Process all available rows, then close every open window, as at the end of a bounded input."""
        self._check_open()
        with self._batch_lock:
            while self._coordinator.has_work() or self._command_queue:
                self._run_batch()
            if not self._coordinator.state.drained and self._coordinator.state.batch >= 0:
                self._run_batch(final=True)

    def rescale(self, partitions: int) -> None:
        """Change the number of key partitions from the next micro-batch on; queries continue without lost or duplicate results.

        Raises SessionError for an invalid number.
        """
        self._check_open()
        with self._batch_lock:
            self._coordinator.rescale(partitions)

    def start(self, interval: float = 0.0) -> None:
        """Run micro-batches in a background thread whenever there is work, at least `interval` seconds apart.

        Raises SessionError if the session is already running.
        """
        self._check_open()
        if self._thread is not None:
            raise SessionError("the session is already running", hint="call stop() first")
        self._stop_requested.clear()
        self._thread = threading.Thread(target=self._run_loop, args=(interval,), name="headrace", daemon=True)
        self._thread.start()

    def _run_loop(self, interval: float) -> None:
        try:
            while not self._stop_requested.is_set():
                started = time.monotonic()
                with self._batch_lock:
                    busy = bool(self._command_queue) or self._coordinator.has_work()
                    if busy:
                        self._run_batch()
                pause = interval - (time.monotonic() - started)
                self._stop_requested.wait(max(pause, 0.0 if busy else _IDLE_SECONDS))
        except BaseException as error:  # noqa: BLE001  the thread ends here; the next call of `stop` raises the error
            with self._lock:
                self._error = error
                self._state_changed.notify_all()

    def stop(self) -> None:
        """Stop the background thread after the running micro-batch; raises the error that ended the thread, if any."""
        if self._thread is not None:
            self._stop_requested.set()
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def explain(self) -> str:
        """Return the shared plan as text: every operator with the queries that use it."""
        with self._lock:
            engine = self._coordinator
            return explain(
                list(engine.live_queries.values()),
                engine.state.current_plans(),
                engine.collect_join_statistics(),
                engine.sliding_join_plan,
            )

    def graph(self, form: str = "text") -> str:
        """Return the plan graph of joins in SLIDING windows as "text", "mermaid" or "svg"; raises SessionError otherwise."""
        if form not in GRAPH_FORMATS:
            raise SessionError(f"unknown graph form {form!r}", detail=f"forms: {', '.join(GRAPH_FORMATS)}")
        return GRAPH_FORMATS[form](
            build_physical_graph(self._coordinator.sliding_join_plan, self._coordinator.state.sliding_join_plan_partitions)
        )

    def close(self) -> None:
        """Stop the session and release its resources; remove a temporary checkpoint. A second call has no effect."""
        if self._closed:
            return
        try:
            self.stop()
        finally:
            with self._lock:
                self._closed = True
                self._state_changed.notify_all()
            for source in self._coordinator.sources.values():
                getattr(source, "close", lambda: None)()
            self._coordinator.optimizers.sliding_joins.close()
            self._coordinator.result_packer.close()
            self._backend.close()
            self._checkpoint.close()
            if self._is_temporary:
                shutil.rmtree(self._checkpoint.path, ignore_errors=True)

    def check(self, sql: str) -> pa.Schema:
        """Return the result columns of a query without adding it; raises SqlError if it is invalid."""
        return bind_query(sql, self.catalog).schema.to_arrow()

    def done(self) -> list[CommittedBatch]:
        """Return the most recent micro-batches of this session, oldest first.

        Only the newest 60 of them have row counts by query (`emitted_by`).
        """
        with self._lock:
            return list(self._recent_batches)

    @property
    def catalog(self) -> Catalog:
        """The declared streams and the registered functions, as queries see them."""
        return self._coordinator.build_catalog()

    def get_source(self, stream: str) -> Source | None:
        """Return the source of a declared stream; None if there is no such stream, or it has no source yet after a restart."""
        return self._coordinator.sources.get(stream)

    @property
    def last_batch(self) -> int:
        """The number of the last committed micro-batch; −1 before the first."""
        return self._coordinator.state.batch

    @property
    def drained(self) -> bool:
        """Whether `drain` has closed every window; rows that arrive afterwards are late for all windows."""
        return self._coordinator.state.drained

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def has_work(self) -> bool:
        """Return whether a source has new rows, or an interrupted batch must be run again."""
        return self._coordinator.has_work()

    def list_last_ranges(self) -> tuple[Range, ...]:
        """Return the input ranges of the last micro-batch."""
        entry = self._checkpoint.read_log_entry(self.last_batch)
        return tuple(item for task in entry.tasks for item in task) if entry else ()

    @property
    def checkpoint_path(self) -> Path:
        """The checkpoint directory."""
        return self._checkpoint.path

    def retain_results(self, max_bytes: int | None = None, max_batches: int | None = None) -> None:
        """Limit the results that the session keeps for readers, from the next micro-batch on; None is unlimited.

        The oldest results are deleted first. `max_batches` counts micro-batches, with results or without.
        """
        self._coordinator.retention = Retention(max_bytes, max_batches)

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until a condition holds, evaluating it after every micro-batch; return False on time-out.

        Returns also when the session is closed; raises SessionError if the background thread failed.
        """
        with self._state_changed:
            notified = self._state_changed.wait_for(lambda: condition() or self._closed or self._error is not None, timeout)
            if self._error is not None and not condition():
                raise SessionError("the session stopped because of an error", detail=str(self._error))
            return notified

    def state_of(self, record: QueryRecord) -> QueryState | None:
        """Return the state of a query after the last committed batch; None before it was live."""
        return self._coordinator.state.queries.get(record.id)

    def name_of(self, number: int) -> str:
        """Return the name of a query by its id, or the id as text if the session no longer knows the query."""
        record = self._registry.records.get(number)
        return str(number) if record is None else record.name

    def schema_of(self, record: QueryRecord) -> Schema:
        """Return the columns of a query's results."""
        if record.schema is None:
            record.schema = bind_query(record.sql, self.catalog).schema
        return record.schema

    def _check_open(self) -> None:
        if self._closed:
            raise SessionError("the session is closed")
        if self._error is not None:
            raise SessionError(
                "the session stopped because of an error",
                detail=str(self._error),
                hint="call stop() to raise it, then start() or advance() again",
            )

    def _build_display(self) -> SessionDisplay:
        state = "open" if self._thread is None else "running"
        if self._closed or self._error is not None:
            state = "closed" if self._closed else "stopped by an error"
        if self.last_batch >= 0:
            state += f", batch {self.last_batch:,}{', drained' if self.drained else ''}"
        streams = []
        for name, report in self.streams().items():
            latest = "" if report["max_event_time"] == MIN_TIME else format_event_time(report["max_event_time"])
            source = report["source"]
            streams.append(StreamDisplay(name, report["rows"], latest, str(source.get("kind", source.get("source", "")))))
        return SessionDisplay(state, streams, [display_query(query) for query in self.queries()])

    def __repr__(self) -> str:
        """Return the state, streams and number of queries in one line."""
        return format_session("Session", self._build_display())

    def _repr_html_(self) -> str:
        """Return the state, streams and newest queries as HTML, for notebooks."""
        return render_session("headrace session", self._build_display())

    def __enter__(self) -> Self:
        """Return the session; the context manager closes it at the end."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the session."""
        self.close()
