"""The buffers of Arrow columns as compiled loops read them, with readable bytes behind their end."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def get_validity(array: pa.Array) -> npt.NDArray[np.uint8] | None:
    """Return a byte for each row, 0 for NULL; None if there are no NULLs."""
    return np.asarray(array.is_valid()).view(np.uint8) if array.null_count else None


def get_text_buffers(texts: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return the offsets and the bytes of texts; there is an offset more than rows."""
    _, ends, data = texts.buffers()
    offsets = np.zeros(1, np.int32)
    if ends is not None and len(ends):
        offsets = np.frombuffer(ends, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    size = int(offsets[-1])
    padded = np.zeros(size + 16, np.uint8)
    if size:
        padded[:size] = np.frombuffer(data, np.uint8)[:size]
    return np.append(offsets, offsets[-1:]), padded


def get_fixed_values(array: pa.Array, kind: pa.DataType) -> npt.NDArray[Any]:
    """Return the values of a column after a cast; anything where it is NULL. Truth is bytes, decimals are pairs of words."""
    cast = array if array.type == kind else array.cast(kind)
    if pa.types.is_boolean(kind):
        return np.asarray(cast.fill_null(False)).view(np.uint8)
    if pa.types.is_decimal(kind):
        words = np.frombuffer(cast.buffers()[1], np.int64).reshape(-1, 2)[cast.offset : cast.offset + len(cast)]
        return np.ascontiguousarray(words)
    if pa.types.is_floating(kind):
        return np.append(np.asarray(cast.fill_null(0.0)), np.zeros(2, cast.type.to_pandas_dtype()))
    integers = cast.cast(pa.int32()) if pa.types.is_date(kind) else cast
    return np.asarray(integers.cast(pa.int64()).fill_null(0))
