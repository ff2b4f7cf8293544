"""Rows kept for the driver: what memory sinks hold and what callbacks are given, as files of the checkpoint.

A file has the rows of one batch and partition, for many queries; the driver maps it and cuts out what is asked for. Its
memory does not grow with the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from headrace.execution.result import Results
from headrace.kernels import pack


def rows_of(folder: Path, query: int, after: int, until: int) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    """Yield (batch, rows of a query) for batches in (after, until], ascending."""
    for batch, path in files(folder, after, until):
        found = _load(str(path)).of(query)
        if found:
            yield batch, found


def files(folder: Path, after: int, until: int) -> list[tuple[int, Path]]:
    """Return (batch, file) for batches in (after, until], by batch and partition."""
    found = sorted(path for path in folder.glob("*.rows"))
    numbered = ((int(path.name.partition("-")[0]), path) for path in found)
    return [(batch, path) for batch, path in numbered if after < batch <= until]


def queries_in(path: Path) -> frozenset[int]:
    """Return the queries that have rows in a file."""
    return frozenset(_load(str(path)).index)


def forget(path: Path) -> None:
    """Remove a file whose rows have all been delivered."""
    path.unlink(missing_ok=True)


@lru_cache(maxsize=256)
def _load(path: str) -> Results:
    return Results(*pack.read(Path(path)))
