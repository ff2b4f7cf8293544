"""Exact decimal arithmetic on Arrow columns: results are rounded half up to the target scale, and must fit.

The fast paths let Arrow compute where its result is known to be exact, which the types alone decide: sums and products in 128
or 256 bits; quotients, roundings and rescaling only in 128 bits. (In 256 bits Arrow 26 divides some numbers beyond 2¹²⁸ wrongly,
which includes rounding; and a cast to a greater scale wraps around silently if the digits of the source type and of the
shift together exceed the width.) Everything else runs on unscaled Python integers, in arrays of objects, which also finds the
rows that overflow.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.compute.columns import (
    EvaluationResult,
    Kernel,
    Mask,
    Numbers,
    Value,
    broadcast_args,
    broadcast_value,
    decimals_from_integers,
    exclude_nulls,
    is_scalar,
    null_mask,
    split_decimal_words,
    to_numbers,
    union_masks,
)
from headrace.model.expression import Call

_MAX_PRECISION = 38
_MAX_INT64_DIGITS = 18
_EXACT_INTEGER = 2**53
_EXACT_POWER = 22  # 10**22 is the greatest power of ten a double holds exactly
ExactFunction: TypeAlias = Callable[..., tuple[Numbers, int]]

# --- unscaled integers -------------------------------------------------------------------------------------------------


def to_unscaled(array: pa.Array) -> Numbers:
    """Return the unscaled values as Python integers in an array of objects; entries that are NULL are 0."""
    if array.null_count:
        array = array.fill_null(pa.scalar(Decimal(0), array.type))
    low, high = split_decimal_words(array)
    units: Numbers = (high.astype(object) << 64) + low.astype(object)
    return units


def divide_half_up(numbers: Numbers, divisors: Any) -> Numbers:
    """Divide integers and round to the nearest, halves away from zero."""
    magnitudes = abs(divisors)  # not np.abs, which would turn an integer into one of 64 bits
    rounded: Numbers = (2 * abs(numbers) + magnitudes) // (2 * magnitudes)
    return np.where((numbers < 0) == (divisors < 0), rounded, -rounded)


def rescale_units(units: Numbers, scale: int, target: int) -> Numbers:
    """Return unscaled values at another scale, rounded half up."""
    return units * 10 ** (target - scale) if target >= scale else divide_half_up(units, 10 ** (scale - target))


def _build_exact_result(
    units: Numbers, args: Sequence[pa.Array], kind: pa.DataType, message: str, missing: Mask | None = None
) -> EvaluationResult:
    """Build the result from unscaled values at the scale of `kind`; NULL at NULLs of `args`, an error where it does not fit."""
    overflows = exclude_nulls(abs(units) >= 10**kind.precision, *args)
    if missing is not None:
        overflows &= ~missing
    nulls = union_masks(union_masks(null_mask(*args), missing), overflows)
    fitting = units if nulls is None else np.where(nulls, 0, units)
    result = decimals_from_integers(fitting, kind, nulls)
    return EvaluationResult(result, pa.array(overflows) if overflows.any() else None, message)


def _compute_units(call: Call, args: Sequence[Value], exact: ExactFunction) -> EvaluationResult:
    """Compute on unscaled values; `exact` gets them with their scales and returns them with their scale."""
    arrays = broadcast_args(args)
    units, scale = exact(*(part for array in arrays for part in (to_unscaled(array), array.type.scale)))
    return _build_exact_result(rescale_units(units, scale, call.type.scale), arrays, call.type, _overflow_message(call))


def _overflow_message(call: Call) -> str:
    return f"decimal overflow in {call}"


# --- rescaling ---------------------------------------------------------------------------------------------------------


def fit_decimals(value: pa.Array, kind: pa.DataType, message: str) -> EvaluationResult:
    """Cast decimals of 128 bits to another decimal type, rounding half up; values that do not fit are errors."""
    if value.type == kind:
        return EvaluationResult(value)
    try:
        return EvaluationResult(_rescale_by_arrow(value, kind))
    except pa.ArrowInvalid:
        units = rescale_units(to_unscaled(value), value.type.scale, kind.scale)
        return _build_exact_result(units, [value], kind, message)


def _rescale_by_arrow(value: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast to another type; raises ArrowInvalid if a value does not fit, or might wrap around on the way."""
    shift = kind.scale - value.type.scale
    if shift > 0 and value.type.precision + shift > _MAX_PRECISION:
        raise pa.ArrowInvalid("the cast might wrap around")
    return (_round_by_arrow(value, kind.scale) if shift < 0 else value).cast(kind)


