"""Delivery of result rows to callbacks and the console, after the commit of the batch that emitted them.

Sinks are called in a thread of their own, one call at a time, and in order for each query. The code of a sink is the user's: it
may be slow, block, or never return. A call that takes long is left in its thread, and another thread delivers to the other
queries; a call that exceeds the time limit, or a query that is too many deliveries behind, fails that query alone. Python cannot
end a blocked thread, so it is abandoned: a daemon, whose late return has no effect.

The checkpoint records the last delivered batch after the delivery, so delivery is at-least-once: a crash in between delivers
the same batch again, and no batch is lost.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from headrace.connectors import Sink
from headrace.errors import SessionError
from headrace.storage import container
from headrace.storage.documents import get_document, put_document
from headrace.storage.result_log import ResultFile
from headrace.storage.store import Store

DELIVERY_TIMEOUT_SECONDS = 30.0
MAX_QUEUED_DELIVERIES = 256  # of one query
_MARKER = "delivered.json"
_SLOW_SECONDS = 0.5  # a call that takes longer does not hold up other queries
_GRACE_SECONDS = 1.0  # beyond the time limit, for the thread that enforces it


class DeliveryTarget(Protocol):
    """The attributes of a query that delivery needs."""

    name: str
    sink: Sink
    status: str


@dataclass(slots=True)
class _QueuedBatch:
    """A committed batch: how many of its deliveries are not finished, and whether it had any."""

    batch: int
    unfinished: int
    has_rows: bool


@dataclass(frozen=True, slots=True)
class _Delivery:
    """The rows of one query in one result file."""

    query: DeliveryTarget
    table: pa.Table
    queued_batch: _QueuedBatch


@dataclass(slots=True)
class _TargetQueue:
    """The unfinished deliveries of a query, oldest first; `worker` is the thread that runs the first, since `started_at`."""

    deliveries: deque[_Delivery] = field(default_factory=deque)
    worker: threading.Thread | None = None
    started_at: float = 0.0


class ResultDelivery:
    """Delivers batches in order, and each file of a batch once. Thread-safe."""

    def __init__(
        self,
        store: Store,
        *,
        is_new: bool,
        on_failure: Callable[[int, str], None],
        timeout: float = DELIVERY_TIMEOUT_SECONDS,
    ) -> None:
        """Continue after the last batch that the checkpoint records as delivered; `is_new` tells that it has no batch yet.

        `on_failure` is called with the id of a query whose sink failed and the reason, in a thread of the delivery, which holds
        no lock. `timeout` is the limit of a call in seconds. Raises CheckpointError if the record is missing or damaged: rows
        might be delivered twice; and SessionError for an invalid time limit.
        """
        if not timeout > 0:
            raise SessionError(f"invalid delivery_timeout {timeout!r}", hint="give a positive number of seconds")
        self._store, self._on_failure, self._timeout = store, on_failure, timeout
        if is_new:
            put_document(store, _MARKER, {"batch": -1})
        self.delivered_batch = self._queued_up_to = int(get_document(store, _MARKER)["batch"])
        self._changed = threading.Condition()
        self._batches: deque[_QueuedBatch] = deque()
        self._targets: dict[int, _TargetQueue] = {}
        self._turns: deque[int] = deque()  # the queries with deliveries of which none runs
        self._worker: threading.Thread | None = None  # the thread that takes the next turn
        self._watcher: threading.Thread | None = None
        self._crash: BaseException | None = None

    def submit(self, queries: Mapping[int, DeliveryTarget], files: Sequence[ResultFile], batch: int) -> None:
        """Queue all files up to the committed `batch` that are not queued yet; raises what has stopped the delivery, if anything.

        Never waits for a sink.
        """
        with self._changed:
            self._raise_crash()
            queued = _QueuedBatch(batch, 0, has_rows=False)
            for file in files:
                if file.last_batch > self._queued_up_to:
                    queued.has_rows = True
                    self._queue_file(file, queries, queued)
            self._queued_up_to = batch
            self._batches.append(queued)
            self._record_progress()
            self._start_threads()

    def wait(self) -> None:
        """Wait until all queued rows are delivered or their queries have failed, at most the time limit of a call.

        Returns at once in a callback, whose own delivery cannot finish before it returns. Raises what has stopped the delivery.
        """
        with self._changed:
            if getattr(threading.current_thread(), "delivery", None) is not self:
                self._changed.wait_for(lambda: not self._is_delivering() or self._crash, self._timeout + _GRACE_SECONDS)
            self._raise_crash()

    def _is_delivering(self) -> bool:
        """Return whether deliveries will finish: there are some, and they were not stopped by an exception."""
        return bool(self._batches) and (self._worker is not None or any(target.worker for target in self._targets.values()))

    def _raise_crash(self) -> None:
        if self._crash is not None:
            crash, self._crash = self._crash, None
            raise crash

    def _queue_file(self, file: ResultFile, queries: Mapping[int, DeliveryTarget], queued: _QueuedBatch) -> None:
        rows = container.read(self._store, file.key)
        for number in rows.list_queries():
            query = queries.get(number)
            if query is None or query.status == "failed":
                continue
            batches = [part for _, part in rows.iter_rows(number, -1, int(rows.batches.max()))]
            target = self._targets.setdefault(number, _TargetQueue())
            target.deliveries.append(_Delivery(query, pa.Table.from_batches(batches), queued))
            queued.unfinished += 1
            if len(target.deliveries) == 1:
                self._turns.append(number)

    def _start_threads(self) -> None:
        if self._turns and self._worker is None:
            self._worker = self._start_thread(self._work, "headrace-delivery")
        if self._targets and self._watcher is None:
            self._watcher = self._start_thread(self._watch, "headrace-delivery-watch")
        self._changed.notify_all()

    def _start_thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.delivery = self  # type: ignore[attr-defined]
        thread.start()
        return thread

    def _work(self) -> None:
        """Take turns until there are none, or until another thread takes them because a call of this one is slow."""
        me = threading.current_thread()
        while True:
            with self._changed:
                if self._worker is not me or not self._turns or self._crash is not None:
                    self._worker = None if self._worker is me else self._worker
                    return
                number = self._turns.popleft()
                target = self._targets[number]
                delivery, target.worker, target.started_at = target.deliveries[0], me, time.monotonic()
                self._changed.notify_all()
            try:
                error = _call_sink(delivery)
            except BaseException as crash:  # noqa: BLE001  such as SystemExit: raised in the thread of the session
                self._stop_at(number, target, crash)
                return
            with self._changed:
                if target.worker is not me:  # abandoned: the query has failed meanwhile
                    continue
                target.worker = None
                if not error:
                    self._remove_deliveries(number, target, 1)
            if error:
                self._fail(number, target, error)

    def _stop_at(self, number: int, target: _TargetQueue, crash: BaseException) -> None:
        """Stop delivering, so that the caller of `submit` or `wait` gets the exception; the delivery is repeated afterwards."""
        with self._changed:
            self._crash, target.worker = crash, None
            if self._worker is threading.current_thread():
                self._worker = None
            self._turns.appendleft(number)
            self._changed.notify_all()

    def _fail(self, number: int, target: _TargetQueue, error: str) -> None:
        """Fail a query of which no delivery runs or has a turn, and drop all its deliveries."""
        self._on_failure(number, error)
        with self._changed:
            self._remove_deliveries(number, target, len(target.deliveries))

    def _remove_deliveries(self, number: int, target: _TargetQueue, count: int) -> None:
        for _ in range(count):
            target.deliveries.popleft().queued_batch.unfinished -= 1
        if target.deliveries:
            self._turns.append(number)
        else:
            del self._targets[number]
        self._record_progress()
        self._start_threads()

    def _record_progress(self) -> None:
        """Record the batches whose deliveries are all finished, in order."""
        has_rows = False
        while self._batches and not self._batches[0].unfinished:
            done = self._batches.popleft()
            self.delivered_batch, has_rows = done.batch, has_rows or done.has_rows
        if has_rows:
            try:
                put_document(self._store, _MARKER, {"batch": self.delivered_batch})
            except BaseException as error:  # noqa: BLE001  raised in the thread of the session, which must not miss it
                self._crash = error

    def _watch(self) -> None:
        """Enforce the limits while there are deliveries."""
        while True:
            with self._changed:
                now = time.monotonic()
                failing = {number: reason for number, target in self._targets.items() if (reason := self._judge(target, now))}
                if not failing and (not self._targets or self._crash is not None):
                    self._watcher = None
                    return
                if not failing:
                    self._changed.wait(self._replace_slow_worker(now))
                    continue
                abandoned = {number: self._abandon(number) for number in failing}
            for number, target in abandoned.items():
                self._fail(number, target, failing[number])

    def _judge(self, target: _TargetQueue, now: float) -> str:
        """Return why a query fails now; an empty text if it does not."""
        name = target.deliveries[0].query.name
        if target.worker is not None and now - target.started_at >= self._timeout:
            return f"sink of query '{name}' blocks: a call has not returned after {self._timeout:g} s"
        if len(target.deliveries) > MAX_QUEUED_DELIVERIES:
            return f"sink of query '{name}' is too slow: more than {MAX_QUEUED_DELIVERIES} deliveries wait for it"
        return ""

    def _abandon(self, number: int) -> _TargetQueue:
        """Take the running call of a query, or its turn, away from the threads that deliver; return its deliveries."""
        target = self._targets[number]
        if target.worker is None and number in self._turns:
            self._turns.remove(number)
        if target.worker is not None and target.worker is self._worker:
            self._worker = None
        target.worker = None
        self._start_threads()
        return target

    def _replace_slow_worker(self, now: float) -> float:
        """Let another thread take turns if the call of the current one is slow; return the seconds until the next limit."""
        waits = [self._timeout]
        for target in self._targets.values():
            if target.worker is None:
                continue
            elapsed = now - target.started_at
            waits.append(self._timeout - elapsed)
            if target.worker is self._worker and elapsed < _SLOW_SECONDS:
                waits.append(_SLOW_SECONDS - elapsed)
            elif target.worker is self._worker:
                self._worker = None
                self._start_threads()
        return max(0.0, min(waits))


def _call_sink(delivery: _Delivery) -> str:
    """Deliver rows; return why it failed, or an empty text. A query that has failed meanwhile gets no more rows."""
    query = delivery.query
    try:
        if query.status != "failed":
            query.sink.deliver(query.name, delivery.table)
    except Exception as error:  # noqa: BLE001  a user's callback may raise anything; only its own query fails
        return f"sink of query '{query.name}' failed: {type(error).__name__}: {error}"
    return ""
