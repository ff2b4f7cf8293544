"""Single values parsed from and formatted as text, as Spark does; CAST calls these once per distinct value."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa

from headrace.kernels.expression_decimal import round_to_decimal

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
