"""The hand-written kernel: which queries it takes, and that it adds up what it should."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.bench.queries.shape import Comparison, Measure, Shape
from headrace.bench.sut.limit_cells import Cells, Plan, Within
from headrace.errors import HeadraceError

FLOATS = ("price",)


def shape(*aggregates: Measure, keys: tuple[str, ...] = ("user_id",), predicate: Comparison | None = None) -> Shape:
    return Shape("purchases", keys, aggregates or (Measure("SUM", "price", "total"),), predicate)


def test_only_the_columns_that_are_needed_are_read():
    plan = Plan.of(shape(predicate=Comparison("gem_pack", "<", 3)), FLOATS)
    assert plan.columns == ["user_id", "price", "gem_pack", "time"]
    assert Plan.of(shape(Measure("COUNT", None, "n"), keys=()), FLOATS).columns == ["time"]


@pytest.mark.parametrize(
    "asked",
    [
        shape(Measure("MAX", "price", "most")),
        shape(Measure("SUM", "price", "a"), Measure("SUM", "gem_pack", "b")),
        shape(keys=("user_id", "gem_pack")),
    ],
)
def test_what_it_does_not_do_is_refused(asked):
    with pytest.raises(HeadraceError, match="sums only one column by one key"):
        Plan.of(asked, FLOATS)


@pytest.mark.parametrize("operator", ["<", "<=", ">", ">=", "=", "<>"])
@pytest.mark.parametrize("value", [2, 2.5])
@pytest.mark.parametrize("integer", [True, False])
def test_comparisons_are_intervals(operator, value, integer):
    test = Within.of(Comparison("v", operator, value), integer=integer)
    python = {"=": "==", "<>": "!="}.get(operator, operator)
    for v in [1, 2, 3] if integer else [1.0, 2.0, 2.5, np.nextafter(2.5, 3), 3.0]:
        assert ((test.low <= v <= test.high) != test.outside) == eval(f"v {python} value")


# slices of 10:   0         10        20        30
#                 ├─────────┼─────────┼─────────┤
# rows (key)        1    2    1  1        2
def test_rows_are_added_by_slice_and_key():
    plan = Plan.of(shape(), FLOATS)
    cells = Cells(slices=2, keys=3, integer=False)
    columns = {
        "user_id": np.array([1, 2, 1, 1], np.int32),
        "price": np.array([1.0, 2.0, 4.0, 8.0]),
        "time": np.array([2, 7, 12, 15]),
    }
    plan.add(cells, columns, 10)
    assert [part.tolist() for part in cells.total([0])] == [[0, 1, 1], [0.0, 1.0, 2.0]]
    assert [part.tolist() for part in cells.total([0, 1])] == [[0, 3, 1], [0.0, 13.0, 2.0]]
    cells.clear([0])
    later = {"user_id": np.array([2], np.int32), "price": np.array([16.0]), "time": np.array([25])}
    plan.add(cells, later, 10)
    assert [part.tolist() for part in cells.total([1, 2])] == [[0, 2, 1], [0.0, 12.0, 16.0]]


def test_a_predicate_leaves_rows_out_and_new_keys_find_room():
    plan = Plan.of(shape(predicate=Comparison("user_id", "<>", 0)), FLOATS)
    cells = Cells(slices=1, keys=1, integer=False)
    columns = {"user_id": np.array([0, 5], np.int32), "price": np.array([1.0, 2.0]), "time": np.array([0, 1])}
    plan.add(cells, columns, 10)
    counts, sums = cells.total([0])
    assert (counts.tolist(), sums.tolist()) == ([0, 0, 0, 0, 0, 1], [0.0, 0.0, 0.0, 0.0, 0.0, 2.0])


def test_a_key_beyond_dense_arrays_is_an_error():
    with pytest.raises(HeadraceError, match="key 1073741824 is too large"):
        Cells(slices=1, keys=1, integer=True).reach(1 << 30)
