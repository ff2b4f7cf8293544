"""The Python API: sessions with their streams and queries.

    s = hr.Session()
    src = hr.MemorySource("user_id INT, price DOUBLE, time TIMESTAMP")
    s.create_stream("purchases", src, time="time", watermark="2 seconds")
    q = s.add("SELECT window_start, SUM(price) AS total FROM TUMBLE(purchases, '5 seconds')")
    src.append([...]); s.advance(); q.results()

All methods are thread-safe. Micro-batches run one at a time, in the thread that calls `advance` or in the thread of `start`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.connectors import Source
from headrace.display import format_session, render_session
from headrace.dsl.stream import QueryText, StreamFlow, create_flow, sql_of
from headrace.dsl.udf import ArgumentTypes, Function, build_function
from headrace.errors import OwnershipLostError, SessionError
from headrace.logging import label_logs
from headrace.model.budget import DEFAULT_BATCH_SECONDS, DEFAULT_TEXT_BYTES, BudgetInput, QueryBudget, parse_own_budget
from headrace.model.join_slices import DEFAULT_JOIN_SLICES, JoinSliceOptions
from headrace.model.late_materialization import LateMaterialization
from headrace.model.sliding_join_options import SlidingJoinOptions
from headrace.model.types import Schema
from headrace.model.window_join_options import WindowJoinInput, WindowJoinOptions
from headrace.query import Query, QueryRecord, QueryRegistry, check_sinks, display_session, find_schema, list_streams
from headrace.runtime.backend import BackendStart, probe_backend, to_source
from headrace.runtime.batch_loop import BatchLoop
from headrace.runtime.cleanup import choose_folder, run_all_steps
from headrace.runtime.command_queue import CHANGE_TIMEOUT_SECONDS, MAX_WAITING_CHANGES, ChangeSettings
from headrace.runtime.commands import RemoveQuery
from headrace.runtime.coordinator import Coordinator, RunLimits
from headrace.runtime.delivery import DELIVERY_TIMEOUT_SECONDS, MAX_WAITING_BYTES, DeliveryLimits, ResultDelivery
from headrace.runtime.engine_state import QueryState
from headrace.runtime.metrics import BatchReport
from headrace.runtime.observation import SessionObserver
from headrace.runtime.opening import CheckpointOpening
from headrace.runtime.partition_scaling import Partitioning, PartitionSetting, parse_partitions
from headrace.runtime.query_stats import SessionStatistics
from headrace.runtime.stream_registry import StreamRegistry, make_readers_error, make_stream_factory
from headrace.runtime.udf_registry import check_no_udfs, check_udfs_allowed, drop_udf, register_udf
from headrace.session_reports import ReportingSession
from headrace.sink_changes import SinkChanges, SinkSpecs, parse_sinks
from headrace.sql import Catalog, bind_query
from headrace.statements import run_statement
from headrace.storage.checkpoint import Checkpoint
from headrace.storage.locations import StorageOptions
from headrace.storage.result_log import ResultReader, Retention

ROWS_PER_BATCH = 4_000_000


class Session(ReportingSession):
    """A shared pipeline with its streams and queries. Use it as a context manager, or call `close` at the end."""

    def __init__(
        self,
        checkpoint: str | Path | None = None,
        *,
        master: str | None = None,
        spark: Any = None,
        spark_config: Mapping[str, Any] | None = None,
        exchange: str = "auto",
        backend: str = "spark",
        partitions: PartitionSetting | None = None,
        rows_per_batch: int = ROWS_PER_BATCH,
        sliding_plan: str = "auto",
        sliding_target: str = "probes",
        sliding_budget: int | None = None,
        sliding_sharing: bool = True,
        window_joins: WindowJoinInput = None,
        late_materialization: str = "auto",
        join_slices: str = "auto",
        join_slices_bytes: int = DEFAULT_JOIN_SLICES.max_bytes,
        budget: BudgetInput = None,
        max_text_bytes: int = DEFAULT_TEXT_BYTES,
        max_batch_seconds: float = DEFAULT_BATCH_SECONDS,
        functions: bool = True,
        delivery_timeout: float = DELIVERY_TIMEOUT_SECONDS,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        changes_per_batch: int | None = None,
        change_delay: float = 0.0,
        max_waiting_changes: int = MAX_WAITING_CHANGES,
        change_timeout: float = CHANGE_TIMEOUT_SECONDS,
        storage_options: StorageOptions | None = None,
        standby: bool = False,
    ) -> None:
        """Open a session; with an existing checkpoint, its queries and streams continue where they stopped.

        - `checkpoint`: a directory, or a URL such as "s3://bucket/path". By default a temporary directory that `close` removes.
        - `master`: the Spark master; by default that of the running Spark, of spark-submit or spark-defaults.conf, else local[*].
        - `spark`: a SparkSession to use; by default the running one, or a new one. `close` stops only what headrace has started.
        - `spark_config`: settings of Spark, such as {"spark.executor.memory": "4g"}; those of spark-submit and files apply, too.
        - `exchange`: how shuffle blocks travel: as "files" of the checkpoint, through Spark's "shuffle", or "auto".
        - `backend`: "spark", "local" (the same stages in this process) or "reference" (the oracle, slow).
        - `partitions`: the number of key partitions, or "auto" (by parallelism and load); by default as in the checkpoint.
        - `rows_per_batch`: about how many rows a micro-batch reads from each stream at most.
        - `sliding_plan`: how joins in SLIDING windows are planned: "auto" (the best of all searches), "ilp", "greedy", "common",
          "flat", "left_deep", "chain" or "merging"; with least of `sliding_target`: "probes" (rows sent), "latency" or "storage";
          with `sliding_budget` rows in state stores; without `sliding_sharing` each such join has stores of its own.
        - `window_joins`: how joins in TUMBLE and HOP windows are planned, by name: {"grouping": True, "order_gain": 0.33, …}.
        - `late_materialization`: whether rows that are joined by several attributes are stored once: "always", "never" or "auto".
        - `join_slices`: whether window joins keep pairs for later windows: "auto" (where that costs less), "kept", or "found" (in
          each window); those kept take up to `join_slices_bytes` of each worker process.
        - `budget`: what each query may use in a micro-batch, as a QueryBudget or by name; one that needs more fails alone.
        - `max_text_bytes`: the longest text that an expression may make; a query with a longer one fails.
        - `max_batch_seconds`: a micro-batch that takes longer is cancelled, and run again without the slow query; 0: unlimited.
        - `functions`: False refuses registered functions, and a checkpoint that has some: their pickled code would run here.
        - `delivery_timeout`: the seconds after which a callback or a console that blocks fails its query.
        - `max_waiting_bytes`: what may wait for a sink whose destination is not available, before its query fails.
        - `changes_per_batch`: a micro-batch takes at most so many query changes; by default all that wait.
        - `change_delay`: the seconds for which changes wait for more of them; `changes_per_batch` of them do not wait.
        - `max_waiting_changes`: how many changes may wait before `add` waits for room, for `change_timeout` seconds.
        - `storage_options`: options of object stores, {"endpoint": …} or, below a URL, {"s3://bucket": {"endpoint": …}}.
        - `standby`: wait while another session uses the checkpoint, and take over when it ends; by default that is an error.

        Raises CheckpointError if the checkpoint is in use, damaged, of another format or has refused functions, and SessionError
        for an invalid setting or if Spark cannot be started.
        """
        sliding_joins = SlidingJoinOptions.parse(sliding_plan, sliding_target, sliding_budget, is_shared=sliding_sharing)
        self._batch_lock, self._lock, self._closed = threading.RLock(), threading.RLock(), False
        self._state_changed = threading.Condition(self._lock)
        self._cleanup: deque[Callable[[], object]] = deque()  # the last steps of `close`, those of the newest resource first
        try:
            open_checkpoint = partial(Checkpoint, choose_folder(checkpoint, self._cleanup), storage_options)
            opening = CheckpointOpening(open_checkpoint, standby=standby)
            self._cleanup.appendleft(opening.close)
            start = BackendStart(backend, master, spark, spark_config or {}, exchange)
            self._backend = opening.start_meanwhile(start, self._cleanup)
            self.checkpoint = self._checkpoint = opening.finish()
            plans = sliding_joins, WindowJoinOptions.parse(window_joins), LateMaterialization.parse(late_materialization)
            self._coordinator = Coordinator(self._checkpoint, self._backend, partitions, rows_per_batch, *plans)
            self._cleanup.appendleft(self._coordinator.close)
            slices = JoinSliceOptions.parse(join_slices, join_slices_bytes)
            self._coordinator.limits = RunLimits(QueryBudget.parse(budget), max_text_bytes, max_batch_seconds, slices)
            changes = ChangeSettings(changes_per_batch, change_delay, max_waiting_changes, change_timeout)
            self._coordinator.command_queue.settings = changes
            self._allows_functions = functions
            if not functions:
                check_no_udfs(self._coordinator)
            self._recover(DeliveryLimits(delivery_timeout, max_waiting_bytes))
        except BaseException as error:  # noqa: BLE001  raised again
            run_all_steps(self._cleanup, error)

    def _recover(self, limits: DeliveryLimits) -> None:
        """Load the queries of the checkpoint, and deliver the rows that were not delivered."""
        self._command_queue = self._coordinator.command_queue
        self._registry, self._observer = QueryRegistry(), SessionObserver(self.name_of, self._checkpoint.identity)
        self._coordinator.sources.health.on_change = self._observer.record_stream_health
        self._streams = StreamRegistry(self._coordinator, self._state_changed)
        self._delivery = ResultDelivery(self._checkpoint, is_new=self.last_batch < 0, on_failure=self._fail_query, limits=limits)
        self._cleanup.appendleft(self._delivery.close)
        self._coordinator.list_needed_files = self._delivery.list_needed_files
        self.statistics = SessionStatistics(self._coordinator, self._observer)
        self.result_reader = ResultReader(self._checkpoint.store, lambda: self._coordinator.state.results)
        self._loop = BatchLoop(self._run_if_busy, self._command_queue.count_appended, self._state_changed, self._backend.close)
        self.sink_changes = SinkChanges(self._registry, self._command_queue, self._delivery, self._backend, self._state_changed)
        self._registry.recover(self._coordinator.state, self._coordinator.unfinished_entry)
        probe_backend(self._backend, self._checkpoint, self._coordinator.sources, self._registry.list_sinks)
        self._deliver_results()

    def _deliver_results(self) -> None:
        """Queue committed rows for the sinks that the driver serves."""
        self._delivery.submit(self._registry.records, self._coordinator.state.deliveries, self.last_batch)

    def create_stream(
        self,
        name: str,
        source: Source,
        *,
        time: str,
        watermark: str = "0 seconds",
        max_ahead: str | None = None,
        watermark_by: str | None = None,
        idle: str = "10 seconds",
    ) -> None:
        """Declare a stream over a source.

        `time` names the event-time column; rows that arrive later than `watermark`, such as "2 seconds", are late. Rows more than
        `max_ahead` in the future are dropped and counted (by default after one day for a KafkaSource or a TcpSource, else none).
        With `watermark_by="partition"` (the default of a KafkaSource; else "stream") the watermark follows the partition that is
        furthest behind, except those that had no rows for `idle`, while others had some.
        In a session recovered from a checkpoint, this call attaches the source of a known stream again. Several streams may have
        the same source object: each reads every row once, a later one from the oldest that the source retains.

        Raises NameTakenError if the stream is already declared, SchemaError for an invalid name or time column, and
        CheckpointError if the checkpoint has a different declaration of the stream, or had it share its source with others.
        """
        self._check_open()
        source = to_source(source, self._backend)
        make_stream = make_stream_factory(name, source, time, watermark, max_ahead, watermark_by, idle)
        while name in self._coordinator.dropping:  # commit the drop of an earlier stream of that name first
            with self._batch_lock:
                if name in self._coordinator.dropping:
                    self._run_one_batch()
        with self._streams.attach(name, source, make_stream) as stream, self._batch_lock, self._lock:
            self._check_open()
            self._coordinator.declare_stream(stream, source)

    def sql(self, text: str) -> Query | pa.Table | None:
        """Run a statement: CREATE, ALTER, DROP, SHOW, DESCRIBE; return the query or the table that it makes, if any."""
        return run_statement(self, text)

    def drop_stream(self, name: str, *, cascade: bool = False) -> None:
        """Drop a stream: it is not read any more, and the next micro-batch deletes its state and the bookkeeping of its source.

        Returns when the drop is logged, which waits for a running micro-batch. The name can then be declared again.

        Raises NotFoundError if there is none, and SessionError with the queries that read it, unless `cascade` removes them.
        """
        self._check_open()
        with self._lock, self._command_queue.hold_together():
            self._streams.check_exists(name)
            readers = [record.name for record in self._registry.list_active() if name in list_streams(record, self.catalog)]
            if readers and not cascade:
                raise make_readers_error(name, readers)
            for reader in readers:
                self.remove(reader)
            self._coordinator.drop_stream(name)
            self._state_changed.notify_all()
        with self._batch_lock:
            self._coordinator.log_commands()

    def add(
        self,
        sql: QueryText,
        *,
        name: str | None = None,
        sink: Any = None,
        sinks: SinkSpecs = None,
        past: bool = False,
        owner: str = "",
        budget: BudgetInput = None,
    ) -> Query:
        """Check and accept a query; it is live from the next micro-batch on. Return its handle.

        - `sql`: SQL text, or a query made with `hr.select` or `hr.stream`.
        - `name`: a unique name; by default `q1`, `q2`, and so on.
        - `sink`, or several as `sinks`: the destination of the results: None or "memory", "console", "noop", "parquet:DIR",
          "jsonl:DIR", a function of an Arrow table, or a sink such as `hr.ParquetSink` or `hr.KafkaSink`.
        - `past`: backfill a join in SLIDING windows from the state of live queries, for all inputs but one (see `Query.note`).
        - `owner`: recorded with the query, without further effect.
        - `budget`: what the query may use in a micro-batch, as for `Session`; limits that it does not name are the session's.

        `Query.wait_live` waits until the query is live. In a recovered session, adding a live query again with the same name and
        text returns the existing query.

        Raises SqlError for an invalid query, SchemaError for an invalid name, NameTakenError if the name or the sink's directory
        is in use, SinkError for an unknown sink, QueueFullError if too many query changes wait, and SessionError if `past` is
        not possible for the query. A refused query has no effect on others.
        """
        self._check_open()
        with self._command_queue.reserve_place(wait=self._loop.is_running):
            return self._add(sql, name, sink, sinks, past, owner, budget)

    def _add(
        self, sql: QueryText, name: str | None, sink: Any, sinks: SinkSpecs, past: bool, owner: str, budget: BudgetInput
    ) -> Query:
        self._check_open()
        text, own_budget = sql_of(sql), parse_own_budget(budget, self.budget)
        with self._lock:
            query_name, targets = self._registry.choose_name(name), parse_sinks(sink, sinks, self._backend)
            is_recovered = query_name in self._registry
            if is_recovered:
                given = None if sink is None and sinks is None else targets.sinks
                record = self._registry.reattach_query(query_name, text, given, own_budget)
                self._delivery.attach_callbacks(record)
            else:
                record, command = self._registry.accept_query(
                    text, query_name, targets, self.catalog, self.last_batch + 1, past=past, owner=owner, budget=own_budget
                )
                self._command_queue.append(command)
        if is_recovered:
            self._delivery.wait()
        return Query(self, record)

    def remove(self, name: str) -> None:
        """Remove a query: it emits nothing from the next micro-batch on; results emitted before are kept.

        The next micro-batch logs the removal; a crash before that loses it. Raises NotFoundError if no query has that name.
        """
        self._check_open()
        with self._lock:
            record = self._registry.release_name(name)
            if self._command_queue.withdraw_addition(record.id):  # the query never became live
                record.status = "removed"
            elif record.status != "failed":
                self._command_queue.append(RemoveQuery(record.id))
            self._state_changed.notify_all()

    def replace(
        self, name: str, sql: QueryText, *, sink: Any = None, sinks: SinkSpecs = None, owner: str = "", budget: BudgetInput = None
    ) -> Query:
        """Replace a query atomically: the old one ends and the new one starts in the same micro-batch. Return the new handle.

        Parameters and errors are those of `add`, but the default `budget` is that of the old query; raises NotFoundError if no
        query has that name. If the new query is refused, the old one continues unchanged.
        """
        self._check_open()
        place = self._command_queue.reserve_place(wait=self._loop.is_running)
        with place, self._lock, self._command_queue.hold_together():
            self.check(sql_of(sql))
            targets = parse_sinks(sink, sinks, self._backend)
            new_budget = parse_own_budget(budget, self.budget) or self._registry.get(name).budget
            check_sinks(name, targets.sinks, (record for record in self._registry.list_active() if record.name != name))
            self.remove(name)
            return self._add(sql, name, None, targets.sinks, past=False, owner=owner, budget=new_budget)

    @property
    def budget(self) -> QueryBudget:
        """What a query without a budget of its own may use in a micro-batch."""
        return self._coordinator.limits.budget

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

        Counts are `rows`, `untimed` (without event time), `ahead` (too far in the future), `skipped` (files, with the reason),
        `skipped_rows` (that do not fit, the newest in `skipped_samples`), `lost` (messages deleted unread, by partition), `lag`
        (rows not read yet) and `partitions`. The `status` is "ok", "degraded" (`error` says why) or "detached" (after a restart).
        """
        return self._streams.describe()

    def stream(self, name: str) -> StreamFlow:
        """Return a flow of the rows of a stream, to filter, window, group, join and add; an invalid step raises SqlError."""
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

        Raises NameTakenError if a query calls the function to replace, SchemaError for an invalid name or type, or for code
        that cannot be stored, and SessionError if the session was opened with `functions=False`.
        """
        registered = function if isinstance(function, Function) else build_function(function, code, returns, arguments)
        self._check_open()
        check_udfs_allowed(registered.name, allowed=self._allows_functions)
        with self._batch_lock, self._lock:
            register_udf(self._coordinator, registered.name, registered.code, registered.result, registered.arguments)
        return registered

    def drop_function(self, name: str) -> None:
        """Drop a registered function; raises NotFoundError if it is not registered, and NameTakenError while a query calls it."""
        self._check_open()
        with self._batch_lock, self._lock:
            drop_udf(self._coordinator, name)

    def advance(self, *, retry_degraded: bool = True) -> BatchReport:
        """Run one micro-batch now, and return its report.

        It applies the pending query changes and reads the new rows of all streams, up to `rows_per_batch`. Without either, no
        batch runs and the report is empty. A stream whose source cannot be read is degraded: `streams` has the reason, and the
        batch runs without it. A degraded stream is tried again at once; with `retry_degraded=False`, for callers in a loop, only
        after a delay that doubles with every failure.
        """
        self._check_open()
        with self._batch_lock:
            if retry_degraded:
                self._coordinator.sources.health.retry_now()
            report = self._run_batch()
        self._delivery.wait()
        return report

    def _run_batch(self, *, final: bool = False) -> BatchReport:
        report = BatchReport(self._coordinator.state.batch, 0, 0)
        if self._coordinator.unfinished_entry is not None:
            report = self._run_one_batch()
        if not final and not self._command_queue.is_due() and not self._coordinator.has_work():
            return report
        return self._run_one_batch(final=final)

    def _run_one_batch(self, *, final: bool = False) -> BatchReport:
        """Run a batch, and finish it if it was committed; there may have been nothing left to do."""
        started, batch = time.monotonic(), self._coordinator.state.batch
        with label_logs(batch + 1):
            report = self._coordinator.advance(final=final)
            if self._coordinator.state.batch > batch:
                self._finish_batch(report, started)
        return report

    def _finish_batch(self, report: BatchReport, started: float) -> None:
        """After a commit, update the query records, deliver rows to callbacks, and fail the queries whose callback fails."""
        state = self._coordinator.state
        with self._lock:
            self._registry.apply_states({*report.added, *report.removed, *report.failed}, state)
            committed = time.monotonic()
            try:
                self._deliver_results()
            finally:  # the batch is committed, whether or not its delivery can be recorded
                self._registry.drop_ended(state.queries, len(state.queries))
                self._observer.record_batch(report, started, committed, state.queries)
                self._state_changed.notify_all()

    def _fail_query(self, number: int, message: str) -> None:
        """Fail a query whose sink failed; called by the delivery."""
        with self._lock:
            if self._registry.fail_query(number, message):
                self._command_queue.append(RemoveQuery(number, message))
                self._state_changed.notify_all()

    def drain(self) -> None:
        """Process all available rows, then close every open window, as at the end of a bounded input.

        Raises SourceError if a stream is degraded, after all others were processed: the windows of its queries stay open, and
        another call closes them when its source can be read again.
        """
        self._check_open()
        self._coordinator.sources.health.retry_now()
        while self._drain_batch():
            self._delivery.wait()
        self._streams.raise_if_degraded()

    def _drain_batch(self) -> bool:
        """Run the next batch of a drain, of which the last closes the windows; return False if there is none."""
        with self._batch_lock:
            self._command_queue.hasten()
            if self._coordinator.has_work() or self._command_queue:
                self._run_batch()
                return True
            state, failures = self._coordinator.state, self._coordinator.sources.health.failures
            if state.batch < 0 or (state.drained and state.left_open <= failures.keys()):
                return False
            self._run_batch(final=True)
            return True

    def rescale(self, partitions: PartitionSetting) -> None:
        """Change the number of key partitions from the next micro-batch on; "auto" lets it follow parallelism and load.

        Raises SessionError for an invalid number. Never waits for a micro-batch.
        """
        self._check_open()
        self._coordinator.scaler.setting = parse_partitions(partitions)

    @property
    def partitioning(self) -> Partitioning:
        """The number of key partitions, now and from the next micro-batch on, and the part of all hashes that each one has."""
        return self._coordinator.scaler.describe(self._coordinator.state.partition_map, self._backend.parallelism)

    def start(self, interval: float = 0.0) -> None:
        """Run micro-batches in a background thread whenever there is work, at least `interval` seconds apart.

        A micro-batch that fails is retried with back-off, up to 30 seconds apart; `problem` has its error meanwhile.

        Raises SessionError if the session is already running.
        """
        self._check_open()
        self._loop.start(interval)

    def _run_if_busy(self) -> bool:
        self._check_open()
        with self._batch_lock:
            busy = self._command_queue.is_due() or self._coordinator.has_work()
            if busy:
                self._run_batch()
            return busy

    @property
    def loss(self) -> OwnershipLostError | None:
        """Why another session owns the checkpoint now, so that this one commits nothing any more; None while it is the owner."""
        error = self._checkpoint.loss or self._loop.error
        return error if isinstance(error, OwnershipLostError) else None

    @property
    def problem(self) -> str | None:
        """The error of the last micro-batch, while the background thread retries it; None if that succeeded."""
        return None if self._loop.problem is None else str(self._loop.problem)

    def stop(self) -> None:
        """Stop the background thread after the running micro-batch; raise the error that ended it, or that it was to retry."""
        self._loop.stop()

    def close(self) -> None:
        """Stop the session and release its resources; remove a temporary checkpoint. A second call has no effect."""
        if self._closed:
            return
        run_all_steps([self.stop, self._delivery.wait, self._observer.listeners.wait, self._mark_closed, *self._cleanup])

    def _mark_closed(self) -> None:
        with self._state_changed:
            self._closed = True
            self._state_changed.notify_all()
        self._command_queue.close()

    def check(self, sql: str) -> pa.Schema:
        """Return the result columns of a query without adding it; raises SqlError if it is invalid."""
        return bind_query(sql, self.catalog).schema.to_arrow()

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
        return self._coordinator.state.drained and not self._coordinator.state.left_open

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def has_work(self) -> bool:
        """Return whether a source has new rows, or an interrupted batch must be run again."""
        return self._coordinator.has_work()

    @property
    def checkpoint_path(self) -> Path | None:
        """The checkpoint directory; None if the checkpoint is in an object store."""
        return self._checkpoint.path

    def retain_results(self, max_bytes: int | None = None, max_batches: int | None = None) -> None:
        """Limit the results kept for readers, by bytes and micro-batches; None is unlimited. The oldest are deleted first."""
        self._coordinator.retention = Retention(max_bytes, max_batches)

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until a condition holds, evaluating it after every micro-batch; return False on time-out.

        Returns also when the session is closed; raises SessionError if the background thread failed.
        """
        with self._state_changed:
            notified = self._state_changed.wait_for(lambda: condition() or self._closed or self._loop.error is not None, timeout)
            if self._loop.error is not None and not condition():
                raise SessionError("the session stopped because of an error", detail=str(self._loop.error))
            return notified

    def state_of(self, record: QueryRecord) -> QueryState | None:
        """Return the state of a query after the last committed batch; None before it was live."""
        return self._coordinator.state.queries.get(record.id)

    def name_of(self, number: int) -> str:
        """Return the name of a query by its id, or the id as text if the session no longer knows it."""
        return self._registry.name_of(number)

    def schema_of(self, record: QueryRecord) -> Schema:
        """Return the columns of a query's results."""
        return find_schema(record, self.catalog, self.result_reader, self.last_batch)

    def _check_open(self) -> None:
        if self._closed:
            raise SessionError("the session is closed")
        if self.loss is not None:
            raise self.loss
        if self._loop.error is not None:
            raise self._loop.make_stopped_error()

    def __repr__(self) -> str:
        """Return the state, streams and number of queries in one line."""
        return format_session("Session", display_session(self, self._loop.describe_state()))

    def _repr_html_(self) -> str:
        """Return the state, streams and newest queries as HTML, for notebooks."""
        return render_session("headrace session", display_session(self, self._loop.describe_state()))
