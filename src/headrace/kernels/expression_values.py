"""Values and helpers that the expression kernels share.

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

Value: TypeAlias = Any  # pa.Array | pa.Scalar; pyarrow ships no types
Numbers: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]


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
