"""The text form of values, as Spark reads and writes it: what CAST from and to STRING means.

A `parse_…` function returns None for a text that is no value of the type. Texts may have blanks around them: characters up to
U+0020, for dates, integers and booleans also U+007F. Dates and times are those of the years 1 to 9999; a zone is `Z`, `UTC`,
`UT`, `GMT` or an offset, not the name of a region.
"""

from __future__ import annotations

import math
import re
import struct
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Context, Decimal
from fractions import Fraction

import pyarrow as pa

_BLANKS = "".join(map(chr, range(33)))
_CONTROLS = _BLANKS + "\x7f"
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_TRUNCATED = re.compile(r"([+-]?\d+)(?:\.\d*)?|[+-]?\.\d*", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")  # Java accepts the digits of every script here
_DOUBLE = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)[dDfF]?", re.ASCII)
_HEXADECIMAL = re.compile(r"([+-]?0[xX](?:[\da-fA-F]+\.?[\da-fA-F]*|\.[\da-fA-F]+)[pP][+-]?\d+)[dDfF]?", re.ASCII)
_SPECIAL_DOUBLE = re.compile(r"(?i:[+-]?inf(?:inity)?|nan)|[+-]NaN", re.ASCII)
_DATE = re.compile(r"(\+?\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_TIMESTAMP = re.compile(
    r"(?P<day>\+?\d{4,7}(?:-\d{1,2}(?:-\d{1,2}(?=[ T]|\Z))?)?)"
    r"(?:[ T](?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d*))?(?P<zone>.*))?)?)?",
    re.ASCII | re.DOTALL,
)
_ZONE = re.compile(
    r"Z|(?:UTC|UT|GMT)?(?:(?P<sign>[+-])(?P<hours>\d{1,2})(?::(?P<minutes>\d{1,2})(?::(?P<seconds>\d{2}))?"
    r"|(?P<digits>\d{2}(?:\d{2})?))?)?",
    re.ASCII,
)
_BOOLEANS = {**dict.fromkeys(("t", "true", "y", "yes", "1"), True), **dict.fromkeys(("f", "false", "n", "no", "0"), False)}
_MAX_EXPONENT = 400  # a number with a greater exponent is out of range of every type
_MAX_OFFSET = timedelta(hours=18)
_HUGE_CONTEXT = Context(prec=500)


def parse_integer(text: str, kind: pa.DataType, *, exact: bool = False) -> int | None:
    """Parse an integer of the type; drop a fraction, or reject it if `exact`."""
    text = text.strip(_CONTROLS)
    match = (_INTEGER if exact else _TRUNCATED).fullmatch(text)
    if not match:
        return None
    digits = (match[0] if exact else match[1] or "0").lstrip("+")
    if len(digits.lstrip("-0")) > 19:
        return None
    bound = 1 << (kind.bit_width - 1)
    return int(digits) if -bound <= int(digits) < bound else None


def parse_double(text: str) -> float | None:
    """Parse a number, infinity or NaN; as in Java, the number may be hexadecimal and end in `d` or `f`."""
    text = text.strip(_BLANKS)
    if match := _DOUBLE.fullmatch(text):
        return float(match[1])
    if match := _HEXADECIMAL.fullmatch(text):
        return _parse_hexadecimal(match[1])
    return float(text) if _SPECIAL_DOUBLE.fullmatch(text) else None


