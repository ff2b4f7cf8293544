"""Sliding joins: equivalent spellings bind to the same plan; unsupported queries are refused."""

# ruff: noqa: E501 – a query reads best on one line

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from random import Random

import pytest

import headrace as hr
from headrace.errors import SqlError
from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.plan.logical import LogicalQuery
from headrace.plan.sliding_join import MAX_SLIDING_JOIN_INPUTS, SlidingInput, SlidingJoinQuery
from headrace.sql import Catalog, bind_query
from support.examples import scale_examples
from support.rows import SCHEMA
from support.sliding_queries import Side, SlidingJoin, draw_join

Bind = Callable[[str], LogicalQuery]
SECOND = 1_000_000
STREAMS = Catalog.of(Stream(name, SCHEMA, "time") for name in ("alpha", "beta"))
RST = Catalog.of(Stream(name, Schema.parse("a INT, b INT, c INT, time TIMESTAMP"), "time") for name in "rst")
P, A = "SLIDING(purchases, '5 s') p", "SLIDING(ads, '5 s') a"


def bind_join(text: str, catalog: Catalog = STREAMS) -> SlidingJoinQuery:
    plan = bind_query(text, catalog)
    assert isinstance(plan, SlidingJoinQuery)
    return plan


# --------------------------------------------------------------------------------------------------- equivalent spellings


def shuffle_join(join: SlidingJoin, random: Random) -> SlidingJoin:
    """Return the join with its inputs in random order, each condition at the last input it refers to."""
    sides = random.sample(join.sides, len(join.sides))
    position = {side.name: number for number, side in enumerate(sides)}
    by_side: list[list[str]] = [[] for _ in sides]
    for condition in random.sample(join.all_conditions, len(join.all_conditions)):
        by_side[max(position[name] for name in re.findall(r"\bt\d\b", condition))].append(condition)
    return replace(join, sides=tuple(sides), conditions=tuple(tuple(conditions) or ("TRUE",) for conditions in by_side))


def write_nested_join(join: SlidingJoin, random: Random, cte: bool) -> str:
    """Return the join as SQL with its first inputs in a sub-query."""
    join = shuffle_join(join, random)
    size = random.randint(1, len(join.sides) - 1)
    inner, outer = join.sides[:size], join.sides[size:]
    columns = ", ".join(f"{side.name}.{column.name} AS {side.name}_{column.name}" for side in inner for column in SCHEMA)
    conditions = " AND ".join(condition for group in join.conditions[:size] for condition in group)
    sub = f"SELECT {columns} FROM {', '.join(side.text for side in inner)} WHERE {conditions}"
    rest = " AND ".join(condition for group in join.conditions[size:] for condition in group)
    text = f"SELECT {join.selected} FROM {{0}}, {', '.join(side.text for side in outer)} WHERE {rest}"
    for side in inner:
        text = re.sub(rf"\b{side.name}\.", f"x.{side.name}_", text)
    return f"WITH x AS ({sub}) {text.format('x')}" if cte else text.format(f"({sub}) AS x")


def build_join(join: SlidingJoin, random: Random) -> str:
    """Return the join as SQL written by the query builder, with calls in random order."""
    outputs = [f"{value} AS c{number}" for number, value in enumerate(join.outputs)]
    calls: list[Callable[[object], object]] = [lambda q, s=side: _add_input(q, s) for side in join.sides]
    calls += [lambda q, c=condition: q.where(c) for condition in join.all_conditions]
    calls += [lambda q: q.select(*outputs)]
    query = hr.select()
    for call in random.sample(calls, len(calls)):
        query = call(query)
    return query.sql


def _add_input(query, side: Side):
    lengths = [_parse_length(text) for text in side.lengths]
    source = side.stream if side.predicate is None else hr.from_(side.stream).where(side.predicate)
    return query.from_(source, hr.sliding(*lengths), alias=side.name)


def _parse_length(text: str) -> str:
    if text == "UNBOUNDED":
        return text
    number, unit = re.search(r"(\d+)'?\s*(\w+)", text).groups()
    return f"{number} {unit}"


