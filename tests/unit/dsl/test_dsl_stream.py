"""Flows: chains of steps that give the same plan as the SQL written by hand."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import SqlError
from headrace.model.aggregate import AGGREGATE_FUNCTIONS as CALLS
from headrace.model.stream import Stream
from headrace.model.types import Schema
from headrace.plan.derived import NestedQuery
from headrace.plan.logical import AggregateQuery, StatelessQuery
from headrace.plan.sliding_join import SlidingJoinQuery
from headrace.plan.window_join import WindowJoinQuery
from headrace.sql import Catalog, bind_query
from headrace.sql.aggregate_functions import AGGREGATES

COLUMNS = "user_id INT, gem_pack INT, price DOUBLE, name STRING, `order` INT, time TIMESTAMP"
CATALOG = Catalog.of(Stream(name, Schema.parse(COLUMNS), "time") for name in ("purchases", "ads", "order"))
HOP = hr.hop("8 seconds", "4 seconds")
TUMBLE = hr.tumble("5 seconds")


def bind_flow(flow):
    return bind_query(flow.sql, CATALOG)


def assert_same_plan(flow, text: str):
    bound = bind_flow(flow)
    assert bound == bind_query(text, CATALOG)
    return bound


# ---------------------------------------------------------------------------------------------------------------------- the steps


def test_a_windowed_aggregation_equals_its_sql() -> None:
    flow = (
        hr.stream("purchases")
        .filter(hr.col("price") > 10)
        .window(hr.hop("8 seconds", "4 seconds"))
        .group_by("gem_pack")
        .agg(revenue=hr.sum("price"))
    )
    bound = assert_same_plan(
        flow,
        "SELECT window_start, window_end, gem_pack, SUM(price) AS revenue FROM HOP(purchases, '8 seconds', '4 seconds') "
        "WHERE price > 10 GROUP BY gem_pack",
    )
    assert isinstance(bound, AggregateQuery)
    assert flow.sql == (
        "SELECT window_start, window_end, gem_pack, SUM(price) AS revenue\n"
        "FROM HOP(purchases, '8 seconds', '4 seconds')\n"
        "WHERE (price > 10)\n"
        "GROUP BY gem_pack"
    )


def test_a_flow_is_an_immutable_value() -> None:
    base = hr.stream("purchases").filter("price > 10")
    assert base == hr.stream("purchases").filter("price > 10") != hr.stream("purchases")
    assert hash(base) == hash(hr.stream("purchases").filter("price > 10"))
    assert_same_plan(base, "SELECT * FROM purchases WHERE price > 10")
    assert_same_plan(base.filter("user_id = 1"), "SELECT * FROM purchases WHERE price > 10 AND user_id = 1")
    assert_same_plan(
        base.window(TUMBLE).agg(n=hr.count()).select("n"), "SELECT COUNT(*) AS n FROM TUMBLE(purchases, '5 s') WHERE price > 10"
    )
    assert_same_plan(base, "SELECT * FROM purchases WHERE price > 10")


def test_conditions_and_keys_keep_their_order() -> None:
    flow = hr.stream("purchases").filter("user_id > 2", "gem_pack > 1").window(TUMBLE).filter(hr.col("price").is_not_null())
    assert_same_plan(
        flow.group_by("user_id", "gem_pack").agg(n=hr.count()),
        "SELECT window_start, window_end, user_id, gem_pack, COUNT(*) AS n FROM TUMBLE(purchases, '5 s') "
        "WHERE user_id > 2 AND gem_pack > 1 AND price IS NOT NULL GROUP BY user_id, gem_pack",
    )
    assert_same_plan(
        flow.group_by("user_id").group_by("gem_pack").agg(n=hr.count()),
        "SELECT window_start, window_end, user_id, gem_pack, COUNT(*) AS n FROM TUMBLE(purchases, '5 s') "
        "WHERE user_id > 2 AND gem_pack > 1 AND price IS NOT NULL GROUP BY user_id, gem_pack",
    )


def test_a_step_uses_the_columns_of_the_previous_step() -> None:
    flow = hr.stream("purchases").select("user_id", "time", twice=hr.col("price") * 2).filter(hr.col("twice") > 10)
    assert_same_plan(flow, "SELECT user_id, time, price * 2 AS twice FROM purchases WHERE price * 2 > 10")
    assert_same_plan(flow.select(n="twice + 1"), "SELECT price * 2 + 1 AS n FROM purchases WHERE price * 2 > 10")
    with pytest.raises(SqlError, match="unknown column 'price'"):
        bind_flow(flow.filter("price > 1"))


def test_map_adds_columns() -> None:
    flow = hr.stream("purchases").map(twice=hr.col("price") * 2, big=hr.col("price") > 100)
    assert_same_plan(flow, "SELECT *, price * 2 AS twice, price > 100 AS big FROM purchases")
    assert_same_plan(
        flow.window(TUMBLE).filter("big").group_by("user_id").agg(hr.max("twice").alias("most")),
        "SELECT window_start, window_end, user_id, MAX(price * 2) AS most FROM TUMBLE(purchases, '5 s') "
        "WHERE price > 100 GROUP BY user_id",
    )
    with pytest.raises(SqlError, match="output name 'price' is used twice"):
        bind_flow(hr.stream("purchases").map(price=hr.col("price") * 2))


@pytest.mark.parametrize("early", [True, False])
def test_a_projection_may_come_before_or_after_the_window(early: bool) -> None:
    rows = hr.stream("purchases").window(TUMBLE) if not early else hr.stream("purchases")
    rows = rows.select("user_id", cents=hr.col("price") * 100)
    assert_same_plan(
        (rows.window(TUMBLE) if early else rows).agg(total=hr.sum("cents")),
        "SELECT window_start, window_end, SUM(price * 100) AS total FROM TUMBLE(purchases, '5 s')",
    )


def test_group_keys_can_be_expressions_and_sql_keywords() -> None:
    assert_same_plan(
        hr.stream("order").window(TUMBLE).group_by("order", tens=hr.col("user_id") % 10).agg(n=hr.count("order")),
        "SELECT window_start, window_end, `order`, user_id % 10 AS tens, COUNT(`order`) AS n FROM TUMBLE(`order`, '5 s') "
        "GROUP BY `order`, user_id % 10",
    )


def test_session_windows() -> None:
    assert_same_plan(
        hr.stream("purchases").window(hr.session_window("9 seconds")).group_by("user_id").agg(n=hr.count()),
        "SELECT window_start, window_end, user_id, COUNT(*) AS n FROM SESSION(purchases, '9 seconds') GROUP BY user_id",
    )


def test_filter_after_an_aggregation_equals_having() -> None:
    flow = hr.stream("purchases").window(TUMBLE).group_by("user_id").agg(total=hr.sum("price"))
    text = (
        "SELECT window_start, window_end, user_id, SUM(price) AS total FROM TUMBLE(purchases, '5 s') GROUP BY user_id "
        "HAVING SUM(price) > 9 AND user_id < 5"
    )
    for written in (flow.having("total > 9", "user_id < 5"), flow.having(hr.sum("price") > 9).having(hr.col("user_id") < 5)):
        assert_same_plan(written, text)
        assert written.sql.startswith("SELECT window_start, window_end, user_id, SUM(price) AS total\nFROM TUMBLE")
    assert_same_plan(flow.filter(hr.col("total") > 9).filter("user_id < 5"), text)
    assert_same_plan(
        flow.having(hr.count() > 3).select("total"),
        "SELECT SUM(price) AS total FROM TUMBLE(purchases, '5 s') GROUP BY user_id HAVING COUNT(*) > 3",
    )


def test_windows_over_the_results_of_windows() -> None:
    sold = hr.stream("purchases").window(HOP).group_by("gem_pack").agg(sold=hr.count())
    nested = bind_flow(sold.window(hr.tumble("1 minute")).agg(most=hr.max("sold")))
    assert isinstance(nested, NestedQuery)
    assert nested == bind_query(
        "SELECT window.start AS window_start, window.end AS window_end, MAX(sold) AS most FROM TUMBLE((SELECT window_start, "
        "window_end, gem_pack, COUNT(*) AS sold FROM HOP(purchases, '8 s', '4 s') GROUP BY gem_pack), '1 minute')",
        CATALOG,
    )
    best = bind_flow(sold.agg(best=hr.max("sold")))
    assert isinstance(best, NestedQuery)
    assert best.schema.names == ("window_start", "window_end", "best")
    most = sold.agg(best=hr.max("sold")).alias("b")
    assert bind_flow(sold.join(most, hr.col("purchases.sold") == hr.col("b.best")).select("gem_pack")).schema.names == (
        "gem_pack",
    )


# -------------------------------------------------------------------------------------------------------------------------- joins


def test_a_join_on_common_columns() -> None:
    flow = hr.stream("purchases").window(HOP).join(hr.stream("ads").window(HOP), "user_id")
    text = "FROM HOP(purchases, '8 s', '4 s') JOIN HOP(ads, '8 s', '4 s') USING (user_id)"
    bound = assert_same_plan(
        flow.select("user_id", "purchases.price", cost="ads.price"), f"SELECT user_id, purchases.price, ads.price AS cost {text}"
    )
    assert isinstance(bound, WindowJoinQuery)
    assert_same_plan(
        flow.filter("ads.price < purchases.price").group_by("ads.gem_pack").agg(n=hr.count()),
        f"SELECT window_start, window_end, ads.gem_pack, COUNT(*) AS n {text} WHERE ads.price < purchases.price "
        "GROUP BY ads.gem_pack",
    )
    two_columns = hr.stream("purchases").window(HOP).join(hr.stream("ads").window(HOP), ["user_id", "gem_pack"])
    assert_same_plan(two_columns.select("user_id"), f"SELECT user_id {text[:-1]}, gem_pack)")


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_a_join_on_a_condition(how: str) -> None:
    ads = hr.stream("ads").filter("price > 1").alias("a").window(TUMBLE)
    flow = hr.stream("purchases").window(TUMBLE).alias("p").join(ads, hr.col("p.user_id") == hr.col("a.user_id"), how=how)
    assert_same_plan(
        flow.select("p.price", cost=hr.col("a.price")),
        f"SELECT p.price, a.price AS cost FROM TUMBLE(purchases, '5 s') p {how} JOIN TUMBLE((SELECT * FROM ads WHERE price > 1), "
        "'5 s') a ON p.user_id = a.user_id",
    )


@pytest.mark.parametrize("how", ["semi", "anti"])
def test_semi_and_anti_joins(how: str) -> None:
    flow = hr.stream("purchases").window(TUMBLE).join(hr.stream("ads").window(TUMBLE), "purchases.user_id = ads.user_id", how=how)
    assert_same_plan(
        flow, f"SELECT * FROM TUMBLE(purchases, '5 s') LEFT {how} JOIN TUMBLE(ads, '5 s') ON purchases.user_id = ads.user_id"
    )


def test_sliding_joins_of_three_inputs_and_self_joins() -> None:
    newer, older = (
        hr.stream("purchases").alias(name).window(hr.sliding(size)) for name, size in (("newer", "0 s"), ("older", "9 s"))
    )
    flow = newer.join(older, "newer.user_id = older.user_id").join(hr.stream("ads").window(hr.sliding("1 s")), on=True)
    bound = assert_same_plan(
        flow.filter("older.time < newer.time").select("newer.user_id", before="older.time"),
        "SELECT newer.user_id, older.time AS before FROM SLIDING(purchases, '0 s') newer, SLIDING(purchases, '9 s') older, "
        "SLIDING(ads, '1 s') ads WHERE newer.user_id = older.user_id AND older.time < newer.time",
    )
    assert isinstance(bound, SlidingJoinQuery)


def test_windows_over_the_results_of_a_join() -> None:
    joined = (
        hr.stream("purchases").window(HOP).join(hr.stream("ads").window(HOP), "user_id").select("user_id", paid="purchases.price")
    )
    nested = bind_flow(joined.filter("paid > 3").window(hr.tumble("8 s")).group_by("user_id").agg(n=hr.count()))
    assert isinstance(nested, NestedQuery)
    assert nested.schema.names == ("window_start", "window_end", "user_id", "n")


def test_selected_columns_of_a_join_are_grouped_within_their_windows_and_those_of_a_stream_need_a_window() -> None:
    joined = hr.stream("purchases").window(TUMBLE).join(hr.stream("ads").window(TUMBLE), "user_id").select(paid="purchases.price")
    nested = bind_flow(joined.group_by().agg(most=hr.max("paid")))
    assert isinstance(nested, NestedQuery)
    assert nested.schema.names == ("window_start", "window_end", "most")
    with pytest.raises(SqlError, match="an aggregation over a stream needs a window"):
        hr.stream("purchases").select("price").group_by().agg(most=hr.max("price"))


# --------------------------------------------------------------------------------------------------------------------- aggregates


@pytest.mark.parametrize(
    ("built", "text"),
    [
        (hr.sum("price"), "SUM(price)"),
        (hr.sum("price * 2"), "SUM(price * 2)"),
        (hr.sum(hr.col("price") + 1), "SUM(price + 1)"),
        (hr.count(), "COUNT(*)"),
        (hr.count("order"), "COUNT(`order`)"),
        (hr.count(where=hr.col("price") > 1), "COUNT(*) FILTER (WHERE price > 1)"),
        (hr.count_distinct("user_id", "name"), "COUNT(DISTINCT user_id, name)"),
        (hr.count_if("price > 1"), "COUNT_IF(price > 1)"),
        (hr.min("name"), "MIN(name)"),
        (hr.max("price", where="user_id = 1"), "MAX(price) FILTER (WHERE user_id = 1)"),
        (hr.avg("price"), "AVG(price)"),
        (hr.var_pop("price"), "VAR_POP(price)"),
        (hr.var_samp("price"), "VAR_SAMP(price)"),
        (hr.stddev_pop("price"), "STDDEV_POP(price)"),
        (hr.stddev_samp("price"), "STDDEV_SAMP(price)"),
        (hr.median("price"), "MEDIAN(price)"),
        (hr.percentile("price", 0.9), "PERCENTILE(price, 0.9)"),
        (hr.percentile_disc("price", 0.9), "PERCENTILE_DISC(0.9) WITHIN GROUP (ORDER BY price)"),
        (hr.max("price") - hr.min("price"), "MAX(price) - MIN(price)"),
        (hr.call("approx_percentile", "price", 0.5), "approx_percentile(price, 0.5)"),
    ],
)
def test_aggregates(built, text: str) -> None:
    assert built.sql == text
    assert_same_plan(
        hr.stream("purchases").window(TUMBLE).agg(x=built),
        f"SELECT window_start, window_end, {text} AS x FROM TUMBLE(purchases, '5 s')",
    )


def test_every_sql_aggregate_is_available() -> None:
    assert all(hasattr(hr, name) for name in CALLS)
    for name in sorted(set(AGGREGATES) - {"percentile_cont", "percentile_disc"}):
        args = ("price", 0.5) if "percentile" in name else ("price > 1",) if name == "count_if" else ("price",)
        bind_flow(hr.stream("purchases").window(TUMBLE).agg(x=hr.call(name, *args)))


def test_calls_literals_and_casts() -> None:
    assert_same_plan(
        hr.stream("purchases").select(
            a=hr.call("upper", "name"), b=hr.call("left", "name", 2), c=hr.col("price").cast("INT"), d=hr.literal("x"), e=1
        ),
        "SELECT upper(name) AS a, left(name, 2) AS b, CAST(price AS INT) AS c, 'x' AS d, 1 AS e FROM purchases",
    )
    with pytest.raises(SqlError, match=r"invalid function name 'a b'"):
        hr.call("a b", "x")


# --------------------------------------------------------------------------------------------------------------------- properties

NUMBERS = st.sampled_from(["user_id", "gem_pack", "price"])
CONDITIONS = st.builds(
    lambda name, sign, value: (hr.col(name) > value if sign == ">" else hr.col(name) <= value, f"{name} {sign} {value}"),
    NUMBERS,
    st.sampled_from([">", "<="]),
    st.integers(0, 99),
)
WINDOWS = st.one_of(
    st.integers(1, 9).map(lambda s: (hr.tumble(f"{s} s"), f"TUMBLE({{}}, '{s} s')")),
    st.tuples(st.integers(1, 9), st.integers(1, 9)).map(
        lambda s: (hr.hop(timedelta(seconds=s[0]), f"{s[1]} s"), f"HOP({{}}, '{s[0]} s', '{s[1]} s')")
    ),
    st.integers(1, 9).map(lambda s: (hr.session_window(f"{s} s"), f"SESSION({{}}, '{s} s')")),
)
AGGREGATED = st.one_of(
    NUMBERS.map(lambda name: (hr.sum(name), f"SUM({name})")),
    NUMBERS.map(lambda name: (hr.max(name, where=hr.col(name) < 50), f"MAX({name}) FILTER (WHERE {name} < 50)")),
    st.just((hr.count(), "COUNT(*)")),
)


@given(
    before=st.lists(CONDITIONS, max_size=3),
    within=st.lists(CONDITIONS, max_size=2),
    after=st.lists(st.integers(0, 9), max_size=2),
    window=WINDOWS,
    keys=st.lists(NUMBERS, unique=True, max_size=2),
    aggregates=st.lists(AGGREGATED, min_size=1, max_size=3),
    first=st.booleans(),
)
def test_random_flows_equal_their_sql(before, within, after, window, keys, aggregates, first) -> None:
    """Conditions before, within and after a window in any order give the plan of the SQL written by hand."""
    flow = hr.stream("purchases")
    flow = flow.window(window[0]) if first else flow
    for built, _ in before:
        flow = flow.filter(built)
    flow = flow if first else flow.window(window[0])
    for built, _ in within:
        flow = flow.filter(built)
    flow = flow.group_by(*keys).agg(**{f"x{n}": built for n, (built, _) in enumerate(aggregates)})
    for limit in after:
        flow = flow.filter(hr.col("x0") > limit)
    where = " AND ".join(text for _, text in (*before, *within))
    having = " AND ".join(f"{aggregates[0][1]} > {limit}" for limit in after)
    outputs = ["window_start", "window_end", *keys, *(f"{text} AS x{n}" for n, (_, text) in enumerate(aggregates))]
    text = f"SELECT {', '.join(outputs)} FROM {window[1].format('purchases')}"
    text += f" WHERE {where}" if where else ""
    text += f" GROUP BY {', '.join(keys)}" if keys else ""
    text += f" HAVING {having}" if having else ""
    assert_same_plan(flow, text)


@given(steps=st.lists(st.one_of(CONDITIONS, NUMBERS), max_size=6))
def test_random_projections_equal_their_sql(steps) -> None:
    """Each `map` adds a column for all later steps; the SQL has nested sub-queries instead."""
    flow, text = hr.stream("purchases"), "purchases"
    for number, step in enumerate(steps):
        if isinstance(step, str):
            flow, text = (
                flow.map(**{f"x{number}": hr.col(step) + number}),
                f"(SELECT *, {step} + {number} AS x{number} FROM {text})",
            )
        else:
            flow, text = flow.filter(step[0]), f"(SELECT * FROM {text} WHERE {step[1]})"
    assert isinstance(assert_same_plan(flow, f"SELECT * FROM {text}"), StatelessQuery)
