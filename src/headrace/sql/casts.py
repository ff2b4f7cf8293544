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
from headrace.model.schema import TIMESTAMP, type_name
from headrace.sql.coerce import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    NULL,
    STRING,
    is_decimal,
    is_float,
    is_integer,
    is_numeric,
)

_EXACT = Context(prec=100)
_SAFE_INTEGER = 2**53
_INTEGER = re.compile(r"([+-]?\d+)(?:\.\d*)?$", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$", re.ASCII)
_SPECIAL = re.compile(r"[+-]?(?:inf|infinity|nan)$", re.IGNORECASE)
_TIME = re.compile(
    r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T](?:(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?)?"
    r"\s*(Z|UTC|[+-]\d{1,2}(?::?\d{2})?)?)?)?)?$",
    re.IGNORECASE | re.ASCII,
)
_TRUE, _FALSE = frozenset({"t", "true", "y", "yes", "1"}), frozenset({"f", "false", "n", "no", "0"})


def cast(value: Expression, kind: pa.DataType) -> Expression:
    """Return the value as that type: unchanged, a folded constant, or a `cast` call; SqlError if the types have no cast."""
    if value.type == kind:
        return value
    if isinstance(value, Literal) and value.value is None:
        return Literal(None, kind)
    if not _castable(value.type, kind):
        raise SqlError(f"cannot cast {type_name(value.type)} to {type_name(kind)}", hint=_cast_hint(value.type, kind))
    if isinstance(value, Literal) and _foldable(value.type, kind):
        return Literal(_fold(value, kind), kind)
    return Call("cast", (value,), kind)


def implicit(value: Expression, kind: pa.DataType) -> Expression:
    """Cast where the query has no CAST: a string literal must parse as that type without loss."""
    result = cast(value, kind)
    if not isinstance(value, Literal) or not isinstance(value.value, str) or not isinstance(result, Literal):
        return result
    if result.value is None or not _says(value.value.strip(), result):
        raise SqlError(f"string {value} cannot be read as {type_name(kind)}")
    return result


def _says(text: str, result: Literal) -> bool:
    """Tell whether the value represents the text without loss: not 1.5 as an INT, no time of day in a DATE."""
    if is_integer(result.type) or is_decimal(result.type):
        return Decimal(text) == result.value
    return result.type != DATE or _timestamp(text) == _fold(result, TIMESTAMP)


def exact(value: Literal, kind: pa.DataType) -> Literal | None:
    """Return the constant as that type if the cast is lossless and comparisons keep their result, else None."""
    if value.value is None:
        return Literal(None, kind)
    try:
        result = cast(value, kind)
    except SqlError:
        return None
    if not isinstance(result, Literal) or result.value is None:
        return None
    if is_float(value.type) and not is_float(kind):  # a double may equal several integers, or no decimal
        near = is_integer(kind) and abs(float(str(value.value))) < _SAFE_INTEGER
        return result if near and result.value == value.value else None
    if is_numeric(value.type):
        return result if result.value == value.value else None
    return result if cast(result, value.type) == value else None


def _castable(source: pa.DataType, target: pa.DataType) -> bool:
    if source == NULL or STRING in (source, target):
        return True
    if source in (DATE, TIMESTAMP):
        return target in (DATE, TIMESTAMP)
    return is_numeric(target) or target == BOOLEAN


def _cast_hint(source: pa.DataType, target: pa.DataType) -> str:
    if source == TIMESTAMP and is_numeric(target):
        return "unix_seconds(…) gives the seconds since 1970"
    return "cast to STRING first if that is what is meant"


def _foldable(source: pa.DataType, target: pa.DataType) -> bool:
    return target != STRING or is_integer(source) or is_decimal(source) or source in (BOOLEAN, DATE)


def _fold(literal: Literal, kind: pa.DataType) -> object:
    value = literal.value
    if isinstance(value, str):
        return _from_string(value, kind)
    if kind == STRING:
        return _to_string(value)
    if kind == TIMESTAMP and isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    if kind == DATE and isinstance(value, datetime):
        return value.date()
    if isinstance(value, bool | int | float | Decimal):
        return _from_number(value, kind)
    raise SqlError(f"cannot cast {literal} to {type_name(kind)}")


def _to_string(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def _from_number(value: float | Decimal, kind: pa.DataType) -> object:
    if kind == BOOLEAN:
        return bool(value)
    if kind == DOUBLE:
        return float(value)
    if kind == FLOAT:
        return _single(float(value))
    number = _number_as(value, kind)
    if number is None:
        raise SqlError(f"number {value} does not fit {type_name(kind)}", hint="use a wider type")
    return number


def _number_as(value: float | Decimal, kind: pa.DataType) -> int | Decimal | None:
    """Return the number as an integer or decimal, or None if it does not fit."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if is_decimal(kind):
        return _decimal(Decimal(repr(value)) if isinstance(value, float) else Decimal(value), kind)
    integer = int(value)
    limit = 1 << (kind.bit_width - 1)
    return integer if -limit <= integer < limit else None


def _decimal(value: Decimal, kind: pa.DataType) -> Decimal | None:
    try:
        rounded = value.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, _EXACT)
    except InvalidOperation:
        return None
    return rounded if rounded == 0 or rounded.adjusted() + 1 + kind.scale <= kind.precision else None


def _single(value: float) -> float:
    """Return the nearest 32-bit float."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _from_string(text: str, kind: pa.DataType) -> object:
    text = text.strip()
    if kind == BOOLEAN:
        return True if text.lower() in _TRUE else False if text.lower() in _FALSE else None
    if kind == TIMESTAMP:
        return _timestamp(text)
    if kind == DATE:
        return _date(text)
    if is_integer(kind):
        match = _INTEGER.match(text)
        return _number_as(Decimal(match[1]), kind) if match and len(text) < 100 else None
    if is_decimal(kind):
        return _decimal(Decimal(text), kind) if _NUMBER.match(text) else None
    number = float(text) if _NUMBER.match(text) or _SPECIAL.match(text) else None
    return number if number is None or kind == DOUBLE else _single(number)


def _date(text: str) -> date | None:
    match = _TIME.match(text)
    try:
        return date(int(match[1]), int(match[2] or 1), int(match[3] or 1)) if match else None
    except ValueError:
        return None


def _timestamp(text: str) -> datetime | None:
    match = _TIME.match(text)
    if not match:
        return None
    year, month, day = int(match[1]), int(match[2] or 1), int(match[3] or 1)
    hour, minute, second = (int(part or 0) for part in match.groups()[3:6])
    micros = int((match[7] or "").ljust(6, "0")[:6])
    try:
        moment = datetime(year, month, day, hour, minute, second, micros, _zone(match[8]))
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _zone(text: str | None) -> timezone:
    if text is None or text.upper() in ("Z", "UTC"):
        return UTC
    digits = text[1:].replace(":", "")
    hours, minutes = (digits, "0") if len(digits) <= 2 else (digits[:-2], digits[-2:])
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    return timezone(-offset if text[0] == "-" else offset)