def _round_by_arrow(value: pa.Array, digits: int) -> pa.Array:
    return pc.round(_add_headroom(value), digits, "half_towards_infinity")


def _add_headroom(value: pa.Array) -> pa.Array:
    """Return the same decimals in a type with an unused digit, or raise ArrowInvalid.

    A rounding of Arrow can need that digit, and where it has none, it raises only if the last row does not fit.
    """
    precision, scale = value.type.precision, value.type.scale
    if precision < _MAX_PRECISION:
        return value.cast(pa.decimal128(precision + 1, scale))
    return value.cast(pa.decimal128(_MAX_PRECISION - 1, scale)).cast(value.type)


# --- arithmetic --------------------------------------------------------------------------------------------------------


def _make_exact_kernel(function: Callable[[Value, Value], pa.Array], exact: ExactFunction) -> Kernel:
    """Make a kernel of an Arrow function, exact in the type that it derives, and of the same on unscaled integers."""

    def kernel(call: Call, args: Sequence[Value]) -> EvaluationResult:
        try:
            unrounded = _narrow_to_128_bits(_compute_narrowest(function, *args))
        except pa.ArrowInvalid:
            return _compute_units(call, args, exact)
        return fit_decimals(unrounded, call.type, _overflow_message(call))

    return kernel


def _compute_narrowest(function: Callable[[Value, Value], pa.Array], a: Value, b: Value) -> pa.Array:
    """Compute in 128 bits if the exact result has at most 38 digits (Arrow decides by the types alone), else in 256."""
    try:
        return function(a, b)
    except pa.ArrowInvalid:
        return function(*(side.cast(pa.decimal256(side.type.precision, side.type.scale)) for side in (a, b)))


def _narrow_to_128_bits(value: pa.Array) -> pa.Array:
    """Return the same decimals in 128 bits; raises ArrowInvalid if they do not fit."""
    if pa.types.is_decimal128(value.type):
        return value
    if value.type.scale > _MAX_PRECISION:
        raise pa.ArrowInvalid("too many digits after the decimal point")
    return value.cast(pa.decimal128(_MAX_PRECISION, value.type.scale))


def _align_units(a: Numbers, a_scale: int, b: Numbers, b_scale: int) -> tuple[Numbers, Numbers, int]:
    scale = max(a_scale, b_scale)
    return a * 10 ** (scale - a_scale), b * 10 ** (scale - b_scale), scale


def _add_units(a: Numbers, a_scale: int, b: Numbers, b_scale: int) -> tuple[Numbers, int]:
    a, b, scale = _align_units(a, a_scale, b, b_scale)
    return a + b, scale


def _subtract_units(a: Numbers, a_scale: int, b: Numbers, b_scale: int) -> tuple[Numbers, int]:
    return _add_units(a, a_scale, -b, b_scale)


def _multiply_units(a: Numbers, a_scale: int, b: Numbers, b_scale: int) -> tuple[Numbers, int]:
    return a * b, a_scale + b_scale


add_decimals = _make_exact_kernel(pc.add, _add_units)
subtract_decimals = _make_exact_kernel(pc.subtract, _subtract_units)
multiply_decimals = _make_exact_kernel(pc.multiply, _multiply_units)


def divide_decimals(call: Call, args: Sequence[Value]) -> EvaluationResult:
    """Divide; division by zero gives NULL."""
    try:
        quotient = _divide_by_arrow(call, *args)
    except pa.ArrowInvalid:
        return _divide_units(call, broadcast_args(args))
    return fit_decimals(quotient, call.type, _overflow_message(call))


def _divide_by_arrow(call: Call, dividend: Value, divisor: Value) -> pa.Array:
    """Divide in 128 bits, or raise ArrowInvalid; Arrow truncates quotients, so one more digit is computed for the rounding."""
    gained = divisor.type.precision - divisor.type.scale + 1  # Arrow's rule: scale of a quotient = scale of the dividend + this
    shift = max(0, call.type.scale + 1 - gained - dividend.type.scale)
    if dividend.type.precision + shift > _MAX_PRECISION:
        raise pa.ArrowInvalid("the dividend has too many digits")
    widened = dividend.cast(pa.decimal128(dividend.type.precision + shift, dividend.type.scale + shift))
    return pc.divide(widened, zeros_to_null(divisor))


