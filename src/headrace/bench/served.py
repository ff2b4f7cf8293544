"""A stream as the driver serves it: its queue holds the event times of its rows, its pools hold the values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import pyarrow as pa

from headrace.bench.generator import RowPool, build_pools
from headrace.bench.lines import LineRenderer
from headrace.bench.partition import RowTimes
from headrace.bench.queue import StreamQueue
from headrace.bench.stream import StreamSpec
from headrace.errors import HeadraceError
from headrace.model.schema import TIMESTAMP

_BATCH_ROWS = 1 << 16  # about two megabytes, which stay in the CPU cache until they are sent
_CACHED_CHUNKS = 32


class ServedStream:
    """A stream; thread-safe for readers."""

    def __init__(self, spec: StreamSpec, capacity_rows: int) -> None:
        """Generate the rows."""
        self.spec, self.queue = spec, StreamQueue(spec, capacity_rows)
        self._pools = build_pools(spec)
        self._text_caches = [_TextCache(pool) for pool in self._pools]

    def project_schema(self, columns: Sequence[str] | None) -> pa.Schema:
        """Return the Arrow schema of the given columns, or of all; reject unknown columns."""
        schema = self.spec.schema.to_arrow()
        unknown = [name for name in columns or () if name not in schema.names]
        if unknown or columns == []:
            problem = f"unknown column '{unknown[0]}'" if unknown else "no columns requested"
            raise HeadraceError(problem, detail=f"columns: {', '.join(schema.names)}")
        return schema if columns is None else pa.schema([schema.field(name) for name in columns])

    def read_batches(self, partition: int, start: int, times: RowTimes, schema: pa.Schema) -> list[pa.RecordBatch]:
        """Return the rows from `start` on with these times; all columns but the time are views of the pool."""
        pool, batches = self._pools[partition], []
        for first, last in pool.split_range(start, start + len(times), _BATCH_ROWS):
            arrays = [
                _timestamp_array(times[first - start : last - start])
                if name == self.spec.time_column
                else pool.slice_column(name, first, last)
                for name in schema.names
            ]
            batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        return batches

    def read_text(self, partition: int, start: int) -> tuple[int, bytearray]:
        """Return the row after the stamped chunk from `start` on, and its lines. Call from one thread per partition."""
        return self._text_caches[partition].get(start, self.queue.next_chunk(partition, start))


def _timestamp_array(times: RowTimes) -> pa.Array:
    return pa.Array.from_buffers(TIMESTAMP, len(times), [None, pa.py_buffer(times)])


class _TextCache:
    """The newest lines of a partition, cached for consumers that lag slightly: each chunk is rendered once for all."""

    def __init__(self, pool: RowPool) -> None:
        self._pool = pool
        self._renderer: LineRenderer | None = None
        self._chunks: OrderedDict[int, tuple[int, bytearray]] = OrderedDict()

    def get(self, start: int, times: RowTimes) -> tuple[int, bytearray]:
        if self._renderer is None:  # created on first use: it takes time and memory
            self._renderer = LineRenderer(self._pool)
        if not len(times):
            return start, bytearray()
        if start not in self._chunks:
            stop = next(self._pool.split_range(start, start + len(times), len(times)))[1]
            self._chunks[start] = stop, self._renderer.render(start, times[: stop - start])
            if len(self._chunks) > _CACHED_CHUNKS:
                self._chunks.popitem(last=False)
        return self._chunks[start]
