"""Numeric functions: range checks, exact rounding, order and equality.

Integers are Python ints, doubles are Python floats, decimals are `Decimal`. Exact intermediate results are `Fraction`,
so that no result is rounded twice.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from headrace.errors import EvaluationError
from headrace.model.schema import type_name


def fit(value: Any, kind: pa.DataType) -> Any:
    """Round a computed number to a value of `kind`, decimals half up; raises if it is out of range."""
    if pa.types.is_integer(kind):
        return fit_integer(int(value), kind)
    if pa.types.is_decimal(kind):
        return fit_decimal(Fraction(value), kind)
    if pa.types.is_floating(kind):
        return fit_float(value, kind)
    return value


def fit_integer(value: int, kind: pa.DataType) -> int:
    """Return `value` if it is in the range of the type, else raise; never wrap around."""
    bound = 1 << (kind.bit_width - 1)
    if not -bound <= value < bound:
        raise EvaluationError(
            f"integer overflow: {value} is out of range of {type_name(kind)}", hint="cast to a wider type first"
        )
    return value


def fit_decimal(value: Fraction, kind: pa.DataType) -> Decimal:
    """Round half up (away from zero) to the scale of the type; raise if the result exceeds its precision."""
    unscaled = half_up(value * 10**kind.scale)
    if abs(unscaled) >= 10**kind.precision:
        raise EvaluationError(f"decimal overflow: a value is out of range of {type_name(kind)}")
    return decimal_of(unscaled, kind.scale)


def fit_float(value: Any, kind: pa.DataType) -> float:
    """Return the nearest double, or for FLOAT the nearest 32-bit float; infinity beyond the range."""
    result = nearest_double(value)
    if kind != pa.float32():
        return result
    try:
        return float(struct.unpack("f", struct.pack("f", result))[0])
    except OverflowError:
        return math.copysign(math.inf, result)


def nearest_double(value: Any) -> float:
    """Convert any number to the nearest double; infinity beyond the range."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def half_up(value: Fraction) -> int:
    """Round to an integer, halves away from zero."""
    rounded = math.floor(abs(value) + Fraction(1, 2))
    return rounded if value >= 0 else -rounded


def decimal_of(unscaled: int, scale: int) -> Decimal:
    """Return exactly unscaled · 10^-scale, independent of the decimal context."""
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def order(value: Any) -> Any:
    """Return a sort key within one type: NaN is greater than everything and equals itself, -0.0 equals 0.0."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value


def canonical(value: Any) -> Any:
    """Return a hashable key that is equal for exactly the values that GROUP BY and DISTINCT treat as equal."""
    return None if value is None else (order(value),)


def representative(value: Any) -> Any:
    """Return the value shown for a group key: 0.0 for both zeros."""
    return 0.0 if isinstance(value, float) and value == 0 else value


def add(kind: pa.DataType, left: Any, right: Any) -> Any:
    """Add; decimals exactly, then rounded once."""
    return _exactly(kind, lambda a, b: a + b, left, right)


def sub(kind: pa.DataType, left: Any, right: Any) -> Any:
    """Subtract; decimals exactly, then rounded once."""
    return _exactly(kind, lambda a, b: a - b, left, right)


def mul(kind: pa.DataType, left: Any, right: Any) -> Any:
    """Multiply; decimals exactly, then rounded once."""
    return _exactly(kind, lambda a, b: a * b, left, right)


def _exactly(kind: pa.DataType, operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    if pa.types.is_decimal(kind):
        left, right = Fraction(left), Fraction(right)
    return fit(operation(left, right), kind)


def div(kind: pa.DataType, left: Any, right: Any) -> Any:
    """Divide; by zero is NULL."""
    if right == 0:
        return None
    if pa.types.is_decimal(kind):
        return fit_decimal(Fraction(left) / Fraction(right), kind)
    return fit_float(float(left) / float(right), kind)


def int_div(kind: pa.DataType, left: Any, right: Any) -> Any:
    """Divide and drop the fraction (towards zero); by zero is NULL."""
    return None if right == 0 else fit(math.trunc(Fraction(left) / Fraction(right)), kind)


def mod(kind: pa.DataType, left: Any, right: Any) -> Any:
    """Return the remainder, with the sign of the dividend; by zero is NULL."""
    if right == 0:
        return None
    if pa.types.is_floating(kind):
        return math.nan if math.isinf(left) else fit_float(math.fmod(left, right), kind)
    remainder = abs(Fraction(left)) % abs(Fraction(right))
    return fit(remainder if left >= 0 else -remainder, kind)


def neg(kind: pa.DataType, value: Any) -> Any:
    """Change the sign; the least integer overflows, since its negation does not fit."""
    return fit_decimal(-Fraction(value), kind) if pa.types.is_decimal(kind) else fit(-value, kind)


def absolute(kind: pa.DataType, value: Any) -> Any:
    """Return the absolute value; the least integer overflows, since its negation does not fit."""
    return fit_decimal(abs(Fraction(value)), kind) if pa.types.is_decimal(kind) else fit(abs(value), kind)


def whole(value: Any, step: Callable[[Any], int], kind: pa.DataType) -> Any:
    """Convert a number to an integer with `step` (floor, ceil, trunc); raise for NaN and infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        raise EvaluationError(f"{value} is out of range of {type_name(kind)}")
    return fit(step(value), kind)


def ceil(kind: pa.DataType, value: Any) -> Any:
    """Return the least integer that is not less."""
    return whole(value, math.ceil, kind)


def floor(kind: pa.DataType, value: Any) -> Any:
    """Return the greatest integer that is not greater."""
    return whole(value, math.floor, kind)


def rounded(kind: pa.DataType, value: Any, digits: int = 0) -> Any:
    """Round half away from zero; a double counts as the decimal number of its shortest text."""
    if isinstance(value, float) and not math.isfinite(value):
        return value
    exact = Fraction(repr(value)) if isinstance(value, float) else Fraction(value)
    unit = Fraction(10) ** -digits
    return fit(half_up(exact / unit) * unit, kind)


def sqrt(kind: pa.DataType, value: float) -> float:
    """Return the square root; NaN for a negative number."""
    return math.nan if value < 0 else fit_float(math.sqrt(value), kind)


def exp(kind: pa.DataType, value: float) -> float:
    """Return e to the power; infinity when too large."""
    try:
        return fit_float(math.exp(value), kind)
    except OverflowError:
        return math.inf


def logarithm(function: Callable[[float], float]) -> Callable[[pa.DataType, float], float | None]:
    """Make a logarithm function that returns NULL for zero and negative numbers."""
    return lambda kind, value: None if value <= 0 else fit_float(function(value), kind)


def power(kind: pa.DataType, base: float, exponent: float) -> float:
    """Raise to a power, as in Java (and Spark) where C and Java differ: pow(x, NaN) and pow(±1, ±∞) are NaN."""
    if math.isnan(exponent) or (abs(base) == 1 and math.isinf(exponent)):
        return math.nan
    odd = float(exponent).is_integer() and exponent % 2 == 1
    try:
        return fit_float(math.pow(base, exponent), kind)
    except OverflowError:
        return -math.inf if base < 0 and odd else math.inf
    except ValueError:
        if base != 0:
            return math.nan
        return math.copysign(math.inf, base) if odd else math.inf


def sign(kind: pa.DataType, value: Any) -> Any:
    """Return -1, 0 or 1; NaN for NaN."""
    if isinstance(value, float) and math.isnan(value):
        return value
    return fit((value > 0) - (value < 0), kind)
