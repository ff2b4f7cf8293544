"""Computes aggregates over the complete list of values of a group, without partial aggregates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from headrace.backends.reference.numeric import canonical, fit, fit_float, nearest_double, order
from headrace.model.aggregate import AggregateCall

Arguments = tuple[Any, ...]


def aggregate(call: AggregateCall, rows: Sequence[Arguments]) -> Any:
    """Return the aggregate over the argument values of a group's rows (`()` per row for COUNT(*)); skip rows with a NULL.

    Raises EvaluationError when an integer or decimal result does not fit its type.
    """
    non_null_rows = [row for row in rows if None not in row]
    if call.function == "count":
        return len(non_null_rows)
    if call.function == "count_distinct":
        return len({tuple(map(canonical, row)) for row in non_null_rows})
    values = [row[0] for row in non_null_rows]
    return _OF_VALUES[call.function](values, call) if values else None


def total(values: Sequence[Any], kind: pa.DataType) -> Any:
    """Return the sum: exact for integers and decimals, correctly rounded for floats."""
    return fit(_sum(values), kind)


def _sum(values: Sequence[Any]) -> Any:
    if not isinstance(values[0], float):
        return sum(map(_exact, values))
    if any(not math.isfinite(value) for value in values):
        infinities = {value for value in values if math.isinf(value)}
        return math.nan if any(map(math.isnan, values)) or len(infinities) > 1 else infinities.pop()
    try:
        return math.fsum(values)
    except OverflowError:
        return nearest_double(sum(map(Fraction, values)))


def _exact(value: int | Decimal) -> int | Fraction:
    return value if isinstance(value, int) else Fraction(value)


def _average(values: Sequence[Any], call: AggregateCall) -> Any:
    result = _sum(values)
    return fit(result / len(values) if isinstance(result, float) else Fraction(result, len(values)), call.type)


def _variance(values: Sequence[Any], call: AggregateCall, freedom: int) -> float | None:
    """Return the sum of squared distances from the mean, divided by n - `freedom`; NULL unless n > `freedom`."""
    if len(values) <= freedom:
        return None
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        return math.nan
    exact = [Fraction(value) for value in values]
    mean = Fraction(sum(exact), len(exact))
    squares = sum((value - mean) ** 2 for value in exact)
    return fit_float(squares / (len(exact) - freedom), call.type)


def _deviation(values: Sequence[Any], call: AggregateCall, freedom: int) -> float | None:
    variance = _variance(values, call, freedom)
    return None if variance is None else math.sqrt(variance)


def _percentile(values: Sequence[Any], call: AggregateCall) -> Any:
    """Interpolate linearly between the two values around position p · (n - 1)."""
    ranked, position = sorted(values, key=order), _share(call) * (len(values) - 1)
    below, above = ranked[math.floor(position)], ranked[math.ceil(position)]
    if order(below) == order(above):
        return fit(below, call.type)
    weight = position - math.floor(position)
    if isinstance(below, float) and not (math.isfinite(below) and math.isfinite(above)):
        return fit((1 - float(weight)) * below + float(weight) * above, call.type)
    return fit((1 - weight) * Fraction(below) + weight * Fraction(above), call.type)


def _percentile_disc(values: Sequence[Any], call: AggregateCall) -> Any:
    """Return the smallest value whose cumulative share is at least p."""
    rank = math.ceil(_share(call) * len(values))
    return fit(sorted(values, key=order)[max(rank - 1, 0)], call.type)


def _share(call: AggregateCall) -> Fraction:
    """Return the percentile as an exact fraction of its decimal text."""
    assert call.parameter is not None
    return Fraction(repr(call.parameter))


_OF_VALUES: dict[str, Callable[[Sequence[Any], AggregateCall], Any]] = {
    "sum": lambda values, call: total(values, call.type),
    "avg": _average,
    "min": lambda values, _: min(values, key=order),
    "max": lambda values, _: max(values, key=order),
    "var_pop": lambda values, call: _variance(values, call, 0),
    "var_samp": lambda values, call: _variance(values, call, 1),
    "stddev_pop": lambda values, call: _deviation(values, call, 0),
    "stddev_samp": lambda values, call: _deviation(values, call, 1),
    "percentile": _percentile,
    "percentile_disc": _percentile_disc,
}
