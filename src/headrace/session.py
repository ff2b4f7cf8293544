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
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.builder import Select
from headrace.connectors import CallbackSink, MemorySink, Sink, Source, parse_sink
from headrace.errors import NameTakenError, NotFoundError, SchemaError, SessionError
from headrace.model.duration import parse_duration
from headrace.model.schema import Schema
from headrace.model.stream import Stream
from headrace.query import Query, QueryRecord, check_past, check_sink
from headrace.runtime.backends import as_source, load_backend
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.commands import Add, Remove, from_json
from headrace.runtime.coordinator import BatchReport, Coordinator
from headrace.runtime.delivery import Delivery
from headrace.runtime.state import QueryState
from headrace.sharing.explain import explain
from headrace.sharing.multiway.pictured import FORMS, pictured
from headrace.sharing.parts import whole
from headrace.sql import bind_query

_IDLE_SECONDS = 0.02
_REMEMBERED = 1_000
ROWS_PER_BATCH = 4_000_000


class Session:
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
        self._records: dict[int, QueryRecord] = {}
        self._names: dict[str, int] = {}
        self._delivery = Delivery(self._checkpoint)
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._closed = False
        self.last_report: BatchReport | None = None
        self._recover()

    def _recover(self) -> None:
        """Know the queries of the checkpoint again, and those of a batch that was logged but cut off."""
        state = self._coordinator.state
        for query in (query for query in state.queries.values() if whole(query.id) == query.id):
            record = QueryRecord.known(query.id, query.name, query.sql, query.sink)
            record.update(query, state.batch)
            self._records[query.id] = record
            if query.live:
                self._names[query.name] = query.id
        entry = self._coordinator.unfinished
        for value in entry["commands"] if entry else ():
            command = from_json(value)
            if isinstance(command, Add):
                self._records[command.id] = QueryRecord.known(command.id, command.name, command.sql, command.sink)
                self._names[command.name] = command.id
            else:
                self._names = {name: number for name, number in self._names.items() if number != command.id}
        self._next_id = max(self._records, default=-1) + 1
        for record in self._records.values():
            if record.status == "failed" and record.last_batch == state.batch:
                record.discard(state.batch)
        self._deliver()

    def _deliver(self) -> None:
        """Hand committed rows to the console and to callbacks; wait while a recovered callback was not given back."""
        if any(record.waiting and record.status in {"accepted", "live"} for record in self._records.values()):
            return
        for number, message in self._delivery.deliver(self._records, self._coordinator.state.batch).items():
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

    def add(self, sql: str | Select, *, name: str | None = None, sink: Any = None, past: bool = False) -> Query:
        """Check a query, in SQL or made with `hr.select`, and accept it; it is live from the next micro-batch on.

        `Query.wait_live` waits for that. Anything wrong with it is raised here and touches nothing else. In a recovered
        session, adding a live query again under the same name with the same text returns the query that is there. With its
        `past`, a join in SLIDING windows also sees rows that are stored for live queries, if they have all it looks at.
        """
        self._check_open()
        text = sql.sql if isinstance(sql, Select) else sql
        with self._lock:
            chosen = self._free_name() if name is None else name
            if not isinstance(chosen, str) or not chosen.strip():
                raise SessionError(f"query name {chosen!r} cannot be used", hint="give it a name with letters in it, or none")
            target = parse_sink(sink)
            if chosen in self._names:
                return self._again(chosen, text, target)
            plan = bind_query(text, self._coordinator.catalog())
            check_past(plan, past=past)
            check_sink(chosen, target, (self._records[number] for number in self._names.values()))
            record = QueryRecord(self._next_id, chosen, text, target)
            record.schema = plan.schema
            record.accepted_at = time.monotonic()
            self._next_id += 1
            self._records[record.id], self._names[chosen] = record, record.id
            described = None if isinstance(target, CallbackSink) else target.to_json()
            self._requests.append(Add(record.id, chosen, text, described, past))
            return Query(self, record)

    def _again(self, name: str, sql: str, sink: Sink) -> Query:
        record = self._records[self._names[name]]
        if not record.recovered or record.sql != sql:
            raise NameTakenError(
                f"query '{name}' is already there",
                detail=f"its text: {record.sql}",
                hint="choose another name, or remove it first",
            )
        if isinstance(sink, CallbackSink):
            record.sink, record.waiting = sink, False
            self._deliver()
        elif not isinstance(sink, MemorySink) and sink != record.sink:
            raise NameTakenError(f"query '{name}' is already there with another sink", detail=f"its sink: {record.sink}")
        record.recovered = False
        return Query(self, record)

    def _free_name(self) -> str:
        number = self._next_id + 1
        while f"q{number}" in self._names:
            number += 1
        return f"q{number}"

    def remove(self, name: str) -> None:
        """Remove a query: what it emitted stays, nothing is emitted from the next micro-batch on."""
        self._check_open()
        with self._lock:
            if name not in self._names:
                raise NotFoundError(f"query '{name}' is not there", detail=f"queries: {', '.join(sorted(self._names)) or 'none'}")
            record = self._records[self._names.pop(name)]
            if self._requests.withdraw(record.id):  # it never was live
                record.status = "removed"
            elif record.status != "failed":
                self._requests.append(Remove(record.id))
            self._changed.notify_all()

    def query(self, name: str) -> Query:
        """Return the query of that name."""
        with self._lock:
            if name not in self._names:
                raise NotFoundError(f"query '{name}' is not there", detail=f"queries: {', '.join(sorted(self._names)) or 'none'}")
            return Query(self, self._records[self._names[name]])

    def find(self, name: str) -> Query | None:
        """Return the newest query of that name, also one that was removed or failed; None if there never was one."""
        with self._lock:
            found = [record for record in self._records.values() if record.name == name]
            return Query(self, found[-1]) if found else None

    def queries(self) -> list[Query]:
        """Return all queries that were added and not removed, oldest first."""
        with self._lock:
            return [Query(self, self._records[number]) for number in sorted(self._names.values())]

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
            self._finish(self._coordinator.advance())
        if not self._requests and not final and not self._coordinator.has_work():
            return BatchReport(self._coordinator.state.batch, 0, 0)
        report = self._coordinator.advance(final=final)
        self._finish(report)
        return report

    def _finish(self, report: BatchReport) -> None:
        """After a commit: tell the queries, hand rows to callbacks, fail the queries whose callback fails."""
        state = self._coordinator.state
        with self._lock:
            for number in {*report.added, *report.removed, *report.failed}:
                if number in self._records and number in state.queries:
                    self._records[number].update(state.queries[number], state.batch, fresh=True)
            self._deliver()
            for number in report.failed:
                self._records[number].discard(report.batch)
            self._forget()
            self.last_report = report
            self._changed.notify_all()

    def _fail(self, number: int, message: str) -> None:
        record = self._records[number]
        record.status, record.error = "failed", message
        self._requests.append(Remove(number, message))

    def _forget(self) -> None:
        """Let go of queries that are over and no longer in the manifest."""
        known = self._coordinator.state.queries
        if len(self._records) < 2 * len(known) + _REMEMBERED:
            return
        for number in [n for n, r in self._records.items() if r.status in {"removed", "failed"} and n not in known]:
            del self._records[number]

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
            live = list(self._coordinator.live.values())
            return explain(live, self._coordinator.plans_now(), self._coordinator.join_statistics(), self._coordinator.probes)

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
