"""Sorted index: a search finds the rows for which the comparison holds."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.backends.reference.evaluate import evaluate
from headrace.backends.reference.numbers import sort_key
from headrace.engine.joins.index import (
    ComparisonBound,
    ResidualPredicates,
    RowIndexes,
    build_band_indexes,
    build_sorted_index,
    choose_bounds,
    find_bound,
    plan_searches,
    search_ranges,
)
from headrace.engine.joins.joined_rows import ChunkedColumn, JoinedRows, JoinTable, TableSelection
from headrace.engine.operators.query_sets import make_bitmap
from headrace.model.expression import TRUE, Call, Column, Expression, Literal, combine_conjuncts

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "integers": (pa.int32(), [3, None, -3, 0, 3, 2**31 - 1, -(2**31)]),
    "large integers": (pa.int64(), [2**62, 2**62 + 1, None, -(2**62), 0]),
    "doubles": (pa.float64(), [math.nan, 0.0, -0.0, None, math.inf, -math.inf, 1.5, math.nan, 1e-300]),
    "floats": (pa.float32(), [math.nan, -0.0, 0.5, None, 0.0, math.inf]),
    "decimals": (pa.decimal128(10, 2), [Decimal("-1.25"), Decimal("0.00"), None, Decimal("99999999.99"), Decimal("-1.24")]),
    "timestamps": (pa.timestamp("us", "UTC"), [datetime(2024, 1, 1, tzinfo=UTC), None, datetime(1969, 12, 31, tzinfo=UTC)]),
    "dates": (pa.date32(), [date(2024, 2, 29), date(1969, 12, 31), None, date(2024, 2, 29)]),
    "booleans": (pa.bool_(), [True, None, False, True]),
    "nothing": (pa.int64(), [None, None]),
}


def make_comparison(operator: str, kind: pa.DataType) -> Call:
    return Call(operator, (Column("1.v", kind), Column("0.v", kind)), pa.bool_())


@pytest.mark.parametrize("operator", ["lt", "le", "gt", "ge"])
@pytest.mark.parametrize("name", VALUES)
def test_a_search_finds_the_rows_for_which_the_comparison_holds(name: str, operator: str) -> None:
    kind, values = VALUES[name]
    condition = make_comparison(operator, kind)
    index = build_sorted_index(pa.array(values, kind))
    begins, ends = search_ranges(index, [(operator, pa.array(values, kind))]).ranges.T
    for row, arriving in enumerate(values):
        found = sorted(index.order[begins[row] : ends[row]].tolist())
        expected = [i for i, stored in enumerate(values) if evaluate(condition, {"1.v": stored, "0.v": arriving}) is True]
        assert found == expected, arriving


def test_two_comparisons_are_searched_as_a_band() -> None:
    index = build_sorted_index(pa.array([5, 1, None, 3, 9]))
    found = search_ranges(index, [("ge", pa.array([2, 4, 7, 2, None])), ("lt", pa.array([6, 4, 3, None, 6]))])
    assert [index.order[begin:end].tolist() for begin, end in found.ranges.tolist()] == [[3, 0], [], [], [], []]


INT = pa.int64()
ODD = st.sampled_from([0.0, -0.0, 1.0, 2.0, math.nan, math.inf, -math.inf, None])
A, B, C = Column("0.a", INT), Column("1.b", INT), Column("1.c", INT)


def is_right(name: str) -> bool:
    return name.startswith("1.")


def call(function: str, *args: Expression, kind: pa.DataType | None = None) -> Call:
    return Call(function, args, kind or pa.bool_())


def test_find_bound_puts_the_stored_side_first() -> None:
    assert find_bound(call("lt", A, B), is_right) == ComparisonBound(B, "gt", A)
    assert find_bound(call("ge", B, A), is_right) == ComparisonBound(B, "ge", A)


@pytest.mark.parametrize(
    "condition",
    [
        call("ne", A, B),
        call("lt", B, C),
        call("lt", A, Literal(1, INT)),
        call("lt", call("add", A, B, kind=INT), C),
        call("lt", Column("0.s", pa.string()), Column("1.s", pa.string())),
        call("lt", Column("0.d", pa.decimal128(30, 2)), Column("1.d", pa.decimal128(30, 2))),
        call("or", call("lt", A, B), call("lt", B, A)),
    ],
    ids=str,
)
def test_other_conditions_have_no_bound(condition: Expression) -> None:
    assert find_bound(condition, is_right) is None


def test_the_expression_with_most_comparisons_is_chosen() -> None:
    conditions = [call("lt", A, C), call("ge", A, B), call("ne", A, B), call("le", A, B)]
    assert choose_bounds(conditions, is_right) == (ComparisonBound(B, "le", A), ComparisonBound(B, "ge", A))


def make_rows(**columns: list[int]) -> JoinedRows:
    table = {name.replace("_", "."): ChunkedColumn([pa.array(values, INT)]) for name, values in columns.items()}
    count = len(next(iter(columns.values())))
    selection = TableSelection(JoinTable({name[1:]: column for name, column in table.items()}, count))
    return JoinedRows([selection], make_bitmap([0, 1], 1)[None, :].repeat(count, 0))


LEFT, RIGHT = make_rows(_0_a=[1, 5, 9]), make_rows(_1_b=[1, 2, 3, 4, 5, 6], _1_c=[0, 0, 0, 9, 9, 9])


def list_searches(residuals: ResidualPredicates) -> list[tuple[int, ResidualPredicates]]:
    searches = plan_searches(LEFT, RIGHT, 1, residuals, RowIndexes(RIGHT.evaluate, RIGHT.row_count, {}))
    return [(search.candidates.pair_count, dict(search.residuals)) for search in searches]


def test_a_searched_comparison_is_not_a_residual() -> None:
    less, other = call("lt", A, B), call("ne", A, C)
    assert list_searches({less: [0]}) == [(6, {TRUE: [0]})]
    assert list_searches({combine_conjuncts([less, other]): [0], less: [1]}) == [(6, {other: [0], TRUE: [1]})]


def test_without_a_common_comparison_all_pairs_are_candidates() -> None:
    other = call("ne", A, B)
    assert list_searches({other: [0]}) == [(18, {other: [0]})]
    assert list_searches({TRUE: [1]}) == [(18, {TRUE: [1]})]
    less = call("lt", A, B)
    assert list_searches({other: [0], less: [1]}) == [(18, {other: [0], less: [1]})]


def test_queries_with_different_comparisons_search_separately_if_cheaper() -> None:
    narrow, low, wide = call("lt", A, B), call("gt", A, C), call("le", A, call("add", B, Literal(9, INT), kind=INT))
    assert list_searches({narrow: [0], low: [1]}) == [(6, {TRUE: [0]}), (9, {TRUE: [1]})]
    assert list_searches({narrow: [0], wide: [1]}) == [(18, {narrow: [0], wide: [1]})]
    both = {combine_conjuncts([narrow, low]): [0], combine_conjuncts([low, wide]): [1]}
    assert list_searches(both) == [(9, {narrow: [0], wide: [1]})]


def test_indexes_are_built_once() -> None:
    indexes = RowIndexes(RIGHT.evaluate, RIGHT.row_count, {})
    assert indexes.get_sorted_index(B) is indexes.get_sorted_index(B)
    assert indexes.get_band_indexes(B, C) is indexes.get_band_indexes(B, C)
    assert indexes.get_hash_index((B,)) is indexes.get_hash_index((B,))


def test_two_monotonic_expressions_are_searched_as_a_band() -> None:
    low, high = call("sub", B, Literal(1, INT), kind=INT), call("add", B, Literal(1, INT), kind=INT)
    band, more = combine_conjuncts([call("ge", A, low), call("le", A, high)]), call("ne", A, C)
    assert list_searches({band: [0]}) == [(5, {TRUE: [0]})]  # 1 matches 1 and 2, 5 matches 4, 5 and 6, 9 has no match
    assert list_searches({combine_conjuncts([band, more]): [0], band: [1]}) == [(5, {more: [0], TRUE: [1]})]


def test_two_non_monotonic_expressions_are_searched_by_the_first() -> None:
    falling = call("sub", Literal(7, INT), B, kind=INT)
    rest = combine_conjuncts([call("gt", A, B), call("lt", A, falling)])
    assert list_searches({rest: [0]}) == [(10, {call("lt", A, falling): [0]})]


@given(st.lists(st.tuples(ODD, ODD), max_size=8), st.lists(st.tuples(ODD, ODD), min_size=1, max_size=4))
def test_band_indexes_find_the_rows_between_both_bounds(stored: list[tuple[Any, Any]], arriving: list[tuple[Any, Any]]) -> None:
    kind = pa.float64()
    columns = [pa.array([row[i] for row in stored], kind) for i in (0, 1)]
    found = build_band_indexes(*columns)
    known = [row for row in stored if None not in row]
    if found is None:
        assert any(sort_key(a) < sort_key(b) and sort_key(c) > sort_key(d) for a, c in known for b, d in known)
        return
    (begins, ends), (least, most) = (
        search_ranges(index, [(operator, pa.array([row[i] for row in arriving], kind))]).ranges.T
        for i, (index, operator) in enumerate(zip(found, ("ge", "lt"), strict=True))
    )
    for number, row in enumerate(arriving):
        places = found[0].order[max(begins[number], least[number]) : min(ends[number], most[number])].tolist()
        assert sorted(places) == [i for i, candidate in enumerate(stored) if _between(candidate, row)]


def _between(stored: tuple[Any, Any], arriving: tuple[Any, Any]) -> bool:
    pairs = zip(("ge", "lt"), stored, arriving, strict=True)
    return all(
        evaluate(make_comparison(operator, pa.float64()), {"1.v": left, "0.v": right}) is True for operator, left, right in pairs
    )
