"""Result files of the checkpoint: the rows of memory sinks, and the rows that callbacks are about to receive.

A file has the rows of one batch and partition, for many queries. The driver memory-maps it and slices the rows of a query, so
its memory does not grow with the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from headrace.engine.results import BatchResults
from headrace.storage import container


def read_query_rows(folder: Path, query: int, after: int, until: int) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    """Yield (batch, rows of the query) in ascending order, for the batches in (after, until] that have rows of it."""
    for batch, path in list_result_files(folder, after, until):
        rows = open_result_file(path).get_rows(query)
        if rows:
            yield batch, rows


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
    return BatchResults(*container.read(Path(path)))
