"""The search of a step without equalities: the pairs that satisfy the conditions, and no more compared together than apart."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.backends.reference.evaluate import evaluate
from headrace.engine.budgets import BudgetMeter
from headrace.engine.failures import QueryFailures
from headrace.engine.joins import index, nested_loops, pair_search
from headrace.engine.joins.bounds import find_bounds
from headrace.engine.joins.index import Candidates, RowIndexes
from headrace.engine.joins.joined_rows import ChunkedColumn, JoinedRows, JoinTable, TableSelection
from headrace.engine.joins.nested_loops import loop_over_pairs
from headrace.engine.joins.pair_search import PairSearch, StepUser, plan_search
from headrace.errors import EvaluationError, OperatorError
from headrace.model.budget import DEFAULT_BUDGET, QueryBudget
from headrace.model.expression import Expression, column_names, split_conjuncts
from headrace.model.stream import Stream
from headrace.plan.window_join import WindowJoinQuery
from headrace.sql.binder import bind_query
from headrace.sql.scope import Catalog
from support.band_conditions import draw_condition
from support.examples import scale_examples
from support.rows import BASE, SCHEMA

CATALOG = Catalog((Stream("a", SCHEMA, "time", 0), Stream("b", SCHEMA, "time", 0)))
INT, LONG = 2**31 - 1, 2**63 - 1
VALUES: dict[str, tuple[Any, ...]] = {
    "k": (0, 1, 2, 3, None),
    "x": (0, 1, 2, 3, 5, 5, 7, -3, 10, None, INT, -INT, -INT - 1, INT - 1),
    "f": (0, 1, 2, 1000, -5, None, LONG, LONG - 1, -LONG, -LONG - 1),
    "y": (0.0, -0.0, 0.1, 0.2, 0.3, 0.30000000000000004, 0.5, None, math.nan, math.inf, -math.inf, 1e308, -1e308, 1e16),
    "d": (Decimal("0.00"), Decimal("0.25"), Decimal("2.50"), Decimal("-99999999.99"), Decimal("99999999.99"), None),
    "s": ("a", "b", None),
    "b": (True, False, None),
    "day": (date(2024, 1, 1), date(2024, 1, 3), date(1, 1, 1), date(9999, 12, 31), None),
    "time": (*(BASE + timedelta(seconds=n) for n in (0, 1, 2, 5)), *(datetime(year, 1, 1, tzinfo=UTC) for year in (1, 9999))),
}  # fmt: skip
Row = dict[str, Any]


@pytest.fixture(autouse=True)
def _count_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the candidate pairs that a search visits."""

    def count_pairs(candidates: Candidates, *args: Any) -> Any:
        COMPARED[0] += candidates.pair_count
        return index.find_pairs(candidates, *args)

    def count_loops(probe: JoinedRows, evaluate: Any, build_sets: Any, users: Any, *args: Any) -> Any:
        COMPARED[0] += int((probe.sets & users).any(axis=1).sum()) * len(build_sets)
        return loop_over_pairs(probe, evaluate, build_sets, users, *args)

    monkeypatch.setattr(pair_search, "find_pairs", count_pairs)
    monkeypatch.setattr(pair_search, "loop_over_pairs", count_loops)


COMPARED = [0]


def bind_conditions(text: str) -> tuple[Expression, ...]:
    """Return the conjuncts of a condition between inputs a and b, with columns 0.c and 1.c."""
    plan = bind_query(f"SELECT a.k FROM TUMBLE(a, '1 second') a JOIN TUMBLE(b, '1 second') b ON {text}", CATALOG)
    assert isinstance(plan, WindowJoinQuery)
    assert not plan.tree.equalities
    return tuple(split_conjuncts(plan.tree.residual))


def draw_rows(random: Random, count: int, extreme: float) -> list[Row]:
    """Return rows in which about the share `extreme` of the values comes from all that may occur."""
    return [
        {name: random.choice(pool if random.random() < extreme else pool[:4]) for name, pool in VALUES.items()}
        | {"sets": random.choice((-1, -1, random.getrandbits(6)))}
        for _ in range(count)
    ]


