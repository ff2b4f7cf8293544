"""The result log: which files hold the results of which batches, their retention, and reading from any position.

The log is part of the manifest, so that no folder is ever listed. Small files of many batches are packed into one, again and
again: the number of files grows with the logarithm of the number of batches, and with the bytes of the rows. Packing runs beside
the pipeline; the manifest of a later batch names the packed file in the place of its parts, which are then deleted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Container, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.errors import CheckpointError, StorageError
from headrace.model.record import record
from headrace.storage import container
from headrace.storage.documents import damaged_error
from headrace.storage.result_files import StoredRows, merge_result_rows
from headrace.storage.store import Store, make_attempt_key

_LOG = logging.getLogger(__name__)

PACKED_FILES = 32  # files of one level that become one file of the next
MAX_PACKED_BYTES = 64 << 20
_MAX_OPEN_FILES = 256
_PACKED = "packed"


@record("result-file")
@dataclass(frozen=True, slots=True)
class ResultFile:
    """A file with results of the batches `first_batch` … `last_batch`; `level` counts how often its rows were packed."""

    key: str
    first_batch: int
    last_batch: int
    bytes: int
    level: int = 0


@record("retention")
@dataclass(frozen=True, slots=True)
class Retention:
    """How many results are kept: at most so many bytes, of at most so many batches; None is unlimited."""

    max_bytes: int | None = None
    max_batches: int | None = None


@record("result-log")
@dataclass(frozen=True, slots=True)
class ResultLog:
    """All result files, in the order of their batches; results of batches before `first_kept_batch` are deleted."""

    files: tuple[ResultFile, ...] = ()
    first_kept_batch: int = 0

    def add_files(self, files: tuple[ResultFile, ...]) -> ResultLog:
        """Return the log with the files of one more batch."""
        return replace(self, files=(*self.files, *sorted(files, key=lambda file: file.key))) if files else self

    def replace_files(self, packed: PackedFile) -> ResultLog:
        """Return the log with a packed file in the place of its parts; unchanged if retention has deleted one of them."""
        first = next((i for i, file in enumerate(self.files) if file == packed.parts[0]), None)
        if first is None or self.files[first : first + len(packed.parts)] != packed.parts:
            return self
        return replace(self, files=(*self.files[:first], packed.file, *self.files[first + len(packed.parts) :]))

    def trim(self, retention: Retention, batch: int) -> ResultLog:
        """Return the log without results past their retention; those of `batch`, the newest, are kept in any case.

        A file is deleted with its last batch; readers already ignore its earlier ones.
        """
        first_kept = self.first_kept_batch
        if retention.max_batches is not None:
            first_kept = max(first_kept, batch + 1 - max(1, retention.max_batches))
        if retention.max_bytes is not None:
            total = 0
            for file in reversed(self.files):
                total += file.bytes
                if total > retention.max_bytes and file.last_batch < batch:
                    first_kept = max(first_kept, file.last_batch + 1)
                    break
        if first_kept == self.first_kept_batch:
            return self
        return ResultLog(tuple(file for file in self.files if file.last_batch >= first_kept), first_kept)

    def find_packable(self, unreadable: Container[str] = ()) -> tuple[ResultFile, ...]:
        """Return consecutive files of one level to pack; none if there are too few, or they are large or unreadable."""
        run: list[ResultFile] = []
        for file in self.files:
            is_small = file.bytes <= MAX_PACKED_BYTES // PACKED_FILES and file.key not in unreadable
            run = [*run, file] if is_small and (not run or run[-1].level == file.level) else [file] if is_small else []
            if len(run) == PACKED_FILES:
                return tuple(run)
        return ()


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A packed file, and the files that it replaces."""

    file: ResultFile
    parts: tuple[ResultFile, ...]


