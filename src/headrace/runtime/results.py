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
        found = load(path).of(query)
        if found:
            yield batch, found


def files(folder: Path, after: int, until: int) -> list[tuple[int, Path]]:
    """Return (batch, file) for batches in (after, until], by batch and partition."""
    found = sorted(path for path in folder.glob("*.rows"))
    numbered = ((int(path.name.partition("-")[0]), path) for path in found)
    return [(batch, path) for batch, path in numbered if after < batch <= until]


def load(path: Path) -> Results:
    """Map a file; a file that was replaced since is mapped anew."""
    stat = path.stat()
    return _load(str(path), stat.st_ino, stat.st_mtime_ns)


@lru_cache(maxsize=256)
def _load(path: str, inode: int, changed: int) -> Results:
    del inode, changed  # they tell one file from a later one of the same name
    return Results(*pack.read(Path(path)))