def make_side(number: int, rows: Sequence[Row], every: int) -> JoinedRows:
    """Return rows as an input of a join; a row's queries are those of its `sets` among `every`."""
    columns = {f"{number}.{f.name}": ChunkedColumn([pa.array([row[f.name] for row in rows], f.type)]) for f in SCHEMA}
    sets = np.array([[row["sets"] & every] for row in rows], np.uint64).reshape(-1, 1)
    return JoinedRows([TableSelection(JoinTable(columns, len(rows)))], sets)


def search(
    queries: dict[int, tuple[Expression, ...]], sides: Sequence[Sequence[Row]], build: int, meter: BudgetMeter | None = None
) -> tuple[Counter[tuple[int, int, int]], int]:
    """Return the (row of a, row of b, query) that a search finds from the other side of `build`, and the pairs it compares."""
    every = sum(1 << bit for bit in queries)
    rows = [make_side(number, side, every) for number, side in enumerate(sides)]
    users = [StepUser(bit, bit, conditions) for bit, conditions in queries.items()]
    plan = plan_search(users, lambda name: name.startswith(f"{build}."), 1)
    meter = meter or BudgetMeter(DEFAULT_BUDGET, {}, QueryFailures())
    finder = PairSearch(plan, rows[1 - build], meter)
    indexes = RowIndexes(rows[build].evaluate, rows[build].row_count, {})
    found: Counter[tuple[int, int, int]] = Counter()
    COMPARED[0] = 0
    for pairs in finder.find_pairs(indexes, rows[build].sets):
        joined = rows[1 - build].pair_with(pairs.probe_ids, rows[build], pairs.build_ids, pairs.sets)
        joined.clear_failing(finder.checks)
        for probe_id, build_id, bits in zip(
            pairs.probe_ids.tolist(), pairs.build_ids.tolist(), pairs.sets[:, 0].tolist(), strict=True
        ):
            place = (build_id, probe_id) if build == 0 else (probe_id, build_id)
            found.update((*place, bit) for bit in queries if bits >> bit & 1)
    return found, COMPARED[0]


def holds(condition: Expression, row: Row) -> bool:
    try:
        return evaluate(condition, row) is True
    except EvaluationError:
        return False


def join_by_nested_loops(
    queries: dict[int, tuple[Expression, ...]], sides: Sequence[Sequence[Row]]
) -> Counter[tuple[int, int, int]]:
    found: Counter[tuple[int, int, int]] = Counter()
    for i, left in enumerate(sides[0]):
        for j, right in enumerate(sides[1]):
            row = {f"0.{name}": value for name, value in left.items()} | {f"1.{name}": value for name, value in right.items()}
            for bit, conditions in queries.items():
                if (left["sets"] & right["sets"]) >> bit & 1 and all(holds(condition, row) for condition in conditions):
                    found[i, j, bit] += 1
    return found


