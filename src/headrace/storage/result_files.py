"""Result files of the checkpoint: the rows of memory sinks, and the rows that callbacks are about to receive.

A file has the rows of one batch and partition, for many queries. The driver memory-maps it and slices the rows of a query, so
its memory does not grow with the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.record import record
from headrace.storage import container
from headrace.storage.posix import PosixStore


@record("batch-results")
@dataclass(slots=True)
class BatchResults:
    """Result rows of many queries: few tables, and an index of the row ranges of each query."""

    tables: list[pa.RecordBatch] = field(default_factory=list)
    index: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """The approximate memory of the rows."""
        return sum(table.nbytes for table in self.tables)

    def clear(self) -> None:
        """Drop all rows."""
        self.tables, self.index = [], {}

    def add(self, queries: npt.NDArray[np.int64], rows: pa.RecordBatch) -> None:
        """Add rows sorted by query; `queries` holds the query of each row."""
        if rows.num_rows == 0:
            return
        cuts = np.flatnonzero(np.concatenate([[True], queries[1:] != queries[:-1], [True]]))
        for first, last in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            self.index.setdefault(int(queries[first]), []).append((len(self.tables), first, last))
        self.tables.append(rows)

    def get_rows(self, query: int) -> list[pa.RecordBatch]:
        """Return the rows of one query."""
        return [self.tables[t].slice(first, last - first) for t, first, last in self.index.get(query, [])]

    def count_rows(self, query: int) -> int:
        """Return the number of rows of one query."""
        return sum(last - first for _, first, last in self.index.get(query, []))

    def drop_queries(self, queries: Iterable[int]) -> None:
        """Drop the rows of queries that failed or whose rows were already written."""
        for query in queries:
            self.index.pop(query, None)
        used_tables = {table for ranges in self.index.values() for table, _, _ in ranges}
        if len(used_tables) < len(self.tables):
            new_index = {table: i for i, table in enumerate(sorted(used_tables))}
            self.tables = [self.tables[table] for table in sorted(used_tables)]
            self.index = {
                query: [(new_index[table], first, last) for table, first, last in ranges] for query, ranges in self.index.items()
            }


def read_query_rows(folder: Path, query: int, after: int, until: int) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    """Yield (batch, rows of the query) in ascending order, for the batches in (after, until] that have rows of it."""
    for batch, path in list_result_files(folder, after, until):
        rows = open_result_file(path).get_rows(query)
        if rows:
            yield batch, rows


def read_last_rows(folder: Path, query: int, after: int, until: int, limit: int) -> list[pa.RecordBatch]:
    """Return the last `limit` rows of a query in the batches (after, until], oldest first; opens the newest files only."""
    newest: list[pa.RecordBatch] = []
    missing = limit
    for _, path in reversed(list_result_files(folder, after, until)):
        if missing == 0:
            break
        for rows in reversed(open_result_file(path).get_rows(query)):
            newest.append(rows.slice(max(0, rows.num_rows - missing)))
            missing -= newest[-1].num_rows
    return newest[::-1]


def list_result_files(folder: Path, after: int, until: int) -> list[tuple[int, Path]]:
    """Return (batch, file) for batches in (after, until], ordered by batch and partition."""
    paths = sorted(path for path in folder.glob("*.rows"))
    numbered = ((int(path.name.partition("-")[0]), path) for path in paths)
    return [(batch, path) for batch, path in numbered if after < batch <= until]


def open_result_file(path: Path) -> BatchResults:
    """Memory-map a result file; a file that was replaced since the last call is mapped again."""
    stat = path.stat()
    return _open_cached(str(path), stat.st_ino, stat.st_mtime_ns)


@lru_cache(maxsize=256)
def _open_cached(path: str, inode: int, changed: int) -> BatchResults:
    del inode, changed  # cache keys only: they distinguish a file from a later file of the same name
    return container.read(PosixStore(Path(path).parent), Path(path).name)  # type: ignore[no-any-return]
