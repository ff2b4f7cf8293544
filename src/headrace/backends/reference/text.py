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
from headrace.backends.reference.numbers import (
    fit_decimal,
    fit_float,
    fit_integer,
    fit_value,
    make_decimal,
    round_half_up,
    to_integer,
)
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
    """Tell whether the regular expression matches anywhere in the text, whose `z` escape is Python's `Z` escape."""
    try:
        return re.search(re.sub(r"\\(.)", _rename_end, pattern, flags=re.DOTALL), text, re.ASCII) is not None
    except re.error as error:
        raise EvaluationError(f"regular expression '{pattern}' is not understood", detail=str(error)) from error


def _rename_end(escape: re.Match[str]) -> str:
    return r"\Z" if escape[1] == "z" else escape[0]


def take_substring(text: str, position: int, length: int | None = None) -> str:
    """Return up to `length` characters from `position`: 1 and 0 are the first, -1 the last; empty outside the text."""
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    end = len(text) if length is None else start + length
    return text[max(start, 0) : max(end, 0)]


def replace_text(text: str, search: str, replacement: str = "") -> str:
    """Replace every occurrence; an empty search changes nothing."""
    return text.replace(search, replacement) if search else text


_TRUE_STRINGS, _FALSE_STRINGS = {"t", "true", "y", "yes", "1"}, {"f", "false", "n", "no", "0"}
_INTEGER_PATTERN = re.compile(r"([+-]?\d*)(?:\.\d*)?", re.ASCII)
_NUMBER_PATTERN = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?", re.IGNORECASE)
_HEXADECIMAL_PATTERN = re.compile(r"[+-]?0x(?=\.?[0-9a-f])[0-9a-f]*(?:\.[0-9a-f]*)?p[+-]?\d+", re.ASCII | re.IGNORECASE)
_SPECIAL_FLOAT_PATTERN = re.compile(r"(?i:[+-]?inf(?:inity)?|nan)|[+-]NaN")
_DATE_PATTERN = re.compile(r"\+?(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_TIME_PATTERN = re.compile(r"(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?([^\d.:].*)?)?)?", re.ASCII | re.DOTALL)
_OFFSET_PATTERN = re.compile(r"([+-])(?:(\d\d?)(?::(\d\d?)(?::(\d\d))?)?|(\d\d)(\d\d)(\d\d)?)", re.ASCII)
_SPACES = "".join(map(chr, range(33)))


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


def try_cast_value(value: Any, source: pa.DataType, target: pa.DataType) -> Any:
    """Convert like `cast_value`; NULL if the value does not fit, or is a text that is no integer; decimals without exponent."""
    if isinstance(value, str) and pa.types.is_integer(target) and not re.fullmatch(r"[+-]?[0-9]+", value.strip(_SPACES + "\x7f")):
        return None
    if isinstance(value, Decimal) and pa.types.is_string(target):
        return format(value, "f")
    try:
        return cast_value(value, source, target)
    except EvaluationError:
        return None


def _cast_number(value: Any, target: pa.DataType) -> Any:
    if pa.types.is_boolean(target):
        return value != 0
    if pa.types.is_integer(target):
        return to_integer(value, math.trunc, target)
    if isinstance(value, float) and not math.isfinite(value) and (pa.types.is_decimal(target) or target == TIMESTAMP):
        raise EvaluationError(f"{value} is out of range of {type_name(target)}")
    if pa.types.is_decimal(target) and isinstance(value, float):
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
        is_fractional = pa.types.is_floating(target) or pa.types.is_decimal(target)
        return _get_reader(target)(value.strip(_SPACES if is_fractional else _SPACES + "\x7f"), target)
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
    match = _INTEGER_PATTERN.fullmatch(text)
    if not match or text in ("", "+", "-"):
        return None
    return fit_integer(int(match[1]) if match[1] not in ("", "+", "-") else 0, target)


def _read_float(text: str, target: pa.DataType) -> float | None:
    """Parse a number as Java does, also a hexadecimal one and one that ends in d or f; ASCII digits only."""
    if _SPECIAL_FLOAT_PATTERN.fullmatch(text):
        return float(text)
    number = text[:-1] if text[-1:] in tuple("dDfF") else text
    if _HEXADECIMAL_PATTERN.fullmatch(number):
        return fit_float(float.fromhex(number), target)
    if not text.isascii() or not _NUMBER_PATTERN.fullmatch(number):
        return None
    is_tiny_or_huge = not -400 < Decimal(number).adjusted() < 400
    rounded = fit_float(float(number) if is_tiny_or_huge else Fraction(number), target)
    return math.copysign(rounded, float(number))


def _read_decimal(text: str, target: pa.DataType) -> Decimal | None:
    if not _NUMBER_PATTERN.fullmatch(text):
        return None
    number = Decimal(text)
    return fit_decimal(Fraction(number) if number.adjusted() > -400 else Fraction(0), target) if number.adjusted() < 400 else None


def _read_date(text: str, _: pa.DataType) -> date | None:
    match = _DATE_PATTERN.fullmatch(text)
    return date(int(match[1]), int(match[2] or 1), int(match[3] or 1)) if match else None


def _read_timestamp(text: str, target: pa.DataType) -> datetime | None:
    """Parse a date; after a blank or T a time of day, of which the seconds may be followed by a zone."""
    day_text, clock_text = re.fullmatch(r"([^ T]*)(?:[ T](.*))?", text, re.DOTALL).groups()  # type: ignore[union-attr]
    day = _read_date(day_text, target)
    clock = _TIME_PATTERN.fullmatch("0" if clock_text is None else clock_text)
    if day is None or clock is None or (clock_text is not None and day_text.count("-") < 2):
        return None
    hour, minute, second = (int(clock[index] or 0) for index in (1, 2, 3))
    fraction = int(((clock[4] or "") + "000000")[:6])
    zone = _read_zone((clock[5] or "").strip(_SPACES + "\x7f"))
    local = datetime(day.year, day.month, day.day, hour, minute, second, fraction, tzinfo=zone)
    return local.astimezone(time.EPOCH.tzinfo)


def _read_zone(text: str) -> timezone:
    """Parse a zone; raises ValueError if there is none of this name."""
    offset_text = re.sub(r"^(?:Z$|UTC|UT|GMT)", "", text)
    if not offset_text:
        return timezone(timedelta(0))
    match = _OFFSET_PATTERN.fullmatch(offset_text)
    if not match:
        raise ValueError(f"no zone: {text}")
    hours, minutes, seconds = (int(match[index] or match[index + 3] or 0) for index in (2, 3, 4))
    offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    if minutes > 59 or seconds > 59 or offset > timedelta(hours=18):
        raise ValueError(f"no zone: {text}")
    return timezone(-offset if match[1] == "-" else offset)


def to_string(value: Any, source: pa.DataType) -> str:
    """Format a value like Spark; `source` gives the scale of a decimal and the width of a float."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _print_float(value, single=source == pa.float32())
    if isinstance(value, Decimal):
        return str(make_decimal(round_half_up(Fraction(value) * 10**source.scale), source.scale))
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
    """Return the shortest text of two digits or more that parses as the same number."""
    kind = pa.float32() if single else pa.float64()
    texts = (f"{value:.{digits}g}" for digits in range(2, 18))
    return next(text for text in texts if fit_float(float(text), kind) == value)