class ResultPacker:
    """Packs result files in a thread of its own. `update` must be called by one thread at a time."""

    def __init__(self, store: Store) -> None:
        """Take the store; the thread starts with the first work."""
        self._store = store
        self._pool: ThreadPoolExecutor | None = None
        self._pending: Future[PackedFile | None] | None = None
        self._unreadable: set[str] = set()

    def update(self, log: ResultLog) -> ResultLog:
        """Return the log with the file that was packed since the last call, if any, and begin to pack the next ones."""
        if self._pending is not None and self._pending.done():
            packed, self._pending = self._pending.result(), None
            log = self._take_packed(log, packed)
        parts = log.find_packable(self._unreadable) if self._pending is None else ()
        if parts:
            self._pool = self._pool or ThreadPoolExecutor(1, "headrace-packer")
            self._pending = self._pool.submit(self._pack, parts, log.first_kept_batch)
        return log

    def _pack(self, parts: tuple[ResultFile, ...], first_kept: int) -> PackedFile | None:
        try:
            return pack_files(self._store, parts, first_kept)
        except StorageError as error:
            _LOG.warning("result files are not packed yet: %s", error)
            return None
        except CheckpointError as error:  # damaged, or deleted by now; readers get the error
            _LOG.warning("result files are not packed: %s", error)
            self._unreadable |= {part.key for part in parts}
            return None

    def _take_packed(self, log: ResultLog, packed: PackedFile | None) -> ResultLog:
        updated = log if packed is None else log.replace_files(packed)
        if packed is not None and updated is log:
            self._store.delete(packed.file.key)
        return updated

    def close(self) -> None:
        """Wait until the running work ends, and end the thread."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def write_result_file(store: Store, name: str, rows: StoredRows, *, folder: str = "results", level: int = 0) -> ResultFile:
    """Write rows to a new file whose name starts with `name`, which must start with the number of its first batch."""
    key = make_attempt_key(folder, name, ".rows")
    size = container.write(store, key, rows)
    return ResultFile(key, int(rows.batches.min()), int(rows.batches.max()), size, level)


def read_rows(store: Store, key: str, kind: str) -> StoredRows:
    """Return the rows of a file: "results" for readers, or "deliveries" for callbacks; the state file of a task may have both."""
    content: Any = container.read(store, key)
    rows = content if isinstance(content, StoredRows) else getattr(content, kind, None)
    if not isinstance(rows, StoredRows):
        raise damaged_error(store, key, ValueError(f"it has no {kind}"))
    return rows


def pack_files(store: Store, parts: tuple[ResultFile, ...], first_kept: int) -> PackedFile:
    """Write the rows of several files to one."""
    rows = merge_result_rows([read_rows(store, part.key, "results") for part in parts], first_kept)
    if not len(rows.batches):
        raise CheckpointError("all rows are past their retention")
    name = f"{parts[0].first_batch:010d}-{parts[-1].last_batch:010d}-{_PACKED}"
    return PackedFile(write_result_file(store, name, rows, level=parts[0].level + 1), parts)


def is_packed_file(key: str) -> bool:
    """Return whether a key, or a part of it, is that of a packed file: the packer alone may know of it yet."""
    return f"-{_PACKED}-" in key


class ResultReader:
    """Reads the results of committed batches; thread-safe. Files may be packed or deleted at any time while it reads."""

    def __init__(self, store: Store, get_log: Callable[[], ResultLog]) -> None:
        """`get_log` returns the log of the last committed batch."""
        self._store, self._get_log = store, get_log
        self._lock = threading.Lock()
        self._open_files: dict[str, StoredRows] = {}  # by key, the last used at the end

    @property
    def first_kept_batch(self) -> int:
        """The first batch whose results are kept."""
        return self._get_log().first_kept_batch

    def iter_rows(self, query: int, after: int, until: int) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
        """Yield (batch, rows of the query), ascending, for the batches in (after, until] that have rows of it."""
        while after < until:
            log = self._get_log()
            after = max(after, log.first_kept_batch - 1)
            try:
                for batch, rows in self._iter_log(log, query, after, until):
                    yield batch, rows
                    after = batch
            except _FileGoneError:
                continue
            return

    def read_last_rows(self, query: int, after: int, until: int, limit: int | None) -> list[pa.RecordBatch]:
        """Return the last `limit` rows of a query in the batches (after, until], oldest first; opens the newest files only."""
        while True:
            log = self._get_log()
            try:
                return self._collect_last_rows(log, query, max(after, log.first_kept_batch - 1), until, limit)
            except _FileGoneError:
                continue

    def count_batches(self, query: int, after: int, until: int, max_files: int) -> tuple[list[tuple[int, int]], int]:
        """Return (batch, number of rows of the query), newest first, for batches in (after, until] of the newest files.

        At most `max_files` files are read; return also the batch up to which, going back, all files were.
        """
        log = self._get_log()
        after = max(after, log.first_kept_batch - 1)
        counts: dict[int, int] = {}
        files = [file for file in log.files if file.last_batch > after and file.first_batch <= until]
        try:
            for file in reversed(files[-max_files:]):
                for batch, rows in self._open_file(file).iter_rows(query, after, until):
                    counts[batch] = counts.get(batch, 0) + rows.num_rows
        except _FileGoneError:
            return self.count_batches(query, after, until, max_files)
        reached = files[-max_files].first_batch if len(files) > max_files else after + 1
        return sorted(counts.items(), reverse=True), reached

    def _iter_log(self, log: ResultLog, query: int, after: int, until: int) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
        """Yield the rows of each batch together: they are in one file or in consecutive ones."""
        current, collected = -1, []  # type: tuple[int, list[pa.RecordBatch]]
        for file in log.files:
            if file.last_batch <= after or file.first_batch > until:
                continue
            for batch, rows in self._open_file(file).iter_rows(query, after, until):
                if batch != current and collected:
                    yield current, collected
                    collected = []
                current = batch
                collected.append(rows)
        if collected:
            yield current, collected

    def _collect_last_rows(self, log: ResultLog, query: int, after: int, until: int, limit: int | None) -> list[pa.RecordBatch]:
        newest: list[pa.RecordBatch] = []
        missing = limit
        for file in reversed(log.files):
            if missing == 0 or file.last_batch <= after:
                break
            if file.first_batch > until:
                continue
            for _, rows in reversed(list(self._open_file(file).iter_rows(query, after, until))):
                newest.append(rows if missing is None else rows.slice(max(0, rows.num_rows - missing)))
                missing = None if missing is None else missing - newest[-1].num_rows
        return newest[::-1]

    def _open_file(self, file: ResultFile) -> StoredRows:
        """Return the content of a file; raises _FileGoneError if the log no longer names it, CheckpointError if it is damaged."""
        try:
            with self._lock:
                return self._map_file(file.key)
        except CheckpointError as error:
            if file not in self._get_log().files:
                raise _FileGoneError from error
            raise

    def _map_file(self, key: str) -> StoredRows:
        """Return the content of a file, which stays mapped for the next reader; the caller holds the lock.

        A mapped file keeps its space on the disk after it was deleted, so files that the log no longer names are released first.
        """
        rows = self._open_files.pop(key, None)
        if rows is None:
            named = {file.key for file in self._get_log().files}
            self._open_files = {other: value for other, value in self._open_files.items() if other in named}
            rows = read_rows(self._store, key, "results")
        self._open_files[key] = rows
        if len(self._open_files) > _MAX_OPEN_FILES:
            del self._open_files[next(iter(self._open_files))]
        return rows


class _FileGoneError(Exception):
    """A file was packed or deleted after the log was read: read the new log."""
