"""Sliding joins of several streams: drawn queries, SQL in each dialect, and expected result counts.

a   ●─────────┐            ● and ○ join if their times differ by at most the range; with three streams
b        ○    │  range     each pair must satisfy this
c   ◍─────────┘
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, pairwise, product

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import sqlglot

import headrace as hr
from headrace.bench.driver import tpch
from headrace.bench.driver.generator import build_pools
from headrace.bench.driver.streams import STREAM_SCHEMAS, StreamSpec
from headrace.bench.queries.query import BenchQuery
from headrace.bench.queries.sets import make_query_generator
from headrace.bench.queries.sliding_joins import (
    DUCKDB_STEP_US,
    MAX_RESULTS_PER_ROW,
    NOMINAL_RATE,
    NOMINAL_SCALE,
    TPCH_EDGES,
    ChainJoins,
    SlidingJoinSpec,
    TpchJoins,
    TpchJoinTree,
    build_sliding_join,
    draw_join_trees,
    estimate_chain_results_per_row,
    estimate_results_per_second,
)
from headrace.bench.scenarios.scenario import load_scenario
from headrace.errors import HeadraceError
from headrace.model.stream import Stream
from headrace.sql import Catalog, bind_query
from support.examples import scale_examples

SETS = (TpchJoins(), ChainJoins(), ChainJoins(ways=5, levels="LMHM"))
START = datetime(2026, 1, 1, tzinfo=UTC)
ABC = SlidingJoinSpec(
    (("orders", "o"), ("lineitem", "l"), ("customer", "c")),
    (((("o", "o_orderkey"), ("l", "l_orderkey")),), ((("o", "o_custkey"), ("c", "c_custkey")),)),
    (("o", "o_orderkey"), ("l", "l_quantity")),
    5_000_000,
)
every_set = pytest.mark.parametrize(
    "query_set", SETS, ids=lambda query_set: f"{type(query_set).__name__}-{getattr(query_set, 'ways', '')}"
)


# SQL in each dialect


def test_a_sliding_join_of_three_streams_in_all_dialects():
    query = build_sliding_join("q", ABC)
    span = "BETWEEN {0} - INTERVAL '5' SECOND AND {0} + INTERVAL '5' SECOND"
    assert query.sql["headrace"] == (
        "SELECT date_trunc('MILLISECOND', GREATEST(o.time, l.time, c.time)) AS window_end, o.o_orderkey, l.l_quantity "
        "FROM SLIDING(orders, '5 seconds') o JOIN SLIDING(lineitem, '5 seconds') l ON o.o_orderkey = l.l_orderkey "
        "JOIN SLIDING(customer, '5 seconds') c ON o.o_custkey = c.c_custkey"
    )
    assert query.sql["flink"].endswith(
        f"c ON o.`o_custkey` = c.`c_custkey` AND c.`time` {span.format('o.`time`')} AND c.`moment` {span.format('l.`moment`')}"
    )
    assert query.sql["spark"].endswith(
        "rhs ON o.o_custkey = c.c_custkey AND rhs.time BETWEEN lhs.time - INTERVAL '5 seconds' AND lhs.time + INTERVAL "
        "'5 seconds' AND c.moment BETWEEN l.moment - 5000000 AND l.moment + 5000000)"
    )
    assert query.streams == ("orders", "lineitem", "customer")
    assert (query.size_us, query.slide_us) == (5_000_000 + DUCKDB_STEP_US, DUCKDB_STEP_US)


def test_flink_queries_bound_row_times_once_per_join():
    for query in (*TpchJoins().queries(10), *ChainJoins().queries(3)):
        for part in query.sql["flink"].split(" JOIN ")[1:]:
            assert part.count(".`time` BETWEEN") == 1
        assert query.sql["flink"].startswith("SELECT GREATEST(")


@every_set
def test_every_query_parses_and_has_distinct_output_names(query_set):
    for query in query_set.queries(10):  # the first ten TPC-H joins cover all relations
        assert list(query.sql) == ["headrace", "spark", "flink", "duckdb"]
        for name, text in query.sql.items():
            tree = sqlglot.parse_one(text, read="duckdb" if name == "duckdb" else "spark")
            assert tree.named_selects[0] == "window_end"
            assert len(set(tree.named_selects)) == len(tree.named_selects)
            tables = {table.name for table in tree.find_all(sqlglot.exp.Table)} | set(re.findall(r"SLIDING\((\w+)", text))
            assert set(query.streams) <= tables


@every_set
def test_queries_round_trip_through_json_and_a_larger_count_keeps_the_first_queries(query_set):
    many = query_set.queries(20)
    assert query_set.queries(5) == many[:5]
    assert query_set.queries(0) == ()
    assert [query.name for query in many] == [f"q{number}" for number in range(1, 21)]
    assert len({query.sql["duckdb"] for query in many}) == 20
    assert BenchQuery.from_json(json.loads(json.dumps(many[0].to_json()))) == many[0]


def test_the_window_size_is_an_option():
    short = make_query_generator("tpch_joins", {"size": "250 ms"}).queries(3)
    assert [query.streams for query in short] == [query.streams for query in TpchJoins().queries(3)]
    assert "SLIDING(lineitem, '250 milliseconds')" in short[0].sql["headrace"]
    assert short[0].size_us == 250_000 + DUCKDB_STEP_US


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: replace(ABC, links=ABC.links[:1]), "1 links cannot join 3 streams"),
        (lambda: replace(ABC, links=ABC.links[::-1]), "'lineitem' is not linked to an earlier stream"),
        (lambda: ChainJoins(ways=3), "levels is 'MMM' for a join of 3 streams"),
        (lambda: ChainJoins(levels="MXM"), "levels is 'MXM'"),
        (lambda: ChainJoins().queries(28), "28 queries are requested, but the generator has only 27 different ones"),
        (lambda: TpchJoins().queries(5000), "5000 queries are requested"),
        (lambda: make_query_generator("tpch_joins", {"size": "5 apples"}), "duration '5 apples'"),
        (lambda: StreamSpec("r1", "chain", distribution="zipf"), "'chain', whose keys are uniform"),
        (lambda: StreamSpec("r1", "chain", match_every=3), "'chain', which has no match_every"),
        (lambda: StreamSpec("o", "orders", scale=200.0), "scale = 200.0, but it must be 0.001 … 100.0"),
        (lambda: StreamSpec("o", "fields", scale=0.1), "'fields', which has no scale"),
        (lambda: StreamSpec("o", "orders", distribution="zipf"), "'orders', whose keys are fixed"),
    ],
)
def test_invalid_joins_and_options_are_refused(build, message):
    with pytest.raises(HeadraceError, match=re.escape(message)):
        build()


# Drawn queries


def test_the_first_ten_tpch_joins_cover_all_relations_and_share_edges():
    ten_trees = list(islice(draw_join_trees(TpchJoins().seed), 10))
    assert {len(tree.relations) for tree in ten_trees[:5]} == {len(tree.relations) for tree in ten_trees} == {3, 4}
    assert {name for tree in ten_trees for name in tree.relations} == set(tpch.ROWS_AT_SCALE_1)
    assert len({frozenset(tree.edges) for tree in ten_trees}) == 10
    for trees in (ten_trees[:5], ten_trees):
        for tree in trees:
            assert any(set(tree.edges) & set(other.edges) for other in trees if other is not tree)
    columns = {column for tree in ten_trees for edge in tree.edges if not edge.is_reference for column in edge.collect_columns()}
    assert {"l_linestatus", "o_orderstatus", "c_custkey", "n_nationkey"} <= columns
    assert [query.streams for query in TpchJoins().queries(10)] == [tree.relations for tree in ten_trees]


@pytest.mark.parametrize("seed", [1, 2, TpchJoins().seed])
def test_drawn_join_trees_are_connected_and_distinct(seed):
    trees = list(draw_join_trees(seed))
    assert len(trees) > 30
    assert len({frozenset(tree.edges) for tree in trees}) == len(trees)
    for tree in trees:
        assert len(set(tree.relations)) == len(tree.relations) == len(tree.edges) + 1
        for number, edge in enumerate(tree.edges, 1):
            assert {edge.left, edge.right} & set(tree.relations[:number])
            assert tree.relations[number] in {edge.left, edge.right}


def test_edge_columns_exist_and_have_the_same_type():
    for edge in TPCH_EDGES:
        for left, right in edge.pairs:
            left_field, right_field = (
                STREAM_SCHEMAS[edge.left].to_arrow().field(left),
                STREAM_SCHEMAS[edge.right].to_arrow().field(right),
            )
            assert left_field.type == right_field.type


def test_chain_levels_select_the_join_columns():
    first, second, *_ = ChainJoins(levels="LMH").queries(27)
    assert [text in first.sql["headrace"] for text in ("b_low = r2.a_low", "b_mid = r3.a_mid", "b_high = r4.a_high")] == [
        True
    ] * 3
    assert second.sql != first.sql
    assert first.streams == ("r1", "r2", "r3", "r4")
    assert len({query.sql["headrace"] for query in ChainJoins().queries(27)}) == 27


# Result counts


def test_estimated_results_of_two_streams():
    """With a row per second on both sides, equal keys and a range of 10 s, a row matches 10 s before and after."""
    assert estimate_results_per_second([1, 1], 10, 1.0) == 20
    assert estimate_results_per_second([2, 3], 10, 0.5) == 60


@pytest.mark.parametrize("count", range(1, 11))
def test_tpch_joins_stay_below_the_maximum_of_results_per_row(count):
    """The driver omits unused streams and gives their share of the rate to the other streams."""
    trees = list(islice(draw_join_trees(TpchJoins().seed), count))
    streams = {name for tree in trees for name in tree.relations}
    assert {stream.name for stream in load_scenario("multiway-tpch").with_overrides(queries=count).used_streams()} == streams
    assert all(1e-5 < tree.estimate_results_per_row(streams=streams) < MAX_RESULTS_PER_ROW for tree in trees)


def test_chain_joins_stay_below_the_maximum_of_results_per_row():
    results_per_row = {
        "".join(levels): estimate_chain_results_per_row("".join(levels)) for levels in product(tpch.SELECTIVITY_LEVELS, repeat=3)
    }
    assert max(results_per_row.values()) == results_per_row["HHH"] < MAX_RESULTS_PER_ROW
    assert min(results_per_row.values()) == results_per_row["LLL"] > 0.01
    assert results_per_row["MMM"] * 4 == pytest.approx(1, rel=0.05)  # each row of a stream has one result
    assert {stream.keys for stream in load_scenario("multiway-chain").streams} == {200_000}


def test_results_per_row_are_constant_if_rate_and_keys_scale_together():
    assert estimate_chain_results_per_row("MHL", 1e6, keys=2_000_000) == pytest.approx(estimate_chain_results_per_row("MHL"))
    tree = TpchJoinTree(("orders", "lineitem", "customer"), (TPCH_EDGES[6], TPCH_EDGES[5]))
    assert tree.estimate_results_per_row() == pytest.approx(0.69, abs=0.01)
    assert tree.estimate_results_per_row(rate=1e6, scale=1.0) == pytest.approx(tree.estimate_results_per_row())
    assert tree.estimate_results_per_row(rate=2e5) == pytest.approx(4 * tree.estimate_results_per_row())


def test_chain_columns_have_the_selectivity_of_their_level():
    left, right = (pa.table(tpch.generate_chain(seed, 1000, 10, 50_000)) for seed in (1, 2))
    for level in tpch.SELECTIVITY_LEVELS.values():
        names = f"b_{level.suffix}", f"a_{level.suffix}"
        counts = [np.bincount(table[name], minlength=2000) for table, name in zip((left, right), names, strict=True)]
        share = float(counts[0] @ counts[1]) / (left.num_rows * right.num_rows)
        assert share == pytest.approx(1 / level.domain_size(1000), rel=0.02)
    assert [level.domain_size(1000) for level in tpch.SELECTIVITY_LEVELS.values()] == [2000, 1000, 500]


def make_tables(streams: Sequence[StreamSpec], rate: float, seconds: float) -> dict[str, pa.Table]:
    """Return the rows of all streams from START at a total `rate`; all engines support the millisecond times."""
    total_share, tables = sum(stream.share for stream in streams), {}
    for stream in streams:
        stream_rate = rate * stream.share / total_share
        (pool,) = build_pools(replace(stream, partitions=1))
        rows = np.arange(int(stream_rate * seconds))
        times = round(START.timestamp() * 1e6) + (rows * 1000 / stream_rate).astype(np.int64) * 1000
        columns = {name: column.take(pa.array(rows % pool.rows)) for name, column in pool.columns.items()}
        tables[stream.name] = pa.table({**columns, "time": pa.array(times).cast(pa.timestamp("us"))}).cast(
            stream.schema.to_arrow()
        )
    return tables


def open_duckdb(tables: dict[str, pa.Table]) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": 2})
    connection.execute("SET TimeZone = 'UTC'")
    for name, table in tables.items():
        connection.register(name, table)
    return connection


def count_results(connection: duckdb.DuckDBPyConnection, query: BenchQuery, seconds: float) -> int:
    """Return the number of results whose newest row is in the second before `seconds`."""
    text = f"SELECT COUNT(*) FROM ({query.sql['duckdb']})"
    ((count,),) = connection.execute(text, [START + timedelta(seconds=seconds)]).fetchall()
    return count


def test_tpch_joins_have_the_estimated_number_of_results():
    """Use rows of one window and one second at the nominal rate.

    Results vary more if few rows have all matches: a window holds about 24 customers or suppliers.
    """
    streams = [replace(stream, scale=NOMINAL_SCALE) for stream in load_scenario("multiway-tpch").streams]
    connection = open_duckdb(make_tables(streams, NOMINAL_RATE, 6))
    queries = TpchJoins("5 seconds").queries(max(10, scale_examples(16)))  # the first ten cover all relations
    for tree, query in zip(draw_join_trees(TpchJoins().seed), queries, strict=False):
        expected = NOMINAL_RATE * tree.estimate_results_per_row()
        is_skewed = any("n_nationkey" in edge.collect_columns() and not edge.is_reference for edge in tree.edges)
        assert count_results(connection, query, 6) == pytest.approx(expected, rel=0.6 if is_skewed else 0.1), tree


@pytest.mark.parametrize("levels", ["MMM", "HLM", "LLH", "HHH"])
def test_chain_joins_have_the_estimated_number_of_results(levels):
    streams = [StreamSpec(f"r{number}", "chain", keys=20_000, seed=number, pool_rows=30_000) for number in range(1, 5)]
    connection = open_duckdb(make_tables(streams, 10_000, 6))
    (query,) = ChainJoins(levels=levels).queries(1)
    expected = 10_000 * estimate_chain_results_per_row(levels, 10_000, 5.0, 20_000)
    assert count_results(connection, query, 6) == pytest.approx(expected, rel=0.15)


# Equivalence of the dialects


@cache
def make_chain_tables() -> dict[str, pa.Table]:
    streams = [StreamSpec(f"r{number}", "chain", keys=12, seed=number, pool_rows=500) for number in range(1, 5)]
    return make_tables(streams, 40, 8)  # a row of each stream every 100 ms: some rows are exactly a range apart


@cache
def find_matches(levels: str, range_us: int) -> list[tuple[int, ...]]:
    """Join the chain tables by nested loops; return the newest time and the values of each match."""
    tables = make_chain_tables()
    names = [f"r{number}" for number in range(1, len(levels) + 2)]
    rows = {name: tables[name].cast(_use_integer_time(tables[name])).to_pylist() for name in names}
    combinations: list[list[dict]] = [[row] for row in rows["r1"]]
    for level, (_, right) in zip(levels, pairwise(names), strict=True):
        suffix = tpch.SELECTIVITY_LEVELS[level].suffix
        pairs = (
            (combination, row)
            for combination in combinations
            for row in rows[right]
            if combination[-1][f"b_{suffix}"] == row[f"a_{suffix}"]
        )
        combinations = [
            [*combination, row]
            for combination, row in pairs
            if all(abs(row["time"] - earlier["time"]) <= range_us for earlier in combination)
        ]
    return sorted(
        (max(row["time"] for row in combination), *(row["value"] for row in combination)) for combination in combinations
    )


def _use_integer_time(table: pa.Table) -> pa.Schema:
    return table.schema.set(table.schema.get_field_index("time"), pa.field("time", pa.int64()))


@pytest.mark.parametrize("levels", ["HM", "HHH", "LMH"])
def test_duckdb_emits_every_match_once_in_the_step_of_its_newest_row(levels):
    tables = make_chain_tables()
    connection, rows = open_duckdb(tables), []
    (query,) = ChainJoins(ways=len(levels) + 1, levels=levels, size="1500 ms").queries(1)
    for second in range(1, 10):
        end = START + timedelta(seconds=second)
        rows += connection.execute(query.sql["duckdb"], [end]).fetchall()
    expected = find_matches(levels, 1_500_000)
    assert len(expected) > 20
    ends = [(-(-(newest + 1) // DUCKDB_STEP_US) * DUCKDB_STEP_US, *values) for newest, *values in expected]
    assert sorted((round(end.timestamp() * 1e6), *values) for end, *values in rows) == sorted(ends)


@pytest.mark.parametrize("engine", ["spark", "flink"])
@pytest.mark.parametrize("levels", ["HM", "HHH", "LMH"])
def test_spark_and_flink_queries_give_the_same_matches(engine, levels):
    """DuckDB runs a translation: this checks the join conditions, not whether the engine accepts the query."""
    tables = make_chain_tables()
    (query,) = ChainJoins(ways=len(levels) + 1, levels=levels, size="1500 ms").queries(1)
    (text,) = sqlglot.transpile(query.sql[engine], read="spark", write="duckdb")
    connection = open_duckdb(tables)
    connection.execute("CREATE MACRO timestamp_micros(number) AS make_timestamp(number)")
    rows = connection.execute(text).fetchall()
    assert sorted((_to_micros(newest), *values) for newest, *values in rows) == find_matches(levels, 1_500_000)


@pytest.mark.parametrize("levels", ["HM", "LMH"])
def test_headrace_gives_the_same_matches(levels):
    tables = make_chain_tables()
    (query,) = ChainJoins(ways=len(levels) + 1, levels=levels, size="1500 ms").queries(1)
    with hr.Session(backend="reference") as session:
        for name in query.streams:
            source = hr.MemorySource(STREAM_SCHEMAS["chain"])
            session.create_stream(name, source, time="time")
            source.append(tables[name])
        handle = session.add(query.sql["headrace"])
        session.drain()
        rows = [tuple(row.values()) for row in handle.results().to_pylist()]
    assert sorted((_to_micros(newest), *values) for newest, *values in rows) == find_matches(levels, 1_500_000)


@pytest.mark.parametrize("name", ["multiway-tpch", "multiway-chain"])
def test_headrace_binds_every_query(name):
    scenario = load_scenario(name)
    catalog = Catalog.of(Stream(stream.name, stream.schema, stream.time_column, 0) for stream in scenario.streams)
    for query in scenario.with_overrides(queries=27).initial_queries():
        plan = bind_query(query.sql["headrace"], catalog)
        assert plan.schema.names[0] == "window_end"
        assert set(plan.streams) == set(query.streams)


def _to_micros(moment: datetime) -> int:
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1e6)
