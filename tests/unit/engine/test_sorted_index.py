"""Sorted indexes: a search finds the rows for which the comparison holds; two values that grow together share a row order."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.backends.reference.evaluate import evaluate
from headrace.backends.reference.numbers import sort_key
from headrace.engine.budgets import BudgetMeter
from headrace.engine.failures import QueryFailures
from headrace.engine.joins.index import RowIndexes, build_band_indexes
from headrace.engine.joins.joined_rows import ChunkedColumn, JoinedRows, JoinTable, TableSelection
from headrace.engine.joins.pair_search import PairSearch, StepUser, plan_search
from headrace.model.budget import DEFAULT_BUDGET
from headrace.model.expression import Call, Column, Expression

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


def make_rows(name: str, kind: pa.DataType, values: list[Any]) -> JoinedRows:
    table = JoinTable({name: ChunkedColumn([pa.array(values, kind)])}, len(values))
    return JoinedRows([TableSelection(table)], np.ones((len(values), 1), np.uint64))


@pytest.mark.parametrize("operator", ["lt", "le", "gt", "ge", "eq"])
@pytest.mark.parametrize("name", VALUES)
def test_a_search_finds_the_rows_for_which_the_comparison_holds(name: str, operator: str) -> None:
    kind, values = VALUES[name]
    condition = Call(operator, (Column("1.v", kind), Column("0.v", kind)), pa.bool_())
    probe, build = make_rows("0.v", kind, values), make_rows("1.v", kind, values)
    plan = plan_search([StepUser(0, 0, (condition,))], lambda column: column == "1.v", 1)
    assert plan.attributes == {Column("1.v", kind)}
    search = PairSearch(plan, probe, BudgetMeter(DEFAULT_BUDGET, {}, QueryFailures()))
    indexes = RowIndexes(build.evaluate, build.row_count, {})
    found = set()
    for pairs in search.find_pairs(indexes, build.sets):
        probe.pair_with(pairs.probe_ids, build, pairs.build_ids, pairs.sets).clear_failing(search.checks)
        ids = (pairs.probe_ids.tolist(), pairs.build_ids.tolist(), pairs.sets[:, 0].tolist())
        found |= {(i, j) for i, j, bits in zip(*ids, strict=True) if bits}
    expected = {
        (i, j)
        for i, arriving in enumerate(values)
        for j, stored in enumerate(values)
        if evaluate(condition, {"1.v": stored, "0.v": arriving}) is True
    }
    assert found == expected


ODD = st.sampled_from([0.0, -0.0, 1.0, 2.0, math.nan, math.inf, -math.inf, None])
B, C = Column("1.b", pa.int64()), Column("1.c", pa.int64())


def test_indexes_are_built_once() -> None:
    evaluated: list[Expression] = []

    def evaluate_column(expression: Expression) -> pa.Array:
        evaluated.append(expression)
        return pa.array([1, 2, 3])

    indexes = RowIndexes(evaluate_column, 3, {})
    assert indexes.get_sorted_index(B) is indexes.get_sorted_index(B)
    assert indexes.get_band_indexes(B, C) is indexes.get_band_indexes(B, C)
    assert indexes.get_hash_index((B,)) is indexes.get_hash_index((B,))
    assert evaluated == [B, B, C, B]


@given(st.lists(st.tuples(ODD, ODD), max_size=8))
def test_band_indexes_sort_by_both_values_or_do_not_exist(stored: list[tuple[Any, Any]]) -> None:
    columns = [pa.array([row[i] for row in stored], pa.float64()) for i in (0, 1)]
    found = build_band_indexes(*columns)
    known = [row for row in stored if None not in row]
    if found is None:
        assert any(sort_key(a) < sort_key(b) and sort_key(c) > sort_key(d) for a, c in known for b, d in known)
        return
    assert found[0].order.tolist() == found[1].order.tolist()
    assert sorted(found[0].order.tolist()) == [number for number, row in enumerate(stored) if None not in row]
    for side, sorted_index in enumerate(found):
        keys = [sort_key(stored[number][side]) for number in sorted_index.order.tolist()]
        assert keys == sorted(keys)
