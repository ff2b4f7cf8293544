"""Conversion between Arrow columns and NumPy arrays, in the 64-bit forms that the compiled kernels process.

Integers, dates, timestamps, booleans and decimals up to 18 digits become integers (a decimal is its unscaled value),
floats become floats. A boolean array marks the entries that are not NULL; it has length zero when there are no NULLs.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

ArrowColumn: TypeAlias = pa.Array | pa.ChunkedArray
Numbers: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]

ALL_VALID: Mask = np.zeros(0, np.bool_)
_NUMPY_TYPES = {pa.int32(): np.int32, pa.int64(): np.int64, pa.float64(): np.float64, pa.date32(): np.int32}


def combine_chunks(column: ArrowColumn) -> pa.Array:
    """Return a column as a single array; a single chunk is not copied."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
    return column


def valid_mask(array: pa.Array) -> Mask:
    """Return a mask of the entries that are not NULL; length zero when there are no NULLs."""
    if array.null_count == 0:
        return ALL_VALID
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False))


def to_numbers(array: pa.Array) -> Numbers:
    """Return the values as int32, int64 or float64; entries that are NULL have undefined values."""
    kind = array.type
    if kind in _NUMPY_TYPES:
        return _view_buffer(array, _NUMPY_TYPES[kind])
    if pa.types.is_timestamp(kind):
        return _view_buffer(array, np.int64)
    if pa.types.is_decimal(kind):
        return _view_buffer(array, np.int64, words=2)[::2].copy()
    if pa.types.is_floating(kind):
        return _view_buffer(array, np.float32).astype(np.float64)
    if pa.types.is_boolean(kind):
        return _view_buffer(array.cast(pa.int8()), np.int8).astype(np.int32)
    return _view_buffer(array, kind.to_pandas_dtype()).astype(np.int32)


def split_decimal_words(array: pa.Array) -> tuple[Numbers, Numbers]:
    """Return the low (unsigned) and high (signed) 64 bits of decimals."""
    words = _view_buffer(array, np.int64, words=2)
    return words[::2].view(np.uint64), words[1::2]


def _view_buffer(array: pa.Array, dtype: Any, words: int = 1) -> Numbers:
    data = array.buffers()[1]
    if data is None or len(array) == 0:
        return np.zeros(0, dtype)
    return np.frombuffer(data, dtype, count=len(array) * words, offset=array.offset * words * np.dtype(dtype).itemsize)


def from_numbers(values: Numbers, kind: pa.DataType, missing: Mask | None = None) -> pa.Array:
    """Return an Arrow array of type `kind`; `missing` marks NULLs. The inverse of `to_numbers`."""
    if pa.types.is_decimal(kind):
        return (
            decimals_from_integers(values.astype(object), kind, missing)
            if values.dtype == object
            else _decimals_from_int64(values, kind, missing)
        )
    integer_types = {32: pa.int32(), 64: pa.int64()}
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.array(values, integer_types[kind.bit_width], mask=missing).view(kind)
    if pa.types.is_boolean(kind):
        return pa.array(values != 0, kind, mask=missing)
    return pa.array(values.astype(kind.to_pandas_dtype(), copy=False), kind, mask=missing)


def _decimals_from_int64(values: Numbers, kind: pa.DataType, missing: Mask | None) -> pa.Array:
    words = np.empty(2 * len(values), np.int64)
    words[::2] = values
    words[1::2] = values.astype(np.int64) >> 63
    valid = None if missing is None else pa.array(~missing).buffers()[1]
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(words)])


def decimals_from_integers(unscaled: Numbers, kind: pa.DataType, missing: Mask | None = None) -> pa.Array:
    """Return decimals from unscaled Python integers, for results that may need more than 64 bits."""
    raw = b"".join((int(v) if v is not None else 0).to_bytes(16, "little", signed=True) for v in unscaled)
    valid = None if missing is None else pa.array(~missing).buffers()[1]
    return pa.Array.from_buffers(kind, len(unscaled), [valid, pa.py_buffer(raw)])


def narrow_integers(values: Numbers) -> Numbers:
    """Return integers in the smallest width that holds them, to reduce shuffle and state bytes."""
    if values.dtype != np.int64 or values.size == 0:
        return values
    low, high = int(values.min()), int(values.max())
    for dtype in (np.int8, np.int16, np.int32):
        info = np.iinfo(dtype)
        if info.min <= low and high <= info.max:
            return values.astype(dtype)
    return values


def widen_integers(values: Numbers) -> Numbers:
    """Return integers widened to 64 bits; undoes `narrow_integers`."""
    return values.astype(np.int64) if values.dtype.kind == "i" else values


def take(array: pa.Array, indices: Numbers) -> pa.Array:
    """Return the entries at `indices`."""
    return pc.take(array, pa.array(indices))
