"""Lower: final aggregate values from combined components, for many results at once.

Each function takes the components in the order of `lift` in `planner.components` and returns the column and, rarely, which
results are errors (an exact sum that does not fit).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from headrace.engine.compute.columns import Mask, Numbers, decimals_from_integers, from_numbers, to_numbers
from headrace.model.aggregate import AggregateCall

ComponentArrays: TypeAlias = Sequence[Sequence[Numbers]]
LoweredColumn: TypeAlias = tuple[pa.Array, Mask | None]


def lower_aggregate(call: AggregateCall, parts: ComponentArrays) -> LoweredColumn:
    """Return the results of an aggregate whose components are all dense."""
    if call.function == "count":
        return pa.array(parts[0][0], pa.int64()), None
    missing = parts[-1][0] == 0
    if call.function in {"min", "max"}:
        values = np.where(missing, 0, parts[0][0])
        return from_numbers(values if values.dtype == np.float64 else values.astype(np.int64), call.type, missing), None
    argument_type = call.args[0].type
    if pa.types.is_floating(argument_type):
        return _lower_floats(call, parts, missing), None
    if call.function == "sum":
        return _lower_exact_sum(call, parts[0], missing)
    if pa.types.is_decimal(call.type):
        return _average_decimals(call, parts, missing), None
    totals = _limbs_to_floats(parts[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        return pa.array(totals / parts[1][0], pa.float64(), mask=missing), None


def _limbs_to_floats(limbs: Sequence[Numbers]) -> Numbers:
    if len(limbs) == 1:
        return limbs[0].astype(np.float64)
    high, low = limbs[1] + (limbs[0] >> 32), limbs[0] & 0xFFFFFFFF
    floats: Numbers = high.astype(np.float64) * 2.0**32 + low
    return floats


def _lower_floats(call: AggregateCall, parts: ComponentArrays, missing: Mask) -> pa.Array:
    total = _add_high_low(*parts[0])
    counts = parts[-1][0]
    with np.errstate(all="ignore"):
        if call.function == "sum":
            values = total
        elif call.function == "avg":
            values = total / counts
        else:
            values, missing = _compute_variance(call.function, parts, counts)
    return pa.array(values, pa.float64(), mask=missing)


def _add_high_low(high: Numbers, low: Numbers) -> Numbers:
    with np.errstate(all="ignore"):
        return np.where(np.isfinite(high), high + low, high)


def _compute_variance(function: str, parts: ComponentArrays, counts: Numbers) -> tuple[Numbers, Mask]:
    """Compute variance or standard deviation from exact sums: n·Σx² − (Σx)², both to twice the precision, then one division."""
    (s_high, s_low), (q_high, q_low) = parts[0], parts[1]
    n = counts.astype(np.float64)
    mean = (s_high + s_low) / n
    rest = (s_high - _multiply_exactly(mean, n)[0]) - _multiply_exactly(mean, n)[1] + s_low  # Σx − n·mean, nearly exact
    m_high, m_low = _multiply_exactly(mean, mean)
    n_high, n_low = _multiply_exactly(n, m_high)
    squares = (q_high - n_high) + (q_low - n_low - n * m_low)  # Σx² − n·mean²
    centred = np.maximum(squares - 2 * mean * rest, 0.0)
    centred = np.where(np.isnan(squares), np.nan, centred)
    is_sample = function.endswith("samp")
    result = centred / (n - 1 if is_sample else n)
    values = np.sqrt(result) if function.startswith("stddev") else result
    return values, counts <= (1 if is_sample else 0)


def _multiply_exactly(a: Numbers, b: Numbers) -> tuple[Numbers, Numbers]:
    """Return a·b rounded, and its rounding error."""
    product = a * b
    a_big, b_big = a * 134217729.0, b * 134217729.0
    a_high, b_high = a_big - (a_big - a), b_big - (b_big - b)
    a_low, b_low = a - a_high, b - b_high
    return product, a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


def _lower_exact_sum(call: AggregateCall, limbs: Sequence[Numbers], missing: Mask) -> LoweredColumn:
    if len(limbs) == 1:
        return pa.array(limbs[0], call.type, mask=missing if missing.any() else None), None
    if len(limbs) == 2:
        high, low = limbs[1] + (limbs[0] >> 32), limbs[0] & 0xFFFFFFFF
        overflows = (high < -(1 << 31)) | (high >= 1 << 31)
        if not overflows.any():
            return from_numbers((high << 32) + low, call.type, missing), None
        if not pa.types.is_decimal(call.type):
            return from_numbers(np.where(overflows, 0, (high << 32) + low), call.type, missing | overflows), overflows
    totals = _limbs_to_integers(limbs)
    limit = 10**call.type.precision
    overflows = np.array([abs(t) >= limit for t in totals], np.bool_)
    return decimals_from_integers(np.where(overflows, 0, totals), call.type, missing | overflows), (
        overflows if overflows.any() else None
    )


def _limbs_to_integers(limbs: Sequence[Numbers]) -> Numbers:
    total = np.zeros(len(limbs[0]), object)
    for exponent, limb in enumerate(limbs):
        total += limb.astype(object) << (32 * exponent)
    return total


def _average_decimals(call: AggregateCall, parts: ComponentArrays, missing: Mask) -> pa.Array:
    scale = 10 ** (call.type.scale - call.args[0].type.scale)
    averages = [
        _divide_half_up(int(t) * scale, int(n)) if n else 0
        for t, n in zip(_limbs_to_integers(parts[0]), parts[1][0], strict=True)
    ]
    return decimals_from_integers(np.array(averages, object), call.type, missing)


def _divide_half_up(numerator: int, denominator: int) -> int:
    quotient, rest = divmod(abs(numerator), denominator)
    quotient += 2 * rest >= denominator
    return quotient if numerator >= 0 else -quotient


def lower_listed(call: AggregateCall, groups: Numbers, values: Sequence[pa.Array], counts: Numbers, size: int) -> pa.Array:
    """Return the results, for groups 0 … size − 1, of an aggregate over listed values (distinct within a group)."""
    if call.function == "count_distinct":
        return pa.array(np.bincount(groups, minlength=size).astype(np.int64), pa.int64())
    if call.function in {"min", "max"}:
        positions = np.full(size, -1, np.int64)
        positions[groups] = np.arange(groups.size)
        return values[0].take(pa.array(positions, mask=positions < 0))
    order = _order_by_group_and_value(groups, values[0])
    firsts, lasts, totals, below = _group_bounds(groups[order], counts[order], size)
    missing = totals == 0
    rank = _percentile_ranks(call, totals)
    low, high = (_positions_at_rank(r, firsts, lasts, below) for r in (np.floor(rank), np.ceil(rank)))
    sorted_values = values[0].take(pa.array(order))
    if call.function == "percentile_disc":
        return sorted_values.take(pa.array(low, mask=missing))
    numeric = to_numbers(sorted_values) if len(sorted_values) else np.zeros(1)
    a, b, fraction = numeric[np.where(missing, 0, low)], numeric[np.where(missing, 0, high)], rank - np.floor(rank)
    with np.errstate(invalid="ignore"):
        return pa.array(np.where(a == b, a, (1 - fraction) * a + fraction * b), pa.float64(), mask=missing)


def _percentile_ranks(call: AggregateCall, totals: Numbers) -> Numbers:
    share = 0.5 if call.parameter is None else call.parameter
    rank: Numbers
    if call.function == "percentile":
        rank = np.maximum(totals - 1, 0) * share
    else:
        rank = np.maximum(np.ceil(totals * share - 1e-9) - 1, 0)
    return rank


def _order_by_group_and_value(groups: Numbers, values: pa.Array) -> Numbers:
    """Return positions sorted by group, then value; NaN last."""
    ranks = np.empty(len(values), np.int64)
    by_value = np.asarray(pa.compute.sort_indices(values)).astype(np.int64)
    ranks[by_value] = np.arange(len(values))
    return np.lexsort((ranks, groups))


def _group_bounds(groups: Numbers, counts: Numbers, size: int) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    firsts = np.searchsorted(groups, np.arange(size), side="left")
    lasts = np.searchsorted(groups, np.arange(size), side="right")
    running = np.concatenate([[0], np.cumsum(counts)])
    return firsts, lasts, running[lasts] - running[firsts], running


def _positions_at_rank(rank: Numbers, firsts: Numbers, lasts: Numbers, running: Numbers) -> Numbers:
    """Return the position of the value with that rank (from 0) within each group."""
    targets = running[firsts] + rank.astype(np.int64)
    positions = np.searchsorted(running, targets, side="right") - 1
    within: Numbers = np.minimum(positions, np.maximum(lasts - 1, 0))
    return within
