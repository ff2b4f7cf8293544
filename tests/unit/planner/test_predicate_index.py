"""Predicate index: every predicate has the same truth value on a cell and on each row of the cell."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.backends.reference import evaluate
from headrace.engine.operators.selection import CellAssigner, group_rows_by_predicate
from headrace.engine.row_batch import RowBatch
from headrace.model.expression import Expression
from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.planner.group_members import SharedPredicate, build_predicate_index
from headrace.planner.predicate_index import CellLayout, PredicateIndex, compute_grid_spans, derive_dimensions
from headrace.sql import Catalog, bind_query
from support.examples import scale_examples

SCHEMA = Schema.parse("x INT, y DOUBLE, s STRING, d DECIMAL(10,2), b BOOLEAN, big BIGINT, f FLOAT, day DATE, time TIMESTAMP")
CATALOG = Catalog((Stream("t", SCHEMA, "time"),))
AT = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def build_index(predicates: Sequence[Expression], layout: CellLayout) -> PredicateIndex:
    distinct = dict.fromkeys(predicates)
    return build_predicate_index([SharedPredicate(each, derive_dimensions((each,))) for each in distinct], layout)


def parse_predicate(text: str) -> Expression:
    return bind_query(f"SELECT x FROM t WHERE {text}", CATALOG).branches[0].predicate


ATOMS = [
    "x > 3", "x <= 3", "x = 2", "x <> 2", "x IN (1, 3, 5)", "x BETWEEN 2 AND 4", "x IS NULL", "x > 1.5", "x % 2 = 0",
    "x = 2147483647", "y > 1.5", "y = 0.0", "y <= -1", "y IS NOT NULL", "y < 1e300", "s LIKE 'a%'", "s = 'b'", "s >= 'ab'",
    "'ab' LIKE concat(s, '%')", "s NOT LIKE upper(s)", "s LIKE NULL",
    "s IN ('a', 'c')", "d > 1.25", "d = 2", "b", "NOT b", "b = false", "big > 5", "big >= 9223372036854775807", "f > 0.5",
    "f = 0.1", "day > '2024-01-03'", "x - 1 > 3", "upper(s) = 'A'", "time >= '2024-01-01 00:00:02'",
]  # fmt: skip
predicates = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: (
        st.builds(lambda op, a, b: f"({a} {op} {b})", st.sampled_from(["AND", "OR"]), inner, inner)
        | inner.map(lambda p: f"(NOT {p})")
    ),
    max_leaves=4,
)
rows = st.fixed_dictionaries({
    "x": st.none() | st.integers(-1, 6) | st.just(2**31 - 1),
    "y": st.none() | st.sampled_from([0.0, -0.0, 1.5, 2.0, -1.0, float("nan"), float("inf"), 1e300]),
    "s": st.none() | st.sampled_from(["a", "ab", "b", "", "c", "ä"]),
    "d": st.none() | st.decimals("-3", "3", places=2),
    "b": st.none() | st.booleans(),
    "big": st.none() | st.integers(4, 6) | st.just(2**63 - 1),
    "f": st.none() | st.floats(0, 1, width=32),
    "day": st.none() | st.dates(dt.date(2024, 1, 1), dt.date(2024, 1, 6)),
    "time": st.integers(0, 4_000_000).map(lambda n: AT + dt.timedelta(microseconds=n)),
})  # fmt: skip


@given(st.lists(predicates, min_size=1, max_size=6), st.lists(rows, min_size=1, max_size=12), st.sampled_from(list(CellLayout)))
@settings(max_examples=scale_examples(150), deadline=None)
def test_every_layout_assigns_rows_to_cells_of_the_predicates_that_hold(
    texts: list[str], found: list[dict[str, object]], layout: CellLayout
) -> None:
    wanted = [parse_predicate(text) for text in texts]
    index = build_index(wanted, layout)
    if layout is CellLayout.GRID and index.cell_count > 1 << 16:
        return
    batch = RowBatch(pa.Table.from_pylist(found, SCHEMA.to_arrow()), "time")
    tagged = CellAssigner(index).assign_cells(batch)
    matches = group_rows_by_predicate(tagged, range(len(index.predicates)))
    for number, one in enumerate(index.predicates):
        assert matches[number].tolist() == [i for i, row in enumerate(found) if evaluate(one, row) is True], str(one)


def test_predicates_on_equivalent_expressions_share_a_dimension() -> None:
    """x > 1.5 and CAST(x AS BIGINT) < 7 divide the same dimension as x = 3."""
    dims = derive_dimensions([parse_predicate("x > 1.5"), parse_predicate("CAST(x AS BIGINT) < 7"), parse_predicate("x = 3")])
    assert [str(d.expression) for d in dims] == ["x"]
    assert dims[0].boundaries == (2, 3, 4, 7)


def test_cells_of_no_query_are_not_covered() -> None:
    index = build_index([parse_predicate("x < 2"), parse_predicate("x > 5")], CellLayout.GRID)
    #            <2    2..5    >5    NULL
    assert compute_grid_spans(index).find_covered_cells().tolist() == [True, False, True, False]


def test_many_range_predicates_on_a_column_need_one_dimension() -> None:
    index = build_index([parse_predicate(f"x > {i}") for i in range(500)], CellLayout.GRID)
    assert len(index.dimensions) == 1
    assert index.cell_count == 502


@pytest.mark.parametrize(
    ("text", "spans"), [("x < 2", [(0, 1)]), ("x >= 2", [(1, 3)]), ("x <> 2", [(0, 1), (2, 3)]), ("x IS NULL", [(3, 4)])]
)
def test_spans_of_simple_predicates(text: str, spans: list[tuple[int, int]]) -> None:
    index = build_index([parse_predicate("x = 2"), parse_predicate(text)], CellLayout.GRID)
    assert compute_grid_spans(index).get_spans(len(index.predicates) - 1) == spans
