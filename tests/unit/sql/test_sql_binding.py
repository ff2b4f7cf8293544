"""Bound plans of queries: SQL text and the logical plan rendered as text."""

# ruff: noqa: E501 – a table reads best with one case a line

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pyarrow as pa
import pytest

from headrace.errors import SchemaError
from headrace.model.aggregate import AggregateCall
from headrace.model.expression import TRUE, Call, Column, Literal
from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.model.window import HopWindow
from headrace.plan.logical import (
    WINDOW_START,
    AggregateBranch,
    AggregateQuery,
    LogicalQuery,
    SelectBranch,
    StatelessQuery,
    agg_column,
    key_column,
)
from headrace.sql import Catalog

Bind = Callable[[str], LogicalQuery]


def render(query: LogicalQuery) -> str:
    """Return the plan as text, one clause a line."""
    lines = []
    if isinstance(query, AggregateQuery):
        lines.append(str(query.window))
    for branch in query.branches:
        parts = branch.outputs if isinstance(branch, SelectBranch) else (*branch.keys, *branch.aggregates)
        where = "" if branch.predicate == TRUE else f" where {branch.predicate}"
        lines.append(f"{branch.stream}: {'; '.join(map(str, parts))}{where}")
    if isinstance(query, AggregateQuery):
        lines.append(f"-> {'; '.join(map(str, query.output))}{'' if query.having == TRUE else f' having {query.having}'}")
    return "\n".join([*lines, query.schema.to_ddl().replace("`", "")])


def test_a_windowed_aggregation_binds_to_an_aggregate_query(bind: Bind) -> None:
    price, pack = Column("price", pa.float64()), Column("gem_pack", pa.int32())
    assert bind(
        "SELECT window_start, gem_pack, SUM(price) AS revenue FROM HOP(purchases, '8 seconds', '4 seconds') "
        "WHERE price > 10 GROUP BY gem_pack HAVING revenue > 5"
    ) == AggregateQuery(
        HopWindow(8_000_000, 4_000_000),
        (
            AggregateBranch(
                "purchases",
                (pack,),
                (AggregateCall("sum", (price,), pa.float64()),),
                Call("gt", (price, Literal(10.0, pa.float64())), pa.bool_()),
            ),
        ),
        (WINDOW_START, key_column(0, pa.int32()), agg_column(0, pa.float64())),
        Schema.parse("window_start TIMESTAMP, gem_pack INT, revenue DOUBLE"),
        Call("gt", (agg_column(0, pa.float64()), Literal(5.0, pa.float64())), pa.bool_()),
    )


def test_a_projection_binds_to_a_stateless_query(bind: Bind) -> None:
    price = Column("price", pa.float64())
    double = Call("mul", (price, Literal(2.0, pa.float64())), pa.float64())
    assert bind("SELECT user_id, price * 2 AS double_price FROM purchases") == StatelessQuery(
        (SelectBranch("purchases", (Column("user_id", pa.int32()), double)),), Schema.parse("user_id INT, double_price DOUBLE")
    )


STATELESS = {
    "SELECT * FROM ads": "ads: user_id; ad_id; price; ts\nuser_id BIGINT, ad_id INT, price INT, ts TIMESTAMP",
    "SELECT a.* FROM ads AS a WHERE a.price > 3": (
        "ads: user_id; ad_id; price; ts where price > 3\nuser_id BIGINT, ad_id INT, price INT, ts TIMESTAMP"
    ),
    "SELECT Price AS p FROM PURCHASES": "purchases: price\np DOUBLE",
    "SELECT u FROM (SELECT user_id + 1 AS u, price FROM purchases WHERE ok) t WHERE t.price < 2 AND u > 5": (
        "purchases: user_id + 1 where (ok AND (price < 2.0)) AND ((user_id + 1) > 5)\nu INT"
    ),
    "SELECT v FROM (SELECT user_id FROM purchases) AS t(v)": "purchases: user_id\nv INT",
    "WITH x AS (SELECT user_id u, price p FROM purchases WHERE ok), y(a) AS (SELECT u FROM x WHERE p > 1) SELECT a FROM y": (
        "purchases: user_id where ok AND (price > 1.0)\na INT"
    ),
    "SELECT user_id, price FROM purchases UNION ALL SELECT user_id, price FROM ads WHERE ad_id = 1": (
        "purchases: CAST(user_id AS int64); price\nads: user_id; CAST(price AS double) where ad_id = 1\nuser_id BIGINT, price DOUBLE"
    ),
    "SELECT x + 1 AS y FROM (SELECT user_id AS x FROM purchases UNION ALL (SELECT ad_id FROM ads UNION ALL SELECT a FROM `my stream`))": (
        "purchases: user_id + 1\nads: ad_id + 1\nmy stream: a + 1\ny INT"
    ),
    "SELECT sqrt(user_id), 'a', 'it''s' AS s FROM purchases": "purchases: sqrt(CAST(user_id AS double)); 'a'; 'it's'\nsqrt(user_id) DOUBLE, a STRING, s STRING",
    "(SELECT price FROM purchases WHERE 1 = 1)": "purchases: price\nprice DOUBLE",
    "SELECT 'window(' AS w, `time` AS window FROM purchases": "purchases: 'window('; time\nw STRING, window TIMESTAMP",
}  # fmt: skip


