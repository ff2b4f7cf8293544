"""Aggregates of the reference backend over lists of values."""

import math
from decimal import Decimal

import pyarrow as pa
import pytest

from headrace.backends.reference.aggregation import compute_aggregate
from headrace.errors import EvaluationError
from headrace.model.aggregate import AGGREGATE_FUNCTIONS, AggregateCall
from headrace.model.expression import Column

DOUBLE, BIGINT = pa.float64(), pa.int64()
NAN, INF = math.nan, math.inf
COLUMN = Column("v", DOUBLE)


def aggregate_values(function, values, kind=DOUBLE, parameter=None):
    return compute_aggregate(AggregateCall(function, (COLUMN,), kind, parameter), [(value,) for value in values])


def is_same(left, right):
    return type(left) is type(right) and (left == right or repr(left) == repr(right))


def test_count_star_counts_rows_and_count_counts_values():
    assert compute_aggregate(AggregateCall("count", (), BIGINT), [(), (), ()]) == 3
    assert aggregate_values("count", [1, None, 2], BIGINT) == 2


@pytest.mark.parametrize("function", sorted(AGGREGATE_FUNCTIONS - {"count", "count_distinct"}))
def test_an_aggregate_of_nulls_is_null(function):
    assert aggregate_values(function, [None, None], parameter=0.5) is None


@pytest.mark.parametrize(
    ("function", "values", "kind", "expected"),
    [
        ("sum", [1, None, 2], BIGINT, 3), ("sum", [2**63 - 1, 1, -1], BIGINT, 2**63 - 1), ("sum", [0.1] * 10, DOUBLE, 1.0),
        ("sum", [1e308, 1e308, -1e308], DOUBLE, 1e308), ("sum", [1e308, 1e308], DOUBLE, INF), ("sum", [INF, 1.0], DOUBLE, INF),
        ("sum", [INF, -INF], DOUBLE, NAN), ("sum", [NAN, 1.0], DOUBLE, NAN),
        ("sum", [Decimal("1.10"), Decimal("2.20")], pa.decimal128(20, 2), Decimal("3.30")),
        ("avg", [1, 2], DOUBLE, 1.5), ("avg", [2**62, 2**62 + 2], DOUBLE, float(2**62 + 1)),
        ("avg", [0.1, 0.3, None], DOUBLE, 0.2),
        ("avg", [Decimal(1), Decimal(1), Decimal(2)], pa.decimal128(14, 4), Decimal("1.3333")),
        ("avg", [Decimal(-1), Decimal(-2)], pa.decimal128(14, 0), Decimal(-2)),
        ("min", [NAN, 2.0, 1.0], DOUBLE, 1.0), ("max", [NAN, 2.0], DOUBLE, NAN), ("min", ["b", "a"], pa.string(), "a"),
        ("var_pop", [1.0, 3.0], DOUBLE, 1.0), ("var_pop", [5.0], DOUBLE, 0.0), ("var_samp", [1.0, 3.0], DOUBLE, 2.0),
        ("var_samp", [1.0], DOUBLE, None),
        ("stddev_pop", [1.0, 5.0], DOUBLE, 2.0), ("stddev_samp", [1.0], DOUBLE, None),
        ("var_pop", [0.1, 0.1, 0.1], DOUBLE, 0.0), ("var_pop", [INF, 1.0], DOUBLE, NAN),
        ("count_distinct", [1, 1, None, 2], BIGINT, 2), ("count_distinct", [NAN, NAN, 0.0, -0.0], BIGINT, 2),
        ("count_distinct", [], BIGINT, 0),
    ],
)  # fmt: skip
def test_aggregates(function, values, kind, expected):
    assert is_same(aggregate_values(function, values, kind), expected)


@pytest.mark.parametrize(
    ("function", "parameter", "expected"),
    [
        ("percentile", 0.0, 1.0), ("percentile", 0.5, 2.5), ("percentile", 0.25, 1.75), ("percentile", 1.0, 4.0),
        ("percentile_disc", 0.0, 1.0), ("percentile_disc", 0.25, 1.0), ("percentile_disc", 0.26, 2.0),
        ("percentile_disc", 0.5, 2.0),
        ("percentile_disc", 1.0, 4.0),
    ],
)  # fmt: skip
def test_percentiles(function, parameter, expected):
    assert is_same(aggregate_values(function, [4.0, 1.0, None, 3.0, 2.0], DOUBLE, parameter), expected)


def test_percentile_orders_nan_last():
    assert aggregate_values("percentile", [NAN, 1.0, 2.0], DOUBLE, 0.5) == 2.0
    assert math.isnan(aggregate_values("percentile", [NAN, 1.0], DOUBLE, 0.5))
    assert aggregate_values("percentile", [INF, INF], DOUBLE, 0.5) == INF


def test_count_distinct_of_several_columns_skips_rows_with_a_null():
    call = AggregateCall("count_distinct", (COLUMN, COLUMN), BIGINT)
    assert compute_aggregate(call, [(1, "a"), (1, "a"), (1, "b"), (None, "a"), (1, None)]) == 2


def test_an_overflow_raises():
    with pytest.raises(EvaluationError, match="overflow"):
        aggregate_values("sum", [2**63 - 1, 1], BIGINT)
    with pytest.raises(EvaluationError, match="overflow"):
        aggregate_values("sum", [Decimal(99), Decimal(1)], pa.decimal128(2, 0))
