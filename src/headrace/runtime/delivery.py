"""Delivery of result rows to the sinks that the driver serves, after the commit of the batch that emitted them.

Workers write the rows of these sinks to files of the checkpoint, which the manifest names until every sink has its rows. Each
sink of each query has a queue of batches, and receives them in order, whatever other sinks do.

*Callbacks and the console* are called in a thread of their own, one call at a time. The code of a sink is the user's: it may be
slow, block, or never return. A call that takes long is left in its thread, and another thread delivers to the others; a call that
exceeds the time limit, or a sink that is too many batches behind, fails its query alone. Python cannot end a blocked thread, so
it is abandoned: a daemon, whose late return has no effect. These sinks get their rows at least once: the checkpoint records the
batches that were delivered afterwards, so a crash in between delivers the same batch again.

*Published sinks* have a thread each while they have rows. The destination keeps the mark of the newest batch that is published,
so that each batch is published once. While a destination is not available, its sink is *degraded*: its rows wait in the
checkpoint, it is tried again with back-off, and nothing else is affected. Its query fails when more than `max_waiting_bytes`
wait; what was committed stays, and is published when the destination is available again. A bug in the connection fails the query,
too: what waits stays in the checkpoint, and a later session, of a version without the bug, publishes it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from headrace.connectors import MissingCallback, PublishedSink, QuerySink, SinkSet
from headrace.errors import (
    DestinationUnavailableError,
    HeadraceError,
    OwnershipLostError,
    SchemaError,
    SessionError,
    SinkError,
    log_internal_error,
)
from headrace.runtime.sink_queue import Delivery, NeededFiles, QueueStatus, ResultFileCache, SinkKey, SinkQueue, SinkStatus
from headrace.storage.checkpoint import Checkpoint
from headrace.storage.documents import get_document, put_document
from headrace.storage.fault_points import reach_fault_point
from headrace.storage.result_log import ResultFile

DELIVERY_TIMEOUT_SECONDS = 30.0
MAX_WAITING_BYTES = 1 << 30  # of one published sink
MAX_QUEUED_DELIVERIES = 256  # of one callback
_MARKER = "delivered.json"
_SLOW_SECONDS = 0.5  # a call that takes longer does not hold up other sinks
_GRACE_SECONDS = 1.0  # beyond the time limit, for the thread that enforces it
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 0.25, 30.0
_CLOSE_SECONDS = 10.0
_RECORD_SECONDS = 1.0
_BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, NotImplementedError, RecursionError, TypeError)


class DeliveryTarget(Protocol):
    """The attributes of a query that delivery needs."""

    id: int
    name: str
    sinks: SinkSet
    status: str


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """The seconds that a call of a callback may take, and the bytes that may wait for a published sink."""

    timeout: float = DELIVERY_TIMEOUT_SECONDS
    max_waiting_bytes: int = MAX_WAITING_BYTES

    def __post_init__(self) -> None:
        """Raise SessionError for an invalid limit."""
        if not self.timeout > 0:
            raise SessionError(f"invalid delivery_timeout {self.timeout!r}", hint="give a positive number of seconds")
        if not self.max_waiting_bytes > 0:
            raise SessionError(f"invalid max_waiting_bytes {self.max_waiting_bytes!r}", hint="give a positive number of bytes")


class ResultDelivery:
    """Delivers batches to each sink in order, each batch of a sink together. Thread-safe."""

    def __init__(
        self, checkpoint: Checkpoint, *, is_new: bool, on_failure: Callable[[int, str], None], limits: DeliveryLimits
    ) -> None:
        """Continue after the batches that the checkpoint records as delivered; `is_new` tells that it has no batch yet.

        `on_failure` is called with the id of a query whose sink failed and the reason, in a thread of the delivery, which holds
        no lock. Raises CheckpointError if the record is missing or damaged: rows might be delivered twice.
        """
        self._checkpoint, self._on_failure = checkpoint, on_failure
        self._timeout, self._max_waiting_bytes = limits.timeout, limits.max_waiting_bytes
        if is_new:
            put_document(checkpoint.store, _MARKER, {"batch": -1})
        self._recorded = get_document(checkpoint.store, _MARKER)
        self._queued_up_to = int(self._recorded["batch"])
        self._recovered_behind = {SinkKey.parse(key): batch for key, batch in self._recorded.get("behind", {}).items()}
        self._recovered_published = {SinkKey.parse(key): batch for key, batch in self._recorded.get("published", {}).items()}
        self._is_first_submission, self._is_recording, self._is_dirty, self._is_closed = True, False, False, False
        self._changed = threading.Condition()
        self._files = ResultFileCache(checkpoint.store)
        self._called: dict[SinkKey, SinkQueue] = {}  # with deliveries
        self._published: dict[SinkKey, SinkQueue] = {}
        self._turns: deque[SinkKey] = deque()  # the called sinks with deliveries of which none runs
        self._worker: threading.Thread | None = None  # the thread that takes the next turn
        self._watcher: threading.Thread | None = None
        self._crash: BaseException | None = None
        self._recorded_at = 0.0

    def submit(self, queries: Mapping[int, DeliveryTarget], files: Sequence[ResultFile], batch: int) -> None:
        """Queue all files up to the committed `batch` that are not queued yet; raises what has stopped the delivery, if anything.

        Never waits for a sink.
        """
        with self._changed:
            self._raise_crash()
            behind = self._recovered_behind.values() if self._is_first_submission else ()
            start = min((self._queued_up_to, *behind))
            by_batch: dict[int, list[ResultFile]] = {}
            for file in files:
                if file.last_batch > start:
                    by_batch.setdefault(file.last_batch, []).append(file)
            for number in sorted(by_batch):
                self._queue_batch(number, by_batch[number], queries)
            self._queued_up_to, self._is_first_submission = batch, False
            self._close_ended_queues(queries)
            self._start_threads()
            excessive = self._find_excessive_queues()
        for queue, message in excessive:
            self._on_failure(queue.key.query, message)

    def _queue_batch(self, batch: int, files: Sequence[ResultFile], queries: Mapping[int, DeliveryTarget]) -> None:
        by_query: dict[int, list[ResultFile]] = {}
        for file in files:
            for number in self._files.read(file).list_queries():
                by_query.setdefault(number, []).append(file)
        for number, query_files in by_query.items():
            query = queries.get(number)
            for item in () if query is None else query.sinks.select_batch(batch):
                key = SinkKey(number, item.number)
                is_delivered = self._is_first_submission and batch <= self._recovered_behind.get(key, self._queued_up_to)
                if item.is_delivered and not is_delivered:
                    assert query is not None
                    self._queue_delivery(key, item, query, Delivery(batch, tuple(query_files)))

    def _queue_delivery(self, key: SinkKey, item: QuerySink, query: DeliveryTarget, delivery: Delivery) -> None:
        is_published = isinstance(item.sink, PublishedSink)
        if query.status == "failed" and not (is_published and self._is_first_submission):
            return
        queues = self._published if is_published else self._called
        queue = queues.get(key)
        if queue is None:
            queue = queues[key] = SinkQueue(key, query.name, item.sink)
            queue.published_batch = self._recovered_published.get(key, -1)
        if self._is_first_submission:
            queue.doubtful_batch = delivery.batch
        queue.deliveries.append(delivery)
        if not is_published and len(queue.deliveries) == 1 and not queue.is_held:
            self._turns.append(key)

    def _close_ended_queues(self, queries: Mapping[int, DeliveryTarget]) -> None:
        """Forget published sinks that get no more rows, and have all."""
        for key, queue in list(self._published.items()):
            if not queue.deliveries and queue.worker is None and not _is_active(key, queries):
                del self._published[key]
                queue.disconnect()
        if self._is_first_submission:
            self._recovered_published = {k: batch for k, batch in self._recovered_published.items() if _is_active(k, queries)}

    def attach_callbacks(self, query: DeliveryTarget) -> None:
        """Let the rows that wait for the callbacks of a recovered query go to the functions that were passed again."""
        with self._changed:
            for item in query.sinks:
                queue = self._called.get(SinkKey(query.id, item.number))
                if queue is not None and queue.is_held and not isinstance(item.sink, MissingCallback):
                    queue.sink = item.sink
                    self._turns.append(queue.key)
            self._start_threads()

    def discard(self, query: int, number: int) -> None:
        """Drop the rows that wait for a sink, but for a batch that is being published."""
        with self._changed:
            queue = self._published.get(SinkKey(query, number))
            if queue is not None:
                while len(queue.deliveries) > (queue.worker is not None and not queue.problem):
                    queue.deliveries.pop()
                self._record_progress()
                self._changed.notify_all()

    def wait(self) -> None:
        """Wait until all queued rows are delivered or their queries have failed, at most the time limit of a call.

        Returns at once in a callback, whose own delivery cannot finish before it returns. Does not wait for degraded sinks.
        Raises what has stopped the delivery.
        """
        with self._changed:
            deadline = time.monotonic() + self._timeout + _GRACE_SECONDS
            is_callback = getattr(threading.current_thread(), "delivery", None) is self
            while not is_callback and self._is_delivering() and not self._crash and time.monotonic() < deadline:
                self._changed.wait(_SLOW_SECONDS)  # a publication becomes slow without a notification
            self._raise_crash()

    def _is_delivering(self) -> bool:
        """Return whether deliveries will finish: there are some, and they were not stopped by an exception."""
        is_calling = (self._turns and self._worker is not None) or any(queue.worker for queue in self._called.values())
        return self._is_recording or bool(is_calling) or any(queue.is_busy and queue.worker for queue in self._published.values())

    def list_needed_files(self) -> NeededFiles:
        """Return what the checkpoint must keep because a sink has not received it."""
        with self._changed:
            waiting = [
                (queue, d) for queues in (self._called, self._published) for queue in queues.values() for d in queue.deliveries
            ]
            keys = frozenset(file.key for _, delivery in waiting for file in delivery.files)
            return NeededFiles(self._queued_up_to, keys, frozenset(queue.key.query for queue, _ in waiting))

    def describe(self, query: DeliveryTarget) -> list[SinkStatus]:
        """Return the status of each sink of a query."""
        with self._changed:
            keys = [(item, SinkKey(query.id, item.number)) for item in query.sinks]
            return [SinkStatus.of(item, query.status, self._published.get(key) or self._called.get(key)) for item, key in keys]

    def list_queues(self) -> list[QueueStatus]:
        """Return what waits for each sink that the driver has served in this session, and may serve again."""
        with self._changed:
            queues = sorted([*self._called.values(), *self._published.values()], key=lambda queue: queue.key)
            return [QueueStatus.of(queue) for queue in queues]

    def close(self) -> None:
        """End the threads, and close the connections to destinations; rows that wait stay in the checkpoint."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            threads = [queue.worker for queue in self._published.values() if queue.worker is not None]
        deadline = time.monotonic() + _CLOSE_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for queue in self._published.values():
            queue.disconnect()

    def _raise_crash(self) -> None:
        if self._crash is not None:
            crash, self._crash = self._crash, None
            raise crash

    def _start_threads(self) -> None:
        if self._turns and self._worker is None:
            self._worker = self._start_thread(self._work, "headrace-delivery")
        if self._turns and self._watcher is None:
            self._watcher = self._start_thread(self._watch, "headrace-delivery-watch")
        for queue in () if self._is_closed or self._crash is not None else self._published.values():
            if queue.deliveries and queue.worker is None and not queue.is_stopped:
                queue.started_at = time.monotonic()
                queue.worker = self._start_thread(partial(self._publish_queue, queue), f"headrace-sink-{queue.key}")
        self._changed.notify_all()

    def _start_thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.delivery = self  # type: ignore[attr-defined]
        thread.start()
        return thread

    # --- sinks that are called -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Take turns until there are none, or until another thread takes them because a call of this one is slow."""
        me = threading.current_thread()
        while True:
            with self._changed:
                if self._worker is not me or not self._turns or self._crash is not None:
                    self._worker = None if self._worker is me else self._worker
                    self._changed.notify_all()
                    return
                queue = self._called[self._turns.popleft()]
                delivery, queue.worker, queue.started_at = queue.deliveries[0], me, time.monotonic()
                self._changed.notify_all()
            try:
                error = self._call_sink(queue, delivery)
            except BaseException as crash:  # noqa: BLE001  such as SystemExit: raised in the thread of the session
                self._stop_at(queue, crash)
                return
            with self._changed:
                if queue.worker is not me:  # abandoned: the query has failed meanwhile
                    continue
                if not error:
                    queue.worker = None
                    self._remove_deliveries(queue, 1)
            if error:  # this thread stays its worker meanwhile, so that `wait` returns after the failure is reported
                self._fail(queue, error)

    def _call_sink(self, queue: SinkQueue, delivery: Delivery) -> str:
        """Deliver rows; return why it failed, or an empty text."""
        rows = self._files.read_rows(delivery, queue.key.query)
        try:
            queue.sink.deliver(queue.query_name, rows)
        except Exception as error:  # noqa: BLE001  a user's callback may raise anything; only its own query fails
            return f"sink of query '{queue.query_name}' failed: {type(error).__name__}: {error}"
        return ""

    def _stop_at(self, queue: SinkQueue, crash: BaseException) -> None:
        """Stop delivering, so that the caller of `submit` or `wait` gets the exception; the delivery is repeated afterwards."""
        with self._changed:
            self._crash, queue.worker = crash, None
            if self._worker is threading.current_thread():
                self._worker = None
            if not queue.is_published:
                self._turns.appendleft(queue.key)
            self._changed.notify_all()

    def _fail(self, queue: SinkQueue, error: str) -> None:
        """Fail a query of whose sink no other delivery runs or has a turn, and drop all deliveries of the sink."""
        self._on_failure(queue.key.query, error)
        with self._changed:
            if self._called.get(queue.key) is queue:  # else another thread has abandoned it meanwhile
                queue.worker = None
                self._remove_deliveries(queue, len(queue.deliveries))

    def _remove_deliveries(self, queue: SinkQueue, count: int) -> None:
        for _ in range(count):
            queue.deliveries.popleft()
        if queue.deliveries:
            self._turns.append(queue.key)
        else:
            del self._called[queue.key]
        if not self._turns:
            self._record_progress()
        self._start_threads()

    def _record_progress(self) -> None:
        """Record what is delivered. The caller holds the lock, which is released while a record is written.

        Several threads share one record; while published sinks are busy, there is one a second: the marks have the truth.
        """
        is_busy = any(queue.is_busy for queue in self._published.values())
        self._is_dirty = not is_busy or time.monotonic() - self._recorded_at > _RECORD_SECONDS
        if self._is_recording:
            return
        self._is_recording = True
        try:
            while self._is_dirty:
                self._is_dirty, record, self._recorded_at = False, self._build_record(), time.monotonic()
                if record != self._recorded:
                    self._write_record(record)
        except BaseException as error:  # noqa: BLE001  raised in the thread of the session, which must not miss it
            self._crash = error
        finally:
            self._is_recording = False
            self._changed.notify_all()

    def _write_record(self, record: dict[str, Any]) -> None:
        self._changed.release()
        try:
            put_document(self._checkpoint.store, _MARKER, record)
        finally:
            self._changed.acquire()
        self._recorded = record

    def _build_record(self) -> dict[str, Any]:
        """Return the record: all sinks have the batches up to `batch`, but for those that are behind; and what is published."""
        queues = [*self._called.values(), *self._published.values()]
        behind = {str(queue.key): queue.deliveries[0].batch - 1 for queue in queues if queue.deliveries}
        published = {str(key): batch for key, batch in self._recovered_published.items() if key not in self._published}
        published |= {str(queue.key): queue.published_batch for queue in self._published.values() if queue.published_batch >= 0}
        record: dict[str, Any] = {"batch": self._queued_up_to}
        return {**record, **({"behind": behind} if behind else {}), **({"published": published} if published else {})}

    def _watch(self) -> None:
        """Enforce the limits while there are deliveries of called sinks."""
        while True:
            with self._changed:
                now = time.monotonic()
                called = list(self._called.values())
                failing = [(queue, reason) for queue in called if (reason := self._judge(queue, now))]
                if not failing and (not any(queue.is_busy for queue in called) or self._crash is not None):
                    self._watcher = None
                    return
                if not failing:
                    self._changed.wait(self._replace_slow_worker(called, now))
                    continue
                for queue, _ in failing:
                    self._abandon(queue)
            for queue, reason in failing:
                self._fail(queue, reason)

    def _judge(self, queue: SinkQueue, now: float) -> str:
        """Return why a query fails now; an empty text if it does not."""
        if queue.worker is not None and now - queue.started_at >= self._timeout:
            return f"sink of query '{queue.query_name}' blocks: a call has not returned after {self._timeout:g} s"
        if len(queue.deliveries) > MAX_QUEUED_DELIVERIES and not queue.is_held:
            return f"sink of query '{queue.query_name}' is too slow: more than {MAX_QUEUED_DELIVERIES} deliveries wait for it"
        return ""

    def _abandon(self, queue: SinkQueue) -> None:
        """Take the running call of a sink, or its turn, away from the threads that deliver."""
        if queue.worker is None and queue.key in self._turns:
            self._turns.remove(queue.key)
        if queue.worker is not None and queue.worker is self._worker:
            self._worker = None
        queue.worker = None
        self._start_threads()

    def _replace_slow_worker(self, called: Sequence[SinkQueue], now: float) -> float:
        """Let another thread take turns if the call of the current one is slow; return the seconds until the next limit."""
        waits = [self._timeout]
        for queue in called:
            if queue.worker is None:
                continue
            elapsed = now - queue.started_at
            waits.append(self._timeout - elapsed)
            if queue.worker is self._worker and elapsed < _SLOW_SECONDS:
                waits.append(_SLOW_SECONDS - elapsed)
            elif queue.worker is self._worker:
                self._worker = None
                self._start_threads()
        return max(0.0, min(waits))

    # --- sinks that are published ----------------------------------------------------------------------------------------

    def _find_excessive_queues(self) -> list[tuple[SinkQueue, str]]:
        """Return the sinks for which too much waits now, with the reason why their queries fail."""
        running = (q for q in self._published.values() if len(q.deliveries) > 1 and not q.is_stopped)
        growing = (q for q in running if q.deliveries[-1].batch == self._queued_up_to)
        sizes = [(queue, queue.count_waiting_bytes()) for queue in growing]
        return [(queue, self._describe_excess(queue, size)) for queue, size in sizes if size > self._max_waiting_bytes]

    def _describe_excess(self, queue: SinkQueue, size: int) -> str:
        reason = queue.find_problem() or "it is too slow"
        return (
            f"{_name_sink(queue)} is not available, and too much waits for it: "
            f"{size:,} bytes since batch {queue.deliveries[0].batch}, more than {self._max_waiting_bytes:,} "
            f"(max_waiting_bytes); {reason}"
        )

    def _publish_queue(self, queue: SinkQueue) -> None:
        """Publish batches in order; wait with back-off while the destination is not available."""
        while True:
            with self._changed:
                if not queue.deliveries or self._is_closed or self._crash is not None:
                    queue.worker = None
                    self._changed.notify_all()
                    return
                delivery, queue.started_at = queue.deliveries[0], time.monotonic()
            try:
                self._publish(queue, delivery)
                self._finish(queue, delivery)
            except DestinationUnavailableError as error:
                self._back_off(queue, error)
            except (SinkError, SchemaError) as error:
                self._end(queue, f"{_name_sink(queue)} failed: {error}")
                return
            except OwnershipLostError as loss:  # the session that took over publishes what waits
                self._stop_at(queue, loss)
                return
            except _BUGS as bug:
                self._stop_queue(queue, str(log_internal_error(f"{_name_sink(queue)} failed", bug)))
                return
            except Exception as error:  # noqa: BLE001  libraries raise anything else for a server that does not answer
                self._back_off(queue, error)
            except BaseException as crash:  # noqa: BLE001  raised in the thread of the session
                self._stop_at(queue, crash)
                return

    def _publish(self, queue: SinkQueue, delivery: Delivery) -> None:
        """Publish a batch, unless the mark of the destination tells that it is published."""
        if queue.destination is None:
            self._checkpoint.check_owner()
            self._reach("sink-connect")
            self._connect(queue, delivery.batch)
        assert queue.destination is not None
        if delivery.batch <= queue.mark:
            return
        rows = self._files.read_rows(delivery, queue.key.query)
        queue.doubtful_batch = max(queue.doubtful_batch, delivery.batch)
        self._reach("sink-publish")
        queue.destination.publish(delivery.batch, rows)
        self._reach("sink-published")

    def _connect(self, queue: SinkQueue, batch: int) -> None:
        assert isinstance(queue.sink, PublishedSink)
        queue.destination = queue.sink.connect(f"{self._checkpoint.identity[:16]}-{queue.key.query}-{queue.key.number}")
        mark = queue.destination.read_mark()
        queue.mark = -1 if mark is None else mark
        if not queue.sink.is_exactly_once:
            return
        if queue.mark > self._queued_up_to:
            raise SinkError(
                f"the destination has results of batch {queue.mark} of this checkpoint, which is at batch {self._queued_up_to}",
                hint="an old copy of the checkpoint may have been restored; add the query again, or another sink to it",
            )
        if queue.mark < queue.published_batch and batch <= queue.doubtful_batch:
            raise SinkError(
                f"the destination has lost the mark of this sink: batch {queue.published_batch} was published, "
                f"but batch {batch} may be published or not",
                detail=f"mark: {'none' if mark is None else mark}",
                hint="look whether the destination has that batch; then take this sink away, and add it again",
            )

    def _finish(self, queue: SinkQueue, delivery: Delivery) -> None:
        with self._changed:
            queue.problem, queue.failures, queue.published_batch = "", 0, max(queue.published_batch, delivery.batch)
            if queue.deliveries and queue.deliveries[0] is delivery:
                queue.deliveries.popleft()
            self._record_progress()
        self._reach("sink-recorded")

    def _back_off(self, queue: SinkQueue, error: Exception) -> None:
        """Close the connection, and wait before the next attempt, or until the session is closed."""
        queue.disconnect()
        with self._changed:
            delay = min(_LAST_RETRY_SECONDS, _FIRST_RETRY_SECONDS * 2**queue.failures)
            kind = "" if isinstance(error, HeadraceError) else f"{type(error).__name__}: "
            queue.problem, queue.failures = f"{kind}{error}".strip()[:1000], queue.failures + 1
            queue.retry_at = time.monotonic() + delay
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_closed or not queue.deliveries, delay)

    def _end(self, queue: SinkQueue, message: str) -> None:
        """Fail the query: nothing can be published, now or later."""
        queue.disconnect()
        self._on_failure(queue.key.query, message)
        with self._changed:
            queue.worker = None
            queue.deliveries.clear()
            self._record_progress()

    def _stop_queue(self, queue: SinkQueue, problem: str) -> None:
        """Fail the query, and publish nothing more in this session; what waits stays in the checkpoint."""
        queue.disconnect()
        self._on_failure(queue.key.query, problem)
        with self._changed:
            queue.problem, queue.is_stopped, queue.worker = problem, True, None
            self._record_progress()

    def _reach(self, step: str) -> None:
        reach_fault_point(self._checkpoint.location, step)


def _name_sink(queue: SinkQueue) -> str:
    return f"sink {queue.sink.describe()} of query '{queue.query_name}'"


def _is_active(key: SinkKey, queries: Mapping[int, DeliveryTarget]) -> bool:
    """Return whether a sink may get further rows."""
    query = queries.get(key.query)
    return query is not None and query.status in {"accepted", "live"} and any(i.number == key.number for i in query.sinks.active)
