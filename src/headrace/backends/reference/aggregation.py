"""Computes aggregates over the complete list of values of a group, without partial aggregates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from headrace.backends.reference.numbers import fit_float, fit_value, group_key, sort_key, to_nearest_double
from headrace.model.aggregate import AggregateCall

ArgumentValues = tuple[Any, ...]


def compute_aggregate(call: AggregateCall, rows: Sequence[ArgumentValues]) -> Any:
    """Return the aggregate over the argument values of a group's rows (`()` per row for COUNT(*)); skip rows with a NULL.

    Raises EvaluationError when an integer or decimal result does not fit its type.
    """
    non_null_rows = [row for row in rows if None not in row]
    if call.function == "count":
        return len(non_null_rows)
    if call.function == "count_distinct":
        return len({tuple(map(group_key, row)) for row in non_null_rows})
    values = [row[0] for row in non_null_rows]
    return _AGGREGATE_FUNCTIONS[call.function](values, call) if values else None


def compute_sum(values: Sequence[Any], kind: pa.DataType) -> Any:
    """Return the sum: exact for integers and decimals, correctly rounded for floats."""
    return fit_value(_sum_exactly(values), kind)


def _sum_exactly(values: Sequence[Any]) -> Any:
    if not isinstance(values[0], float):
        return sum(map(_to_exact, values))
    if any(not math.isfinite(value) for value in values):
        infinities = {value for value in values if math.isinf(value)}
        return math.nan if any(map(math.isnan, values)) or len(infinities) > 1 else infinities.pop()
    try:
        return math.fsum(values)
    except OverflowError:
        return to_nearest_double(sum(map(Fraction, values)))


def _to_exact(value: int | Decimal) -> int | Fraction:
    return value if isinstance(value, int) else Fraction(value)


def _compute_avg(values: Sequence[Any], call: AggregateCall) -> Any:
    result = _sum_exactly(values)
    return fit_value(result / len(values) if isinstance(result, float) else Fraction(result, len(values)), call.type)


def _compute_variance(values: Sequence[Any], call: AggregateCall, freedom: int) -> float | None:
    """Return the sum of squared distances from the mean, divided by n - `freedom`; NULL unless n > `freedom`."""
    if len(values) <= freedom:
        return None
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        return math.nan
    exact = [Fraction(value) for value in values]
    mean = Fraction(sum(exact), len(exact))
    squares = sum((value - mean) ** 2 for value in exact)
    return fit_float(squares / (len(exact) - freedom), call.type)


def _compute_stddev(values: Sequence[Any], call: AggregateCall, freedom: int) -> float | None:
    variance = _compute_variance(values, call, freedom)
    return None if variance is None else math.sqrt(variance)


def _compute_percentile(values: Sequence[Any], call: AggregateCall) -> Any:
    """Interpolate linearly between the two values around position p · (n - 1)."""
    ranked, position = sorted(values, key=sort_key), _parse_percentile(call) * (len(values) - 1)
    below, above = ranked[math.floor(position)], ranked[math.ceil(position)]
    if sort_key(below) == sort_key(above):
        return fit_value(below, call.type)
    weight = position - math.floor(position)
    if isinstance(below, float) and not (math.isfinite(below) and math.isfinite(above)):
        return fit_value((1 - float(weight)) * below + float(weight) * above, call.type)
    return fit_value((1 - weight) * Fraction(below) + weight * Fraction(above), call.type)


def _compute_percentile_disc(values: Sequence[Any], call: AggregateCall) -> Any:
    """Return the smallest value whose cumulative share is at least p."""
    rank = math.ceil(_parse_percentile(call) * len(values))
    return fit_value(sorted(values, key=sort_key)[max(rank - 1, 0)], call.type)


def _parse_percentile(call: AggregateCall) -> Fraction:
    """Return the percentile as an exact fraction of its decimal text."""
    assert call.parameter is not None
    return Fraction(repr(call.parameter))


_AGGREGATE_FUNCTIONS: dict[str, Callable[[Sequence[Any], AggregateCall], Any]] = {
    "sum": lambda values, call: compute_sum(values, call.type),
    "avg": _compute_avg,
    "min": lambda values, _: min(values, key=sort_key),
    "max": lambda values, _: max(values, key=sort_key),
    "var_pop": lambda values, call: _compute_variance(values, call, 0),
    "var_samp": lambda values, call: _compute_variance(values, call, 1),
    "stddev_pop": lambda values, call: _compute_stddev(values, call, 0),
    "stddev_samp": lambda values, call: _compute_stddev(values, call, 1),
    "percentile": _compute_percentile,
    "percentile_disc": _compute_percentile_disc,
}
