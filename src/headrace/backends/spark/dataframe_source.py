"""Streaming DataFrames as sources: a Spark streaming query whose workers write the rows as Arrow files.

A document for each micro-batch of Spark lists its files with their check sums. It makes them part of the stream: when Spark runs
the micro-batch again, nothing is written, so that its rows never change. From there on the rows are read like those of any file
source, declared columns only.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from headrace.connectors.source import Position, Range, require_attached
from headrace.errors import SourceError
from headrace.model.types import Schema
from headrace.storage.checksum import compute_checksum
from headrace.storage.documents import get_document, put_document
from headrace.storage.posix import PosixStore, write_atomically
from headrace.storage.store import Store, make_attempt_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_FILE_COLUMNS = "file string, rows long, checksum string"


class DataFrameSource:
    """A source over the Arrow files of a Spark streaming query; `close` stops the query."""

    def __init__(self, frame: DataFrame) -> None:
        """Wrap a streaming DataFrame; its query starts on `attach`."""
        self._frame = frame
        self._stream = ""
        self._store: PosixStore | None = None
        self._query: StreamingQuery | None = None
        self.schema = Schema.from_arrow(_arrow_schema(frame))

    def attach(self, stream: str, store: Store) -> None:
        """See `Source`; starts the query that writes rows to `store`, which must be a folder: Spark keeps its own files there."""
        if not isinstance(store, PosixStore):
            raise SourceError(
                f"stream '{stream}' reads a streaming DataFrame, which needs a checkpoint in a folder",
                detail=f"the checkpoint is in '{store.location}'",
                hint="use a folder that all workers share, or a native source",
            )
        self._stream, self._store = stream, store
        target = store.location

        def write_batch(rows: DataFrame, batch: int) -> None:
            if store.find_size(_list_key(batch)) is None:
                files = rows.mapInArrow(lambda batches: _write_partition(target, batch, batches), _FILE_COLUMNS).collect()
                put_document(store, _list_key(batch), sorted(list(file) for file in files if file["rows"]))

        writer = self._frame.writeStream.foreachBatch(write_batch).option("checkpointLocation", f"{target}/spark")
        self._query = writer.start()

    def _list_batches(self, after: int) -> list[int]:
        keys = require_attached(self._stream, self._store).list("")
        numbers = [int(key.partition(".")[0]) for key in keys if key[0].isdigit() and key.endswith(".json")]
        return sorted(number for number in numbers if number >= after)

    def plan(self, position: Position, limit_rows: int) -> tuple[list[Range], Position]:
        """See `Source`; returns the files of complete Spark micro-batches, up to about the limit."""
        self._check_query()
        store, after = require_attached(self._stream, self._store), 0 if position is None else int(position["batch"])
        ranges: list[Range] = []
        for number in self._list_batches(after):
            if ranges and sum(item.rows for item in ranges) >= limit_rows:
                break
            for key, rows, checksum in get_document(store, _list_key(number)):
                file = store.name_of(key)
                ranges.append(Range(self._stream, "arrow", file, 0, _count_record_batches(file), rows, {"checksum": checksum}))
            after = number + 1
        return ranges, ({"batch": after} if after else position)

    def pending(self, position: Position) -> bool:
        """See `Source`; whether the query has written another micro-batch."""
        self._check_query()
        return bool(self._list_batches(0 if position is None else int(position["batch"])))

    def definition(self) -> dict[str, Any]:
        """See `Source`; a DataFrame has no identity other than its columns."""
        return {"source": "dataframe", "schema": self.schema.to_ddl()}

    def _check_query(self) -> None:
        if self._query is not None and not self._query.isActive and self._query.exception() is not None:
            raise SourceError(f"the streaming DataFrame of stream '{self._stream}' stopped", detail=str(self._query.exception()))

    def wait(self) -> None:
        """Wait until all rows that the DataFrame has now are written; for tests and bounded inputs."""
        if self._query is not None:
            self._query.processAllAvailable()

    def close(self) -> None:
        """Stop the streaming query."""
        if self._query is not None:
            self._query.stop()


def _arrow_schema(frame: DataFrame) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  a private API of Spark, used only here

    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(frame.schema, timezone="UTC")
    return to_arrow_schema(frame.schema)  # before Spark 4.2; times are in UTC


def _count_record_batches(path: str) -> int:
    with pa.memory_map(path) as file:
        return int(pa.ipc.open_file(file).num_record_batches)


def _list_key(batch: int) -> str:
    return f"{batch:010d}.json"


def _write_partition(directory: str, batch: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of a partition to a file of this attempt, durably; yield its key, row count and check sum."""
    context, first = TaskContext.get(), next(batches, None)
    if first is None:
        return
    store, partition = PosixStore(directory), 0 if context is None else context.partitionId()
    key = make_attempt_key("rows", f"{batch:010d}-{partition:05d}", ".arrow")
    store.create_folder("rows")
    rows = 0

    def write_rows(path: Path) -> None:
        nonlocal rows
        with pa.ipc.new_file(path, first.schema) as writer:
            for record_batch in chain([first], batches):
                writer.write_batch(record_batch)
                rows += record_batch.num_rows

    write_atomically(store.path_of(key), write_rows)
    checksum = compute_checksum(store.open_local(key))
    yield pa.RecordBatch.from_pydict({"file": [key], "rows": pa.array([rows], pa.int64()), "checksum": [checksum]})
