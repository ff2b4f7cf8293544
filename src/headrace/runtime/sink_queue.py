"""The queue of a sink that the driver serves: which batches wait for it, and what is known of its destination."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from headrace.connectors import NEVER, Destination, MissingCallback, PublishedSink, QuerySink, Sink
from headrace.storage.result_files import StoredRows
from headrace.storage.result_log import ResultFile, read_rows
from headrace.storage.store import Store

_OPEN_FILES = 64
_OPEN_BYTES = 256 << 20  # those of an object store are in memory
_PATIENCE_SECONDS = 5.0  # an attempt to publish that takes longer is shown as a problem, and nothing waits for it


class SinkKey(NamedTuple):
    """A sink of a query: the id of the query, and the number of the sink."""

    query: int
    number: int

    def __str__(self) -> str:
        """Return the form in documents."""
        return f"{self.query}.{self.number}"

    @staticmethod
    def parse(text: str) -> SinkKey:
        """Return the key of its form in documents."""
        query, _, number = text.partition(".")
        return SinkKey(int(query), int(number))


@dataclass(frozen=True, slots=True)
class Delivery:
    """The rows of one query in one batch: where they are."""

    batch: int
    files: tuple[ResultFile, ...]


@dataclass(frozen=True, slots=True)
class NeededFiles:
    """What waits for sinks: the `keys` of files up to batch `queued_batch`, all later ones, and the `queries` with such rows."""

    queued_batch: int = -1
    keys: frozenset[str] = frozenset()
    queries: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class SinkQueue:
    """The unfinished deliveries of a sink, oldest first; `worker` is the thread that runs the first, since `started_at`.

    Of a published sink: `mark` is what the destination said when it was connected, `published_batch` the newest batch that this
    checkpoint knows to be published, `doubtful_batch` the newest that an attempt may have published. `problem` is why the last
    attempt failed, of `failures` in a row; `is_stopped` tells that this session tries no more, because of a bug.
    """

    key: SinkKey
    query_name: str
    sink: Sink
    deliveries: deque[Delivery] = field(default_factory=deque)
    worker: threading.Thread | None = None
    started_at: float = 0.0
    destination: Destination | None = None
    mark: int = -1
    published_batch: int = -1
    doubtful_batch: int = -1
    problem: str = ""
    failures: int = 0
    retry_at: float = 0.0
    is_stopped: bool = False

    @property
    def is_published(self) -> bool:
        """Whether the sink publishes to a destination."""
        return isinstance(self.sink, PublishedSink)

    @property
    def is_held(self) -> bool:
        """Whether the rows wait for a callback that must be passed again."""
        return isinstance(self.sink, MissingCallback)

    @property
    def is_busy(self) -> bool:
        """Whether deliveries are about to finish: neither is the sink degraded, nor do they wait for a callback."""
        return bool(self.deliveries) and not self.is_held and not self.find_problem()

    def find_problem(self) -> str:
        """Return why a published sink is degraded: its last attempt failed, or the running one takes long."""
        if self.problem or not self.is_published or self.worker is None:
            return self.problem
        seconds = time.monotonic() - self.started_at
        return f"no answer for {seconds:.0f} s" if seconds > _PATIENCE_SECONDS else ""

    def count_waiting_bytes(self) -> int:
        """Return the bytes of the files with the rows that wait; they may have rows of other queries, too."""
        return sum(file.bytes for delivery in self.deliveries for file in delivery.files)

    def disconnect(self) -> None:
        """Close the connection, if there is one."""
        destination, self.destination = self.destination, None
        if destination is not None:
            with contextlib.suppress(Exception):  # of a library: nothing depends on it any more
                destination.close()


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """A sink of a query, for users.

    `state` is "ok", "degraded" (the destination is not available, `problem` says why, and it is tried again), "waiting" (for its
    callback, after a restart) or "ended". `published_batch` is the newest batch that was published; None if none was, or the sink
    does not publish. `waiting_batches` and `waiting_bytes` are not delivered yet.
    """

    number: int
    kind: str
    description: str
    state: str
    problem: str
    first_batch: int | None
    end_batch: int | None
    published_batch: int | None
    waiting_batches: int
    waiting_bytes: int
    guarantee: str

    @staticmethod
    def of(item: QuerySink, query_status: str, queue: SinkQueue | None) -> SinkStatus:
        """Return the status of a sink; `queue` is None if it has had no rows in this session."""
        is_over = item.end_batch is not None or query_status in {"removed", "failed"}
        problem = "" if queue is None else queue.find_problem()
        state = "degraded" if problem else "ended" if is_over else "waiting" if isinstance(item.sink, MissingCallback) else "ok"
        published = queue.published_batch if queue is not None and queue.published_batch >= 0 else None
        waiting = (0, 0) if queue is None else (len(queue.deliveries), queue.count_waiting_bytes())
        exact = not item.is_delivered or (isinstance(item.sink, PublishedSink) and item.sink.is_exactly_once)
        return SinkStatus(
            item.number,
            item.sink.kind,
            item.sink.describe(),
            state,
            problem,
            None if item.first_batch == NEVER else item.first_batch,
            item.end_batch,
            published,
            *waiting,
            "none" if item.sink.kind == "noop" else "exactly once" if exact else "at least once",
        )


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """What waits for one sink of a query, and why, if its destination is not available."""

    query: str
    number: int
    description: str
    problem: str
    waiting_batches: int
    waiting_bytes: int

    @staticmethod
    def of(queue: SinkQueue) -> QueueStatus:
        """Return the status of a queue."""
        waiting = len(queue.deliveries), queue.count_waiting_bytes()
        return QueueStatus(queue.query_name, queue.key.number, queue.sink.describe(), queue.find_problem(), *waiting)

    def __str__(self) -> str:
        """Return a line for users."""
        return f"sink {self.description} of query '{self.query}': {self.problem or 'ok'}; {self.waiting_batches} batches wait"


class ResultFileCache:
    """Reads files with results; the last ones stay open. Thread-safe."""

    def __init__(self, store: Store) -> None:
        """Take the store of the checkpoint."""
        self._store, self._lock = store, threading.Lock()
        self._open_files: dict[str, StoredRows] = {}

    def read(self, file: ResultFile) -> StoredRows:
        """Return the content of a file."""
        with self._lock:
            rows = self._open_files.pop(file.key, None)
            if rows is None:
                rows = read_rows(self._store, file.key, "deliveries")
            self._open_files[file.key] = rows
            while len(self._open_files) > 1 and not self._fits():
                del self._open_files[next(iter(self._open_files))]
            return rows

    def _fits(self) -> bool:
        return len(self._open_files) <= _OPEN_FILES and sum(rows.bytes for rows in self._open_files.values()) <= _OPEN_BYTES

    def read_rows(self, delivery: Delivery, query: int) -> pa.Table:
        """Return the rows of a query in a batch."""
        batch = delivery.batch
        parts = [rows for file in delivery.files for _, rows in self.read(file).iter_rows(query, batch - 1, batch)]
        return pa.Table.from_batches(parts)
