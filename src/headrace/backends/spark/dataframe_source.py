"""Streaming DataFrames as sources: a Spark streaming query whose workers write the rows as Arrow files.

Files are named after Spark's micro-batch and partition, so a replay of the query overwrites the same files. From there on the
rows are read like those of any file source, declared columns only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from headrace.connectors.source import Position, Range, require_attached
from headrace.errors import SourceError
from headrace.model.types import Schema
from headrace.storage.posix import replace_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


class DataFrameSource:
    """A source over the Arrow files of a Spark streaming query; `close` stops the query."""

    def __init__(self, frame: DataFrame) -> None:
        """Wrap a streaming DataFrame; its query starts on `attach`."""
        self._frame = frame
        self._directory: Path | None = None
        self._stream = ""
        self._query: StreamingQuery | None = None
        self.schema = Schema.from_arrow(_arrow_schema(frame))

    def attach(self, stream: str, directory: Path) -> None:
        """See `Source`; starts the query that writes rows to `directory`."""
        self._stream, self._directory = stream, directory
        (directory / "rows").mkdir(exist_ok=True)
        target = str(directory / "rows")

        def write_batch(rows: DataFrame, batch: int) -> None:
            counts = rows.mapInArrow(lambda batches: _write_partition(target, batch, batches), "file string, rows long").collect()
            files = sorted([row["file"], row["rows"]] for row in counts if row["rows"])
            replace_file(directory / f"{batch:010d}.json", json.dumps(files).encode())

        writer = self._frame.writeStream.foreachBatch(write_batch).option("checkpointLocation", str(directory / "spark"))
        self._query = writer.start()

    def _list_batches(self, after: int) -> list[tuple[int, Path]]:
        directory = require_attached(self._stream, self._directory)
        batches = sorted((int(path.stem), path) for path in directory.glob("[0-9]*.json"))
        return [(number, path) for number, path in batches if number >= after]

    def plan(self, position: Position, limit_rows: int) -> tuple[list[Range], Position]:
        """See `Source`; returns the files of complete Spark micro-batches, up to about the limit."""
        self._check_query()
        after = 0 if position is None else int(position["batch"])
        ranges: list[Range] = []
        for number, path in self._list_batches(after):
            if ranges and sum(item.rows for item in ranges) >= limit_rows:
                break
            for file, rows in json.loads(path.read_bytes()):
                ranges.append(Range(self._stream, "arrow", file, 0, _count_record_batches(file), rows))
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

    return to_arrow_schema(frame.schema, timezone="UTC")


def _count_record_batches(path: str) -> int:
    with pa.memory_map(path) as file:
        return int(pa.ipc.open_file(file).num_record_batches)


def _write_partition(target: str, batch: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    path = Path(target) / f"{batch:010d}-{partition:05d}.arrow"
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    rows, writer = 0, None
    for record_batch in batches:
        writer = writer or pa.ipc.new_file(scratch, record_batch.schema)
        writer.write_batch(record_batch)
        rows += record_batch.num_rows
    if writer is not None:
        writer.close()
        scratch.replace(path)
    yield pa.RecordBatch.from_pydict({"file": [str(path)], "rows": pa.array([rows], pa.int64())})
