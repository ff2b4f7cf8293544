"""Conversion between Arrow columns and NumPy arrays, in the 64-bit forms that the compiled kernels process.

Integers, dates, timestamps, booleans and decimals up to 18 digits become integers (a decimal is its unscaled value),
floats become floats. A boolean array marks the entries that are not NULL; it has length zero when there are no NULLs.

A `Value` is an Arrow array with one entry per row, or an Arrow scalar that is the same on every row. A kernel gets the call
and its arguments as values, at least one of them an array, and returns an array – or an `EvaluationResult`, if some rows
failed. Kernels ignore the errors of their arguments; `Evaluator` handles these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.expression import Call

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


def copy_narrow(values: Numbers, bound: int) -> Numbers:
    """Return a copy of integers of at most that magnitude, in the smallest width that holds them."""
    width = next((dtype for dtype in (np.int8, np.int16, np.int32) if bound <= np.iinfo(dtype).max), np.int64)
    return values.astype(width)


def widen_integers(values: Numbers) -> Numbers:
    """Return integers widened to 64 bits; undoes `narrow_integers`."""
    return values.astype(np.int64) if values.dtype.kind == "i" else values


def take(array: pa.Array, indices: Numbers, missing: Mask | None = None) -> pa.Array:
    """Return the entries at `indices`, which must exist; NULL where `missing`. A check of the bounds takes half as long again."""
    return pc.take(array, pa.array(indices, mask=missing), boundscheck=False)


Value: TypeAlias = Any  # pa.Array | pa.Scalar; pyarrow ships no types


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """A value, the rows on which evaluation failed (NULL there; None if there are none), and the error message."""

    value: Value
    errors: pa.Array | None = None
    message: str = ""


Kernel: TypeAlias = Callable[[Call, Sequence[Value]], Value | EvaluationResult]


def is_scalar(value: Value) -> bool:
    """Return whether the value is the same on every row."""
    return isinstance(value, pa.Scalar)


def broadcast_value(value: Value, rows: int) -> pa.Array:
    """Return an array of `rows` entries; arrays are returned unchanged."""
    return pa.repeat(value, rows) if is_scalar(value) else value


def broadcast_args(args: Sequence[Value]) -> list[pa.Array]:
    """Broadcast scalars to arrays as long as the other arguments."""
    rows = next(len(arg) for arg in args if not is_scalar(arg))
    return [broadcast_value(arg, rows) for arg in args]


def to_filled_numbers(array: pa.Array, filler: Any = 0) -> Numbers:
    """Return the values of a numeric array as NumPy, without a copy unless there are NULLs; NULLs become `filler`."""
    filled = array.fill_null(filler) if array.null_count else array
    return filled.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def null_mask(*arrays: pa.Array) -> Mask | None:
    """Return a mask of the rows on which any of the arrays is NULL; None if there are none."""
    union = None
    for array in arrays:
        if array.null_count:
            mask = array.is_null().to_numpy(zero_copy_only=False)
            union = mask if union is None else union | mask
    return union


def union_masks(first: Mask | None, second: Mask | None) -> Mask | None:
    """Return the union of two masks; None is the empty mask."""
    if first is None or second is None:
        return second if first is None else first
    return first | second


def exclude_nulls(failed: Mask, *arrays: pa.Array) -> Mask:
    """Remove the rows on which an argument is NULL: NULL cannot overflow."""
    missing = null_mask(*arrays)
    return failed if missing is None else failed & ~missing


def build_numpy_result(
    values: Numbers, failed: Mask, args: Sequence[pa.Array], kind: pa.DataType, message: str
) -> EvaluationResult:
    """Build the result of a NumPy computation over `args` that failed on the rows of `failed`; NULL there and at NULLs."""
    failed = exclude_nulls(failed, *args)
    result = pa.array(values, type=kind, mask=union_masks(null_mask(*args), failed))
    return EvaluationResult(result, pa.array(failed) if failed.any() else None, message)


def build_arrow_result(value: pa.Array, failed: pa.Array, message: str) -> EvaluationResult:
    """Build the result of an Arrow computation that failed on the rows of `failed` (NULL counts as not failed)."""
    errors = failed.fill_null(False)
    if not pc.any(errors).as_py():
        return EvaluationResult(value)
    return EvaluationResult(set_null(value, errors), errors, message)


def set_null(value: pa.Array, rows: pa.Array) -> pa.Array:
    """Set the given rows to NULL."""
    return pc.if_else(rows, pa.scalar(None, value.type), value)


def map_distinct(array: pa.Array, function: Callable[[Any], Any], kind: pa.DataType) -> pa.Array:
    """Apply a Python function once to each distinct value; NULL stays NULL."""
    encoded = array.dictionary_encode()
    results = pa.array([function(value) for value in encoded.dictionary.to_pylist()], type=kind)
    return results.take(encoded.indices)


def map_rows(args: Sequence[Value], function: Callable[..., Any], kind: pa.DataType) -> pa.Array:
    """Apply a Python function row by row, the last resort; NULL if any argument is NULL."""
    columns = [array.to_pylist() for array in broadcast_args(args)]
    return pa.array([None if None in row else function(*row) for row in zip(*columns, strict=True)], type=kind)
