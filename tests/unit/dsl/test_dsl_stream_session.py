"""Invalid flows, and flows in a session."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import headrace as hr
from headrace.errors import SqlError

COLUMNS = "user_id INT, gem_pack INT, price DOUBLE, name STRING, `order` INT, time TIMESTAMP"
HOP = hr.hop("8 seconds", "4 seconds")
TUMBLE = hr.tumble("5 seconds")
ROWS = hr.stream("purchases")
ADS = hr.stream("ads").window(TUMBLE)
JOINED = ROWS.window(TUMBLE).join(ADS, "user_id")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ROWS.agg(n=hr.count()), "an aggregation over a stream needs a window\nhint: call window"),
        (lambda: ROWS.window(TUMBLE).agg(), "agg needs an aggregate\nhint: write agg"),
        (lambda: ROWS.window(TUMBLE).sql, "a flow in windows is not a query yet\nhint: call agg"),
        (
            lambda: ROWS.window(TUMBLE).window(HOP),
            r"a window over a window is not supported\ndetail: the flow is in TUMBLE\(5 seconds\)",
        ),
        (lambda: ROWS.window("5 seconds"), r"'5 seconds' is not a window\nhint: write window\(hr.tumble"),
        (lambda: hr.tumble("soon"), "invalid duration 'soon'\nhint: write a number and a unit"),
        (lambda: hr.tumble(5), "invalid window length 5"),
        (lambda: ROWS.having("price > 1"), "having needs an aggregation before it"),
        (ROWS.select, "select needs at least one column"),
        (ROWS.map, "map needs a column to add"),
        (lambda: ROWS.window(TUMBLE).group_by("user_id").sql, "grouped rows have no 'sql'\nhint: aggregate each group"),
        (lambda: ROWS.window(TUMBLE).group_by("user_id").filter("price > 1"), "grouped rows have no 'filter'"),
        (lambda: ROWS.window(hr.sliding("5 s")).agg(n=hr.count()), "rows in SLIDING windows cannot be aggregated"),
        (lambda: ROWS.join(hr.stream("ads").window(TUMBLE), "user_id"), "a join needs windows, and 'purchases' has none"),
        (lambda: ROWS.window(TUMBLE).join(hr.stream("ads"), "user_id"), "a join needs windows, and 'ads' has none"),
        (lambda: ROWS.window(TUMBLE).join("ads", "user_id"), "join needs a flow, not 'ads'\nhint: join with another flow"),
        (lambda: ROWS.window(TUMBLE).join(ROWS.window(TUMBLE), "user_id"), "two sides of the join have the name 'purchases'"),
        (
            lambda: ROWS.window(TUMBLE).join(hr.stream("ads").window(TUMBLE), "user_id", how="outer"),
            "unknown kind of join 'outer'",
        ),
        (lambda: ROWS.window(TUMBLE).join(hr.stream("ads").window(TUMBLE), []), r"invalid join condition \[\]"),
        (
            lambda: ROWS.window(hr.sliding("1 s")).join(hr.stream("ads").window(TUMBLE), "user_id"),
            "either all sides of a join are in SLIDING windows, or none is\ndetail: on the left SLIDING; on the right TUMBLE",
        ),
        (lambda: ROWS.add("x"), "this flow belongs to no session\nhint: begin with session.stream"),
        (lambda: JOINED.window(TUMBLE), "joined rows are in windows already"),
        (lambda: JOINED.alias("x"), "joined rows cannot have an alias"),
        (lambda: hr.stream("order").window(TUMBLE).join(JOINED, "user_id"), "the other side of a join is a join itself"),
        (
            lambda: JOINED.filter("ads.price > 1").join(hr.stream("order").window(TUMBLE), "user_id", how="full"),
            "joined rows cannot be filtered before a full join",
        ),
    ],
)
def test_invalid_flows_are_refused_when_built(build, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        build()


def test_grouped_rows_have_no_unknown_attributes() -> None:
    grouped = ROWS.window(TUMBLE).group_by("user_id")
    assert not hasattr(grouped, "nothing_of_the_kind")


def test_flows_are_displayed() -> None:
    assert repr(ROWS.filter("price < 3")) == "<StreamFlow: SELECT *\nFROM purchases\nWHERE (price < 3)>"
    assert repr(ROWS.window(HOP)) == "<StreamFlow in HOP(8 seconds, 4 seconds): SELECT *\nFROM purchases>"
    assert ROWS.filter("price < 3")._repr_html_() == "<pre>SELECT *\nFROM purchases\nWHERE (price &lt; 3)</pre>"


# ------------------------------------------------------------------------------------------------------------------- in a session


@pytest.fixture
def session():
    with hr.Session(backend="local") as opened:
        opened.source = hr.MemorySource(COLUMNS)
        opened.create_stream("purchases", opened.source, time="time")
        opened.create_stream("ads", hr.MemorySource(COLUMNS), time="time")
        yield opened


def make_time(second: int) -> datetime:
    return datetime(2024, 1, 1, 0, 0, second, tzinfo=UTC)


def test_a_flow_and_its_sql_share_an_operator_and_have_equal_results(session) -> None:
    flow = session.stream("purchases").filter(hr.col("price") > 10).window(HOP).group_by("gem_pack")
    fluent = flow.agg(revenue=hr.sum("price")).add("fluent")
    text = session.add(
        "SELECT window_start, window_end, gem_pack, SUM(price) AS revenue FROM HOP(purchases, '8 seconds', '4 seconds') "
        "WHERE price > 10 GROUP BY gem_pack",
        name="text",
    )
    session.source.append([{"gem_pack": n % 2, "price": float(n), "time": make_time(n)} for n in range(30)])
    session.drain()
    assert fluent.results().num_rows > 4
    assert fluent.results().equals(text.results())
    (line,) = [line for line in session.explain().splitlines() if "queries" in line and "fluent" in line]
    assert "text" in line


def test_a_flow_without_a_session_can_be_added(session) -> None:
    query = session.add(hr.stream("purchases").filter("price > 10").select("price"), name="large")
    session.source.append([{"price": 5.0, "time": make_time(0)}, {"price": 15.0, "time": make_time(1)}])
    session.advance()
    assert query.results().to_pylist() == [{"price": 15.0}]
    assert query.sql == "SELECT price\nFROM purchases\nWHERE (price > 10)"


def test_flows_of_a_session_check_every_step(session) -> None:
    rows = session.stream("purchases")
    with pytest.raises(SqlError, match=r"unknown stream 'purchase'\n.*\n.*\n.*\n.*\nhint: did you mean 'purchases'"):
        session.stream("purchase")
    with pytest.raises(SqlError, match="unknown column 'prise'"):
        rows.filter(hr.col("prise") > 10)
    with pytest.raises(SqlError, match="unknown column 'prise'"):
        rows.window(TUMBLE).filter(hr.col("prise") > 10)
    with pytest.raises(SqlError, match="unknown column 'prise'"):
        rows.map(x=hr.col("prise") * 2)
    with pytest.raises(SqlError, match="aggregate 'SUM' needs a number, not STRING"):
        rows.window(TUMBLE).agg(x=hr.sum("name"))
    with pytest.raises(SqlError, match="column 'price' is neither grouped nor aggregated"):
        rows.window(TUMBLE).group_by("user_id").agg(x="price")
    with pytest.raises(SqlError, match="unknown column 'x'"):
        rows.window(TUMBLE).agg(n=hr.count()).having("x > 1")
    joined = rows.window(TUMBLE).join(hr.stream("ads").window(TUMBLE), "user_id")
    with pytest.raises(SqlError, match="column 'price' is ambiguous"):
        joined.filter("price > 1")
    with pytest.raises(SqlError, match="column 'size' of USING is not on both sides"):
        rows.window(TUMBLE).join(hr.stream("ads").window(TUMBLE), "size")