@pytest.mark.parametrize(("text", "plan"), STATELESS.items())
def test_stateless_queries(bind: Bind, text: str, plan: str) -> None:
    assert render(bind(text)) == plan


AGGREGATIONS = {
    "SELECT COUNT(*) AS c, COUNT(1) AS d, AVG(price) - 1 AS a, AVG(price) AS b FROM TUMBLE(purchases, '5 s')": """
        TUMBLE(5 s)
        purchases: count(*); avg(price)
        -> agg0; agg0; agg1 - 1.0; agg1
        c BIGINT, d BIGINT, a DOUBLE, b DOUBLE""",
    "SELECT gem_pack % 3 AS g, max(price) FROM TUMBLE(purchases, '5 s') GROUP BY g HAVING gem_pack % 3 > 0 OR max(price) > 1": """
        TUMBLE(5 s)
        purchases: gem_pack % 3; max(price)
        -> key0; agg0 having (key0 > 0) OR (agg0 > 1.0)
        g INT, max(price) DOUBLE""",
    "SELECT gem_pack + 1, gem_pack + 1 + 2 AS h, count(*) AS c FROM TUMBLE(purchases, '5 s') GROUP BY 1": """
        TUMBLE(5 s)
        purchases: gem_pack + 1; count(*)
        -> key0; key0 + 2; agg0
        (gem_pack + 1) INT, h INT, c BIGINT""",
    "SELECT name, hour(window_start) AS h, min(d) AS m FROM TUMBLE(purchases, '5 s') GROUP BY ALL": """
        TUMBLE(5 s)
        purchases: name; min(d)
        -> key0; hour(window_start); agg0
        name STRING, h INT, m DATE""",
    "SELECT name FROM TUMBLE(purchases, '5 s') GROUP BY window_start, window_end, name, name": """
        TUMBLE(5 s)
        purchases: name
        -> key0
        name STRING""",
    "SELECT count_if(price > 3) AS a, sum(big) FILTER (WHERE ok) AS b, count(*) FILTER (WHERE ok) AS c FROM TUMBLE(purchases, '5 s')": """
        TUMBLE(5 s)
        purchases: count(case(price > 3.0, 1, NULL)); sum(case(ok, big, NULL)); count(case(ok, 1, NULL))
        -> agg0; agg1; agg2
        a BIGINT, b BIGINT, c BIGINT""",
    "SELECT median(big) AS a, percentile(big, 0.5) AS b, percentile_cont(0.5) WITHIN GROUP (ORDER BY big) AS c, "
    "percentile_approx(big, 0.9, 100) AS e, percentile_disc(0.9) WITHIN GROUP (ORDER BY big) AS g FROM TUMBLE(purchases, '5 s')": """
        TUMBLE(5 s)
        purchases: percentile(CAST(big AS double), 0.5); percentile_disc(big, 0.9)
        -> agg0; agg0; agg0; agg1; agg1
        a DOUBLE, b DOUBLE, c DOUBLE, e BIGINT, g BIGINT""",
    "SELECT count(DISTINCT user_id, name) AS a, approx_count_distinct(name) AS b, stddev(cost) AS c, variance(big) AS e "
    "FROM TUMBLE(purchases, '5 s')": """
        TUMBLE(5 s)
        purchases: count_distinct(user_id, name); count_distinct(name); stddev_samp(CAST(cost AS double)); var_samp(CAST(big AS double))
        -> agg0; agg1; agg2; agg3
        a BIGINT, b BIGINT, c DOUBLE, e DOUBLE""",
    "SELECT u, sum(p) AS s FROM TUMBLE((SELECT user_id AS u, price AS p FROM purchases WHERE ok UNION ALL SELECT user_id, price "
    "FROM ads), '5 s') WHERE p > 1 GROUP BY u": """
        TUMBLE(5 s)
        purchases: CAST(user_id AS int64); sum(price) where ok AND (price > 1.0)
        ads: user_id; sum(CAST(price AS double)) where CAST(price AS double) > 1.0
        -> key0; agg0
        u BIGINT, s DOUBLE""",
    "SELECT a, count(*) AS c FROM TUMBLE(`my stream`, '5 s') GROUP BY a": """
        TUMBLE(5 s)
        my stream: a; count(*)
        -> key0; agg0
        a INT, c BIGINT""",
    "SELECT t.u, count(*) AS c FROM (SELECT user_id u, time AS moment FROM purchases WHERE ok) t "
    "GROUP BY t.u, window(t.moment, '5 s')": """
        TUMBLE(5 s)
        purchases: user_id; count(*) where ok
        -> key0; agg0
        u INT, c BIGINT""",
    "SELECT sum(price) AS price FROM TUMBLE(purchases, '5 s') HAVING price > 1 AND sum(price) < 9": """
        TUMBLE(5 s)
        purchases: sum(price)
        -> agg0 having (agg0 > 1.0) AND (agg0 < 9.0)
        price DOUBLE""",
}  # fmt: skip


