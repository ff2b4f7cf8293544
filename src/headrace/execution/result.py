"""Results of one partition of a micro-batch, and the queries that failed in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(slots=True)
class Failures:
    """Queries that cannot go on, each with the first reason; the others are not touched."""

    messages: dict[int, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether any query failed."""
        return bool(self.messages)

    def add(self, query: int, message: str) -> None:
        """Note a failure; the first one of a query stays."""
        self.messages.setdefault(query, message)

    def add_rows(self, queries: npt.NDArray[np.int64], message: str) -> None:
        """Note the same failure for the queries of several rows."""
        for query in np.unique(queries).tolist():
            self.add(query, message)


@dataclass(slots=True)
class Results:
    """Result rows of many queries: few tables, and where in them the rows of each query are."""

    tables: list[pa.RecordBatch] = field(default_factory=list)
    index: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """About how much memory the rows take."""
        return sum(table.nbytes for table in self.tables)

    def clear(self) -> None:
        """Forget all rows."""
        self.tables, self.index = [], {}

    def add(self, queries: npt.NDArray[np.int64], rows: pa.RecordBatch) -> None:
        """Take rows sorted by query; `queries` names each row's."""
        if rows.num_rows == 0:
            return
        cuts = np.flatnonzero(np.concatenate([[True], queries[1:] != queries[:-1], [True]]))
        for first, last in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            self.index.setdefault(int(queries[first]), []).append((len(self.tables), first, last))
        self.tables.append(rows)

    def of(self, query: int) -> list[pa.RecordBatch]:
        """Return the rows of one query."""
        return [self.tables[t].slice(first, last - first) for t, first, last in self.index.get(query, [])]

    def count(self, query: int) -> int:
        """Return how many rows a query has here."""
        return sum(last - first for _, first, last in self.index.get(query, []))

    def drop(self, queries: Iterable[int]) -> None:
        """Forget the rows of queries that failed or whose rows went elsewhere."""
        for query in queries:
            self.index.pop(query, None)
        used = {t for places in self.index.values() for t, _, _ in places}
        if len(used) < len(self.tables):
            number = {t: i for i, t in enumerate(sorted(used))}
            self.tables = [self.tables[t] for t in sorted(used)]
            self.index = {q: [(number[t], a, b) for t, a, b in places] for q, places in self.index.items()}
