"""Numeric functions: range checks, exact rounding, order and equality.

Integers are Python ints, doubles are Python floats, decimals are `Decimal`. Exact intermediate results are `Fraction`,
so that no result is rounded twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from headrace.errors import EvaluationError
from headrace.model.types import type_name


def fit_value(value: Any, kind: pa.DataType) -> Any:
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
    unscaled = round_half_up(value * 10**kind.scale)
    if abs(unscaled) >= 10**kind.precision:
        raise EvaluationError(f"decimal overflow: a value is out of range of {type_name(kind)}")
    return make_decimal(unscaled, kind.scale)


def fit_float(value: Any, kind: pa.DataType) -> float:
    """Return the nearest double, or for FLOAT the nearest 32-bit float; infinity beyond the range."""
    if kind != pa.float32():
        return to_nearest_double(value)
    if isinstance(value, float):
        return value if not math.isfinite(value) else math.copysign(_to_nearest_single(abs(Fraction(value))), value)
    return _to_nearest_single(Fraction(value)) if value >= 0 else -_to_nearest_single(-Fraction(value))


def _to_nearest_single(value: Fraction) -> float:
    """Round a number that is not negative to 24 significant bits, halves to even; to fewer below 2^-126."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    exponent = max(exponent - (value < Fraction(2) ** exponent), -126)
    unit = Fraction(2) ** (exponent - 23)
    rounded = round(value / unit) * unit
    return math.inf if rounded >= 2**128 else float(rounded)


def to_nearest_double(value: Any) -> float:
    """Convert any number to the nearest double; infinity beyond the range."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def round_half_up(value: Fraction) -> int:
    """Round to an integer, halves away from zero."""
    rounded = math.floor(abs(value) + Fraction(1, 2))
    return rounded if value >= 0 else -rounded


def make_decimal(unscaled: int, scale: int) -> Decimal:
    """Return exactly unscaled · 10^-scale, independent of the decimal context."""
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def sort_key(value: Any) -> Any:
    """Return a sort key within one type: NaN is greater than everything and equals itself, -0.0 equals 0.0."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value


def group_key(value: Any) -> Any:
    """Return a hashable key that is equal for exactly the values that GROUP BY and DISTINCT treat as equal."""
    return None if value is None else (sort_key(value),)


def displayed_key(value: Any) -> Any:
    """Return the value shown for a group key: 0.0 for both zeros."""
    return 0.0 if isinstance(value, float) and value == 0 else value


def add(kind: pa.DataType, left: Any, right: Any) -> Any:
    """Add; decimals exactly, then rounded once."""
    return _compute_exactly(kind, lambda a, b: a + b, left, right)


def sub(kind: pa.DataType, left: Any, right: Any) -> Any:
    """Subtract; decimals exactly, then rounded once."""
    return _compute_exactly(kind, lambda a, b: a - b, left, right)


def mul(kind: pa.DataType, left: Any, right: Any) -> Any:
    """Multiply; decimals exactly, then rounded once."""
    return _compute_exactly(kind, lambda a, b: a * b, left, right)


def _compute_exactly(kind: pa.DataType, operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    if pa.types.is_decimal(kind):
        left, right = Fraction(left), Fraction(right)
    return fit_value(operation(left, right), kind)


def div(kind: pa.DataType, left: Any, right: Any) -> Any:
    """Divide; by zero is NULL."""
    if right == 0:
        return None
    if pa.types.is_decimal(kind):
        return fit_decimal(Fraction(left) / Fraction(right), kind)
    return fit_float(float(left) / float(right), kind)


def int_div(kind: pa.DataType, left: Any, right: Any) -> Any:
    """Divide and drop the fraction (towards zero); by zero is NULL."""
    return None if right == 0 else fit_value(math.trunc(Fraction(left) / Fraction(right)), kind)


def mod(kind: pa.DataType, left: Any, right: Any) -> Any:
    """Return the remainder, with the sign of the dividend; by zero is NULL."""
    if right == 0:
        return None
    if pa.types.is_floating(kind):
        return math.nan if math.isinf(left) else fit_float(math.fmod(left, right), kind)
    remainder = abs(Fraction(left)) % abs(Fraction(right))
    return fit_value(remainder if left >= 0 else -remainder, kind)


def neg(kind: pa.DataType, value: Any) -> Any:
    """Change the sign; the least integer overflows, since its negation does not fit."""
    return fit_decimal(-Fraction(value), kind) if pa.types.is_decimal(kind) else fit_value(-value, kind)


def abs_value(kind: pa.DataType, value: Any) -> Any:
    """Return the absolute value; the least integer overflows, since its negation does not fit."""
    return fit_decimal(abs(Fraction(value)), kind) if pa.types.is_decimal(kind) else fit_value(abs(value), kind)


def to_integer(value: Any, step: Callable[[Any], int], kind: pa.DataType) -> Any:
    """Convert a number to an integer with `step` (floor, ceil, trunc); raise for NaN and infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        raise EvaluationError(f"{value} is out of range of {type_name(kind)}")
    return fit_value(step(value), kind)


def ceil(kind: pa.DataType, value: Any) -> Any:
    """Return the least integer that is not less."""
    return to_integer(value, math.ceil, kind)


def floor(kind: pa.DataType, value: Any) -> Any:
    """Return the greatest integer that is not greater."""
    return to_integer(value, math.floor, kind)


def round_value(kind: pa.DataType, value: Any, digits: int = 0) -> Any:
    """Round half away from zero; a double counts as the decimal number of its shortest text."""
    if isinstance(value, float) and not math.isfinite(value):
        return value
    exact = Fraction(repr(value)) if isinstance(value, float) else Fraction(value)
    unit = Fraction(10) ** -digits
    return fit_value(round_half_up(exact / unit) * unit, kind)


def sqrt(kind: pa.DataType, value: float) -> float:
    """Return the square root; NaN for a negative number."""
    return math.nan if value < 0 else fit_float(math.sqrt(value), kind)


def exp(kind: pa.DataType, value: float) -> float:
    """Return e to the power; infinity when too large."""
    try:
        return fit_float(math.exp(value), kind)
    except OverflowError:
        return math.inf


def make_logarithm(function: Callable[[float], float]) -> Callable[[pa.DataType, float], float | None]:
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
    """Return -1 or 1; a zero of either sign and NaN unchanged."""
    if value == 0 or value != value:  # noqa: PLR0124
        return value
    return fit_value((value > 0) - (value < 0), kind)
