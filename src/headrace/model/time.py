"""Durations and event time: integers in microseconds.

Users write durations such as '8 seconds', '1 minute 30 seconds' or '250 ms'. Event time counts from 1970-01-01T00:00Z.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction

from headrace.errors import HeadraceError

MIN_TIME = -(1 << 63)  # −∞ as a 64-bit event time
MAX_TIME = (1 << 63) - 1


_MICROSECONDS_PER_UNIT = {
    "microsecond": 1, "us": 1, "µs": 1, "millisecond": 1_000, "ms": 1_000, "second": 1_000_000, "sec": 1_000_000,
    "s": 1_000_000, "minute": 60_000_000, "min": 60_000_000, "m": 60_000_000, "hour": 3_600_000_000, "h": 3_600_000_000,
    "day": 86_400_000_000, "d": 86_400_000_000, "week": 604_800_000_000,
}  # fmt: skip
_AMOUNT_AND_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]+)\s*", re.IGNORECASE)


class DurationError(HeadraceError):
    """A text is not a valid duration."""


def parse_duration(text: str) -> int:
    """Return the duration in microseconds; raise DurationError unless the text is a plain sum of amounts with units."""
    body = re.sub(r"^\s*interval\s+", "", text, flags=re.IGNORECASE).strip().strip("'")
    total, at = Fraction(0), 0
    while at < len(body):
        match = _AMOUNT_AND_UNIT.match(body, at)
        unit = match and (
            _MICROSECONDS_PER_UNIT.get(match[2].lower()) or _MICROSECONDS_PER_UNIT.get(match[2].lower().removesuffix("s"))
        )
        if not match or not unit:
            raise _invalid_duration(text)
        total += Fraction(match[1]) * unit
        at = match.end()
    if not body or total.denominator != 1:
        raise _invalid_duration(text)
    return int(total)


def _invalid_duration(text: str) -> DurationError:
    return DurationError(
        f"invalid duration '{text}'",
        hint="write a number and a unit, such as '8 seconds', '250 ms', '1 minute 30 seconds' (not months or years)",
    )


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_microseconds(instant: datetime) -> int:
    """Return the event time of an instant; a naive datetime counts as UTC."""
    aware = instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
    return (aware - EPOCH) // _MICROSECOND