def _divide_units(call: Call, args: Sequence[pa.Array]) -> EvaluationResult:
    dividend, divisor = map(to_unscaled, args)
    zero = divisor == 0
    shift = call.type.scale - args[0].type.scale + args[1].type.scale
    numerator = dividend * 10 ** max(shift, 0)
    denominator = np.where(zero, 1, divisor) * 10 ** max(-shift, 0)
    units = divide_half_up(numerator, denominator)
    return _build_exact_result(units, args, call.type, _overflow_message(call), zero.astype(np.bool_))


def compute_remainder(call: Call, args: Sequence[Value]) -> EvaluationResult:
    """Return the remainder, with the sign of the dividend; division by zero gives NULL."""
    arrays = broadcast_args(args)
    scale = max(array.type.scale for array in arrays)
    if all(array.type.precision + scale - array.type.scale <= _MAX_INT64_DIGITS for array in arrays):
        dividend, divisor = (to_numbers(array) * 10 ** (scale - array.type.scale) for array in arrays)
        zero = divisor == 0
        missing = union_masks(null_mask(*arrays), zero)
        units = np.fmod(dividend, np.where(zero, 1, divisor))
        return fit_decimals(
            decimals_from_units(units, missing, pa.decimal128(_MAX_INT64_DIGITS, scale)), call.type, _overflow_message(call)
        )
    return _compute_unit_remainder(call, arrays)


def _compute_unit_remainder(call: Call, args: Sequence[pa.Array]) -> EvaluationResult:
    scales = [array.type.scale for array in args]
    dividend, divisor, scale = _align_units(to_unscaled(args[0]), scales[0], to_unscaled(args[1]), scales[1])
    zero = (divisor == 0).astype(np.bool_)
    magnitude = abs(dividend) % np.where(zero, 1, abs(divisor))
    units = rescale_units(np.where(dividend < 0, -magnitude, magnitude), scale, call.type.scale)
    return _build_exact_result(units, args, call.type, _overflow_message(call), zero)


def zeros_to_null(value: Value) -> Value:
    """Set zeros to NULL, so that dividing by them gives NULL."""
    zero = pc.equal(value, pa.scalar(Decimal(0), value.type))
    return pc.if_else(zero, pa.scalar(None, value.type), value)


# --- rounding ----------------------------------------------------------------------------------------------------------


def _make_integer_rounding(function: Callable[[Value], pa.Array], exact: Callable[[Numbers, int], Numbers]) -> Kernel:
    """Make a rounding to integers from an Arrow function, and from one of unscaled integers and 10 to their scale."""

    def kernel(call: Call, args: Sequence[Value]) -> EvaluationResult:
        (value,) = args
        try:
            rounded = function(_add_headroom(value))
        except pa.ArrowInvalid:  # the result needs a digit more than the type has
            units = exact(to_unscaled(value), 10**value.type.scale) * 10**call.type.scale
            return _build_exact_result(units, [value], call.type, _overflow_message(call))
        return fit_decimals(rounded, call.type, _overflow_message(call))

    return kernel


ceil_decimals = _make_integer_rounding(pc.ceil, lambda units, one: -(-units // one))
floor_decimals = _make_integer_rounding(pc.floor, operator.floordiv)


def to_integral_units(value: pa.Array) -> Numbers:
    """Return decimals without their fraction, as Python integers; entries that are NULL are 0."""
    units = to_unscaled(value)
    whole: Numbers = abs(units) // 10**value.type.scale
    return np.where(units < 0, -whole, whole)


def round_decimals(value: pa.Array, digits: int, kind: pa.DataType, message: str) -> EvaluationResult:
    """Round half up to `digits` digits after the decimal point, or before it if negative."""
    if digits >= value.type.scale:
        return fit_decimals(value, kind, message)
    try:
        return fit_decimals(_round_by_arrow(value, digits), kind, message)
    except pa.ArrowInvalid:  # the result needs more digits than the type has
        units = divide_half_up(to_unscaled(value), 10 ** (value.type.scale - digits))
        return _build_exact_result(units * 10 ** (kind.scale - digits), [value], kind, message)


# --- to and from other numbers -----------------------------------------------------------------------------------------


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
