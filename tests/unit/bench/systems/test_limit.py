"""The handwritten kernel of the limit system: supported queries and correct sums."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.bench.queries.dialects import AggregationShape, BenchAggregate, ColumnComparison
from headrace.bench.systems.limit import LimitPlan, LimitState, RangePredicate
from headrace.errors import HeadraceError

FLOATS = ("price",)


def make_shape(
    *aggregates: BenchAggregate, keys: tuple[str, ...] = ("user_id",), predicate: ColumnComparison | None = None
) -> AggregationShape:
    return AggregationShape("purchases", keys, aggregates or (BenchAggregate("SUM", "price", "total"),), predicate)


def test_only_required_columns_are_read():
    plan = LimitPlan.from_shape(make_shape(predicate=ColumnComparison("gem_pack", "<", 3)), FLOATS)
    assert plan.columns == ["user_id", "price", "gem_pack", "time"]
    assert LimitPlan.from_shape(make_shape(BenchAggregate("COUNT", None, "n"), keys=()), FLOATS).columns == ["time"]


@pytest.mark.parametrize(
    "query_shape",
    [
        make_shape(BenchAggregate("MAX", "price", "most")),
        make_shape(BenchAggregate("SUM", "price", "a"), BenchAggregate("SUM", "gem_pack", "b")),
        make_shape(keys=("user_id", "gem_pack")),
    ],
)
def test_unsupported_aggregations_are_refused(query_shape):
    with pytest.raises(HeadraceError, match="sums only one column by one key"):
        LimitPlan.from_shape(query_shape, FLOATS)


@pytest.mark.parametrize("operator", ["<", "<=", ">", ">=", "=", "<>"])
@pytest.mark.parametrize("value", [2, 2.5])
@pytest.mark.parametrize("integer", [True, False])
def test_comparisons_are_converted_to_ranges(operator, value, integer):
    predicate = RangePredicate.from_comparison(ColumnComparison("v", operator, value), integer=integer)
    python_operator = {"=": "==", "<>": "!="}.get(operator, operator)
    for v in [1, 2, 3] if integer else [1.0, 2.0, 2.5, np.nextafter(2.5, 3), 3.0]:
        assert ((predicate.low <= v <= predicate.high) != predicate.outside) == eval(f"v {python_operator} value")


# slices of 10:   0         10        20        30
#                 ├─────────┼─────────┼─────────┤
# rows (key)        1    2    1  1        2
def test_rows_are_summed_by_slice_and_key():
    plan = LimitPlan.from_shape(make_shape(), FLOATS)
    cells = LimitState(slices=2, keys=3, integer=False)
    columns = {
        "user_id": np.array([1, 2, 1, 1], np.int32),
        "price": np.array([1.0, 2.0, 4.0, 8.0]),
        "time": np.array([2, 7, 12, 15]),
    }
    plan.add_rows(cells, columns, 10)
    assert [part.tolist() for part in cells.sum_slices([0])] == [[0, 1, 1], [0.0, 1.0, 2.0]]
    assert [part.tolist() for part in cells.sum_slices([0, 1])] == [[0, 3, 1], [0.0, 13.0, 2.0]]
    cells.clear_slices([0])
    later = {"user_id": np.array([2], np.int32), "price": np.array([16.0]), "time": np.array([25])}
    plan.add_rows(cells, later, 10)
    assert [part.tolist() for part in cells.sum_slices([1, 2])] == [[0, 2, 1], [0.0, 12.0, 16.0]]


def test_a_predicate_drops_rows_and_new_keys_extend_the_arrays():
    plan = LimitPlan.from_shape(make_shape(predicate=ColumnComparison("user_id", "<>", 0)), FLOATS)
    cells = LimitState(slices=1, keys=1, integer=False)
    columns = {"user_id": np.array([0, 5], np.int32), "price": np.array([1.0, 2.0]), "time": np.array([0, 1])}
    plan.add_rows(cells, columns, 10)
    counts, sums = cells.sum_slices([0])
    assert (counts.tolist(), sums.tolist()) == ([0, 0, 0, 0, 0, 1], [0.0, 0.0, 0.0, 0.0, 0.0, 2.0])


def test_a_key_too_large_for_dense_arrays_is_refused():
    with pytest.raises(HeadraceError, match="key 1073741824 is too large"):
        LimitState(slices=1, keys=1, integer=True).ensure_key(1 << 30)
