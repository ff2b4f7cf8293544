"""Benchmark queries in all dialects: headrace binds them, other dialects parse, and DuckDB matches the reference backend."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from functools import cache

import duckdb
import pyarrow as pa
import pytest
import sqlglot

import headrace as hr
from headrace.bench.driver import nexmark
from headrace.bench.driver.streams import STREAM_SCHEMAS
from headrace.bench.queries import dialects
from headrace.bench.queries.aggregations import FieldAggregations, PurchaseAggregations
from headrace.bench.queries.nexmark import HighestBidQueries, HotCategoryQueries, NexmarkAggregations
from headrace.bench.queries.profit import ProfitQueries
from headrace.bench.queries.query import AggregationShape, BenchAggregate, BenchQuery, ColumnComparison, build_window_aggregation
from headrace.bench.queries.sets import QUERY_GENERATORS, HandwrittenQuery, make_query_generator, options_of
from headrace.bench.queries.window_joins import ComplexQueries, FieldJoins, PatternJoins, PurchaseAdJoins
from headrace.connectors import generate
from headrace.errors import HeadraceError
from headrace.model.stream import Stream
from headrace.sql import Catalog, bind_query
from support.compare import assert_same_rows

TOTAL = BenchAggregate("SUM", "f1", "total", integer=True)
AGGREGATIONS = (
    PurchaseAggregations(),
    FieldAggregations(),
    FieldAggregations(divisible=True),
    ProfitQueries(),
    NexmarkAggregations(),
)
JOINS = (PurchaseAdJoins(), FieldJoins(), PatternJoins(ways=3), ComplexQueries(), HighestBidQueries(), HotCategoryQueries())
NAMED = {"a": "fields", "b": "fields", **{f"r{number}": "fields" for number in range(1, 11)}}
CATALOG = Catalog.of(
    Stream(name, STREAM_SCHEMAS[generator], "time", 0)
    for name, generator in {**{schema_name: schema_name for schema_name in STREAM_SCHEMAS}, **NAMED}.items()
)
every_set = pytest.mark.parametrize("query_set", [*AGGREGATIONS, *JOINS], ids=lambda query_set: type(query_set).__name__)


def test_a_windowed_aggregation_in_all_dialects():
    query = build_window_aggregation("q", "s", ["key"], [TOTAL], ColumnComparison("f2", "<=", 17), 8_000_000, 4_000_000)
    assert query.sql == {
        "headrace": "SELECT window_start, window_end, key, SUM(f1) AS total FROM HOP(s, '8 seconds', '4 seconds') "
        "WHERE f2 <= 17 GROUP BY key",
        "spark": "SELECT window.start AS window_start, window.end AS window_end, key, SUM(f1) AS total FROM s "
        "WHERE f2 <= 17 GROUP BY key, window(time, '8 seconds', '4 seconds')",
        "flink": "SELECT window_end, `key`, SUM(CAST(`f1` AS BIGINT)) AS `total` FROM TABLE(HOP(TABLE `s`, DESCRIPTOR(`time`), "
        "INTERVAL '4' SECOND, INTERVAL '8' SECOND)) WHERE `f2` <= 17 GROUP BY window_start, window_end, `key`",
        "duckdb": 'SELECT ? AS window_end, "key", CAST(SUM("f1") AS BIGINT) AS "total" FROM "s" WHERE "f2" <= 17 GROUP BY "key"',
    }


def test_a_window_as_long_as_its_slide_is_a_tumble_window():
    query = build_window_aggregation("q", "s", [], [BenchAggregate("COUNT", None, "n")], None, 250_000, 250_000)
    assert "TUMBLE(s, '250 milliseconds')" in query.sql["headrace"]
    assert query.sql["spark"].endswith("GROUP BY window(time, '250 milliseconds')")
    assert "TUMBLE(TABLE `s`, DESCRIPTOR(`time`), INTERVAL '0.250000' SECOND)" in query.sql["flink"]
    assert query.sql["duckdb"] == 'SELECT ? AS window_end, COUNT(*) AS "n" FROM "s" HAVING COUNT(*) > 0'


def test_flink_has_no_query_for_a_size_that_is_no_multiple_of_the_slide():
    query = build_window_aggregation("q", "s", ["key"], [TOTAL], None, 7_000_000, 2_000_000)
    assert set(query.sql) == {"headrace", "spark", "duckdb"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (8, "'8' SECOND"),
        (60, "'1' MINUTE"),
        (61, "'61' SECOND"),
        (100, "'100' SECOND(3)"),
        (7200, "'2' HOUR"),
        (86_400, "'1' DAY"),
    ],
)
def test_flink_interval_literals(seconds, text):
    assert dialects.format_interval(seconds * 1_000_000) == f"INTERVAL {text}"


@every_set
def test_queries_round_trip_through_json(query_set):
    for query in query_set.queries(4):
        assert BenchQuery.from_json(json.loads(json.dumps(query.to_json()))) == query


@every_set
def test_a_larger_count_keeps_the_first_queries(query_set):
    many = query_set.queries(20)
    assert query_set.queries(5) == many[:5]
    assert [query.name for query in many] == [f"q{number}" for number in range(1, 21)]
    assert len({json.dumps(dict(query.sql)) for query in many}) >= 15
    assert query_set.queries(0) == ()


@pytest.mark.parametrize("query_set", AGGREGATIONS, ids=lambda query_set: type(query_set).__name__)
def test_headrace_binds_every_aggregation(query_set):
    for query in query_set.queries(20):
        plan = bind_query(query.sql["headrace"], CATALOG)
        assert "window_end" in plan.schema.names
        assert set(plan.streams) == set(query.streams)


@pytest.mark.parametrize("query_set", JOINS, ids=lambda query_set: type(query_set).__name__)
def test_headrace_binds_every_join(query_set):
    for query in query_set.queries(5):
        assert set(bind_query(query.sql["headrace"], CATALOG).streams) == set(query.streams)


@every_set
def test_queries_parse_in_every_dialect(query_set):
    for query in query_set.queries(20):
        for name, text in query.sql.items():
            assert parse_query(name, text).find(sqlglot.exp.Select)


def parse_query(name: str, text: str) -> sqlglot.exp.Expression:
    """Parse a query; queries that differ only in numbers are parsed once."""
    return _parse_text(re.sub(r"\b\d+(\.\d+)?\b", "1", strip_window_functions(name, text)), get_parser_dialect(name))


@cache
def _parse_text(text: str, dialect: str) -> sqlglot.exp.Expression:
    return sqlglot.parse_one(text, read=dialect)


def strip_window_functions(name: str, text: str) -> str:
    """Remove syntax that the parser does not know: windows in GROUP BY and window table functions."""
    text = re.sub(r"GROUP BY window(\(time, ('[^']*'(, )?)+\))?$", "GROUP BY 1", text)
    return re.sub(r"TABLE\((?:HOP|TUMBLE)\(TABLE (`\w+`)[^)]*\)[^)]*\)\)", r"\1", text) if name == "flink" else text


def get_parser_dialect(name: str) -> str:
    return "duckdb" if name == "duckdb" else "spark"


@every_set
def test_every_query_outputs_window_end(query_set):
    for query in query_set.queries(8):
        for name, text in query.sql.items():
            tree = parse_query(name, text)
            assert "window_end" in tree.named_selects, text
            assert len(set(tree.named_selects)) == len(tree.named_selects), text


@pytest.mark.parametrize("query_set", AGGREGATIONS, ids=lambda query_set: type(query_set).__name__)
def test_duckdb_matches_the_reference_backend(query_set):
    tables = {name: make_table(name) for name in ("purchases", "ads", "fields", "bids", "auctions", "persons")}
    for query in query_set.queries(8 if query_set == NexmarkAggregations() else 4):
        used = {name: tables[name] for name in query.streams}
        assert_same_rows(run_duckdb(query, used), run_reference(query, used))


def test_the_test_tables_give_results():
    query = PurchaseAggregations().queries(1)[0]
    assert len(run_duckdb(query, {"purchases": make_table("purchases")})) > 20


@cache
def make_table(name: str) -> pa.Table:
    """Return 400 rows over 20 seconds that start between window bounds."""
    start = datetime(2026, 1, 1, 0, 0, 3, 500_000, tzinfo=UTC)
    times = pa.array([start + timedelta(seconds=number / 20) for number in range(400)], pa.timestamp("us", tz="UTC"))
    if name in nexmark.NEXMARK_SCHEMAS:
        columns = {key: column[:400] for key, column in nexmark.generate_events(name, 0, 400).items()}
    else:
        table = generate(name, 1, 0, 400, keys=6, field_max=1000).drop_columns(["time"])
        columns = dict(zip(table.column_names, table.columns, strict=True))
    return pa.table({**columns, "time": times}).cast(STREAM_SCHEMAS[name].to_arrow())


def run_reference(query: BenchQuery, tables: dict[str, pa.Table]) -> list[dict]:
    with hr.Session(backend="reference") as session:
        for name, table in tables.items():
            source = hr.MemorySource(STREAM_SCHEMAS[name])
            session.create_stream(name, source, time="time")
            source.append(table)
        handle = session.add(query.sql["headrace"])
        session.drain()
        rows = handle.results().to_pylist()
    return [{key: value for key, value in row.items() if key != "window_start"} for row in rows]


def run_duckdb(query: BenchQuery, tables: dict[str, pa.Table]) -> list[dict]:
    """Run the query for each window over the rows of the window."""
    connection, results = duckdb.connect(config={"threads": 1}), []
    times = [time for table in tables.values() for time in table["time"].cast(pa.int64()).to_pylist()]
    first = (min(times) - query.size_us) // query.slide_us + 1
    for start in range(first * query.slide_us, max(times) + 1, query.slide_us):
        for name, table in tables.items():
            time = pa.compute.cast(table["time"], pa.int64())
            inside = pa.compute.and_(pa.compute.greater_equal(time, start), pa.compute.less(time, start + query.size_us))
            connection.register(name, table.filter(inside).drop_columns(["time"]))
        end = datetime.fromtimestamp((start + query.size_us) / 1e6, UTC)
        answer = connection.execute(query.sql["duckdb"], [end])
        names = [column[0] for column in answer.description]
        results += [{**dict(zip(names, row, strict=True)), "window_end": end} for row in answer.fetchall()]
    return results


def test_the_profit_query_matches_a_join_of_two_aggregations():
    purchases, ads = make_table("purchases"), make_table("ads")
    query = ProfitQueries().queries(1)[0]
    connection = duckdb.connect()
    connection.register("purchases", purchases)
    connection.register("ads", ads)
    expected = connection.execute(
        "SELECT p.user_id, p.total - a.total AS profit FROM (SELECT user_id, SUM(price) AS total FROM purchases GROUP BY 1) p "
        "JOIN (SELECT user_id, SUM(cost) AS total FROM ads GROUP BY 1) a USING (user_id) WHERE user_id <> 0"
    ).fetchall()
    rows = connection.execute(query.sql["duckdb"], [None]).fetchall()
    assert len(expected) == 5
    assert {row[1]: row[2] for row in rows} == pytest.approx(dict(expected))


def test_the_duckdb_join_matches_equal_keys():
    connection = duckdb.connect()
    connection.sql(
        "CREATE TABLE purchases AS SELECT * FROM (VALUES (1, 5, 9.5), (1, 6, 1.0), (2, 5, 2.0)) t(user_id, gem_pack, price)"
    )
    connection.sql("CREATE TABLE ads AS SELECT * FROM (VALUES (1, 5), (1, 5), (2, 6)) t(user_id, gem_pack)")
    text = PurchaseAdJoins().queries(1)[0].sql["duckdb"]
    assert [row[1:] for row in connection.execute(text, [None]).fetchall()] == [(1, 5, 9.5)] * 2


def test_duckdb_returns_the_hottest_category_and_the_highest_bids():
    connection = duckdb.connect()
    connection.sql("CREATE TABLE bids AS SELECT * FROM (VALUES (1, 10), (1, 40), (2, 90), (3, 5)) t(auction, price)")
    connection.sql("CREATE TABLE auctions AS SELECT * FROM (VALUES (1, 7, 20), (2, 8, 95), (3, 7, 1)) t(id, category, reserve)")
    assert connection.execute(HotCategoryQueries().queries(1)[0].sql["duckdb"], [None]).fetchall() == [(None, 7, 3)]
    highest = connection.execute(HighestBidQueries().queries(1)[0].sql["duckdb"], [None]).fetchall()
    assert sorted(row[1:] for row in highest) == [(1, 40), (3, 5)]


def test_field_aggregations_stay_the_same_as_in_published_measurements():
    first, second, *_, last = FieldAggregations().queries(1000)
    assert first.sql["headrace"] == (
        "SELECT window_start, window_end, key, SUM(f1) AS total FROM TUMBLE(fields, '1 seconds') WHERE f3 > 404 GROUP BY key"
    )
    assert second.sql["headrace"] == (
        "SELECT window_start, window_end, key, SUM(f1) AS total "
        "FROM HOP(fields, '10 seconds', '1 seconds') WHERE f5 < 374 GROUP BY key"
    )
    assert last.sql["headrace"] == (
        "SELECT window_start, window_end, key, SUM(f1) AS total "
        "FROM HOP(fields, '6 seconds', '3 seconds') WHERE f4 > 301 GROUP BY key"
    )
    assert FieldAggregations().queries(2) == (first, second)


def test_divisible_windows_have_a_flink_query():
    assert any("flink" not in query.sql for query in FieldAggregations().queries(30))
    assert all("flink" in query.sql for query in FieldAggregations(divisible=True).queries(30))


def test_complex_queries_have_one_to_five_joins_and_a_selection():
    queries = ComplexQueries().queries(60)
    assert {query.sql["headrace"].count(" JOIN ") for query in queries} == {1, 2, 3, 4, 5}
    assert all(query.sql["headrace"].count("WHERE") == 1 and len(query.streams) > 1 for query in queries)


def test_a_difference_of_aggregations_needs_the_same_keys():
    shape = ProfitQueries().queries(1)[0].shape
    assert shape is not None
    assert shape.minus is not None
    assert (shape.stream, shape.minus.stream) == ("purchases", "ads")
    with pytest.raises(HeadraceError, match="same keys"):
        AggregationShape("s", ("a",), (TOTAL,), minus=AggregationShape("t", ("b",), (TOTAL,)))
    with pytest.raises(HeadraceError, match="same keys"):
        AggregationShape("s", ("a",), (TOTAL, TOTAL), minus=AggregationShape("t", ("a",), (TOTAL,)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: BenchAggregate("MEDIAN", "f1", "m"), "unknown aggregate 'MEDIAN'"),
        (lambda: BenchAggregate("SUM", None, "m"), "needs a column"),
        (lambda: ColumnComparison("f1", "LIKE", 1), "unknown operator 'LIKE'"),
        (lambda: BenchQuery("q", ("s",), {"oracle": "SELECT 1"}, 1, 1), "unknown dialect 'oracle'"),
        (lambda: BenchQuery("q", ("s",), {}, 0, 1), "window of 0 µs"),
        (lambda: make_query_generator("nothing", {}), "unknown query generator 'nothing'"),
        (lambda: make_query_generator("fields", {"sede": 1}), "no option 'sede'"),
        (lambda: make_query_generator("fields", {"seed": "1"}), "must be int"),
        (lambda: make_query_generator("fields", {"seed": True}), "must be int"),
        (lambda: make_query_generator("purchases", {"size": "8 apples"}), "duration '8 apples'"),
        (lambda: make_query_generator("written", {"streams": ["s"]}), "lacks an option"),
        (lambda: make_query_generator("complex", {"joins": 6}), "joins is 6"),
        (lambda: HandwrittenQuery(("s",), {"headrace": "SELECT 1"}, "1 second").queries(2), "'written' has one"),
    ],
)
def test_invalid_queries_and_options_are_refused(build, message):
    with pytest.raises(HeadraceError, match=re.escape(message)):
        build()


def test_a_query_generator_round_trips_through_its_options():
    query_generator = make_query_generator("fields", {"seed": 3})
    assert query_generator == FieldAggregations(seed=3)
    assert options_of(query_generator) == {"stream": "fields", "seed": 3, "divisible": False, "unit": 1}
    assert make_query_generator("fields", options_of(query_generator)) == query_generator
    assert set(QUERY_GENERATORS) >= {"purchases", "fields", "profit", "complex", "nexmark", "hppa", "hot_cat", "written"}
