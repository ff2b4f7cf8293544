"""Date and time functions over columns: all UTC, in microseconds; results outside the years 1 to 9999 are errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from headrace.kernels.expression_values import Kernel, Numbers, Outcome, Value, is_scalar, nulls, numbers, outcome, spread
from headrace.model.expression import Call
from headrace.model.schema import TIMESTAMP

_EPOCH = date(1970, 1, 1).toordinal()
FIRST_DAY, LAST_DAY = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH
DAY = 86_400_000_000
FIRST_MICRO, LAST_MICRO = FIRST_DAY * DAY, (LAST_DAY + 1) * DAY - 1
_UNITS = frozenset({
    "microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year",
})  # fmt: skip


def clock(value: Value) -> Value:
    """Return timestamps without their zone, and dates unchanged: Arrow then extracts fields without a zone lookup."""
    return value.cast(pa.timestamp("us")) if pa.types.is_timestamp(value.type) else value


def micros(times: pa.Array) -> Numbers:
    """Return microseconds since the epoch as NumPy; NULLs become 0."""
    return numbers(times.view(pa.int64()))


def days(dates: Value) -> pa.Array:
    """Return days since the epoch, as BIGINT; a time counts as the day it falls on."""
    return dates.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())


def bounded(counts: pa.Array, least: int, greatest: int, kind: pa.DataType, message: str) -> Outcome:
    """Convert counts since the epoch to dates or times; counts outside the bounds are errors."""
    out_of_range = pc.or_(pc.less(counts, least), pc.greater(counts, greatest))
    checked = outcome(counts, out_of_range, message)
    width = pa.int32() if pa.types.is_date(kind) else pa.int64()
    return Outcome(checked.value.cast(width).cast(kind), checked.errors, checked.message)


def _overflow(call: Call) -> str:
    return f"date or time overflow in {call}"


def _field(function: Callable[[Value], pa.Array]) -> Kernel:
    return lambda call, args: function(clock(args[0])).cast(call.type)


def _date_trunc(call: Call, args: Sequence[Value]) -> Value | Outcome:
    unit, times = args
    name = str(unit.as_py()).lower() if is_scalar(unit) else ""
    if is_scalar(unit) and not unit.is_valid:
        return pa.nulls(len(times), call.type)
    if name not in _UNITS:
        message = f"unknown unit '{name}' of DATE_TRUNC"
        return outcome(pa.nulls(len(times), call.type), pc.is_valid(times), message)
    return pc.floor_temporal(clock(times), unit=name).cast(pa.int64()).cast(call.type)


def _date_add(call: Call, args: Sequence[Value]) -> Outcome:
    counts = pc.add(days(args[0]), args[1].cast(pa.int64()))
    return bounded(counts, FIRST_DAY, LAST_DAY, call.type, _overflow(call))


def _date_diff(call: Call, args: Sequence[Value]) -> Value:
    return pc.subtract(days(args[0]), days(args[1])).cast(call.type)


def _time_add(call: Call, args: Sequence[Value]) -> Outcome:
    """Add microseconds; a shift beyond every valid time is clamped, so that the sum cannot overflow."""
    span = LAST_MICRO - FIRST_MICRO + 1
    shift = args[1].cast(pa.int64())
    shift = pc.if_else(pc.greater(shift, span), span, pc.if_else(pc.less(shift, -span), -span, shift))
    counts = pc.add(args[0].cast(TIMESTAMP).cast(pa.int64()), shift)
    return bounded(counts, FIRST_MICRO, LAST_MICRO, call.type, _overflow(call))


def unix_seconds(times: pa.Array) -> pa.Array:
    """Return whole seconds since the epoch, rounded down, as BIGINT."""
    return pa.array(micros(times) // 1_000_000, mask=nulls(times))


KERNELS: dict[str, Kernel] = {
    "year": _field(pc.year),
    "quarter": _field(pc.quarter),
    "month": _field(pc.month),
    "day": _field(pc.day),
    "dayofweek": _field(partial(pc.day_of_week, count_from_zero=False, week_start=7)),
    "dayofyear": _field(pc.day_of_year),
    "hour": _field(pc.hour),
    "minute": _field(pc.minute),
    "second": _field(pc.second),
    "date_trunc": _date_trunc,
    "date_add": _date_add,
    "date_diff": _date_diff,
    "time_add": _time_add,
    "unix_seconds": lambda call, args: unix_seconds(spread(args)[0]).cast(call.type),
}
