"""The result log: results in the checkpoint, readable from any position, for pages and for subscriptions.

A position is a batch and a number of its rows. Clients only compare positions and hand them back; they stay valid across
restarts, because a committed batch never changes. Retention is a number of bytes; the oldest results are deleted first, and a
reader that asks for deleted rows is informed.
"""

from __future__ import annotations

import bisect
import re
import threading
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from headrace.query import Query
from headrace.runtime.metrics import BatchReport
from headrace.service.problems import HttpRequestError
from headrace.session import Session
from headrace.storage import result_files
from headrace.storage.posix import replace_file

_POSITION_PATTERN = re.compile(r"(\d{1,15})\.(\d{1,15})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The position after all batches before `batch` and the first `rows` rows of `batch`."""

    batch: int = 0
    rows: int = 0

    def __str__(self) -> str:
        """Return the text form that `parse` reads."""
        return f"{self.batch}.{self.rows}"

    @staticmethod
    def parse(text: str) -> Position:
        """Parse the text form of a position."""
        match = _POSITION_PATTERN.fullmatch(text)
        if match is None:
            raise HttpRequestError(
                422,
                f"invalid position '{text[:80]}'",
                hint="use a position that came with results, such as '17.0', or 'beginning', 'last-100' or 'now'",
            )
        return Position(int(match[1]), int(match[2]))


BEGINNING = Position()


_MAX_BATCHES_PER_READ = 500  # batches scanned for one response: a query that seldom emits must not block a request


@dataclass(frozen=True, slots=True)
class ResultSlice:
    """Consecutive rows of a query, the positions before and after them, and whether more rows exist already."""

    rows: pa.Table
    start: Position
    end: Position
    has_more: bool
    left_out: int = 0
    """Rows that sampling dropped."""
    missed: bool = False
    """Whether earlier rows were requested but are past their retention."""

    def sample_rows(self, max_rows: int) -> ResultSlice:
        """Return the slice with at most `max_rows` rows, evenly picked."""
        if self.rows.num_rows <= max_rows:
            return self
        picked = [i * self.rows.num_rows // max_rows for i in range(max_rows)]
        rows = self.rows.take(pa.array(picked, pa.int64()))
        return replace(self, rows=rows, left_out=self.left_out + self.rows.num_rows - len(picked))


class ResultLog:
    """The result files of a session; thread-safe."""

    def __init__(self, session: Session, max_bytes: int) -> None:
        """Take the session and the retention in bytes; the folder is listed at the first read."""
        self._session, self._max_bytes = session, max_bytes
        self._retention_file = session.results_folder.parent / "results-kept-from"
        self._first_kept_batch = int(self._retention_file.read_bytes()) if self._retention_file.exists() else 0
        self._lock = threading.Lock()
        self._batches: list[int] = []
        self._files: dict[int, list[Path]] = {}
        self._listed_until = -1

    def read(self, query: Query, start: Position, max_rows: int) -> ResultSlice:
        """Return at most `max_rows` rows of a query from a position on."""
        start = max(start, Position(query.first_batch))
        while True:
            first_kept = self._first_kept_batch
            result = self._read_slice(query, max(start, Position(first_kept)), max_rows)
            if self._first_kept_batch == first_kept:  # otherwise files may have been deleted meanwhile: retry, to report `missed`
                return replace(result, missed=start.batch < first_kept)

    def _read_slice(self, query: Query, start: Position, max_rows: int) -> ResultSlice:
        last_batch = query.last_batch
        tables, position, count = [], start, 0
        batches = self._list_batches(start.batch, last_batch)
        for batch in batches:
            table = self._read_batch(query, batch)
            skip = start.rows if batch == start.batch else 0
            take = min(max(table.num_rows - skip, 0), max_rows - count)
            if take:
                tables.append(table.slice(skip, take))
            count += take
            position = Position(batch, skip + take) if skip + take < table.num_rows else Position(batch + 1)
            if count == max_rows:
                break
        else:
            if len(batches) < _MAX_BATCHES_PER_READ:
                position = max(position, Position(last_batch + 1))
        rows = pa.concat_tables(tables) if tables else query.schema.empty_table()
        return ResultSlice(rows, start, position, position < Position(last_batch + 1))

    def position_before_last(self, query: Query, rows: int) -> Position:
        """Return the position before the last `rows` rows of a query, looking back over a limited number of batches."""
        last_batch, missing = query.last_batch, rows
        self._list_batches(0, last_batch)
        batches = self._batches
        end = bisect.bisect_right(batches, last_batch)
        first = max(self._first_kept_batch, query.first_batch)
        for batch in reversed(batches[max(0, end - _MAX_BATCHES_PER_READ) : end]):
            if batch < first:
                break
            count = self._read_batch(query, batch).num_rows
            if count >= missing:
                return Position(batch, count - missing)
            missing -= count
        return Position(max(first, batches[max(0, end - _MAX_BATCHES_PER_READ)] if end else 0))

    def _list_batches(self, first: int, last: int) -> list[int]:
        """Return the batches with result files from `first` to `last`, up to a limited number."""
        if last > self._listed_until:
            self._list_files(last)
        index = bisect.bisect_left(self._batches, first)
        return [batch for batch in self._batches[index : index + _MAX_BATCHES_PER_READ] if batch <= last]

    def _read_batch(self, query: Query, batch: int) -> pa.Table:
        try:
            batches = [
                rows for path in self._files.get(batch, ()) for rows in result_files.open_result_file(path).get_rows(query.id)
            ]
        except FileNotFoundError:  # deleted just now; `read` notices
            batches = []
        return pa.Table.from_batches(batches, query.schema)

    def _list_files(self, until: int) -> None:
        """Update the list of files up to a batch: from the reports of this session's batches, otherwise from the folder."""
        with self._lock:
            if until <= self._listed_until or self._add_reported_files(until):
                return
            listed = result_files.list_result_files(self._session.results_folder, -1, until)
            files = {batch: [path for _, path in entries] for batch, entries in groupby(listed, key=lambda entry: entry[0])}
            self._files, self._batches, self._listed_until = files, sorted(files), until

    def _add_reported_files(self, until: int) -> bool:
        """Add the files of new batches from their reports; False if the session no longer has all of those reports."""
        new_reports: list[BatchReport] = []
        for batch in reversed(self._session.done()):
            if batch.report.batch <= self._listed_until:
                break
            if batch.report.batch <= until:
                new_reports.append(batch.report)
        if len(new_reports) != until - self._listed_until:
            return False
        folder = self._session.results_folder.parent
        for report in reversed(new_reports):
            if report.files:
                self._files[report.batch] = [folder / file for file in sorted(report.files)]
                self._batches.append(report.batch)
        self._listed_until = until
        return True

    def trim(self) -> None:
        """Delete the oldest results beyond the retention.

        The first kept batch is written before files are deleted, so that deleted results are never taken for empty ones.
        """
        self._list_batches(0, self._session.last_batch)
        with self._lock:
            total_bytes, first_kept = 0, 0
            for batch in reversed(self._batches):
                total_bytes += sum(path.stat().st_size for path in self._files[batch])
                if total_bytes > self._max_bytes:
                    first_kept = batch + 1
                    break
            if first_kept <= self._first_kept_batch:
                return
            replace_file(self._retention_file, str(first_kept).encode())
            self._first_kept_batch = first_kept
            for batch in [number for number in self._batches if number < first_kept]:
                for path in self._files.pop(batch):
                    path.unlink(missing_ok=True)
            self._batches = sorted(self._files)