@pytest.mark.parametrize("seed", range(scale_examples(150)))
def test_the_order_of_inputs_conditions_and_calls_does_not_change_the_plan(seed: int) -> None:
    random = Random(seed)
    join = draw_join(random)
    plan = bind_join(join.to_join_sql())
    for _ in range(3):
        other = shuffle_join(join, random)
        for text in (
            other.to_join_sql(),
            join.to_list_sql(random),
            build_join(join, random),
            write_nested_join(join, random, False),
            write_nested_join(join, random, True),
        ):
            assert bind_join(text) == plan, text


@pytest.mark.parametrize(
    "conditions",
    [
        "t0.k = t1.k AND t1.k = t2.k AND t2.k = t3.k",
        "t0.k = t1.k AND t1.k = t2.k AND t2.k = t3.k AND t3.k = t0.k",
        "t0.k < t1.k AND t1.k < t2.k AND t2.k < t3.k",
        "t0.k = t1.x AND t2.k = t3.x",
        "t0.k = t1.k AND t0.k = t2.k AND t0.x = t3.x",
        "TRUE",
        "t0.k + t1.k = t2.x AND t3.s = t0.s",
    ],
)
def test_identical_inputs_are_ordered_by_conditions_and_outputs(conditions: str) -> None:
    """Four inputs with the same stream and window differ only in conditions and outputs."""
    plans = set()
    for order in permutations(range(4)):
        sides = ", ".join(f"SLIDING(alpha, '5 s') t{number}" for number in order)
        plans.add(bind_join(f"SELECT t1.s AS one, t3.x AS two FROM {sides} WHERE {conditions}"))
    assert len(plans) == 1


def test_the_maximum_number_of_identical_inputs_binds() -> None:
    names = [f"t{number}" for number in range(MAX_SLIDING_JOIN_INPUTS)]
    sides = ", ".join(f"SLIDING(alpha, '5 s') {name}" for name in names)
    for condition in ("TRUE", " AND ".join(f"t0.k = {name}.k" for name in names[1:])):
        assert len(bind_join(f"SELECT t0.s FROM {sides} WHERE {condition}").inputs) == MAX_SLIDING_JOIN_INPUTS


def test_different_windows_or_conditions_bind_to_different_plans() -> None:
    def plan(first: str = "'5 s'", condition: str = "x.k = y.k") -> SlidingJoinQuery:
        return bind_join(f"SELECT x.s FROM SLIDING(alpha, {first}) x, SLIDING(alpha, '2 s') y WHERE {condition}")

    assert plan() != plan("'3 s'")
    assert plan() != plan("'5 s', '1 s'")
    assert plan(condition="x.k < y.k") != plan(condition="x.k > y.k")
    assert plan(condition="x.k < y.k") == plan(condition="y.k > x.k")


# ------------------------------------------------------------------------------------------------------------ bound plans


def test_conditions_are_split_into_input_predicates_and_join_conditions() -> None:
    plan = bind_join(
        "SELECT r.a, t.c FROM SLIDING(r, '5 seconds') r, SLIDING(s, INTERVAL 2 SECONDS, '1 second') s, SLIDING((SELECT a AS z, b, c, time FROM t WHERE c > 1), '0 s') t "
        "WHERE r.a = s.a AND s.b < t.b AND r.b = 7 AND t.z IS NOT NULL AND r.c + s.c > t.c",
        RST,
    )
    assert [(item.stream, item.length, item.lateness) for item in plan.inputs] == [
        ("r", 5 * SECOND, 0),
        ("s", 2 * SECOND, SECOND),
        ("t", 0, 0),
    ]
    assert [str(item.predicate) for item in plan.inputs] == ["b = 7", "True", "NOT a IS NULL AND (c > 1)"]
    assert [str(item) for item in plan.conditions] == ["(0.c + 1.c) > 2.c", "0.a = 1.a", "1.b < 2.b"]
    assert (plan.schema.names, [str(item) for item in plan.output]) == (("a", "c"), ["0.a", "2.c"])