@pytest.mark.parametrize(("text", "plan"), AGGREGATIONS.items())
def test_aggregations(bind: Bind, text: str, plan: str) -> None:
    assert render(bind(text)) == dedent(plan).strip()


WINDOWS = {
    "TUMBLE(5 s)": (
        "SELECT window_start AS s, name, count(*) AS c FROM TUMBLE(purchases, '5 seconds') GROUP BY name",
        "SELECT window_start AS s, name, count(*) AS c FROM TUMBLE(purchases, INTERVAL '5' SECONDS) GROUP BY name, window_start",
        "SELECT window.start AS s, name, count(*) AS c FROM TUMBLE(purchases, INTERVAL 5 SECONDS) AS p GROUP BY p.name, 1",
        "SELECT window.start AS s, name, count(*) AS c FROM purchases GROUP BY window(time, '5 seconds'), name",
        "SELECT window(time, '5 s').start AS s, name, count(*) AS c FROM purchases GROUP BY name, window(time, '5 s', '5 s', '0 s')",
    ),
    "HOP(8 s, 4 s)": (
        "SELECT window_end AS e, count(*) AS c FROM HOP(purchases, '8 seconds', '4 seconds')",
        "SELECT window.end AS e, count(*) AS c FROM HOP((SELECT * FROM purchases), INTERVAL 8 SECONDS, INTERVAL 4 SECONDS)",
        "SELECT window.end AS e, count(*) AS c FROM purchases GROUP BY window(time, '8 seconds', '4 seconds')",
        "SELECT WINDOW.END AS e, COUNT(*) AS c FROM purchases p GROUP BY WINDOW (p.time, INTERVAL 8 SECONDS, '4 s')",
    ),
    "SESSION(90 s)": (
        "SELECT window_start AS s, count(*) AS c FROM SESSION(purchases, '90 s')",
        "SELECT session_window.start AS s, count(*) AS c FROM SESSION (purchases, '1 minute 30 seconds')",
        "SELECT session_window.start AS s, count(*) AS c FROM purchases GROUP BY session_window(time, '90 s')",
        "SELECT session_window(time, '90 s').start AS s, count(*) AS c FROM purchases GROUP BY session_window(time, '90 s')",
    ),
}


@pytest.mark.parametrize(("window", "spellings"), WINDOWS.items())
def test_equivalent_window_spellings_bind_to_the_same_plan(bind: Bind, window: str, spellings: tuple[str, ...]) -> None:
    plans = [bind(text) for text in spellings]
    assert all(isinstance(plan, AggregateQuery) and str(plan.window) == window for plan in plans)
    assert all(plan == plans[0] for plan in plans)


def test_unaliased_window_bounds_are_named_as_in_spark(bind: Bind) -> None:
    query = bind("SELECT window.start, window.end, count(*) FROM purchases GROUP BY window(time, '5 s')")
    assert query.schema.names == ("start", "end", "count(1)")


def test_unaliased_casts_are_named_as_in_spark(bind: Bind) -> None:
    query = bind("SELECT CAST(price AS INT), TRY_CAST(price AS DECIMAL(5, 2)) FROM purchases")
    assert query.schema.names == ("CAST(price AS INT)", "TRY_CAST(price AS DECIMAL(5,2))")


def test_a_catalog_ignores_case_and_refuses_duplicate_names() -> None:
    stream = Stream("S", Schema.parse("time TIMESTAMP"), "time")
    assert Catalog.of([stream]).find_stream("s") is stream
    assert Catalog.of([stream]).find_stream("t") is None
    with pytest.raises(SchemaError, match="declared twice"):
        Catalog.of([stream, Stream("s", stream.schema, "time")])
