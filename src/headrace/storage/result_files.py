"""Result files: rows of many queries, in few tables, with an index of the rows of each query and batch.

Workers collect results in `BatchResults` and write them as `StoredRows`. A file has the rows of one batch and partition, or, when
it packs older files, of many batches. The driver memory-maps files and slices the rows of a query, so its memory does not grow
with the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.record import record

Integers = npt.NDArray[np.int64]


@dataclass(slots=True)
class BatchResults:
    """Result rows of many queries in one batch: few tables, and an index of the row ranges of each query."""

    tables: list[pa.RecordBatch] = field(default_factory=list)
    index: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """The approximate memory of the rows."""
        return sum(table.nbytes for table in self.tables)

    def clear(self) -> None:
        """Drop all rows."""
        self.tables, self.index = [], {}

    def add(self, queries: Integers, rows: pa.RecordBatch, counts: Integers | None = None) -> None:
        """Add rows sorted by query; `queries` holds the query of each row, or of `counts` adjacent rows."""
        if rows.num_rows == 0:
            return
        cuts = np.flatnonzero(np.concatenate([[True], queries[1:] != queries[:-1], [True]]))
        bounds = cuts if counts is None else np.concatenate([[0], np.cumsum(counts)])[cuts]
        for query, first, last in zip(queries[cuts[:-1]].tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            if first < last:
                self.index.setdefault(query, []).append((len(self.tables), first, last))
        self.tables.append(rows)

    def get_rows(self, query: int) -> list[pa.RecordBatch]:
        """Return the rows of one query."""
        return [self.tables[t].slice(first, last - first) for t, first, last in self.index.get(query, [])]

    def count_rows(self, query: int) -> int:
        """Return the number of rows of one query."""
        return sum(last - first for _, first, last in self.index.get(query, []))

    def measure_queries(self) -> Iterator[tuple[int, int, int]]:
        """Yield (query, rows, about how many bytes) of each query."""
        row_bytes = [table.nbytes / table.num_rows for table in self.tables]
        for query, ranges in self.index.items():
            rows = sum(last - first for _, first, last in ranges)
            yield query, rows, int(sum((last - first) * row_bytes[table] for table, first, last in ranges))

    def drop_queries(self, queries: Iterable[int]) -> None:
        """Drop the rows of queries that failed or whose rows were already written."""
        for query in queries:
            self.index.pop(query, None)
        self._drop_unused_tables()

    def select_queries(self, queries: Iterable[int]) -> BatchResults:
        """Return the rows of some queries only."""
        selected = BatchResults(self.tables, {query: self.index[query] for query in queries})
        selected._drop_unused_tables()
        return selected

    def _drop_unused_tables(self) -> None:
        used_tables = {table for ranges in self.index.values() for table, _, _ in ranges}
        if len(used_tables) < len(self.tables):
            new_index = {table: i for i, table in enumerate(sorted(used_tables))}
            self.tables = [self.tables[table] for table in sorted(used_tables)]
            self.index = {
                query: [(new_index[table], first, last) for table, first, last in ranges] for query, ranges in self.index.items()
            }

    def to_rows(self, batch: int) -> StoredRows:
        """Return the stored form."""
        entries = [(query, batch, *span) for query in sorted(self.index) for span in self.index[query]]
        return StoredRows(self.tables, *_transpose(entries))


@record("result-rows")
@dataclass(frozen=True, slots=True, eq=False)
class StoredRows:
    """Rows in tables; range i of a table, [firsts[i], ends[i]), belongs to a query and a batch, ascending by both."""

    tables: list[pa.RecordBatch]
    queries: Integers
    batches: Integers
    table_numbers: Integers
    firsts: Integers
    ends: Integers

    def iter_rows(self, query: int, after: int, until: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (batch, rows) of a query for the batches in (after, until], ascending."""
        for number in self._select(query, after, until):
            first = int(self.firsts[number])
            rows = self.tables[self.table_numbers[number]].slice(first, int(self.ends[number]) - first)
            yield int(self.batches[number]), rows

    def count_rows(self, query: int, batch: int) -> int:
        """Return the number of rows of a query in a batch."""
        selected = self._select(query, batch - 1, batch)
        return int((self.ends[selected] - self.firsts[selected]).sum())

    @property
    def bytes(self) -> int:
        """The approximate size of the rows and their index."""
        return sum(int(table.nbytes) for table in self.tables) + 5 * int(self.queries.nbytes)

    def list_queries(self) -> list[int]:
        """Return the queries that have rows."""
        found: list[int] = np.unique(self.queries).tolist()
        return found

    def _select(self, query: int, after: int, until: int) -> Integers:
        first, last = np.searchsorted(self.queries, [query, query + 1])
        begin, end = np.searchsorted(self.batches[first:last], [after, until], side="right")
        return np.arange(first + begin, first + end)


def merge_result_rows(parts: Sequence[StoredRows], first_kept: int) -> StoredRows:
    """Return the rows of several files as one; tables with the same columns become one table.

    `parts` are in the order of their batches; rows of batches before `first_kept` are left out of the index.
    """
    by_schema: dict[pa.Schema, list[pa.RecordBatch]] = {}
    places: dict[tuple[int, int], tuple[int, int]] = {}  # (part, table) → (merged table, row offset)
    for part_number, part in enumerate(parts):
        for table_number, table in enumerate(part.tables):
            merged = by_schema.setdefault(table.schema, [])
            offset = sum(earlier.num_rows for earlier in merged)
            places[part_number, table_number] = list(by_schema).index(table.schema), offset
            merged.append(table)
    columns = [_shift_entries(part, number, places) for number, part in enumerate(parts)]
    queries, batches, tables, firsts, ends = (np.concatenate(values) for values in zip(*columns, strict=True))
    kept = batches >= first_kept
    order = np.lexsort((np.arange(len(queries))[kept], batches[kept], queries[kept]))
    return StoredRows(
        [pa.concat_batches(merged) for merged in by_schema.values()],
        *(values[kept][order] for values in (queries, batches, tables, firsts, ends)),
    )


def _shift_entries(part: StoredRows, number: int, places: dict[tuple[int, int], tuple[int, int]]) -> tuple[Integers, ...]:
    """Return the index of a part with the numbers and offsets of the merged tables."""
    merged = np.array([places[number, table] for table in range(len(part.tables))], np.int64).reshape(-1, 2)
    table_numbers, offsets = merged[part.table_numbers].T
    return part.queries, part.batches, table_numbers, part.firsts + offsets, part.ends + offsets


def _transpose(entries: Sequence[tuple[int, ...]]) -> Any:
    return np.array(entries, np.int64).reshape(-1, 5).T
