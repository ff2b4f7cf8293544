"""CAST and TRY_CAST over columns; the text forms of values are in `model/text_form.py`.

A string that is no literal of the target type gives NULL, a number out of range is an error (in TRY_CAST it is NULL). A string
with a fraction cast to an integer loses the fraction ('1.9' gives 1; in TRY_CAST NULL). Python runs once per distinct value for
strings in an unusual form (plain digits and ISO dates use the parser of Arrow), for decimals and doubles cast to strings, for
strings and decimals cast to 32-bit floats, for times cast from or to fractional numbers, and for doubles cast to decimals of
more than 14 digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.compute import decimal as decimals
from headrace.engine.compute import time as times
from headrace.engine.compute.arithmetic import doubles_to_integers, round_to_units
from headrace.engine.compute.columns import (
    EvaluationResult,
    Kernel,
    Numbers,
    Value,
    build_arrow_result,
    build_numpy_result,
    map_distinct,
    null_mask,
    to_filled_numbers,
)
from headrace.model.expression import Call
from headrace.model.text_form import (
    format_decimal,
    format_double,
    format_single,
    parse_boolean,
    parse_date,
    parse_decimal,
    parse_double,
    parse_integer,
    parse_single,
    parse_timestamp,
    round_to_decimal,
    round_to_single,
)
from headrace.model.types import TIMESTAMP, type_name

CastKernel: TypeAlias = Callable[[Call, Value], Value | EvaluationResult]
_EXACT_INTEGER = 2**53
_MAX_ABS_SECONDS = 10**12  # more seconds from the epoch than any year up to 9999


def _type_family(dtype: pa.DataType) -> str:
    """Return the family of a type, a key of the cast table."""
    tests = {
        "integer": pa.types.is_integer,
        "float": pa.types.is_floating,
        "decimal": pa.types.is_decimal,
        "boolean": pa.types.is_boolean,
        "string": pa.types.is_string,
        "date": pa.types.is_date,
        "time": pa.types.is_timestamp,
    }
    return next((name for name, test in tests.items() if test(dtype)), "null")


def _cast_value(call: Call, args: Sequence[Value]) -> Value | EvaluationResult:
    value = args[0]
    if value.type == call.type:
        return value
    if pa.types.is_null(value.type):
        return pa.nulls(len(value), call.type)
    cast = _CASTS.get((_type_family(value.type), _type_family(call.type)))
    if cast:
        return cast(call, value)
    message = f"cannot cast {type_name(value.type)} to {type_name(call.type)}"
    return build_arrow_result(pa.nulls(len(value), call.type), pc.is_valid(value), message)


def _try_cast_value(call: Call, args: Sequence[Value]) -> Value:
    """Cast like CAST, but a value out of range is NULL; a string with a fraction is no integer; decimals have no exponent."""
    (value,) = args
    if pa.types.is_decimal(value.type) and pa.types.is_string(call.type):
        return map_distinct(value, lambda number: format(number, "f"), call.type)
    if pa.types.is_string(value.type) and pa.types.is_integer(call.type):
        return map_distinct(value, lambda text: parse_integer(text, call.type, exact=True), call.type)
    result = _cast_value(call, args)
    return result.value if isinstance(result, EvaluationResult) else result


def _out_of_range_message(call: Call) -> str:
    return f"value out of range of {type_name(call.type)} in {call}"


def _cast_by_arrow(call: Call, value: Value) -> Value:
    return value.cast(call.type, safe=False)


def _is_nonzero(_: Call, value: Value) -> Value:
    zero: object = Decimal(0) if pa.types.is_decimal(value.type) else 0
    return pc.not_equal(value, pa.scalar(zero, value.type))


# --- to integers -------------------------------------------------------------------------------------------------------


def _narrow_to_integer(call: Call, value: Value) -> Value | EvaluationResult:
    try:
        return value.cast(call.type)
    except pa.ArrowInvalid:
        return _fit_integers(call, value, to_filled_numbers(value))


def _fit_integers(call: Call, value: Value, integers: Numbers) -> EvaluationResult:
    """Build the result from integers of any width; those out of range are errors."""
    limits = np.iinfo(call.type.to_pandas_dtype())
    fits = ((integers >= int(limits.min)) & (integers <= int(limits.max))).astype(np.bool_)
    values = np.where(fits, integers, 0).astype(limits.dtype)
    return build_numpy_result(values, ~fits, [value], call.type, _out_of_range_message(call))


def _decimal_to_integer(call: Call, value: Value) -> Value | EvaluationResult:
    try:
        return pc.trunc(value).cast(pa.decimal128(38, 0)).cast(call.type)
    except pa.ArrowInvalid:  # out of range, or the type has no digit before the decimal point
        return _fit_integers(call, value, decimals.to_integral_units(value))


def _float_to_integer(call: Call, value: Value) -> EvaluationResult:
    return doubles_to_integers(value.cast(pa.float64()), call.type, _out_of_range_message(call))


def _string_to_integer(call: Call, value: Value) -> Value:
    if _all_match(value, r"\A-?[0-9]{1,18}\z"):
        integers = value.cast(pa.int64())
        limits = np.iinfo(call.type.to_pandas_dtype())
        fits = pc.and_(pc.greater_equal(integers, int(limits.min)), pc.less_equal(integers, int(limits.max)))
        return pc.if_else(fits, integers, pa.scalar(None, pa.int64())).cast(call.type)
    return map_distinct(value, lambda text: parse_integer(text, call.type), call.type)


def _all_match(value: Value, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(value, pattern=pattern), min_count=0).as_py())


def _time_to_integer(call: Call, value: Value) -> Value | EvaluationResult:
    return _narrow_to_integer(call, times.to_unix_seconds(value))


# --- to floats ---------------------------------------------------------------------------------------------------------


def _integer_to_float(call: Call, value: Value) -> Value:
    """Round once: by way of a double, an integer half-way between two 32-bit floats could be rounded twice."""
    return pa.array(to_filled_numbers(value).astype(call.type.to_pandas_dtype()), mask=null_mask(value))


def _decimal_to_float(call: Call, value: Value) -> Value:
    if call.type == pa.float64():
        return decimals.decimals_to_doubles(value)
    return map_distinct(value, lambda number: round_to_single(Fraction(number)), call.type)


def _string_to_float(call: Call, value: Value) -> Value:
    if call.type == pa.float32():
        return map_distinct(value, parse_single, call.type)
    if _all_match(value, r"\A-?[0-9]+(\.[0-9]+)?\z"):
        return value.cast(call.type)
    return map_distinct(value, parse_double, call.type)


def _time_to_float(call: Call, value: Value) -> Value:
    counts = times.to_epoch_micros(value)
    if (np.abs(counts) > _EXACT_INTEGER).any():
        seconds = map_distinct(value.view(pa.int64()), lambda count: count / 1_000_000, pa.float64())
    else:
        seconds = pa.array(counts / 1e6, mask=null_mask(value))
    return seconds.cast(call.type, safe=False)


# --- to decimals -------------------------------------------------------------------------------------------------------


def _integer_to_decimal(call: Call, value: Value) -> EvaluationResult:
    return decimals.fit_decimals(value.cast(pa.int64()).cast(pa.decimal128(19, 0)), call.type, _out_of_range_message(call))


def _decimal_to_decimal(call: Call, value: Value) -> EvaluationResult:
    return decimals.fit_decimals(value, call.type, _out_of_range_message(call))


def _float_to_decimal(call: Call, value: Value) -> EvaluationResult:
    """Round the shortest decimal that denotes each double half up."""
    values = to_filled_numbers(value.cast(pa.float64()))
    units, certain = round_to_units(values, call.type.scale)
    if certain.all() and units.max(initial=0) < 10.0 ** min(call.type.precision, 15):
        return EvaluationResult(
            decimals.decimals_from_units(np.copysign(units, values).astype(np.int64), null_mask(value), call.type)
        )
    result = map_distinct(value.cast(pa.float64()), lambda number: _double_to_decimal(number, call.type), call.type)
    return build_arrow_result(result, pc.and_(pc.is_valid(value), pc.is_null(result)), _out_of_range_message(call))


def _double_to_decimal(number: float, kind: pa.DataType) -> Decimal | None:
    return round_to_decimal(Fraction(repr(number)), kind) if math.isfinite(number) else None


def _string_to_decimal(call: Call, value: Value) -> Value:
    return map_distinct(value, lambda text: parse_decimal(text, call.type), call.type)


def _time_to_decimal(call: Call, value: Value) -> EvaluationResult:
    seconds = decimals.decimals_from_units(times.to_epoch_micros(value), null_mask(value), pa.decimal128(19, 6))
    return decimals.fit_decimals(seconds, call.type, _out_of_range_message(call))


# --- to strings, booleans, dates and times -----------------------------------------------------------------------------


def _float_to_string(call: Call, value: Value) -> Value:
    return map_distinct(value, format_single if value.type == pa.float32() else format_double, call.type)


def _decimal_to_string(call: Call, value: Value) -> Value:
    return map_distinct(value, format_decimal, call.type)


def _time_to_string(_: Call, value: Value) -> Value:
    text = times.strip_time_zone(value).cast(pa.string())  # always with six fractional digits
    return pc.replace_substring_regex(text, pattern=r"\.?0+\z", replacement="")


def _string_to_boolean(call: Call, value: Value) -> Value:
    return map_distinct(value, parse_boolean, call.type)


def _string_to_date(call: Call, value: Value) -> Value:
    if _all_match(value, r"\A[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}\z"):  # Arrow accepts the year 0
        try:
            return value.cast(call.type)
        except pa.ArrowInvalid:
            pass  # invalid month or day
    return map_distinct(value, parse_date, call.type)


def _string_to_time(call: Call, value: Value) -> Value:
    return map_distinct(value, parse_timestamp, call.type)


def _integer_to_time(call: Call, value: Value) -> EvaluationResult:
    """Convert seconds since the epoch; values beyond every valid time are clamped, so that the product cannot overflow."""
    max_seconds = times.LAST_MICRO // 1_000_000 + 1
    seconds = value.cast(pa.int64())
    seconds = pc.if_else(
        pc.greater(seconds, max_seconds), max_seconds, pc.if_else(pc.less(seconds, -max_seconds), -max_seconds, seconds)
    )
    return _micros_to_time(call, pc.multiply(seconds, 1_000_000))


def _number_to_time(call: Call, value: Value) -> EvaluationResult:
    """Convert fractional seconds since the epoch, rounded down to microseconds; NaN is out of range."""

    def count(seconds: float | Decimal) -> int:
        if not -_MAX_ABS_SECONDS < seconds < _MAX_ABS_SECONDS:
            return times.LAST_MICRO + 1
        return math.floor(Fraction(seconds) * 1_000_000)

    return _micros_to_time(call, map_distinct(value, count, pa.int64()))


def _micros_to_time(call: Call, counts: pa.Array) -> EvaluationResult:
    return times.to_bounded_times(counts, times.FIRST_MICRO, times.LAST_MICRO, call.type, _out_of_range_message(call))


def _time_to_date(call: Call, value: Value) -> Value:
    return times.strip_time_zone(value).cast(call.type, safe=False)


def _date_to_time(_: Call, value: Value) -> Value:
    return value.cast(pa.timestamp("us")).cast(pa.int64()).cast(TIMESTAMP)


_CASTS: dict[tuple[str, str], CastKernel] = {
    ("integer", "integer"): _narrow_to_integer,
    ("float", "integer"): _float_to_integer,
    ("decimal", "integer"): _decimal_to_integer,
    ("boolean", "integer"): _cast_by_arrow,
    ("string", "integer"): _string_to_integer,
    ("time", "integer"): _time_to_integer,
    ("integer", "float"): _integer_to_float,
    ("float", "float"): _cast_by_arrow,
    ("decimal", "float"): _decimal_to_float,
    ("boolean", "float"): lambda call, value: value.cast(pa.int8()).cast(call.type),
    ("string", "float"): _string_to_float,
    ("time", "float"): _time_to_float,
    ("integer", "decimal"): _integer_to_decimal,
    ("float", "decimal"): _float_to_decimal,
    ("decimal", "decimal"): _decimal_to_decimal,
    ("boolean", "decimal"): lambda call, value: _integer_to_decimal(call, value.cast(pa.int8())),
    ("string", "decimal"): _string_to_decimal,
    ("time", "decimal"): _time_to_decimal,
    ("integer", "boolean"): _is_nonzero,
    ("float", "boolean"): _is_nonzero,
    ("decimal", "boolean"): _is_nonzero,
    ("string", "boolean"): _string_to_boolean,
    ("integer", "string"): _cast_by_arrow,
    ("float", "string"): _float_to_string,
    ("decimal", "string"): _decimal_to_string,
    ("boolean", "string"): _cast_by_arrow,
    ("date", "string"): _cast_by_arrow,
    ("time", "string"): _time_to_string,
    ("string", "date"): _string_to_date,
    ("time", "date"): _time_to_date,
    ("string", "time"): _string_to_time,
    ("date", "time"): _date_to_time,
    ("integer", "time"): _integer_to_time,
    ("float", "time"): _number_to_time,
    ("decimal", "time"): _number_to_time,
}

KERNELS: dict[str, Kernel] = {"cast": _cast_value, "try_cast": _try_cast_value}