def test_using_outputs_one_column_and_star_lists_this_column_first() -> None:
    plan = bind_join(
        "SELECT * FROM SLIDING(r, '5 s') JOIN SLIDING((SELECT b AS other, a, time AS at FROM s), '5 s') x USING (a)", RST
    )
    assert plan.schema.names == ("a", "b", "c", "time", "other", "at")
    assert [str(condition) for condition in plan.conditions] == ["0.a = 1.a"]


def test_nested_joins_bind_to_one_join() -> None:
    flat = bind_join(
        "SELECT r.a + 1 AS n, t.c FROM SLIDING(r, '5 s') r, SLIDING(s, '2 s') s, SLIDING(t, '3 s') t WHERE r.a = s.a AND s.b + 1 = t.b",
        RST,
    )
    inner = "SELECT r.a + 1 AS n, s.b + 1 AS m FROM SLIDING(r, '5 s') r JOIN SLIDING(s, '2 s') s ON r.a = s.a"
    for text in (
        f"SELECT x.n, t.c FROM ({inner}) x JOIN SLIDING(t, '3 s') t ON x.m = t.b",
        f"SELECT x.n, c FROM ({inner}) AS x (n, u), SLIDING(t, '3 s') t WHERE u = b",
        f"WITH x AS ({inner}) SELECT x.n, t.c FROM SLIDING(t, '3 s') t JOIN x ON x.m = t.b",
        f"WITH x AS ({inner}), y AS (SELECT x.n, t.c FROM x, SLIDING(t, '3 s') t WHERE x.m = t.b) SELECT n, c FROM y",
        f"SELECT * FROM (SELECT x.n, t.c FROM ({inner}) x JOIN SLIDING(t, '3 s') t ON x.m = t.b) z",
    ):
        assert bind_join(text, RST) == flat


def test_a_cte_can_be_joined_with_itself() -> None:
    plan = bind_join(
        "WITH x AS (SELECT r.a, s.b FROM SLIDING(r, '5 s') r, SLIDING(s, '5 s') s WHERE r.a = s.a) SELECT one.a FROM x one JOIN x two ON one.b = two.b",
        RST,
    )
    assert [side.stream for side in plan.inputs] == ["r", "r", "s", "s"]
    assert plan.inputs[0] == SlidingInput("r", 5 * SECOND)


