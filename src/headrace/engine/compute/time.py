"""Date and time functions over columns: all UTC, in microseconds; results outside the years 1 to 9999 are errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.compute.columns import (
    EvaluationResult,
    Kernel,
    Numbers,
    Value,
    broadcast_args,
    build_arrow_result,
    is_scalar,
    null_mask,
    to_filled_numbers,
)
from headrace.engine.compute.decimal import decimals_from_units
from headrace.model.expression import Call
from headrace.model.types import TIMESTAMP

_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
FIRST_DAY, LAST_DAY = date.min.toordinal() - _EPOCH_ORDINAL, date.max.toordinal() - _EPOCH_ORDINAL
DAY_MICROS = 86_400_000_000
FIRST_MICRO, LAST_MICRO = FIRST_DAY * DAY_MICROS, (LAST_DAY + 1) * DAY_MICROS - 1
_TRUNCATION_UNITS = frozenset({
    "microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year",
})  # fmt: skip


def strip_time_zone(value: Value) -> Value:
    """Return timestamps without their zone, and dates unchanged: Arrow then extracts fields without a zone lookup."""
    return value.cast(pa.timestamp("us")) if pa.types.is_timestamp(value.type) else value


def to_epoch_micros(times: pa.Array) -> Numbers:
    """Return microseconds since the epoch as NumPy; NULLs become 0."""
    return to_filled_numbers(times.view(pa.int64()))


def to_epoch_days(dates: Value) -> pa.Array:
    """Return days since the epoch, as BIGINT; a time counts as the day it falls on."""
    return dates.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())


def to_bounded_times(counts: pa.Array, least: int, greatest: int, kind: pa.DataType, message: str) -> EvaluationResult:
    """Convert counts since the epoch to dates or times; counts outside the bounds are errors."""
    out_of_range = pc.or_(pc.less(counts, least), pc.greater(counts, greatest))
    checked = build_arrow_result(counts, out_of_range, message)
    width = pa.int32() if pa.types.is_date(kind) else pa.int64()
    return EvaluationResult(checked.value.cast(width).cast(kind), checked.errors, checked.message)


def _overflow_message(call: Call) -> str:
    return f"date or time overflow in {call}"


def _make_field_extractor(function: Callable[[Value], pa.Array]) -> Kernel:
    return lambda call, args: function(strip_time_zone(args[0])).cast(call.type)


def _extract_second(call: Call, args: Sequence[Value]) -> Value:
    """Return the second of the minute with its microseconds."""
    (times,) = args
    return decimals_from_units(to_epoch_micros(times) % 60_000_000, null_mask(times), call.type)


def _truncate_time(call: Call, args: Sequence[Value]) -> Value | EvaluationResult:
    unit, times = args
    name = str(unit.as_py()).lower() if is_scalar(unit) else ""
    if is_scalar(unit) and not unit.is_valid:
        return pa.nulls(len(times), call.type)
    if name not in _TRUNCATION_UNITS:
        message = f"unknown unit '{name}' of DATE_TRUNC"
        return build_arrow_result(pa.nulls(len(times), call.type), pc.is_valid(times), message)
    return pc.floor_temporal(strip_time_zone(times), unit=name).cast(pa.int64()).cast(call.type)


def _add_days(call: Call, args: Sequence[Value]) -> EvaluationResult:
    counts = pc.add(to_epoch_days(args[0]), args[1].cast(pa.int64()))
    return to_bounded_times(counts, FIRST_DAY, LAST_DAY, call.type, _overflow_message(call))


def _diff_days(call: Call, args: Sequence[Value]) -> Value:
    return pc.subtract(to_epoch_days(args[0]), to_epoch_days(args[1])).cast(call.type)


def _add_microseconds(call: Call, args: Sequence[Value]) -> EvaluationResult:
    """Add microseconds; a shift beyond every valid time is clamped, so that the sum cannot overflow."""
    span = LAST_MICRO - FIRST_MICRO + 1
    shift = args[1].cast(pa.int64())
    shift = pc.if_else(pc.greater(shift, span), span, pc.if_else(pc.less(shift, -span), -span, shift))
    counts = pc.add(args[0].cast(TIMESTAMP).cast(pa.int64()), shift)
    return to_bounded_times(counts, FIRST_MICRO, LAST_MICRO, call.type, _overflow_message(call))


def to_unix_seconds(times: pa.Array) -> pa.Array:
    """Return whole seconds since the epoch, rounded down, as BIGINT."""
    return pa.array(to_epoch_micros(times) // 1_000_000, mask=null_mask(times))


KERNELS: dict[str, Kernel] = {
    "year": _make_field_extractor(pc.year),
    "quarter": _make_field_extractor(pc.quarter),
    "month": _make_field_extractor(pc.month),
    "day": _make_field_extractor(pc.day),
    "dayofweek": _make_field_extractor(partial(pc.day_of_week, count_from_zero=False, week_start=7)),
    "dayofyear": _make_field_extractor(pc.day_of_year),
    "hour": _make_field_extractor(pc.hour),
    "minute": _make_field_extractor(pc.minute),
    "second": _make_field_extractor(pc.second),
    "second_with_fraction": _extract_second,
    "date_trunc": _truncate_time,
    "date_add": _add_days,
    "date_diff": _diff_days,
    "time_add": _add_microseconds,
    "unix_seconds": lambda call, args: to_unix_seconds(broadcast_args(args)[0]).cast(call.type),
}
