"""String functions and CAST.

A character is a code point, and trimming removes spaces only. CAST of a string that does not parse as the target gives NULL, of a
number that does not fit raises an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from headrace.backends.reference import time
from headrace.backends.reference.numbers import fit_decimal, fit_float, fit_value, make_decimal, round_half_up, to_integer
from headrace.errors import EvaluationError
from headrace.model.types import TIMESTAMP, type_name


def match_like(text: str, pattern: str, escape: str = "\\") -> bool:
    """Match the whole text; `%` is any run of characters (also newlines), `_` any character; `escape` makes the next literal."""
    return re.fullmatch(_like_to_regex(pattern, escape), text, re.DOTALL) is not None


def _like_to_regex(pattern: str, escape: str) -> str:
    parts, characters = [], iter(pattern)
    for character in characters:
        if character == escape:
            parts.append(re.escape(next(characters, escape)))
        else:
            parts.append({"%": ".*", "_": "."}.get(character) or re.escape(character))
    return "".join(parts)


def match_regex(text: str, pattern: str) -> bool:
    """Tell whether the regular expression matches anywhere in the text."""
    try:
        return re.search(pattern, text) is not None
    except re.error as error:
        raise EvaluationError(f"regular expression '{pattern}' is not understood", detail=str(error)) from error


def take_substring(text: str, position: int, length: int | None = None) -> str:
    """Return up to `length` characters from `position`: 1 and 0 are the first, -1 the last; empty outside the text."""
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    end = len(text) if length is None else start + length
    return text[max(start, 0) : max(end, 0)]


def replace_text(text: str, search: str, replacement: str = "") -> str:
    """Replace every occurrence; an empty search changes nothing."""
    return text.replace(search, replacement) if search else text


_TRUE_STRINGS, _FALSE_STRINGS = {"t", "true", "y", "yes", "1"}, {"f", "false", "n", "no", "0"}
_INTEGER_PATTERN = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)", re.ASCII)
_NUMBER_PATTERN = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_SPECIAL_FLOAT_PATTERN = re.compile(r"[+-]?inf(?:inity)?|nan", re.ASCII | re.IGNORECASE)
_DATE_PATTERN = re.compile(r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_TIMESTAMP_PATTERN = re.compile(
    r"(\d{4}(?:-\d{1,2}(?:-\d{1,2})?)?)"
    r"(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{0,9}))?)?\s*(Z|UTC|[+-]\d{1,2}(?::?\d{2})?)?)?",
    re.ASCII,
)


def cast_value(value: Any, source: pa.DataType, target: pa.DataType) -> Any:
    """Convert a non-NULL value from `source` to `target`."""
    if source == target:
        return value
    if pa.types.is_string(target):
        return to_string(value, source)
    if isinstance(value, str):
        return _cast_string(value, target)
    if isinstance(value, datetime):
        return _cast_timestamp(value, target)
    if isinstance(value, date):
        return _cast_date(value, target)
    return _cast_number(value, target)


def _cast_number(value: Any, target: pa.DataType) -> Any:
    if pa.types.is_boolean(target):
        return value != 0
    if pa.types.is_integer(target):
        return to_integer(value, math.trunc, target)
    if pa.types.is_decimal(target) and isinstance(value, float):
        if not math.isfinite(value):
            raise EvaluationError(f"{value} is out of range of {type_name(target)}")
        return fit_decimal(Fraction(repr(value)), target)
    if target == TIMESTAMP and not isinstance(value, bool):
        return time.from_micros(math.floor(Fraction(value) * 1_000_000))
    if pa.types.is_floating(target) or pa.types.is_decimal(target):
        return fit_value(value, target)
    raise _cast_error(value, target)


def _cast_timestamp(value: datetime, target: pa.DataType) -> Any:
    if target == TIMESTAMP:
        return value
    if pa.types.is_date(target):
        return time.to_day(value)
    if pa.types.is_integer(target):
        return fit_value(time.to_unix_seconds(value), target)
    if pa.types.is_floating(target) or pa.types.is_decimal(target):
        return fit_value(Fraction(time.to_micros(value), 1_000_000), target)
    raise _cast_error(value, target)


def _cast_date(value: date, target: pa.DataType) -> Any:
    if target == TIMESTAMP:
        return time.to_midnight(value)
    raise _cast_error(value, target)


def _cast_error(value: Any, target: pa.DataType) -> EvaluationError:
    return EvaluationError(f"'{value}' cannot be cast to {type_name(target)}")


def _cast_string(value: str, target: pa.DataType) -> Any:
    """Parse the text, ignoring surrounding spaces; NULL if it is malformed or out of range."""
    try:
        return _get_reader(target)(value.strip(), target)
    except (EvaluationError, ValueError, OverflowError):
        return None


def _get_reader(target: pa.DataType) -> Callable[[str, pa.DataType], Any]:
    if pa.types.is_integer(target):
        return _read_integer
    if pa.types.is_floating(target):
        return _read_float
    if pa.types.is_decimal(target):
        return _read_decimal
    if pa.types.is_boolean(target):
        return lambda text, _: True if text.lower() in _TRUE_STRINGS else False if text.lower() in _FALSE_STRINGS else None
    return _read_date if pa.types.is_date(target) else _read_timestamp


def _read_integer(text: str, target: pa.DataType) -> int | None:
    """Parse an integer; drop a fraction, like Spark."""
    return fit_value(math.trunc(Fraction(text.rstrip("."))), target) if _INTEGER_PATTERN.fullmatch(text) else None


def _read_float(text: str, target: pa.DataType) -> float | None:
    return fit_float(float(text), target) if _NUMBER_PATTERN.fullmatch(text) or _SPECIAL_FLOAT_PATTERN.fullmatch(text) else None


def _read_decimal(text: str, target: pa.DataType) -> Decimal | None:
    return fit_decimal(Fraction(Decimal(text)), target) if _NUMBER_PATTERN.fullmatch(text) else None


def _read_date(text: str, _: pa.DataType) -> date | None:
    match = _DATE_PATTERN.fullmatch(text)
    return date(int(match[1]), int(match[2] or 1), int(match[3] or 1)) if match else None


def _read_timestamp(text: str, target: pa.DataType) -> datetime | None:
    match = _TIMESTAMP_PATTERN.fullmatch(text)
    day = _read_date(match[1], target) if match else None
    if not match or not day:
        return None
    hour, minute, second = (int(match[index] or 0) for index in (2, 3, 4))
    fraction = int(((match[5] or "") + "000000")[:6])
    return datetime(day.year, day.month, day.day, hour, minute, second, fraction, tzinfo=_read_zone(match[6])).astimezone(
        time.EPOCH.tzinfo
    )


def _read_zone(text: str | None) -> timezone:
    if text in (None, "Z", "UTC"):
        return timezone(timedelta(0))
    assert text is not None
    digits = text[1:].replace(":", "")
    hours, minutes = (digits, "0") if len(digits) <= 2 else (digits[:-2], digits[-2:])
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    return timezone(-offset if text[0] == "-" else offset)


def to_string(value: Any, source: pa.DataType) -> str:
    """Format a value like Spark; `source` gives the scale of a decimal and the width of a float."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _print_float(value, single=source == pa.float32())
    if isinstance(value, Decimal):
        return format(make_decimal(round_half_up(Fraction(value) * 10**source.scale), source.scale), "f")
    if isinstance(value, datetime):
        text = value.astimezone(time.EPOCH.tzinfo).replace(tzinfo=None).isoformat(" ")
        return text.rstrip("0") if "." in text else text
    return value.isoformat() if isinstance(value, date) else str(value)


def _print_float(value: float, *, single: bool) -> str:
    """Format a float like Java: plain between 10⁻³ and 10⁷, else `d.dddE±n`; always with a decimal point."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    sign, digits, exponent = Decimal(_format_shortest(value, single=single)).normalize().as_tuple()
    assert isinstance(exponent, int)
    text, point = "".join(map(str, digits)), len(digits) + exponent
    if value == 0:
        body = "0.0"
    elif -3 < point <= 7:
        text = text.ljust(point, "0")
        body = f"{text[:point]}.{text[point:] or '0'}" if point > 0 else f"0.{'0' * -point}{text}"
    else:
        body = f"{text[0]}.{text[1:] or '0'}E{point - 1}"
    return f"-{body}" if sign else body


def _format_shortest(value: float, *, single: bool) -> str:
    """Return the shortest text that parses as the same number."""
    if not single:
        return repr(value)
    texts = (f"{value:.{digits}g}" for digits in range(1, 10))
    return next(text for text in texts if fit_float(float(text), pa.float32()) == value)
