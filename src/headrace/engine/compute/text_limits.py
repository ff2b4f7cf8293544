"""The limit on texts that expressions make: REPLACE and CONCAT can multiply the bytes of their arguments, again and again.

The size of a result is estimated before the kernel runs, so that a text bomb costs no memory. The estimate costs nothing where
the whole column is smaller than the limit of one text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.compute.columns import EvaluationResult, Kernel, Value, broadcast_args, is_scalar
from headrace.model.budget import DEFAULT_TEXT_BYTES
from headrace.model.expression import Call

_MAX_COLUMN_BYTES = 1 << 30  # of all texts of a column together; Arrow's offsets end at 2 GiB
_MAX_BYTES: ContextVar[int] = ContextVar("max_text_bytes", default=DEFAULT_TEXT_BYTES)


@contextmanager
def limit_text(max_bytes: int) -> Iterator[None]:
    """Set the limit of one text for the block."""
    token = _MAX_BYTES.set(max_bytes)
    try:
        yield
    finally:
        _MAX_BYTES.reset(token)


def limit_result(kernel: Kernel, name: str) -> Kernel:
    """Return a kernel of `concat` or `replace` that reports rows whose text would exceed the limit, instead of making it."""

    def limited(call: Call, args: Sequence[Value]) -> Value | EvaluationResult:
        limit = _MAX_BYTES.get()
        rows = max((len(arg) for arg in args if not is_scalar(arg)), default=1)
        bound = _bound_replaced(args, rows) if name == "replace" else sum(_count_bytes(arg, rows) for arg in args)
        if bound <= min(limit, _MAX_COLUMN_BYTES):
            return kernel(call, args)
        sizes = _measure_replaced(args) if name == "replace" else _measure_concatenated(args)
        too_long = sizes > limit
        if int(sizes[~too_long].sum()) > _MAX_COLUMN_BYTES:
            too_long[:] = True
        if not too_long.any():
            return kernel(call, args)
        columns = [pc.if_else(pa.array(too_long), pa.scalar(None, column.type), column) for column in broadcast_args(args)]
        result, longest = kernel(call, columns), int(sizes.max())
        message = f"{name} makes a text of {longest:,} bytes, or too many texts; {limit:,} are possible (max_text_bytes)"
        assert not isinstance(result, EvaluationResult)
        return EvaluationResult(result, pa.array(too_long), message)

    return limited


def _count_bytes(value: Value, rows: int) -> int:
    if is_scalar(value):
        return rows * len((value.as_py() or "").encode())
    return int(value.nbytes)


def _bound_replaced(args: Sequence[Value], rows: int) -> int:
    """Return an upper bound of the bytes of all results: every byte of the text may become a replacement."""
    text, *terms = args
    longest = max((_find_longest(term) for term in terms[1:]), default=0)
    return _count_bytes(text, rows) * max(1, longest)


def _find_longest(value: Value) -> int:
    if is_scalar(value):
        return len((value.as_py() or "").encode())
    return int(pc.max(pc.binary_length(value)).as_py() or 0)


def _measure_replaced(args: Sequence[Value]) -> npt.NDArray[np.int64]:
    """Return the bytes of each result."""
    text, search, replacement = broadcast_args([*args, pa.scalar("")][:3])
    sizes = _measure_lengths(text)
    if is_scalar(args[1]) and args[1].as_py():
        counts = np.asarray(pc.fill_null(pc.count_substring(text, pattern=args[1].as_py()), 0), np.int64)
    else:
        pairs = zip(text.to_pylist(), search.to_pylist(), strict=True)
        counts = np.array([one.count(other) if one and other else 0 for one, other in pairs], np.int64)
    return sizes + counts * (_measure_lengths(replacement) - _measure_lengths(search))


def _measure_concatenated(args: Sequence[Value]) -> npt.NDArray[np.int64]:
    sizes: npt.NDArray[np.int64] = np.sum([_measure_lengths(column) for column in broadcast_args(args)], axis=0)
    return sizes


def _measure_lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(pc.fill_null(pc.binary_length(column), 0), np.int64)
