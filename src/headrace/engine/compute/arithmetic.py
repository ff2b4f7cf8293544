"""Arithmetic and mathematical functions over columns.

Integers use the checked kernels of Arrow; only if such a kernel raises does a second, NumPy pass find the rows that
overflow. Doubles follow Java and Spark where these differ from IEEE kernels: division by zero is NULL, logarithms of numbers
that are not positive are NULL, rounding is half up on the shortest decimal that denotes the double. Python runs only for
doubles rounded at more than 14 significant digits, for each such row on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.compute import decimal as decimals
from headrace.engine.compute.columns import (
    EvaluationResult,
    Kernel,
    Mask,
    Numbers,
    Value,
    broadcast_args,
    build_arrow_result,
    build_numpy_result,
    null_mask,
    to_filled_numbers,
)
from headrace.model.expression import Call

_EXACT_UNITS = 10**14  # rounding candidates below this have halves of at most 15 digits, which doubles distinguish
_EXACT_POWER = 22
_EXACT_SHIFT = 14
_MIN_INTEGRAL_DOUBLE = 2.0**52  # all doubles from here on are integers
_WIDE_CONTEXT = Context(prec=800)


def _overflow_message(call: Call) -> str:
    return f"integer overflow in {call}"


# --- add, sub, mul, neg, abs -------------------------------------------------------------------------------------------


def _add_wraps(a: Numbers, b: Numbers, result: Numbers) -> Mask:
    return ((a ^ result) & (b ^ result)) < 0


def _sub_wraps(a: Numbers, b: Numbers, result: Numbers) -> Mask:
    return ((a ^ b) & (a ^ result)) < 0


def _mul_wraps(a: Numbers, b: Numbers, result: Numbers) -> Mask:
    with np.errstate(all="ignore"):
        quotient = np.floor_divide(result, a, out=np.copy(b), where=a != 0)
    return (quotient != b) | ((a == -1) & (b == np.iinfo(b.dtype).min))  # type: ignore[no-any-return]


def _make_binary(
    fast: Callable[[Value, Value], pa.Array],
    slow: Callable[[Numbers, Numbers], Numbers],
    wraps: Callable[[Numbers, Numbers, Numbers], Mask],
    exact: Kernel,
) -> Kernel:
    """Make a kernel from a checked Arrow function, a wrapping NumPy function with its overflow test, and a decimal kernel."""

    def kernel(call: Call, args: Sequence[Value]) -> Value | EvaluationResult:
        if pa.types.is_decimal(call.type):
            return exact(call, args)
        try:
            return fast(args[0], args[1])
        except pa.ArrowInvalid:
            arrays = broadcast_args(args)
            a, b = map(to_filled_numbers, arrays)
            with np.errstate(all="ignore"):
                result = slow(a, b)
            return build_numpy_result(result, wraps(a, b, result), arrays, call.type, _overflow_message(call))

    return kernel


def _make_unary(fast: Callable[[Value], pa.Array]) -> Kernel:
    """Make a kernel from a checked function that overflows only for the least integer."""

    def kernel(call: Call, args: Sequence[Value]) -> Value | EvaluationResult:
        try:
            return fast(args[0])
        except pa.ArrowInvalid:
            least = pc.equal(args[0], pa.scalar(np.iinfo(call.type.to_pandas_dtype()).min, call.type))
            safe = pc.if_else(least, pa.scalar(0, call.type), args[0])
            return build_arrow_result(fast(safe), least, _overflow_message(call))

    return kernel


# --- div, int_div, mod -------------------------------------------------------------------------------------------------


def _zeros_to_null(value: Value) -> Value:
    """Set zeros to NULL, so that dividing by them gives NULL."""
    return pc.if_else(pc.equal(value, pa.scalar(0, value.type)), pa.scalar(None, value.type), value)


def _divide_values(call: Call, args: Sequence[Value]) -> Value | EvaluationResult:
    if pa.types.is_decimal(call.type):
        return decimals.divide_decimals(call, args)
    return pc.divide(args[0], _zeros_to_null(args[1]))


def _divide_integers(call: Call, args: Sequence[Value]) -> Value | EvaluationResult:
    divisor = _zeros_to_null(args[1])
    try:
        return pc.divide_checked(args[0], divisor)
    except pa.ArrowInvalid:
        least = pa.scalar(np.iinfo(call.type.to_pandas_dtype()).min, call.type)
        overflows = pc.and_(pc.equal(args[0], least), pc.equal(divisor, pa.scalar(-1, call.type)))
        safe = pc.if_else(overflows, pa.scalar(1, call.type), divisor)
        return build_arrow_result(pc.divide(args[0], safe), overflows, _overflow_message(call))


def _compute_remainder(call: Call, args: Sequence[Value]) -> Value | EvaluationResult:
    if pa.types.is_decimal(call.type):
        return decimals.compute_remainder(call, args)
    dividend, divisor = broadcast_args([args[0], _zeros_to_null(args[1])])
    with np.errstate(all="ignore"):
        result = np.fmod(to_filled_numbers(dividend), to_filled_numbers(divisor, 1))
    return pa.array(result, type=call.type, mask=null_mask(dividend, divisor))


# --- ceil, floor, round ------------------------------------------------------------------------------------------------


def _make_integer_rounding(rounding: Callable[[Value], pa.Array], exact: Kernel) -> Kernel:
    """Make ceil or floor: doubles become BIGINT, and must fit."""

    def kernel(call: Call, args: Sequence[Value]) -> Value | EvaluationResult:
        if pa.types.is_decimal(args[0].type):
            return exact(call, args)
        if pa.types.is_integer(args[0].type):
            return args[0].cast(call.type)
        return doubles_to_integers(rounding(args[0].cast(pa.float64())), call.type, _overflow_message(call))

    return kernel


def doubles_to_integers(doubles: pa.Array, kind: pa.DataType, message: str) -> EvaluationResult:
    """Truncate doubles to an integer type; NaN and values out of range are errors."""
    values = np.trunc(to_filled_numbers(doubles))
    limits = np.iinfo(kind.to_pandas_dtype())
    fits = (values >= float(limits.min)) & (values < float(limits.max // 2 + 1) * 2)
    if fits.all():
        return EvaluationResult(pa.array(values.astype(limits.dtype), mask=null_mask(doubles)))
    return build_numpy_result(np.where(fits, values, 0).astype(limits.dtype), ~fits, [doubles], kind, message)


def _round_values(call: Call, args: Sequence[Value]) -> Value | EvaluationResult:
    value, digits = args[0], args[1].as_py() if args[1:] else 0
    if digits is None:
        return pa.nulls(len(value), call.type)
    if pa.types.is_decimal(value.type):
        return decimals.round_decimals(value, digits, call.type, f"decimal overflow in {call}")
    if pa.types.is_integer(value.type):
        return _round_integers(call, value, digits)
    rounded = round_doubles(to_filled_numbers(value.cast(pa.float64())), digits)
    return pa.array(rounded, mask=null_mask(value)).cast(call.type)


def _round_integers(call: Call, value: pa.Array, digits: int) -> Value | EvaluationResult:
    if digits >= 0:
        return value.cast(call.type)
    exact = decimals.round_decimals(value.cast(pa.decimal128(19, 0)), max(digits, -20), pa.decimal128(20, 0), "").value
    limits = np.iinfo(call.type.to_pandas_dtype())
    least, greatest = (pa.scalar(Decimal(int(limit)), exact.type) for limit in (limits.min, limits.max))
    overflows = pc.or_(pc.less(exact, least), pc.greater(exact, greatest))
    return build_arrow_result(
        pc.if_else(overflows, pa.scalar(None, exact.type), exact).cast(call.type), overflows, _overflow_message(call)
    )


def round_doubles(values: Numbers, digits: int) -> Numbers:
    """Round half up, on the shortest decimal that denotes each double; NaN and infinities stay.

    With k = ⌊|x|·10ᵈ⌋ the result is k or k + 1 units, and k + 1 iff |x| is at least the double nearest to the half
    between them: decimals of at most 15 digits and the doubles nearest to them are in the same order.
    """
    units, certain = round_to_units(values, digits)
    with np.errstate(all="ignore"):
        result = units / 10.0**digits if digits >= 0 else units * 10.0**-digits
    result = np.copysign(result, values) + 0.0  # plus zero: no negative zero
    unchanged = ~np.isfinite(values) | ((digits >= 0) & (np.abs(values) >= _MIN_INTEGRAL_DOUBLE))
    result = np.where(unchanged, values, result)
    for index in np.nonzero(~certain & ~unchanged)[0]:
        result[index] = _round_double_exactly(float(values[index]), digits)
    return result


def round_to_units(values: Numbers, digits: int) -> tuple[Numbers, Mask]:
    """Return |x|·10ᵈ rounded half up, as integral doubles, and a mask of the rows where the result is certain."""
    magnitude = np.abs(values)
    if not -_EXACT_SHIFT <= digits <= _EXACT_POWER:
        return np.zeros_like(magnitude), magnitude == 0
    with np.errstate(all="ignore"):
        lower = np.floor(magnitude * 10.0**digits if digits >= 0 else magnitude / 10.0**-digits)
        half = (2 * lower + 1) / (2 * 10.0**digits) if digits >= 0 else (2 * lower + 1) * (10.0**-digits / 2)
        certain = (lower < _EXACT_UNITS) & (magnitude < 10 * _EXACT_UNITS)
        return lower + (magnitude >= half), certain


def _round_double_exactly(value: float, digits: int) -> float:
    return float(Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, _WIDE_CONTEXT)) + 0.0


# --- functions of doubles ----------------------------------------------------------------------------------------------


def _make_math(function: Callable[[Value], pa.Array]) -> Kernel:
    return lambda _, args: function(args[0])


def _make_logarithm(function: Callable[[Value], pa.Array]) -> Kernel:
    """Make a logarithm that is NULL for arguments that are not positive."""

    def kernel(call: Call, args: Sequence[Value]) -> Value:
        undefined = pc.less_equal(args[0], pa.scalar(0, call.type))
        return pc.if_else(undefined, pa.scalar(None, call.type), function(args[0]))

    return kernel


def _raise_to_power(call: Call, args: Sequence[Value]) -> Value:
    """Raise to a power as Java does: unlike in C, 1 to the power of NaN, and ±1 to the power of ±∞, are NaN."""
    base, exponent = args
    unit = pc.equal(pc.abs(base), pa.scalar(1, call.type))
    is_nan = pc.or_(pc.is_nan(exponent), pc.and_(unit, pc.is_inf(exponent)))
    return pc.if_else(is_nan, pa.scalar(float("nan"), call.type), pc.power(base, exponent))


def _compute_sign(_: Call, args: Sequence[Value]) -> Value:
    """Return -1, 1, or a zero or NaN unchanged."""
    is_zero = pc.equal(args[0], pa.scalar(0, args[0].type))
    return pc.if_else(is_zero, args[0], pc.sign(args[0]))


KERNELS: dict[str, Kernel] = {
    "add": _make_binary(pc.add_checked, np.add, _add_wraps, decimals.add_decimals),
    "sub": _make_binary(pc.subtract_checked, np.subtract, _sub_wraps, decimals.subtract_decimals),
    "mul": _make_binary(pc.multiply_checked, np.multiply, _mul_wraps, decimals.multiply_decimals),
    "neg": _make_unary(pc.negate_checked),
    "abs": _make_unary(pc.abs_checked),
    "div": _divide_values,
    "int_div": _divide_integers,
    "mod": _compute_remainder,
    "ceil": _make_integer_rounding(pc.ceil, decimals.ceil_decimals),
    "floor": _make_integer_rounding(pc.floor, decimals.floor_decimals),
    "round": _round_values,
    "sqrt": _make_math(pc.sqrt),
    "exp": _make_math(pc.exp),
    "ln": _make_logarithm(pc.ln),
    "log10": _make_logarithm(pc.log10),
    "log2": _make_logarithm(pc.log2),
    "pow": _raise_to_power,
    "sign": _compute_sign,
}
