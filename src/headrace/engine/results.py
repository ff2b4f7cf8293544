"""Results of one partition of a micro-batch, and the queries that failed in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(slots=True)
class QueryFailures:
    """Failed queries, each with the message of its first failure; other queries are not affected."""

    messages: dict[int, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether any query failed."""
        return bool(self.messages)

    def add(self, query: int, message: str) -> None:
        """Record a failure; the first message of a query wins."""
        self.messages.setdefault(query, message)

    def add_rows(self, queries: npt.NDArray[np.int64], message: str) -> None:
        """Record the same failure for the queries of several rows."""
        for query in np.unique(queries).tolist():
            self.add(query, message)


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
