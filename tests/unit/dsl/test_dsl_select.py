"""Query builder: immutable values that render SQL, with names and literals quoted."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot.dialects.spark import Spark

import headrace as hr
from headrace.dsl.expression import literal
from headrace.errors import SqlError
from headrace.model.expression import Literal
from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.plan.logical import AggregateQuery, StatelessQuery
from headrace.plan.sliding_join import SlidingJoinQuery
from headrace.sql import Catalog, bind_query

COLUMNS = "a INT, b INT, c INT, name STRING, d DECIMAL(10,2), y DOUBLE, day DATE, ok BOOLEAN, time TIMESTAMP"
CATALOG = Catalog.of(Stream(name, Schema.parse(COLUMNS), "time") for name in ("r", "s", "t", "my stream", "order"))
JOIN = (
    hr.select("r.a", "t.c")
    .from_("r", hr.sliding("5 seconds"))
    .from_("s", hr.sliding("2 seconds", "1 second"))
    .from_("t", hr.sliding(timedelta(seconds=3)))
    .where("r.a = s.a")
    .where(hr.col("s.b") < hr.col("t.b"))
)


def assert_same_plan(query, text: str) -> None:
    assert bind_query(query.sql, CATALOG) == bind_query(text, CATALOG)


# ---------------------------------------------------------------------------------------------------------------------- queries


def test_a_sliding_join_renders_sql() -> None:
    assert_same_plan(
        JOIN,
        "SELECT r.a, t.c FROM SLIDING(r, '5 seconds') r, SLIDING(s, '2 seconds', '1 second') s, SLIDING(t, '3 seconds') t "
        "WHERE r.a = s.a AND s.b < t.b",
    )
    assert JOIN.sql == (
        "SELECT r.a, t.c\n"
        "FROM SLIDING(r, '5 seconds'), SLIDING(s, '2 seconds', '1 second'), SLIDING(t, INTERVAL '3000000' MICROSECONDS)\n"
        "WHERE (r.a = s.a) AND (s.b < t.b)"
    )


def test_the_order_of_calls_does_not_change_the_sql() -> None:
    calls = (
        lambda q: q.select("r.a"),
        lambda q: q.from_("r", hr.sliding("5 s")),
        lambda q: q.from_("r", hr.sliding("9 s"), alias="older"),
        lambda q: q.where(hr.col("r.a") == hr.col("older.a")),
        lambda q: q.where("r.b > 1", "older.b < 5"),
    )
    texts = set()
    for order in permutations(calls):
        query = hr.select()
        for call in order:
            query = call(query)
        texts.add(query.sql)
    (text,) = texts
    assert isinstance(bind_query(text, CATALOG), SlidingJoinQuery)


def test_a_query_is_an_immutable_value() -> None:
    base = hr.from_("r")
    narrower = base.where("a > 1")
    assert base.sql == "SELECT *\nFROM r"
    assert narrower == base.where("a > 1") != base
    assert hash(narrower) == hash(base.where("a > 1"))


def test_an_aggregation_equals_its_sql() -> None:
    query = (
        hr.select("window_start", "a", "SUM(b) AS total")
        .from_("r", hr.hop("8 seconds", timedelta(seconds=4)))
        .where(hr.col("c").between(1, 5))
        .group_by(hr.col("a"))
        .having("COUNT(*) > 3")
    )
    assert isinstance(bind_query(query.sql, CATALOG), AggregateQuery)
    assert_same_plan(
        query,
        "SELECT window_start, a, SUM(b) AS total FROM HOP(r, '8 seconds', '4 seconds') WHERE c BETWEEN 1 AND 5 "
        "GROUP BY a HAVING COUNT(*) > 3",
    )
    assert_same_plan(hr.select("MAX(b) AS m").from_("r", hr.tumble("1 minute")), "SELECT MAX(b) AS m FROM TUMBLE(r, '1 minute')")


def test_a_query_can_be_the_source_of_another_query() -> None:
    inner = hr.select("r.a", (hr.col("s.b") + 1).alias("n")).from_("r", hr.sliding("5 s")).from_("s", hr.sliding("5 s"))
    outer = hr.select("x.a").from_(inner.where("r.a = s.a"), alias="x").from_("t", hr.sliding("2 s")).where("x.n = t.b")
    assert_same_plan(
        outer, "SELECT r.a FROM SLIDING(r, '5 s') r, SLIDING(s, '5 s') s, SLIDING(t, '2 s') t WHERE r.a = s.a AND s.b + 1 = t.b"
    )
    some = hr.from_("r").where("a > 1")
    assert_same_plan(
        hr.select("some.b", "s.c").from_(some, hr.sliding("5 s"), alias="some").from_("s", hr.sliding("1 s")),
        "SELECT some.b, s.c FROM SLIDING((SELECT * FROM r WHERE a > 1), '5 s') some, SLIDING(s, '1 s') s",
    )
    assert_same_plan(
        hr.select("MAX(n) AS m").from_(hr.select("COUNT(*) AS n").from_("r", hr.tumble("1 s")), hr.tumble("1 minute")),
        "SELECT MAX(n) AS m FROM TUMBLE((SELECT COUNT(*) AS n FROM TUMBLE(r, '1 s')), '1 minute')",
    )


def test_errors_have_the_position_in_the_sql() -> None:
    with pytest.raises(SqlError, match="unknown column 'z'") as refusal:
        bind_query(hr.select("r.z").from_("r").sql, CATALOG)
    assert refusal.value.place == "line 1, column 8:\n  SELECT r.z\n         ^"
    with pytest.raises(SqlError, match="query reads no stream"):
        bind_query(hr.select("1 AS one").sql, CATALOG)
    with pytest.raises(SqlError, match="invalid duration 'soon'"):
        bind_query(hr.select("r.a").from_("r", hr.sliding("soon")).from_("s", hr.sliding("1 s")).sql, CATALOG)


def test_a_session_accepts_a_built_query() -> None:
    with hr.Session(backend="local") as session:
        rows = hr.MemorySource("a INT, time TIMESTAMP")
        session.create_stream("r", rows, time="time")
        query = hr.select("newer.a", hr.col("older.time").alias("before"))
        query = query.from_("r", hr.sliding("0 s"), alias="newer").from_("r", hr.sliding("9 s"), alias="older")
        added = session.add(query.where("newer.a = older.a", hr.col("older.time") < hr.col("newer.time")), name="again")
        assert added.sql.startswith("SELECT newer.a, older.`time` AS before\nFROM ")
        rows.append([{"a": a, "time": datetime(2024, 1, 1, 0, 0, s, tzinfo=UTC)} for a, s in ((1, 0), (2, 1), (1, 5), (1, 20))])
        session.advance()
        assert added.results().to_pylist() == [{"a": 1, "before": datetime(2024, 1, 1, tzinfo=UTC)}]
        with pytest.raises(hr.HeadraceError, match="query 'again' already exists"):
            session.add(query, name="again")


# ------------------------------------------------------------------------------------------------------------------ expressions

A, B, OK = hr.col("a"), hr.col("b"), hr.col("ok")


@pytest.mark.parametrize(
    ("built", "text"),
    [
        (A < 5, "a < 5"),
        (5 > A, "a < 5"),  # noqa: SIM300
        (A <= B, "a <= b"),
        (A >= -1, "a >= (-1)"),
        (A == B, "a = b"),
        (A != "x", "a <> 'x'"),
        (A == None, "a IS NULL"),  # noqa: E711
        (A != None, "a IS NOT NULL"),  # noqa: E711
        ((A < 5) & (B > 1) | ~OK, "((a < 5) AND (b > 1)) OR (NOT ok)"),
        (True & OK, "TRUE AND ok"),
        (False | OK, "FALSE OR ok"),
        ((A + 1) * 2 - B / A % 3, "((a + 1) * 2) - ((b / a) % 3)"),
        (1 + A, "1 + a"),
        (1 - A, "1 - a"),
        (2 * A, "2 * a"),
        (2 / A, "2 / a"),
        (2 % A, "2 % a"),
        (-A * -B, "(-a) * (-b)"),
        (A.between(1, B + 1), "a BETWEEN 1 AND (b + 1)"),
        (hr.col("name").like("a%"), "name LIKE 'a%'"),
        (hr.col("a.name").like(hr.col("b.name")), "a.name LIKE b.name"),
        (A.is_in(1, 2, B), "a IN (1, 2, b)"),
        (A.is_null(), "a IS NULL"),
        (A.is_not_null() == OK, "(a IS NOT NULL) = ok"),
        ((A + 1).alias("n"), "a + 1 AS n"),
        (A.alias("group"), "a AS `group`"),
        (hr.col("time") - timedelta(seconds=2), "`time` - INTERVAL '2000000' MICROSECONDS"),
    ],
)
def test_expressions_render_sql(built, text: str) -> None:
    assert str(built) == built.sql == text


def test_conditions_equal_their_sql() -> None:
    query = hr.select("a").from_("r").where((A + 1) * 2 - B > 3, ~(OK & (A % 2 == 1)), hr.col("time") > datetime(2024, 1, 1))  # noqa: DTZ001
    assert_same_plan(
        query, "SELECT a FROM r WHERE (a + 1) * 2 - b > 3 AND NOT (ok AND a % 2 = 1) AND time > TIMESTAMP '2024-01-01'"
    )


def test_expressions_have_no_truth_value_or_hash() -> None:
    for evaluate in (lambda: bool(A < 1), lambda: A < 1 and B < 1, lambda: 1 < A < 5, lambda: not A, lambda: A in [B, 1]):
        with pytest.raises(SqlError, match=r"an expression has no truth value in Python\nhint: use &, \| and ~"):
            evaluate()
    with pytest.raises(TypeError, match="unhashable"):
        hash(A)


# ------------------------------------------------------------------------------------------------------------ names and literals


def bind_literal(value: object) -> object:
    """Bind a query with a literal and return the value of the literal."""
    plan = bind_query(hr.select(literal(value).alias("v")).from_("r").sql, CATALOG)
    assert isinstance(plan, StatelessQuery)
    (output,) = plan.branches[0].outputs
    assert isinstance(output, Literal), output
    return output.value


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12))
def test_string_literals_are_preserved(text: str) -> None:
    assert bind_literal(text) == text


@pytest.mark.parametrize(
    "text", ["it's", "\\", "\\'", "a\\nb", "a\nb", "''", "`", '"', "%", "-- no comment", "/* x", "é\u2028", "{0}"]
)
def test_strings_with_special_characters_are_preserved(text: str) -> None:
    assert bind_literal(text) == text


@given(st.integers(-(2**63), 2**63 - 1))
def test_integer_literals_are_preserved(number: int) -> None:
    assert bind_literal(number) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_float_literals_are_preserved(number: float) -> None:
    """Floats are bound as decimals or doubles, depending on their notation; beyond the range of decimals, as doubles."""
    assert float(bind_literal(number)) == number  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True),
        (Decimal("-12.50"), Decimal("-12.50")),
        (np.int32(7), 7),
        (date(2024, 2, 29), date(2024, 2, 29)),
        (datetime(2024, 1, 1, 12, 30, 0, 5), datetime(2024, 1, 1, 12, 30, 0, 5, tzinfo=UTC)),  # noqa: DTZ001
        (datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))), datetime(2023, 12, 31, 23, tzinfo=UTC)),
    ],
)
def test_typed_literals_are_preserved(value: object, expected: object) -> None:
    bound_value = bind_literal(value)
    if isinstance(expected, datetime) and isinstance(bound_value, int):
        bound_value = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=bound_value)
    assert bound_value == expected


@pytest.mark.parametrize(
    ("value", "text"), [(None, "NULL"), (math.inf, "CAST('inf' AS DOUBLE)"), (math.nan, "CAST('nan' AS DOUBLE)")]
)
def test_null_infinity_and_nan_render_as_sql(value: object, text: str) -> None:
    assert literal(value).sql == text
    bind_query(hr.select("a").from_("r").where(hr.col("y") < literal(value)).sql, CATALOG)


@pytest.mark.parametrize("value", [object(), [1], b"x", Decimal("NaN"), {}])
def test_values_without_an_sql_form_are_refused(value: object) -> None:
    with pytest.raises(SqlError, match="cannot be written in SQL"):
        A == value  # noqa: B015, SIM300


KEYWORDS = sorted({word for keyword in Spark.Tokenizer.KEYWORDS for word in keyword.split() if word.isidentifier()})
ODD = ["a b", "a.b", "`", "1a", "é", "window", "window_start", "select", "x``y", "a-b", "'", '"', "*"]


def test_any_name_is_quoted_as_column_stream_and_alias() -> None:
    for name in (*KEYWORDS, *map(str.lower, KEYWORDS), *ODD):
        catalog = Catalog.of([Stream(name, Schema((*Schema.parse("x INT").fields, *Schema.parse("z TIMESTAMP").fields)), "z")])
        query = hr.select(hr.col(name, "x").alias(name)).from_(name).where(hr.col(name, "x") > 1)
        assert bind_query(query.sql, catalog).schema.names == (name,), query.sql
        if name.lower() == "window":  # in joins, window.x refers to the window
            continue
        join = hr.select(hr.col(name, "x")).from_(name, hr.sliding("1 s")).from_(name, hr.sliding("2 s"), alias="other_one")
        assert isinstance(bind_query(join.sql, catalog), SlidingJoinQuery)


def test_names_with_dots_are_passed_as_parts() -> None:
    assert hr.col("s.b").sql == "s.b"
    assert hr.col("my stream.b").sql == "`my stream`.b"
    assert hr.col("s", "b.c").sql == "s.`b.c`"
    assert (hr.call("abs", hr.col("b")) * 2).sql == "abs(b) * 2"  # calls and names need no parentheses


# ----------------------------------------------------------------------------------------------------------- builder and flow


def test_builder_and_flow_make_the_same_statement() -> None:
    flow = hr.stream("r").filter(A > 1).window(hr.tumble("1 s")).group_by("c").agg(n=hr.count(), m=hr.max("b"))
    query = hr.select("window_start", "window_end", "c", hr.count().alias("n"), hr.max("b").alias("m"))
    query = query.group_by("c").where(A > 1).from_("r", hr.tumble("1 s"))
    assert query.statement == flow.statement
    assert query.sql == flow.sql


def test_the_builder_sorts_conditions_and_the_flow_keeps_their_order() -> None:
    assert hr.from_("r").where("b > 1").where("a > 1").sql == "SELECT *\nFROM r\nWHERE (a > 1) AND (b > 1)"
    assert hr.stream("r").filter("b > 1").filter("a > 1").sql == "SELECT *\nFROM r\nWHERE (b > 1) AND (a > 1)"
    assert hr.from_("r").where("b > 1").where("a > 1") == hr.from_("r").where("a > 1", "b > 1")


def test_a_flow_can_be_the_source_of_a_built_query() -> None:
    flow = hr.stream("r").filter("a > 1")
    query = hr.select("x.b").from_(flow, hr.tumble("1 s"), alias="x").join(flow, hr.tumble("1 s"), on="a", alias="y")
    filtered = "TUMBLE((SELECT * FROM r WHERE a > 1), '1 s')"
    assert_same_plan(query, f"SELECT x.b FROM {filtered} x JOIN {filtered} y USING (a)")
    with pytest.raises(SqlError, match="a flow in windows is not a query yet"):
        hr.from_(flow.window(hr.tumble("1 s")))