@given(st.integers(0, 2**32), st.integers(1, 6), st.sampled_from([0.0, 0.2, 1.0]), st.sampled_from([1, 16, 1 << 20]))
@settings(max_examples=scale_examples(500))
def test_queries_find_their_pairs_and_compare_no_more_together_than_apart(
    seed: int, count: int, extreme: float, room: int
) -> None:
    random = Random(seed)
    queries = {bit: bind_conditions(draw_condition(random, "a", "b")) for bit in range(count)}
    sides = [draw_rows(random, random.randint(1, 12), extreme) for _ in "ab"]
    expected = join_by_nested_loops(queries, sides)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_search, "MAX_RANGES", room)
        patch.setattr(index, "MAX_PAIRS", max(7, room // 4))
        patch.setattr(nested_loops, "BLOCK_PAIRS", max(2, room // 2))
        for build in (0, 1):
            found, compared = search(queries, sides, build)
            assert found == expected, [list(map(str, conditions)) for conditions in queries.values()]
            assert compared <= sum(search({bit: conditions}, sides, build)[1] for bit, conditions in queries.items())


SPELLINGS = [
    "a.x BETWEEN b.x - 1 AND b.x + 1",
    "b.x BETWEEN a.x - 1 AND a.x + 1",
    "a.x >= b.x - 1 AND a.x <= b.x + 1",
    "a.x + 1 >= b.x AND a.x - 1 <= b.x",
    "a.x - b.x <= 1 AND b.x - a.x <= 1",
    "a.x - b.x BETWEEN -1 AND 1",
    "abs(a.x - b.x) <= 1",
    "abs(b.x - a.x) < 2",
    "NOT (a.x > b.x + 1) AND NOT (a.x - b.x < -1)",
    "abs(a.f - b.x) <= 1",
    "a.f BETWEEN b.x - 1 AND b.x + 1",
    "abs(a.y - b.y) <= 1",
    "a.y BETWEEN b.y - 1 AND b.y + 1",
    "a.y BETWEEN b.x - 1 AND b.x + 1",
    "abs(a.d - b.d) <= 1",
    "a.d BETWEEN b.d - 1 AND b.d + 1.0",
    "a.d BETWEEN b.x - 1.0 AND b.x + 1.0",
    "a.time BETWEEN b.time - INTERVAL '1 second' AND b.time + INTERVAL '1 second'",
    "b.time <= a.time + INTERVAL '1 second' AND a.time - INTERVAL '1 second' <= b.time",
    "a.day BETWEEN b.day - 1 AND b.day + 1",
    "abs(datediff(a.day, b.day)) <= 1",
]


@pytest.mark.parametrize("build", [0, 1])
@pytest.mark.parametrize("text", SPELLINGS)
def test_every_spelling_of_a_band_compares_only_matches_from_both_sides(text: str, build: int) -> None:
    """The value of a row is its number; so a band of ±1 has 3 · 50 − 2 pairs, and no condition is left to evaluate."""
    rows = [
        dict.fromkeys(VALUES)
        | {"x": n, "f": n, "y": float(n), "d": Decimal(n), "day": BASE.date() + timedelta(n), "time": BASE + timedelta(seconds=n)}
        | {"sets": 1}
        for n in range(50)
    ]
    conditions = bind_conditions(text)
    found, compared = search({0: conditions}, [rows, rows], build)
    assert found == Counter((i, j, 0) for i in range(50) for j in range(50) if abs(i - j) <= 1)
    assert compared == 148
    stored = frozenset(name for condition in conditions for name in column_names(condition) if name.startswith(f"{build}."))
    for condition in conditions:
        bounds = find_bounds(condition, stored)
        assert len(bounds) == (2 if "abs" in text else 1)
        assert {column_names(bound.attribute) for bound in bounds} == {stored}  # the attribute, whatever the width


def number_rows(count: int) -> list[Row]:
    return [dict.fromkeys(VALUES) | {"x": n, "k": n, "sets": -1} for n in range(count)]


def test_bands_of_several_queries_are_searched_as_their_union() -> None:
    rows = number_rows(100)
    bands = {width: bind_conditions(f"abs(a.x - b.x) <= {width}") for width in range(1, 11)}
    found, compared = search(bands, [rows, rows], 1)
    assert compared == 21 * 100 - 10 * 11  # those of the widest band
    assert found == join_by_nested_loops(bands, [rows, rows])
    distant = {0: bind_conditions("abs(a.x - b.x) <= 1"), 1: bind_conditions("a.x - b.x BETWEEN 50 AND 51")}
    assert search(distant, [rows, rows], 0)[1] == 298 + 50 + 49  # nothing between the bands


def test_a_query_without_bounds_does_not_widen_the_search_of_others() -> None:
    rows = number_rows(40)
    queries = {0: bind_conditions("a.x <> b.x"), 1: bind_conditions("abs(a.x - b.x) <= 1"), 2: bind_conditions("a.k < b.k")}
    assert search(queries, [rows, rows], 1)[1] == 1600 + 118 + 780


def test_nested_loops_evaluate_one_condition_of_each_query_and_of_inequalities_the_other() -> None:
    different, product, text = (bind_conditions(text)[0] for text in ("a.x <> b.x", "a.x * b.x < 9", "a.s <> b.s"))
    band = bind_conditions("abs(a.k - b.k) <= 1")
    users = [
        StepUser(1, 1, (different, product)),
        StepUser(2, 2, (product, text)),
        StepUser(3, 3, (text,)),
        StepUser(4, 4, (*band, text)),
    ]
    plan = plan_search(users, lambda name: name.startswith("1."), 1)
    assert {condition: int(bits[0]) for condition, bits in plan.looped.items()} == {product: 0b110, text: 0b1100}
    assert {condition: int(bits[0]) for condition, bits in plan.conditions.items()} == {different: 0b10, text: 0b10000}


@pytest.mark.parametrize("block", [1, 7, 1 << 16])
def test_an_error_on_one_side_is_not_taken_for_null(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one side computes is computed once for a row, unless it overflows for one: COALESCE replaces NULL, but no error."""
    monkeypatch.setattr(nested_loops, "BLOCK_PAIRS", block)
    rows = [row | {"x": INT if n == 3 else n, "b": n % 2 == 0} for n, row in enumerate(number_rows(9))]
    for text in (
        "coalesce(a.x + 1, b.k) = 5",
        "coalesce(b.x + 1, a.k) <> 5",
        "CASE WHEN a.x < 3 THEN a.x + 1 = b.k ELSE b.b END",
    ):
        queries = {0: bind_conditions(text)}
        for build in (0, 1):
            assert search(queries, [rows, rows], build) == (join_by_nested_loops(queries, [rows, rows]), 81), text


def test_of_two_attributes_the_one_with_fewer_pairs_is_searched() -> None:
    rows = [row | {"k": 0} for row in number_rows(40)]
    queries = {0: bind_conditions("abs(a.x - b.x) <= 1 AND abs(a.k - b.k) <= 1")}
    assert search(queries, [rows, rows], 1)[1] == 118


def test_two_attributes_that_grow_together_are_searched_as_a_band() -> None:
    """Intervals of equal length, whose ends are two attributes; and intervals whose order of ends differs."""
    points = number_rows(40)
    intervals = [row | {"k": row["x"] + 2} for row in number_rows(40)]
    queries = {0: bind_conditions("a.x BETWEEN b.x AND b.k")}
    found, compared = search(queries, [points, intervals], 1)
    assert compared == len(found) == 3 * 40 - 3
    crossing = [row | {"k": 80 - row["x"]} for row in intervals]
    found, compared = search(queries, [points, crossing], 1)
    assert compared == 820
    assert found == join_by_nested_loops(queries, [points, crossing])


def test_the_budget_of_a_query_counts_the_pairs_of_its_own_range() -> None:
    rows = number_rows(40)
    queries = {0: bind_conditions("abs(a.x - b.x) <= 1"), 1: bind_conditions("abs(a.x - b.x) <= 9")}
    meter = BudgetMeter(QueryBudget(join_pairs=118), {}, QueryFailures())
    search({0: queries[0]}, [rows, rows], 1, meter)
    with pytest.raises(OperatorError, match="118 pairs") as raised:
        search(queries, [rows, rows], 1, BudgetMeter(QueryBudget(join_pairs=118), {}, QueryFailures()))
    assert raised.value.queries == (1,)


def test_conditions_that_cannot_be_solved_have_no_bounds() -> None:
    for text in (
        "a.x <> b.x",
        "a.s < b.s",
        "a.x * b.x < 3",
        "a.x < 3 OR b.x < 3",
        "abs(a.x - b.x) >= 2",
        "a.x < b.x + b.k * a.k",
    ):
        for condition in bind_conditions(text):
            for side in "01":
                stored = frozenset(name for name in column_names(condition) if name.startswith(f"{side}."))
                assert find_bounds(condition, stored) == (), text
