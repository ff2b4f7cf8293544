"""Builds casts, and folds casts of constants.

Evaluators implement these rules; this module applies them to constants:

- integer, float or decimal → integer: truncated towards zero; a value that does not fit is an error (overflow)
- float or decimal → decimal: rounded half away from zero; a value that does not fit is an error
- string → anything: surrounding blanks ignored; text that does not parse gives NULL, not an error
- number → BOOLEAN: TRUE unless zero; BOOLEAN → number: 1 or 0
- DATE → TIMESTAMP: midnight UTC; TIMESTAMP → DATE: its day in UTC
- anything → STRING: integers in decimal, decimals with all their digits, `true`/`false`, `2020-01-31`,
  `2020-01-31 10:00:00[.ffffff]` without trailing zeros, floats as Java writes them

Dates are read as `yyyy[-m[-d]]`, times of day after a blank or `T` as `h:m[:s[.f]]`, with an optional zone `Z`, `UTC` or
`±h[:m]`. A string literal beside a value of another type is cast implicitly; text that `CAST` turns into NULL is then an error.
"""

from __future__ import annotations

import math
import re
import struct
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation

import pyarrow as pa

from headrace.errors import SqlError
from headrace.model.expression import Call, Expression, Literal
from headrace.model.types import TIMESTAMP, type_name
from headrace.sql.types import BOOLEAN, DATE, DOUBLE, FLOAT, NULL, STRING, is_decimal, is_float, is_integer, is_numeric

_EXACT_CONTEXT = Context(prec=100)
_MAX_SAFE_INTEGER = 2**53
_INTEGER_PATTERN = re.compile(r"([+-]?\d+)(?:\.\d*)?$", re.ASCII)
_NUMBER_PATTERN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$", re.ASCII)
_SPECIAL_FLOAT_PATTERN = re.compile(r"[+-]?(?:inf|infinity|nan)$", re.IGNORECASE)
_TIMESTAMP_PATTERN = re.compile(
    r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T](?:(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?)?"
    r"\s*(Z|UTC|[+-]\d{1,2}(?::?\d{2})?)?)?)?)?$",
    re.IGNORECASE | re.ASCII,
)
_TRUE_STRINGS, _FALSE_STRINGS = frozenset({"t", "true", "y", "yes", "1"}), frozenset({"f", "false", "n", "no", "0"})


def cast_to(value: Expression, kind: pa.DataType) -> Expression:
    """Return the value as that type: unchanged, a folded constant, or a `cast` call; SqlError if the types have no cast."""
    if value.type == kind:
        return value
    if isinstance(value, Literal) and value.value is None:
        return Literal(None, kind)
    if not _is_castable(value.type, kind):
        raise SqlError(f"cannot cast {type_name(value.type)} to {type_name(kind)}", hint=_cast_hint(value.type, kind))
    if isinstance(value, Literal) and _is_foldable(value.type, kind):
        return Literal(_fold_cast(value, kind), kind)
    return Call("cast", (value,), kind)


def cast_implicitly(value: Expression, kind: pa.DataType) -> Expression:
    """Cast where the query has no CAST: a string literal must parse as that type without loss."""
    result = cast_to(value, kind)
    if not isinstance(value, Literal) or not isinstance(value.value, str) or not isinstance(result, Literal):
        return result
    if result.value is None or not _represents_exactly(value.value.strip(), result):
        raise SqlError(f"string {value} cannot be read as {type_name(kind)}")
    return result


def _represents_exactly(text: str, result: Literal) -> bool:
    """Tell whether the value represents the text without loss: not 1.5 as an INT, no time of day in a DATE."""
    if is_integer(result.type) or is_decimal(result.type):
        return Decimal(text) == result.value
    return result.type != DATE or _parse_timestamp(text) == _fold_cast(result, TIMESTAMP)


def cast_exactly(value: Literal, kind: pa.DataType) -> Literal | None:
    """Return the constant as that type if the cast is lossless and comparisons keep their result, else None."""
    if value.value is None:
        return Literal(None, kind)
    try:
        result = cast_to(value, kind)
    except SqlError:
        return None
    if not isinstance(result, Literal) or result.value is None:
        return None
    if is_float(value.type) and not is_float(kind):  # a double may equal several integers, or no decimal
        near = is_integer(kind) and abs(float(str(value.value))) < _MAX_SAFE_INTEGER
        return result if near and result.value == value.value else None
    if is_numeric(value.type):
        return result if result.value == value.value else None
    return result if cast_to(result, value.type) == value else None


