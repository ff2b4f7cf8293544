"""Serving a stream: Arrow record batches for range reads, and lines of text for consumers of a line port.

The queue of a stream holds the event times of its rows, its pools hold the values; all columns but the time are views of the
pool. A line has comma-separated values without a header, the time last, as `2026-01-01 00:00:00.000000`:

    prepared once for each row of a pool      7,12,3,9,5,1,....-..-.. ..:..:...……⏎
    for rows produced: the prepared lines are copied, and the digits of the time are written in machine words

No Python code runs per row. Pools with columns that advance with every pass have their lines prepared on demand.

Each consumer of a line port receives the same text, at its own pace. One thread serves all consumers of a partition. A chunk of
text is rendered once; a slow consumer does not delay the others, and its rows stay in the queue. Bytes accepted by a socket
count as read and committed: a text consumer cannot read them again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bench.driver.generator import RowPool, build_pools
from headrace.bench.driver.queue import RowTimes, StreamQueue
from headrace.bench.driver.streams import StreamSpec
from headrace.errors import HeadraceError
from headrace.model.types import TIMESTAMP

_Integers: TypeAlias = npt.NDArray[np.int64]
_SECOND_US = 1_000_000
_TIME_TEMPLATE = "0000-00-00 00:00:00.000000\n"
_THREE_DIGITS = np.frombuffer(b"".join(b"%03d\n" % number for number in range(1000)), np.uint32)  # three digits and a newline
_DATE_CHARACTERS = 20  # up to and including the decimal point


class LineRenderer:
    """Renders the text of one partition."""

    def __init__(self, pool: RowPool) -> None:
        """Prepare the text that every pass over the pool repeats; neighbouring columns become one text."""
        self._pool = pool
        self._column_texts: list[str | pa.Array] = []  # an advancing column by name, or text for all rows of the pool
        for advances, group in groupby(pool.columns, lambda name: name in pool.increments):
            names = list(group)
            self._column_texts += names if advances else [_join_columns([pool.columns[name].cast(pa.string()) for name in names])]
        if not pool.increments:
            self._column_texts = [_join_columns([*self._column_texts, pa.scalar(_TIME_TEMPLATE)])]

    def render(self, start: int, times: _Integers) -> bytearray:
        """Return the lines of the rows from `start` on with these times; all rows lie within one pass over the pool."""
        text = self._render_template(start, start + len(times))
        offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text) + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        content = bytearray(memoryview(text.buffers()[2])[first:last])
        _write_times(content, offsets[1:].astype(np.int64) - (first + len(_TIME_TEMPLATE)), times)
        return content

    def _render_template(self, start: int, stop: int) -> pa.Array:
        parts = [self._slice_text(part, start, stop) for part in self._column_texts]
        return _join_columns([*parts, pa.scalar(_TIME_TEMPLATE)]) if self._pool.increments else parts[0]

    def _slice_text(self, part: str | pa.Array, start: int, stop: int) -> pa.Array:
        if isinstance(part, str):
            return self._pool.slice_column(part, start, stop).cast(pa.string())
        return part.slice(start % self._pool.rows, stop - start)


def _join_columns(parts: Sequence[pa.Array | pa.Scalar]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, ",")


def _write_times(content: bytearray, positions: _Integers, times: _Integers) -> None:
    seconds = times // _SECOND_US
    microseconds = times - seconds * _SECOND_US
    milliseconds = microseconds // 1000
    first, last = int(seconds.min()), int(seconds.max())
    dates = _format_seconds(first, last)
    second_index: Any = 0 if first == last else seconds - first  # usually one second, and then one word for all rows
    for offset, kind in ((0, np.uint64), (8, np.uint64), (16, np.uint32)):
        words = np.ascontiguousarray(dates[:, offset : offset + np.dtype(kind).itemsize]).view(kind).ravel()
        _view_words(content, kind)[positions + offset] = words[second_index]
    _view_words(content, np.uint32)[positions + _DATE_CHARACTERS] = _THREE_DIGITS[milliseconds]
    _view_words(content, np.uint32)[positions + _DATE_CHARACTERS + 3] = _THREE_DIGITS[microseconds - milliseconds * 1000]


def _view_words(content: bytearray, kind: Any) -> npt.NDArray[Any]:
    """View the text as overlapping machine words, one starting at every character."""
    size = np.dtype(kind).itemsize
    return np.ndarray((len(content) - size + 1,), kind, content, strides=(1,))


def _format_seconds(first: int, last: int) -> npt.NDArray[np.uint8]:
    """Format the seconds first … last, one per row, each with its decimal point."""
    seconds = pa.array(np.arange(first, last + 1)).view(pa.timestamp("s")).cast(pa.string())
    return np.frombuffer("".join(f"{text}." for text in seconds.to_pylist()).encode(), np.uint8).reshape(-1, _DATE_CHARACTERS)


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
