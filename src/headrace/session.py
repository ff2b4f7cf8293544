"""The Python API: a session, its streams, its queries.

    s = hr.Session()
    src = hr.MemorySource("user_id INT, price DOUBLE, time TIMESTAMP")
    s.create_stream("purchases", src, time="time", watermark="2 seconds")
    q = s.add("SELECT window_start, SUM(price) AS total FROM TUMBLE(purchases, '5 seconds')")
    src.append([...]); s.advance(); q.results()

Calls may come from any thread; micro-batches run one at a time, in the caller of `advance` or in the thread of `start`.
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
from typing import Any, NamedTuple, Self

import pyarrow as pa

from headrace.connectors import CallbackSink, Source, parse_sink
from headrace.errors import NameTakenError, SchemaError, SessionError
from headrace.model.duration import parse_duration
from headrace.model.schema import Schema
from headrace.model.stream import Stream
from headrace.query import Query, QueryRecord, check_past, check_sink
from headrace.registry import Registry
from headrace.runtime.backends import as_source, load_backend
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.commands import Add, Remove
from headrace.runtime.coordinator import Coordinator
from headrace.runtime.delivery import Delivery
from headrace.runtime.report import BatchReport
from headrace.runtime.state import QueryState
from headrace.sharing.explain import explain
from headrace.sharing.multiway.pictured import FORMS, pictured
from headrace.sql import bind_query
from headrace.writing import QueryText, Writing, text_of

_IDLE_SECONDS = 0.02
_REMEMBERED = 1_000
DETAILED = 60
ROWS_PER_BATCH = 4_000_000


class Done(NamedTuple):
    """A micro-batch that was committed: when, in seconds since 1970, and how long it took."""

    report: BatchReport
    at: float
    seconds: float


class Session(Writing):
    """One shared pipeline and the queries in it."""

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
        fault: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Open a session; with a checkpoint that was used before, queries and streams go on where they stopped.

        Without `checkpoint` a temporary directory is used and removed by `close`. `backend` is "spark", "local" (the same
        stages in this process) or "reference" (the oracle, slow). `multiway` says how far joins in SLIDING windows are worked
        off together: "global", one plan that is the cheapest for all of them; "common", each as is best for it alone, what is
        equal once; "none". Results are the same. `fault` is for tests: called at every durable step.
        """
        self._temporary = checkpoint is None
        self._checkpoint = Checkpoint(checkpoint if checkpoint is not None else tempfile.mkdtemp(prefix="headrace-"), fault)
        try:
            self._backend = load_backend(backend, master=master, spark=spark, fault=fault)
            self._coordinator = Coordinator(self._checkpoint, self._backend, partitions, rows_per_batch, multiway)
        except BaseException:
            self._checkpoint.close()
            raise
        self._batch_lock, self._lock = threading.RLock(), threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._requests = self._coordinator.requests
        self._queries = Registry()
        self._delivery = Delivery(self._checkpoint)
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._closed = False
        self._done: deque[Done] = deque(maxlen=_REMEMBERED)
        self._queries.recover(self._coordinator.state, self._coordinator.unfinished)
        self._deliver()

    def _deliver(self) -> None:
        """Hand committed rows to the console and to callbacks; wait while a recovered callback was not given back."""
        if any(record.waiting and record.status in {"accepted", "live"} for record in self._queries.records.values()):
            return
        for number, message in self._delivery.deliver(self._queries.records, self._coordinator.state.batch).items():
            self._fail(number, message)

    def create_stream(self, name: str, source: Source, *, time: str, watermark: str = "0 seconds") -> None:
        """Declare a stream over a source; `time` is its event-time column, `watermark` how far disorder may reach.

        In a session recovered from a checkpoint this gives a stream its source back: it must be declared as before.
        """
        self._check_open()
        with self._batch_lock, self._lock:
            if name in self._coordinator.sources:
                raise NameTakenError(
                    f"stream '{name}' is already there", detail=f"streams: {', '.join(self._coordinator.sources)}"
                )
            if not isinstance(name, str) or not name.strip():
                raise SchemaError("a stream needs a name")
            source = as_source(source, self._backend)
            source.attach(name, self._checkpoint.source_folder(name))
            self._coordinator.declare(Stream(name, source.schema, time, parse_duration(watermark)), source)

    def add(self, sql: QueryText, *, name: str | None = None, sink: Any = None, past: bool = False, owner: str = "") -> Query:
        """Check a query, in SQL or made with `hr.select` or `hr.stream`, and accept it; it is live from the next micro-batch on.

        `Query.wait_live` waits for that. Anything wrong with it is raised here and touches nothing else. In a recovered
        session, adding a live query again under the same name with the same text returns the query that is there. With its
        `past`, a join in SLIDING windows also sees rows that are stored for live queries, if they have all it looks at. Whoever
        is its `owner` is only remembered.
        """
        self._check_open()
        text = text_of(sql)
        with self._lock:
            chosen, target = self._queries.chosen(name), parse_sink(sink)
            if chosen in self._queries:
                record = self._queries.again(chosen, text, target)
                self._deliver()
                return Query(self, record)
            plan = bind_query(text, self._coordinator.catalog())
            check_past(plan, past=past)
            check_sink(chosen, target, self._queries.present())
            record = self._queries.new(chosen, text, target, plan.schema, owner, self.last_batch + 1)
            described = None if isinstance(target, CallbackSink) else target.to_json()
            self._requests.append(Add(record.id, chosen, text, described, past, owner))
            return Query(self, record)

    def remove(self, name: str) -> None:
        """Remove a query: what it emitted stays, nothing is emitted from the next micro-batch on."""
        self._check_open()
        with self._lock:
            record = self._queries.removed(name)
            if self._requests.withdraw(record.id):  # it never was live
                record.status = "removed"
            elif record.status != "failed":
                self._requests.append(Remove(record.id))
            self._changed.notify_all()

    def replace(self, name: str, sql: QueryText, *, sink: Any = None, owner: str = "") -> Query:
        """Put another query in the place of one: the old one ends and the new one begins with the same micro-batch.

        If anything is wrong with the new one, the old one stays as it is.
        """
        self._check_open()
        with self._lock, self._requests.together():
            self.check(text_of(sql))
            target = parse_sink(sink)
            check_sink(name, target, (one for one in self._queries.present() if one.name != name))
            self.remove(name)
            return self.add(sql, name=name, sink=target, owner=owner)

    def query(self, name: str) -> Query:
        """Return the query of that name."""
        with self._lock:
            return Query(self, self._queries.named(name))

    def find(self, name: str, number: int | None = None) -> Query | None:
        """Return the newest query of that name, also one that was removed or failed; None if there never was one.

        With the number that is a query's `id` it is that one, whoever has its name by now.
        """
        with self._lock:
            found = self._queries.newest(name, number)
            return None if found is None else Query(self, found)

    def queries(self) -> list[Query]:
        """Return all queries that were added and not removed, oldest first."""
        with self._lock:
            return [Query(self, record) for record in self._queries.present()]

    def streams(self) -> dict[str, dict[str, Any]]:
        """Return for each stream its declaration and what was counted: rows, rows without event time, files skipped."""
        found = {}
        for name, state in self._coordinator.state.declared().items():
            planned = getattr(self._coordinator.sources.get(name), "skipped", {})
            found[name] = {**state.report(), "skipped": {**planned, **state.skipped}}
        return found

    def advance(self) -> BatchReport:
        """Run one micro-batch now: pending query changes, and everything new on the streams up to the batch limit."""
        self._check_open()
        with self._batch_lock:
            return self._advance()

    def _advance(self, *, final: bool = False) -> BatchReport:
        if self._coordinator.unfinished is not None:
            self._finish(self._coordinator.advance(), time.monotonic())
        if not self._requests and not final and not self._coordinator.has_work():
            return BatchReport(self._coordinator.state.batch, 0, 0)
        begun = time.monotonic()
        report = self._coordinator.advance(final=final)
        self._finish(report, begun)
        return report

    def _finish(self, report: BatchReport, begun: float) -> None:
        """After a commit: tell the queries, hand rows to callbacks, fail the queries whose callback fails."""
        state = self._coordinator.state
        with self._lock:
            for number in {*report.added, *report.removed, *report.failed}:
                if number in self._queries.records and number in state.queries:
                    self._queries.records[number].update(state.queries[number], state.batch, fresh=True)
            self._deliver()
            for number in report.failed:
                self._queries.records[number].discard(report.batch)
            self._queries.forget(state.queries, len(state.queries))
            self._done.append(Done(report, time.time(), time.monotonic() - begun))
            if len(self._done) > DETAILED:  # rows of thousands of queries in a thousand batches would be much to hold
                old = self._done[-DETAILED - 1]
                self._done[-DETAILED - 1] = old._replace(report=replace(old.report, emitted_by={}))
            self._changed.notify_all()

    def _fail(self, number: int, message: str) -> None:
        record = self._queries.records[number]
        record.status, record.error = "failed", message
        self._requests.append(Remove(number, message))

    def drain(self) -> None:
        """Read all that is there, then close every open window: the end of a bounded input."""
        self._check_open()
        with self._batch_lock:
            while self._coordinator.has_work() or self._requests:
                self._advance()
            if not self._coordinator.state.drained and self._coordinator.state.batch >= 0:
                self._advance(final=True)

    def rescale(self, partitions: int) -> None:
        """Work with another number of key partitions from the next micro-batch on; queries go on, and lose or double nothing."""
        self._check_open()
        with self._batch_lock:
            self._coordinator.rescale(partitions)

    def start(self, interval: float = 0.0) -> None:
        """Run micro-batches in the background whenever there is something to do, at least `interval` seconds apart."""
        self._check_open()
        if self._thread is not None:
            raise SessionError("the session is already running", hint="call stop() first")
        self._stopping.clear()
        self._thread = threading.Thread(target=self._loop, args=(interval,), name="headrace", daemon=True)
        self._thread.start()

    def _loop(self, interval: float) -> None:
        try:
            while not self._stopping.is_set():
                begun = time.monotonic()
                with self._batch_lock:
                    busy = bool(self._requests) or self._coordinator.has_work()
                    if busy:
                        self._advance()
                pause = interval - (time.monotonic() - begun)
                self._stopping.wait(max(pause, 0.0 if busy else _IDLE_SECONDS))
        except BaseException as error:  # noqa: BLE001  the thread ends here; the next call raises it
            with self._lock:
                self._error = error
                self._changed.notify_all()

    def stop(self) -> None:
        """Stop running in the background, after the micro-batch at work; raises what went wrong there, if anything."""
        if self._thread is not None:
            self._stopping.set()
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def explain(self) -> str:
        """Return, as text, every shared operator and which queries use it."""
        with self._lock:
            engine = self._coordinator
            return explain(list(engine.live.values()), engine.state.plans_now(), engine.join_statistics(), engine.probes)

    def graph(self, form: str = "text") -> str:
        """Return how rows go along the stores of joins in SLIDING windows: "text", "mermaid", or "svg" for a picture."""
        if form not in FORMS:
            raise SessionError(f"a graph cannot be shown as {form!r}", detail=f"forms: {', '.join(FORMS)}")
        return FORMS[form](pictured(self._coordinator.probes, self._coordinator.state.probed_by))

    def close(self) -> None:
        """Stop and give everything back; a temporary checkpoint is removed."""
        if self._closed:
            return
        try:
            self.stop()
        finally:
            with self._lock:
                self._closed = True
                self._changed.notify_all()
            for source in self._coordinator.sources.values():
                getattr(source, "close", lambda: None)()
            self._coordinator.prober.close()
            self._backend.close()
            self._checkpoint.close()
            if self._temporary:
                shutil.rmtree(self._checkpoint.path, ignore_errors=True)

    def check(self, sql: str) -> pa.Schema:
        """Return the columns that a query would have; raises what is wrong with it."""
        return bind_query(sql, self._coordinator.catalog()).schema.to_arrow()

    def done(self) -> list[Done]:
        """Return the last micro-batches that this session ran, oldest first; rows by query only of the last DETAILED."""
        with self._lock:
            return list(self._done)

    @property
    def coordinator(self) -> Coordinator:
        """What runs the micro-batches; for tools that look inside."""
        return self._coordinator

    @property
    def last_batch(self) -> int:
        """The number of the last committed micro-batch; −1 before the first."""
        return self._coordinator.state.batch

    @property
    def drained(self) -> bool:
        """Whether `drain` has closed every window: rows that come now are late for all of them."""
        return self._coordinator.state.drained

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def results_folder(self) -> Path:
        """Where rows of memory sinks are kept."""
        return self._checkpoint.path / "results"

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until a condition holds, looking again after every micro-batch; False on time-out."""
        with self._changed:
            found = self._changed.wait_for(lambda: condition() or self._closed or self._error is not None, timeout)
            if self._error is not None and not condition():
                raise SessionError("the session stopped because of an error", detail=str(self._error))
            return found

    def state_of(self, record: QueryRecord) -> QueryState | None:
        """Return what the last committed batch says of a query; None before it was live."""
        return self._coordinator.state.queries.get(record.id)

    def name_of(self, number: int) -> str:
        """Return the name of a query by its id, or the id where it is long forgotten."""
        record = self._queries.records.get(number)
        return str(number) if record is None else record.name

    def schema_of(self, record: QueryRecord) -> Schema:
        """Return the columns of a query's results."""
        if record.schema is None:
            record.schema = bind_query(record.sql, self._coordinator.catalog()).schema
        return record.schema

    def _check_open(self) -> None:
        if self._closed:
            raise SessionError("the session is closed")
        if self._error is not None:
            raise SessionError(
                "the session stopped because of an error",
                detail=str(self._error),
                hint="call stop() to get it, then start() or advance() again",
            )

    def __enter__(self) -> Self:
        """Use as a context manager: closed at the end."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close."""
        self.close()
