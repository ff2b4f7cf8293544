"""Builds casts, and folds casts of constants.

Evaluators implement these rules; this module applies them to constants:

- integer, float or decimal → integer: truncated towards zero; a value that does not fit is an error (overflow)
- float or decimal → decimal: rounded half away from zero; a value that does not fit is an error
- string → anything: surrounding blanks ignored; text that does not parse gives NULL, not an error
- number → BOOLEAN: TRUE unless zero; BOOLEAN → number: 1 or 0
- DATE → TIMESTAMP: midnight UTC; TIMESTAMP → DATE: its day in UTC
- anything → STRING: integers in decimal, decimals with all their digits (`1E-7` if more than five zeros follow the point),
  `true`/`false`, `2020-01-31`, `2020-01-31 10:00:00[.ffffff]` without trailing zeros, floats as Java writes them

Dates are read as `yyyy[-m[-d]]`, times of day after a blank or `T` as `h[:m[:s[.f][zone]]]`, with a zone `Z`, `UTC` or `±h[:m]`.
`model/text_form.py` has the details. TRY_CAST gives NULL instead of an error, reads
integers without a fraction only, and writes decimals without exponents.

A string literal that is compared with a value of another type is cast implicitly; a text that does not parse is then an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa

from headrace.errors import SqlError
from headrace.model.expression import Call, Expression, Literal
from headrace.model.text_form import (
    format_decimal,
    format_double,
    format_single,
    format_timestamp,
    parse_boolean,
    parse_date,
    parse_decimal,
    parse_double,
    parse_integer,
    parse_single,
    parse_timestamp,
    round_to_decimal,
    round_to_single,
    to_single,
)
from headrace.model.types import TIMESTAMP, type_name
from headrace.sql.types import BOOLEAN, DATE, DOUBLE, FLOAT, NULL, STRING, is_decimal, is_float, is_integer, is_numeric

_MAX_SAFE_INTEGER = 2**53


def cast_to(value: Expression, kind: pa.DataType) -> Expression:
    """Return the value as that type: unchanged, a folded constant, or a `cast` call; SqlError if the types have no cast."""
    if value.type == kind:
        return value
    if isinstance(value, Literal) and value.value is None:
        return Literal(None, kind)
    if not _is_castable(value.type, kind):
        raise SqlError(f"cannot cast {type_name(value.type)} to {type_name(kind)}", hint=_cast_hint(value.type, kind))
    return Literal(_fold_cast(value, kind), kind) if isinstance(value, Literal) else Call("cast", (value,), kind)


def try_cast_to(value: Expression, kind: pa.DataType) -> Expression:
    """Return TRY_CAST: a value that does not fit is NULL; a string with a fraction is no integer; decimals have no exponent."""
    if not isinstance(value, Literal):
        cast = cast_to(value, kind)
        return cast if cast == value else Call("try_cast", (value,), kind)
    if isinstance(value.value, Decimal) and kind == STRING:
        return Literal(format(value.value, "f"), kind)
    if isinstance(value.value, str) and is_integer(kind):
        return Literal(parse_integer(value.value, kind, exact=True), kind)
    try:
        return cast_to(value, kind)
    except SqlError:
        if not _is_castable(value.type, kind):
            raise
        return Literal(None, kind)


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
        return parse_double(text) is not None and Decimal(text) == result.value
    return result.type != DATE or parse_timestamp(text) == _fold_cast(result, TIMESTAMP)


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


def _fold_cast(literal: Literal, kind: pa.DataType) -> object:
    value = literal.value
    if isinstance(value, str):
        return _parse_string(value, kind)
    if kind == STRING:
        return format_literal(literal)
    if kind == TIMESTAMP and isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    if kind == DATE and isinstance(value, datetime):
        return value.date()
    if isinstance(value, bool | int | float | Decimal):
        return _cast_number(value, kind)
    raise SqlError(f"cannot cast {literal} to {type_name(kind)}")


def format_literal(literal: Literal) -> str:
    """Return a constant that is not NULL as CAST writes it."""
    value = literal.value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return format_single(value) if literal.type == FLOAT else format_double(value)
    if isinstance(value, datetime):
        return format_timestamp(value)
    return format_decimal(value) if isinstance(value, Decimal) else str(value)


def _cast_number(value: float | Decimal, kind: pa.DataType) -> object:
    if kind == BOOLEAN:
        return bool(value)
    if kind == DOUBLE:
        return float(value)
    if kind == FLOAT:
        return to_single(value) if isinstance(value, float) else round_to_single(Fraction(value))
    number = _fit_number(value, kind)
    if number is None:
        raise SqlError(f"number {value} does not fit {type_name(kind)}", hint="use a wider type")
    return number


def _fit_number(value: float | Decimal, kind: pa.DataType) -> int | Decimal | None:
    """Return the number as an integer or decimal, or None if it does not fit."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if is_decimal(kind):
        return round_to_decimal(Fraction(repr(value)) if isinstance(value, float) else Fraction(value), kind)
    integer = int(value)
    limit = 1 << (kind.bit_width - 1)
    return integer if -limit <= integer < limit else None


def _parse_string(text: str, kind: pa.DataType) -> object:
    if is_integer(kind):
        return parse_integer(text, kind)
    if is_decimal(kind):
        return parse_decimal(text, kind)
    return _STRING_PARSERS[kind](text)


_STRING_PARSERS: dict[pa.DataType, Callable[[str], object]] = {
    BOOLEAN: parse_boolean,
    FLOAT: parse_single,
    DOUBLE: parse_double,
    DATE: parse_date,
    TIMESTAMP: parse_timestamp,
}