def _parse_hexadecimal(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        return -math.inf if text.startswith("-") else math.inf


def parse_single(text: str) -> float | None:
    """Parse like `parse_double`, rounded once to the nearest 32-bit float."""
    double = parse_double(text)
    if double is None or not math.isfinite(double):
        return double
    match = _DOUBLE.fullmatch(text.strip(_BLANKS))
    if not match or abs(double) > 2.0**129 or abs(double) < 2.0**-151:  # also excludes huge exponents
        return to_single(double)
    return round_to_single(Fraction(match[1]))


def to_single(value: float) -> float:
    """Return the nearest 32-bit float; infinity beyond the range."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def round_to_single(exact: Fraction) -> float:
    """Return the 32-bit float nearest to an exact number: by way of a double, ties could be rounded twice."""
    double = exact.numerator / exact.denominator
    if exact != Fraction(double):
        bits = struct.unpack("q", struct.pack("d", abs(double)))[0]
        if bits & 0xFFF_FFFF == 0:  # perhaps half-way between two floats: the exact number decides
            double = math.nextafter(double, math.inf if exact > Fraction(double) else -math.inf)
    return to_single(double)


def parse_decimal(text: str, kind: pa.DataType) -> Decimal | None:
    """Parse a number, rounded half up to the scale; return None if it does not fit."""
    text = text.strip(_BLANKS)
    if not _DECIMAL.fullmatch(text):
        return None
    number = Decimal(text)
    if abs(number.adjusted()) > _MAX_EXPONENT:
        return round_to_decimal(Fraction(0), kind) if number.adjusted() < 0 or not number else None
    return round_to_decimal(Fraction(number), kind)


def round_to_decimal(exact: Fraction, kind: pa.DataType) -> Decimal | None:
    """Round half up (away from zero) to the scale of a decimal type; return None if the result has too many digits."""
    scaled = exact * 10**kind.scale
    units = (2 * abs(scaled.numerator) + scaled.denominator) // (2 * scaled.denominator)
    signed = units if exact >= 0 else -units
    return Decimal(signed).scaleb(-kind.scale, _HUGE_CONTEXT) if units < 10**kind.precision else None


def parse_boolean(text: str) -> bool | None:
    """Parse true, yes, 1 and the like."""
    return _BOOLEANS.get(text.strip(_CONTROLS).lower())


def parse_date(text: str) -> date | None:
    """Parse year, year-month or year-month-day; after a blank or T, any text may follow."""
    match = _DATE.fullmatch(text.strip(_CONTROLS))
    try:
        return date(int(match[1]), int(match[2] or 1), int(match[3] or 1)) if match else None
    except ValueError:
        return None


def parse_timestamp(text: str) -> datetime | None:
    """Parse a date with an optional time and zone; fractional digits after the sixth are dropped."""
    match = _TIMESTAMP.fullmatch(text.strip(_CONTROLS))
    day = parse_date(match["day"]) if match else None
    offset = _parse_zone((match["zone"] or "").strip(_CONTROLS)) if match else None
    if not match or day is None or offset is None:
        return None
    hour, minute, second = (int(match[part] or 0) for part in ("hour", "minute", "second"))
    micros = int((match["fraction"] or "").ljust(6, "0")[:6])
    try:
        local = datetime(day.year, day.month, day.day, hour, minute, second, micros, tzinfo=timezone(offset))
        return local.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _parse_zone(text: str) -> timedelta | None:
    """Return the offset from UTC; an empty text is UTC."""
    match = _ZONE.fullmatch(text)
    if not match:
        return None
    digits = match["digits"] or ""
    minutes, seconds = int(match["minutes"] or digits[:2] or 0), int(match["seconds"] or digits[2:] or 0)
    offset = timedelta(hours=int(match["hours"] or 0), minutes=minutes, seconds=seconds)
    if max(minutes, seconds) >= 60 or offset > _MAX_OFFSET:
        return None
    return -offset if match["sign"] == "-" else offset


def format_decimal(value: Decimal) -> str:
    """Format with all digits of the scale; as in Java, with an exponent if more than five zeros follow the decimal point."""
    return str(value)


def format_timestamp(value: datetime) -> str:
    """Format in UTC, without trailing zeros of the fraction."""
    text = value.astimezone(UTC).replace(tzinfo=None).isoformat(" ")
    return text.rstrip("0") if "." in text else text


def format_double(value: float) -> str:
    """Format with the shortest digits that parse to the same double, in the form of Java."""
    return _format_like_java(value, repr(value))


def format_single(value: float) -> str:
    """Format with the shortest digits that parse to the same 32-bit float, in the form of Java."""
    if not math.isfinite(value):
        return _format_like_java(value, "")
    texts = (f"{value:.{digits}e}" for digits in range(9))
    return _format_like_java(value, next(text for text in texts if to_single(float(text)) == value))


def _format_like_java(value: float, text: str) -> str:
    """Arrange digits as Java does: plain from 10⁻³ to 10⁷, else `d.dddE±n`; of numbers with one digit, the nearest two digits."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    sign, digits, exponent = Decimal(text).normalize().as_tuple()
    if len(digits) == 1:
        sign, digits, exponent = Decimal(f"{value:.1e}").normalize().as_tuple()
    assert isinstance(exponent, int)
    figures, point = "".join(map(str, digits)), len(digits) + exponent
    if value == 0:
        body = "0.0"
    elif 0 < point <= 7:
        body = f"{figures[:point].ljust(point, '0')}.{figures[point:] or '0'}"
    elif -3 < point <= 0:
        body = f"0.{'0' * -point}{figures}"
    else:
        body = f"{figures[0]}.{figures[1:] or '0'}E{point - 1}"
    return f"-{body}" if sign else body
