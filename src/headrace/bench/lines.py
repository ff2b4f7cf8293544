r"""Rows as lines of text: comma-separated values without a header, the time last, as `2026-01-01 00:00:00.000000`.

    prepared once for each row of a pool      7,12,3,9,5,1,....-..-.. ..:..:...……\n
    for rows produced: the prepared lines are copied, and the digits of the time are written in machine words

No Python code runs per row. Pools with columns that advance with every pass have their lines prepared on demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bench.generator import RowPool

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
