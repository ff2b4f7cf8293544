"""One stream as it is served: its queue says which rows there are and when they were born, its pools what is in them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import pyarrow as pa

from headrace.bench.generator import Pool, pools
from headrace.bench.lines import Lines
from headrace.bench.partition import Times
from headrace.bench.queue import StreamQueue
from headrace.bench.stream import StreamSpec
from headrace.errors import HeadraceError
from headrace.model.schema import TIMESTAMP

_BATCH_ROWS = 1 << 16  # of a record batch: two megabytes or so, which stay in the cache until they are sent
_TEXTS = 32


class Served:
    """A stream; threads may ask for rows at once."""

    def __init__(self, spec: StreamSpec, capacity_rows: int) -> None:
        """Make the rows."""
        self.spec, self.queue = spec, StreamQueue(spec, capacity_rows)
        self._pools = pools(spec)
        self._texts = [_Texts(pool) for pool in self._pools]

    def schema(self, columns: Sequence[str] | None) -> pa.Schema:
        """Return the Arrow schema of some columns, or of all."""
        schema = self.spec.schema.to_arrow()
        unknown = [name for name in columns or () if name not in schema.names]
        if unknown or columns == []:
            named = f"there is no column '{unknown[0]}'" if unknown else "no columns were asked for"
            raise HeadraceError(named, detail=f"columns: {', '.join(schema.names)}")
        return schema if columns is None else pa.schema([schema.field(name) for name in columns])

    def batches(self, partition: int, start: int, times: Times, schema: pa.Schema) -> list[pa.RecordBatch]:
        """Return the rows from `start` on that were born at `times`; all columns but the time are views of the pool."""
        pool, found = self._pools[partition], []
        for a, b in pool.cuts(start, start + len(times), _BATCH_ROWS):
            made = [
                _timestamps(times[a - start : b - start]) if name == self.spec.time else pool.column(name, a, b)
                for name in schema.names
            ]
            found.append(pa.RecordBatch.from_arrays(made, schema=schema))
        return found

    def text(self, partition: int, start: int) -> tuple[int, bytearray]:
        """Return the row after those from `start` on that were born together, and their lines. One thread a partition."""
        return self._texts[partition].get(start, self.queue.next_chunk(partition, start))


def _timestamps(times: Times) -> pa.Array:
    return pa.Array.from_buffers(TIMESTAMP, len(times), [None, pa.py_buffer(times)])


class _Texts:
    """Lines of a partition, the newest kept for those who come a little later: each is made once for all who follow."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._lines: Lines | None = None
        self._kept: OrderedDict[int, tuple[int, bytearray]] = OrderedDict()

    def get(self, start: int, times: Times) -> tuple[int, bytearray]:
        if self._lines is None:  # made when somebody asks for text: it takes a moment, and memory
            self._lines = Lines(self._pool)
        if not len(times):
            return start, bytearray()
        if start not in self._kept:
            stop = next(self._pool.cuts(start, start + len(times), len(times)))[1]
            self._kept[start] = stop, self._lines.render(start, times[: stop - start])
            if len(self._kept) > _TEXTS:
                self._kept.popitem(last=False)
        return self._kept[start]