# --------------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (f"SELECT p.price FROM {P} LEFT SEMI JOIN {A} ON p.user_id = a.user_id", "a SEMI JOIN of SLIDING windows is not supported"),
        (f"SELECT p.price FROM {P} LEFT JOIN {A} ON p.user_id = a.user_id, {A.replace(' a', ' c')}", "an outer or anti join of SLIDING windows joins two streams"),
        (f"SELECT a.cost FROM {P} LEFT ANTI JOIN {A} ON p.user_id = a.user_id", "unknown table 'a'"),
        (f"SELECT p.price FROM {P} JOIN TUMBLE(ads, '5 s') a ON p.user_id = a.user_id", "either all sides of a join are in SLIDING windows, or none is"),
        (f"SELECT p.price FROM TUMBLE(purchases, '5 s') p JOIN {A} ON p.user_id = a.user_id", "either all sides of a join are in SLIDING windows, or none is"),
        (f"SELECT p.price FROM {P} JOIN ads a ON p.user_id = a.user_id", "either all sides of a join are in SLIDING windows, or none is"),
        (f"SELECT COUNT(*) AS n FROM {P} JOIN {A} ON p.user_id = a.user_id", "rows joined in SLIDING windows cannot be aggregated"),
        (f"SELECT p.price FROM {P} JOIN {A} ON p.user_id = a.user_id GROUP BY p.price", "rows joined in SLIDING windows cannot be aggregated"),
        ("WITH x AS (SELECT price, time FROM SLIDING(purchases, '5 s')) SELECT MAX(price) AS m FROM TUMBLE(x, '5 s')", "'x' is in a SLIDING window, and cannot be read here"),
        (f"SELECT p.price FROM {P}", "SLIDING windows are for joins, and there is nothing to join here"),
        ("SELECT COUNT(*) AS n FROM SLIDING(purchases, '5 s')", "rows joined in SLIDING windows cannot be aggregated"),
        (f"SELECT p.price FROM {P}, SLIDING(ads, '5 s') p WHERE p.user_id = 1", "this side of the join repeats the name 'p' of an earlier side"),
        (f"SELECT p.price FROM {P}, SLIDING((SELECT * FROM ads), '5 s') WHERE p.user_id = 1", "this side of the join has no name"),
        (f"SELECT p.price FROM {P}, {A} WHERE p.user = a.user_id", "unknown column 'user'"),
        (f"SELECT p.price FROM {P}, {A} WHERE p.user_id = b.user_id", "unknown table 'b'"),
        (f"SELECT price FROM {P}, {A} WHERE p.user_id = a.user_id", "column 'price' is ambiguous"),
        (f"SELECT p.price FROM {P} JOIN {A} USING (ad_id)", "column 'ad_id' of USING is not on both sides"),
        (f"SELECT p.price FROM {P}, {A} WHERE p.name = a.user_id", "cannot compare STRING with BIGINT"),
        (f"SELECT p.price FROM {P}, {A} WHERE p.price + a.price", "WHERE needs a BOOLEAN, not DOUBLE"),
        (f"SELECT p.price, a.price FROM {P}, {A}", "output name 'price' is used twice"),
        (f"SELECT window_end, p.price FROM {P}, {A}", "'window_end' cannot be used in SELECT of a join in SLIDING windows"),
        (f"SELECT DISTINCT p.price FROM {P}, {A}", "DISTINCT is not supported"),
        (f"SELECT p.price FROM {P}, {A} ORDER BY p.price", "ORDER BY is not supported"),
        (f"SELECT p.price FROM {P}, SLIDING(ads, '-5 s') a", "invalid duration '-5 s'"),
        (f"SELECT p.price FROM {P}, SLIDING(ads, INTERVAL -5 SECONDS) a", "window 'SLIDING' needs lengths that are not negative"),
        (f"SELECT p.price FROM {P}, SLIDING(ads, 'soon') a", "invalid duration 'soon'"),
        (f"SELECT p.price FROM {P}, SLIDING(ads, 5) a", "the length of a window must be a constant"),
        (f"SELECT p.price FROM {P}, SLIDING(ads) a", "window 'SLIDING' has the wrong number of arguments"),
        (f"SELECT p.price FROM {P}, SLIDING(ads, '1 s', '1 s', '1 s') a", "window 'SLIDING' has the wrong number of arguments"),
        (f"SELECT p.price FROM {P}, SLIDING() a", "a window needs a stream"),
        (f"SELECT p.price FROM {P}, SLIDING(adds, '5 s') a", "unknown stream 'adds'"),
        (f"SELECT p.price FROM {P}, SLIDING((SELECT user_id, ts + INTERVAL 1 SECOND AS ts FROM ads), '5 s') a", "a window must be over event time, which for stream 'ads' is column 'ts'"),
        (f"SELECT p.price FROM {P}, SLIDING((SELECT COUNT(*) AS n FROM TUMBLE(ads, '5 s')), '5 s') a", "results of windows cannot be joined in SLIDING windows"),
        (f"SELECT p.price FROM {P}, SLIDING((SELECT * FROM TUMBLE(ads, '5 s')), '5 s') a", "a window over a window is not supported"),
        ("SELECT t0.a FROM " + ", ".join(f"SLIDING(`my stream`, '5 s') t{n}" for n in range(MAX_SLIDING_JOIN_INPUTS + 1)), f"a join of more than {MAX_SLIDING_JOIN_INPUTS} streams is not supported"),
    ],
)  # fmt: skip
def test_unsupported_sliding_joins_are_refused(bind: Bind, query: str, message: str) -> None:
    with pytest.raises(SqlError) as refusal:
        bind(query)
    assert message in refusal.value.message
    assert refusal.value.place
