"""CAST over columns, and the parsing and formatting of single values.

A string that is no literal of the target type gives NULL, a number out of range is an error. A string with a fraction cast
to an integer loses the fraction ('1.9' gives 1). Parsing and formatting follow Spark; Python runs once per distinct value
for strings in an unusual form (plain digits and ISO dates use the parser of Arrow), for decimals and doubles cast to
strings, for times cast from or to fractional numbers, and for doubles cast to decimals of more than 14 digits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
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
    Value,
    build_arrow_result,
    map_distinct,
    null_mask,
    to_filled_numbers,
)
from headrace.engine.compute.decimal import round_to_decimal
from headrace.model.expression import Call
from headrace.model.types import TIMESTAMP, type_name

_INTEGER_TEXT = re.compile(r"([+-]?\d+)(?:\.\d*)?|([+-]?)\.\d+", re.ASCII)
_NUMBER_TEXT = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_SPECIAL_FLOAT_TEXT = re.compile(r"[+-]?inf(?:inity)?|nan", re.ASCII | re.IGNORECASE)
_DATE_TEXT = re.compile(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_TIMESTAMP_TEXT = re.compile(
    r"(?P<day>\d{4}(?:-\d{1,2}(?:-\d{1,2})?)?)"
    r"(?:[ T](?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d{0,9}))?)?"
    r"\s*(?P<zone>Z|UTC|(?P<sign>[+-])(?P<ahead>\d{1,2})(?::(?P<more>\d{2}))?)?)?",
    re.ASCII,
)
_BOOLEAN_TEXTS = {**dict.fromkeys(("t", "true", "y", "yes", "1"), True), **dict.fromkeys(("f", "false", "n", "no", "0"), False)}
_MAX_EXPONENT = 400  # a number with a greater exponent is out of range of every type


def parse_integer(text: str, kind: pa.DataType) -> int | None:
    """Parse an integer, dropping a fraction; return None if the text is no number or out of range of the type."""
    match = _INTEGER_TEXT.fullmatch(text.strip())
    if not match:
        return None
    digits = (match[1] or "0").lstrip("+")
    if len(digits.lstrip("-0")) > 19:
        return None
    bound = 1 << (kind.bit_width - 1)
    return int(digits) if -bound <= int(digits) < bound else None


def parse_double(text: str) -> float | None:
    """Parse a number, infinity or NaN."""
    text = text.strip()
    return float(text) if _NUMBER_TEXT.fullmatch(text) or _SPECIAL_FLOAT_TEXT.fullmatch(text) else None


def parse_decimal(text: str, kind: pa.DataType) -> Decimal | None:
    """Parse a number, rounded half up to the scale; return None if the text is no number or does not fit."""
    text = text.strip()
    if not _NUMBER_TEXT.fullmatch(text):
        return None
    number = Decimal(text)
    if abs(number.adjusted()) > _MAX_EXPONENT:
        return round_to_decimal(Fraction(0), kind) if number.adjusted() < 0 or not number else None
    return round_to_decimal(Fraction(number), kind)


def parse_boolean(text: str) -> bool | None:
    """Parse true, yes, 1 and the like."""
    return _BOOLEAN_TEXTS.get(text.strip().lower())


def parse_date(text: str) -> date | None:
    """Parse year, year-month or year-month-day; after a blank or T, any text may follow."""
    match = _DATE_TEXT.fullmatch(text.strip())
    try:
        return date(int(match[1]), int(match[2] or 1), int(match[3] or 1)) if match else None
    except ValueError:
        return None


def parse_timestamp(text: str) -> datetime | None:
    """Parse a date with an optional time and offset from UTC; fractional digits after the sixth are dropped."""
    match = _TIMESTAMP_TEXT.fullmatch(text.strip())
    day = parse_date(match["day"]) if match else None
    if not match or not day:
        return None
    hour, minute, second = (int(match[part] or 0) for part in ("hour", "minute", "second"))
    fraction = int((match["fraction"] or "").ljust(6, "0")[:6])
    offset = timedelta(hours=int(match["ahead"] or 0), minutes=int(match["more"] or 0))
    try:
        zone = timezone(-offset if match["sign"] == "-" else offset)
        local = datetime(day.year, day.month, day.day, hour, minute, second, fraction, tzinfo=zone)
        return local.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def format_decimal(value: Decimal) -> str:
    """Format with all digits of the scale, never with an exponent."""
    return format(value, "f")


def format_double(value: float) -> str:
    """Format with the shortest digits that parse to the same double, in the form of Java."""
    return _format_like_java(value, repr(value))


def format_single(value: float) -> str:
    """Format with the shortest digits that parse to the same 32-bit float, in the form of Java."""
    return _format_like_java(value, np.format_float_scientific(np.float32(value), unique=True))


def _format_like_java(value: float, text: str) -> str:
    """Arrange digits as Java does: plain from 10⁻³ to 10⁷, else `d.dddE±n`; always with a decimal point."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    mantissa, _, exponent = text.lower().lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if not digits:
        body = "0.0"
    elif 0 < point <= 7:
        body = f"{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}"
    elif -3 < point <= 0:
        body = f"0.{'0' * -point}{digits}"
    else:
        body = f"{digits[0]}.{digits[1:] or '0'}E{point - 1}"
    return f"-{body}" if math.copysign(1, value) < 0 else body


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


def _out_of_range_message(call: Call) -> str:
    return f"value out of range of {type_name(call.type)} in {call}"


def _cast_by_arrow(call: Call, value: Value) -> Value:
    return value.cast(call.type, safe=False)


def _is_nonzero(_: Call, value: Value) -> Value:
    zero: object = Decimal(0) if pa.types.is_decimal(value.type) else 0
    return pc.not_equal(value, pa.scalar(zero, value.type))


# --- to integers -------------------------------------------------------------------------------------------------------


def _narrow_to_integer(call: Call, value: Value) -> Value | EvaluationResult:
    """Cast integers, or integral decimals, to an integer type."""
    try:
        return value.cast(call.type)
    except pa.ArrowInvalid:
        limits = np.iinfo(call.type.to_pandas_dtype())
        exact = value if pa.types.is_decimal(value.type) else value.cast(pa.decimal128(19, 0))
        exact = decimals.widen_decimals(exact, 0)
        least, greatest = (pa.scalar(Decimal(int(limit)), exact.type) for limit in (limits.min, limits.max))
        overflows = pc.or_(pc.less(exact, least), pc.greater(exact, greatest))
        checked = build_arrow_result(exact, overflows, _out_of_range_message(call))
        return EvaluationResult(checked.value.cast(pa.decimal128(19, 0)).cast(call.type), checked.errors, checked.message)


def _decimal_to_integer(call: Call, value: Value) -> Value | EvaluationResult:
    return _narrow_to_integer(call, pc.trunc(value).cast(pa.decimal128(38, 0)))


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
    return value.cast(pa.float64(), safe=False).cast(call.type, safe=False)


def _decimal_to_float(call: Call, value: Value) -> Value:
    return decimals.decimals_to_doubles(value).cast(call.type, safe=False)


def _string_to_float(call: Call, value: Value) -> Value:
    if _all_match(value, r"\A-?[0-9]+(\.[0-9]+)?\z"):
        return value.cast(pa.float64()).cast(call.type, safe=False)
    return map_distinct(value, parse_double, pa.float64()).cast(call.type, safe=False)


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
    return decimals.round_to_decimal(Fraction(repr(number)), kind) if math.isfinite(number) else None


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

KERNELS: dict[str, Kernel] = {"cast": _cast_value}
