"""Exact decimal arithmetic on Arrow columns: results are rounded half up to the target scale, and must fit.

The fast path computes in 256 bits and leaves rounding to Arrow. Operations that Arrow rejects – a result that does not fit,
or operands whose exact result needs more than 76 digits – run row by row in Python fractions, which also finds the rows
that overflow.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.compute.columns import EvaluationResult, Mask, Numbers, Value, broadcast_args, broadcast_value, is_scalar
from headrace.model.expression import Call

_MAX_PRECISION = 76
_EXACT_INTEGER = 2**53
_EXACT_POWER = 22  # 10**22 is the greatest power of ten a double holds exactly
_HUGE_CONTEXT = Context(prec=200)


def fit_decimals(value: pa.Array, kind: pa.DataType, message: str) -> EvaluationResult:
    """Cast decimals to another decimal type, rounding half up; values that do not fit are errors."""
    if value.type == kind:
        return EvaluationResult(value)
    try:
        return EvaluationResult(_rescale_decimals(value, kind))
    except pa.ArrowInvalid:
        return compute_rows_exactly([value], lambda number: number, kind, message)


def _rescale_decimals(value: pa.Array, kind: pa.DataType) -> pa.Array:
    if value.type.scale > kind.scale:
        value = pc.round(widen_decimals(value), kind.scale, "half_towards_infinity")
        return value.cast(pa.decimal256(_MAX_PRECISION, kind.scale)).cast(kind)
    return value.cast(kind)


def widen_decimals(value: Value, scale: int | None = None) -> Value:
    """Return the same decimals in 256 bits at maximum precision, at the given scale (at least their own)."""
    return value.cast(pa.decimal256(_MAX_PRECISION, value.type.scale if scale is None else scale))


def _widen_keeping_precision(value: Value, scale: int | None = None) -> Value:
    """Return the same decimals in 256 bits at their own precision, so that Arrow derives the smallest result type."""
    extra_digits = 0 if scale is None else max(0, scale - value.type.scale)
    return value.cast(pa.decimal256(value.type.precision + extra_digits, value.type.scale + extra_digits))


def compute_rows_exactly(
    args: Sequence[Value], function: Callable[..., Fraction | None], kind: pa.DataType, message: str
) -> EvaluationResult:
    """Compute row by row in exact fractions, round half up, and mark results that do not fit `kind` (decimal or integer)."""
    columns = [_to_fractions(array) for array in broadcast_args(args)]
    results: list[Any] = []
    overflows = np.zeros(len(columns[0]), dtype=np.bool_)
    for index, row in enumerate(zip(*columns, strict=True)):
        exact = None if None in row else function(*row)
        results.append(None if exact is None else round_to_decimal(exact, kind))
        overflows[index] = exact is not None and results[-1] is None
    return EvaluationResult(pa.array(results, type=kind), pa.array(overflows) if overflows.any() else None, message)


def _to_fractions(array: pa.Array) -> list[Fraction | None]:
    return [None if value is None else Fraction(value) for value in array.to_pylist()]


def round_half_up(exact: Fraction) -> int:
    """Round to the nearest integer, halves away from zero."""
    magnitude = (2 * abs(exact.numerator) + exact.denominator) // (2 * exact.denominator)
    return magnitude if exact >= 0 else -magnitude


def round_to_decimal(exact: Fraction, kind: pa.DataType) -> Decimal | None:
    """Round half up to the scale of a decimal type; return None if the result has too many digits."""
    units = round_half_up(exact * 10**kind.scale)
    return Decimal(units).scaleb(-kind.scale, _HUGE_CONTEXT) if abs(units) < 10**kind.precision else None


def _compute_exactly(
    call: Call, args: Sequence[Value], fast: Callable[[Value, Value], pa.Array], exact: Callable[..., Fraction | None]
) -> EvaluationResult:
    message = f"decimal overflow in {call}"
    try:
        unrounded = fast(args[0], args[1])
    except pa.ArrowInvalid:
        return compute_rows_exactly(args, exact, call.type, message)
    return fit_decimals(unrounded, call.type, message)


def _compute_narrowest(function: Callable[[Value, Value], pa.Array], a: Value, b: Value) -> pa.Array:
    """Compute in 128 bits if the exact result has at most 38 digits (Arrow decides by the types alone), else in 256."""
    try:
        return function(a, b)
    except pa.ArrowInvalid:
        return function(_widen_keeping_precision(a), _widen_keeping_precision(b))


def add_decimals(call: Call, args: Sequence[Value]) -> EvaluationResult:
    """Add decimals of any two types."""
    return _compute_exactly(call, args, partial(_compute_narrowest, pc.add), operator.add)


def subtract_decimals(call: Call, args: Sequence[Value]) -> EvaluationResult:
    """Subtract decimals of any two types."""
    return _compute_exactly(call, args, partial(_compute_narrowest, pc.subtract), operator.sub)


def multiply_decimals(call: Call, args: Sequence[Value]) -> EvaluationResult:
    """Multiply decimals of any two types."""
    return _compute_exactly(call, args, partial(_compute_narrowest, pc.multiply), operator.mul)


def divide_decimals(call: Call, args: Sequence[Value]) -> EvaluationResult:
    """Divide; division by zero gives NULL. Arrow truncates quotients, so one more digit is computed and then rounded off."""
    scale = call.type.scale + 1

    def fast(a: Value, b: Value) -> pa.Array:
        gained = b.type.precision - b.type.scale + 1  # Arrow's rule: scale of a quotient = scale of the dividend + this
        return pc.divide(_widen_keeping_precision(a, scale - gained), _widen_keeping_precision(zeros_to_null(b)))

    return _compute_exactly(call, args, fast, lambda a, b: a / b if b else None)


def compute_remainder(call: Call, args: Sequence[Value]) -> EvaluationResult:
    """Return the remainder, with the sign of the dividend; division by zero gives NULL."""

    def fast(a: Value, b: Value) -> pa.Array:
        divisor = _widen_keeping_precision(zeros_to_null(b))
        digits = a.type.precision - a.type.scale + b.type.scale
        whole = pc.trunc(pc.divide(_widen_keeping_precision(a), divisor)).cast(pa.decimal256(min(_MAX_PRECISION, digits), 0))
        return pc.subtract(_widen_keeping_precision(a), pc.multiply(whole, divisor))

    return _compute_exactly(call, args, fast, lambda a, b: a - b * math.trunc(a / b) if b else None)


def zeros_to_null(value: Value) -> Value:
    """Set zeros to NULL, so that dividing by them gives NULL."""
    zero = pc.equal(value, pa.scalar(Decimal(0), value.type))
    return pc.if_else(zero, pa.scalar(None, value.type), value)


def ceil_decimals(call: Call, args: Sequence[Value]) -> EvaluationResult:
    """Round up to an integer."""
    return fit_decimals(pc.ceil(widen_decimals(args[0])), call.type, f"decimal overflow in {call}")


def floor_decimals(call: Call, args: Sequence[Value]) -> EvaluationResult:
    """Round down to an integer."""
    return fit_decimals(pc.floor(widen_decimals(args[0])), call.type, f"decimal overflow in {call}")


def round_decimals(value: pa.Array, digits: int, kind: pa.DataType, message: str) -> EvaluationResult:
    """Round half up to `digits` digits after the decimal point, or before it if negative."""
    if digits < value.type.scale:
        value = pc.round(widen_decimals(value), digits, "half_towards_infinity")
    return fit_decimals(value, kind, message)


def decimals_from_units(units: Numbers, mask: Mask | None, kind: pa.DataType) -> pa.Array:
    """Build decimals of `kind` from 64-bit unscaled values; they must be known to fit."""
    words = np.empty((len(units), 2), dtype=np.int64)
    words[:, 0] = units
    words[:, 1] = units >> 63
    valid = None if mask is None else pa.array(~mask).buffers()[1]
    return pa.Array.from_buffers(kind, len(units), [valid, pa.py_buffer(words)])


def decimals_to_doubles(value: Value) -> pa.Array:
    """Return the nearest doubles; Python converts numbers of more than 53 bits, as the cast of Arrow may be off by one bit."""
    array = broadcast_value(value, 1) if is_scalar(value) else value
    if array.null_count == len(array):
        return pa.nulls(len(array), pa.float64())
    words = np.frombuffer(array.buffers()[1], dtype=np.int64, count=2 * (array.offset + len(array)))
    low, high = words[2 * array.offset :: 2], words[2 * array.offset + 1 :: 2]
    small = (high == low >> 63) & (low <= _EXACT_INTEGER) & (low >= -_EXACT_INTEGER)
    missing = array.is_null().to_numpy(zero_copy_only=False)
    if array.type.scale > _EXACT_POWER or not (small | missing).all():
        return pa.array([None if number is None else float(number) for number in array.to_pylist()], type=pa.float64())
    return pa.array(low / 10.0**array.type.scale, mask=missing if array.null_count else None)
