"""Date and time functions, all in UTC; arithmetic uses integer microseconds since 1970-01-01T00:00Z."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TypeVar

from headrace.errors import EvaluationError

T = TypeVar("T")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIXED_UNITS = {"microsecond": 1, "millisecond": 1_000, "second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000}


def to_micros(time: datetime) -> int:
    """Return microseconds since the epoch, exactly."""
    return (time - EPOCH) // _MICROSECOND


def from_micros(microseconds: int) -> datetime:
    """Return the time that many microseconds after the epoch; raises outside the years 1 to 9999."""
    return _check_range(lambda: EPOCH + timedelta(microseconds=microseconds))


def to_midnight(day: date) -> datetime:
    """Return the first instant of a day."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def to_day(value: date) -> date:
    """Return the calendar day of a date or a time."""
    return value.astimezone(UTC).date() if isinstance(value, datetime) else value


def quarter_of(value: date) -> int:
    """Return the quarter, 1 to 4."""
    return (to_day(value).month + 2) // 3


def day_of_week(value: date) -> int:
    """Return the day of the week, from 1 for Sunday to 7 for Saturday."""
    return to_day(value).isoweekday() % 7 + 1


def day_of_year(value: date) -> int:
    """Return the day of the year, 1 for the first of January."""
    return to_day(value).timetuple().tm_yday


def second_with_fraction(time: datetime) -> Decimal:
    """Return the second of the minute with its six digits of microseconds."""
    return Decimal(to_micros(time) % 60_000_000).scaleb(-6)


def truncate_time(unit: str, time: datetime) -> datetime:
    """Return the start of the unit that contains `time`; weeks start on Monday."""
    unit = unit.lower()
    if unit in _FIXED_UNITS:
        return from_micros(to_micros(time) // _FIXED_UNITS[unit] * _FIXED_UNITS[unit])
    day = to_day(time)
    starts: dict[str, Callable[[], date]] = {
        "day": lambda: day,
        "week": lambda: add_days(day, -day.weekday()),
        "month": lambda: day.replace(day=1),
        "quarter": lambda: day.replace(month=3 * quarter_of(day) - 2, day=1),
        "year": lambda: day.replace(month=1, day=1),
    }
    if unit not in starts:
        raise EvaluationError(f"unit '{unit}' of DATE_TRUNC is not known", detail=f"units: {', '.join([*_FIXED_UNITS, *starts])}")
    return to_midnight(starts[unit]())


def add_days(day: date, days: int) -> date:
    """Return the date `days` later."""
    return _check_range(lambda: day + timedelta(days=days))


def add_time(time: datetime, microseconds: int) -> datetime:
    """Return the time `microseconds` later."""
    return _check_range(lambda: time + timedelta(microseconds=microseconds))


def days_between(end: date, start: date) -> int:
    """Return the number of days from `start` to `end`."""
    return (to_day(end) - to_day(start)).days


def to_unix_seconds(time: datetime) -> int:
    """Return whole seconds since the epoch, rounded down."""
    return to_micros(time) // 1_000_000


def _check_range(compute: Callable[[], T]) -> T:
    try:
        return compute()
    except OverflowError as error:
        raise EvaluationError("date or time overflow: the result is outside the years 1 to 9999") from error
