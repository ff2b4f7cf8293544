"""Pages of results: rows of a query from any position on, for requests and for subscriptions.

A position is a batch and a number of its rows. Clients only compare positions and hand them back; they stay valid across
restarts, because a committed batch never changes. A reader that asks for rows past their retention is informed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.query import Query
from headrace.service.problems import HttpRequestError
from headrace.session import Session

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


_MAX_FILES_PER_READ = 500  # files that are read for one response


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


class ResultPages:
    """Pages of the results of a session; thread-safe."""

    def __init__(self, session: Session) -> None:
        """Take the session."""
        self._session, self._reader = session, session.result_reader

    def read(self, query: Query, start: Position, max_rows: int) -> ResultSlice:
        """Return at most `max_rows` rows of a query from a position on."""
        start = max(start, Position(query.first_batch))
        while True:
            first_kept = self._reader.first_kept_batch
            result = self._read_slice(query, max(start, Position(first_kept)), max_rows)
            if self._reader.first_kept_batch == first_kept:  # otherwise rows may have been deleted meanwhile: retry
                return replace(result, missed=start.batch < first_kept)

    def _read_slice(self, query: Query, start: Position, max_rows: int) -> ResultSlice:
        last_batch = query.last_batch
        tables, position, count = [], start, 0
        for batch, rows in self._reader.iter_rows(query.id, start.batch - 1, last_batch):
            table = pa.Table.from_batches(rows, query.schema)
            skip = start.rows if batch == start.batch else 0
            take = min(max(table.num_rows - skip, 0), max_rows - count)
            if take:
                tables.append(table.slice(skip, take))
            count += take
            position = Position(batch, skip + take) if skip + take < table.num_rows else Position(batch + 1)
            if count == max_rows:
                break
        else:
            position = max(position, Position(last_batch + 1))
        rows = pa.concat_tables(tables) if tables else query.schema.empty_table()
        return ResultSlice(rows, start, position, position < Position(last_batch + 1))

    def position_before_last(self, query: Query, rows: int) -> Position:
        """Return the position before the last `rows` rows of a query, looking back over a limited number of files."""
        counts, reached = self._reader.count_batches(query.id, query.first_batch - 1, query.last_batch, _MAX_FILES_PER_READ)
        missing = rows
        for batch, count in counts:
            if count >= missing:
                return Position(batch, count - missing)
            missing -= count
        return Position(reached)