def _is_castable(source: pa.DataType, target: pa.DataType) -> bool:
    if source == NULL or STRING in (source, target):
        return True
    if source in (DATE, TIMESTAMP):
        return target in (DATE, TIMESTAMP)
    return is_numeric(target) or target == BOOLEAN


def _cast_hint(source: pa.DataType, target: pa.DataType) -> str:
    if source == TIMESTAMP and is_numeric(target):
        return "unix_seconds(…) gives the seconds since 1970"
    return "cast to STRING first if that is what is meant"


def _is_foldable(source: pa.DataType, target: pa.DataType) -> bool:
    return target != STRING or is_integer(source) or is_decimal(source) or source in (BOOLEAN, DATE)


def _fold_cast(literal: Literal, kind: pa.DataType) -> object:
    value = literal.value
    if isinstance(value, str):
        return _parse_string(value, kind)
    if kind == STRING:
        return _format_value(value)
    if kind == TIMESTAMP and isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    if kind == DATE and isinstance(value, datetime):
        return value.date()
    if isinstance(value, bool | int | float | Decimal):
        return _cast_number(value, kind)
    raise SqlError(f"cannot cast {literal} to {type_name(kind)}")


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def _cast_number(value: float | Decimal, kind: pa.DataType) -> object:
    if kind == BOOLEAN:
        return bool(value)
    if kind == DOUBLE:
        return float(value)
    if kind == FLOAT:
        return _round_to_single(float(value))
    number = _fit_number(value, kind)
    if number is None:
        raise SqlError(f"number {value} does not fit {type_name(kind)}", hint="use a wider type")
    return number


def _fit_number(value: float | Decimal, kind: pa.DataType) -> int | Decimal | None:
    """Return the number as an integer or decimal, or None if it does not fit."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if is_decimal(kind):
        return _round_to_decimal(Decimal(repr(value)) if isinstance(value, float) else Decimal(value), kind)
    integer = int(value)
    limit = 1 << (kind.bit_width - 1)
    return integer if -limit <= integer < limit else None


def _round_to_decimal(value: Decimal, kind: pa.DataType) -> Decimal | None:
    try:
        rounded = value.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, _EXACT_CONTEXT)
    except InvalidOperation:
        return None
    return rounded if rounded == 0 or rounded.adjusted() + 1 + kind.scale <= kind.precision else None


def _round_to_single(value: float) -> float:
    """Return the nearest 32-bit float."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _parse_string(text: str, kind: pa.DataType) -> object:
    text = text.strip()
    if kind == BOOLEAN:
        return True if text.lower() in _TRUE_STRINGS else False if text.lower() in _FALSE_STRINGS else None
    if kind == TIMESTAMP:
        return _parse_timestamp(text)
    if kind == DATE:
        return _parse_date(text)
    if is_integer(kind):
        match = _INTEGER_PATTERN.match(text)
        return _fit_number(Decimal(match[1]), kind) if match and len(text) < 100 else None
    if is_decimal(kind):
        return _round_to_decimal(Decimal(text), kind) if _NUMBER_PATTERN.match(text) else None
    number = float(text) if _NUMBER_PATTERN.match(text) or _SPECIAL_FLOAT_PATTERN.match(text) else None
    return number if number is None or kind == DOUBLE else _round_to_single(number)


def _parse_date(text: str) -> date | None:
    match = _TIMESTAMP_PATTERN.match(text)
    try:
        return date(int(match[1]), int(match[2] or 1), int(match[3] or 1)) if match else None
    except ValueError:
        return None


def _parse_timestamp(text: str) -> datetime | None:
    match = _TIMESTAMP_PATTERN.match(text)
    if not match:
        return None
    year, month, day = int(match[1]), int(match[2] or 1), int(match[3] or 1)
    hour, minute, second = (int(part or 0) for part in match.groups()[3:6])
    micros = int((match[7] or "").ljust(6, "0")[:6])
    try:
        moment = datetime(year, month, day, hour, minute, second, micros, _parse_zone(match[8]))
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _parse_zone(text: str | None) -> timezone:
    if text is None or text.upper() in ("Z", "UTC"):
        return UTC
    digits = text[1:].replace(":", "")
    hours, minutes = (digits, "0") if len(digits) <= 2 else (digits[:-2], digits[-2:])
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    return timezone(-offset if text[0] == "-" else offset)
