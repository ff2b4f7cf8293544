"""Results that lie in the checkpoint, read from any position: for pages, and for readers that follow.

They are kept up to a number of bytes, the oldest go first; whoever comes for them later is told that they are gone.
"""

from __future__ import annotations

import bisect
import threading
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from headrace.connectors.durable import replace_file
from headrace.query import Query
from headrace.runtime import results
from headrace.runtime.report import BatchReport
from headrace.service.position import Position
from headrace.session import Session

_BATCHES = 500  # that are looked into for one answer: a query that seldom has rows must not hold a request up


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a query that follow each other: where they begin, where the next begin, and whether there are any by now."""

    rows: pa.Table
    begin: Position
    end: Position
    more: bool
    left_out: int = 0
    """Rows that were there but are not shown, because only a sample was asked for."""
    missed: bool = False
    """Whether rows before these were asked for, and are no longer kept."""

    def sampled(self, most: int) -> Piece:
        """Return the piece with at most so many rows, evenly picked."""
        if self.rows.num_rows <= most:
            return self
        picked = [number * self.rows.num_rows // most for number in range(most)]
        taken = self.rows.take(pa.array(picked, pa.int64()))
        return replace(self, rows=taken, left_out=self.left_out + self.rows.num_rows - len(picked))


class Kept:
    """The result files of a session; calls may come from any thread."""

    def __init__(self, session: Session, most_bytes: int) -> None:
        """Look into the folder when first asked."""
        self._session, self._most_bytes = session, most_bytes
        self._mark = session.results_folder.parent / "results-kept-from"
        self._floor = int(self._mark.read_bytes()) if self._mark.exists() else 0
        self._lock = threading.Lock()
        self._batches: list[int] = []
        self._files: dict[int, list[Path]] = {}
        self._listed = -1

    def read(self, query: Query, begin: Position, most: int) -> Piece:
        """Return rows of a query from a position on, at most so many."""
        begin = max(begin, Position(query.first_batch))
        while True:
            floor = self._floor
            found = self._read(query, max(begin, Position(floor)), most)
            if self._floor == floor:  # else some of it may have gone meanwhile, and that would not be told
                return replace(found, missed=begin.batch < floor)

    def _read(self, query: Query, begin: Position, most: int) -> Piece:
        until = query.last_batch
        found, at, count = [], begin, 0
        batches = self._between(begin.batch, until)
        for batch in batches:
            table = self._rows(query, batch)
            skip = begin.rows if batch == begin.batch else 0
            take = min(max(table.num_rows - skip, 0), most - count)
            if take:
                found.append(table.slice(skip, take))
            count += take
            at = Position(batch, skip + take) if skip + take < table.num_rows else Position(batch + 1)
            if count == most:
                break
        else:
            if len(batches) < _BATCHES:
                at = max(at, Position(until + 1))
        rows = pa.concat_tables(found) if found else query.schema.empty_table()
        return Piece(rows, begin, at, at < Position(until + 1))

    def back(self, query: Query, rows: int) -> Position:
        """Return a position before about so many of the last rows of a query: as many, or all within the last batches."""
        until, left = query.last_batch, rows
        self._between(0, until)
        listed = self._batches
        end = bisect.bisect_right(listed, until)
        first = max(self._floor, query.first_batch)
        for batch in reversed(listed[max(0, end - _BATCHES) : end]):
            if batch < first:
                break
            count = self._rows(query, batch).num_rows
            if count >= left:
                return Position(batch, count - left)
            left -= count
        return Position(max(first, listed[max(0, end - _BATCHES)] if end else 0))

    def _between(self, first: int, last: int) -> list[int]:
        """Return the batches that have files, of those from `first` to `last`, but not too many."""
        if last > self._listed:
            self._list(last)
        place = bisect.bisect_left(self._batches, first)
        return [batch for batch in self._batches[place : place + _BATCHES] if batch <= last]

    def _rows(self, query: Query, batch: int) -> pa.Table:
        try:
            found = [rows for path in self._files.get(batch, ()) for rows in results.load(path).of(query.id)]
        except FileNotFoundError:  # it went in this moment; `read` notices
            found = []
        return pa.Table.from_batches(found, query.schema)

    def _list(self, until: int) -> None:
        """Know the files of all batches up to one: those that this session ran are told, others are looked for."""
        with self._lock:
            if until <= self._listed or self._is_told(until):
                return
            listed = results.files(self._session.results_folder, -1, until)
            files = {batch: [path for _, path in found] for batch, found in groupby(listed, key=lambda one: one[0])}
            self._files, self._batches, self._listed = files, sorted(files), until

    def _is_told(self, until: int) -> bool:
        """Take the files of new batches from what is remembered of them, if all of them still are."""
        new: list[BatchReport] = []
        for done in reversed(self._session.done()):
            if done.report.batch <= self._listed:
                break
            if done.report.batch <= until:
                new.append(done.report)
        if len(new) != until - self._listed:
            return False
        folder = self._session.results_folder.parent
        for report in reversed(new):
            if report.files:
                self._files[report.batch] = [folder / file for file in sorted(report.files)]
                self._batches.append(report.batch)
        self._listed = until
        return True

    def forget(self) -> None:
        """Remove the oldest results beyond what is kept; the mark first, so that what is gone is never taken for empty."""
        self._between(0, self._session.last_batch)
        with self._lock:
            kept, floor = 0, 0
            for batch in reversed(self._batches):
                kept += sum(path.stat().st_size for path in self._files[batch])
                if kept > self._most_bytes:
                    floor = batch + 1
                    break
            if floor <= self._floor:
                return
            replace_file(self._mark, str(floor).encode())
            self._floor = floor
            for batch in [one for one in self._batches if one < floor]:
                for path in self._files.pop(batch):
                    path.unlink(missing_ok=True)
            self._batches = sorted(self._files)
