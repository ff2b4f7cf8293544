"""Joins of many streams: what is drawn, how it is said to each engine, and how many results there are.

a   ●─────────┐            ● and ○ are a result if neither is more than a range older than the other; with three streams
b        ○    │  range     that has to hold for each two of them
c   ◍─────────┘
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
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

SETS = (TpchJoins(), ChainJoins(), ChainJoins(ways=5, levels="LMHM"))
START = datetime(2026, 1, 1, tzinfo=UTC)
ABC = SlidingJoinSpec(
    (("orders", "o"), ("lineitem", "l"), ("customer", "c")),
    (((("o", "o_orderkey"), ("l", "l_orderkey")),), ((("o", "o_custkey"), ("c", "c_custkey")),)),
    (("o", "o_orderkey"), ("l", "l_quantity")),
    5_000_000,
)
every_set = pytest.mark.parametrize("made", SETS, ids=lambda made: f"{type(made).__name__}-{getattr(made, 'ways', '')}")


# What is said to each engine


def test_a_join_of_three_in_all_dialects():
    query = build_sliding_join("q", ABC)
    near = "BETWEEN {0} - INTERVAL '5' SECOND AND {0} + INTERVAL '5' SECOND"
    assert query.sql["headrace"] == (
        "SELECT date_trunc('MILLISECOND', GREATEST(o.time, l.time, c.time)) AS window_end, o.o_orderkey, l.l_quantity "
        "FROM SLIDING(orders, '5 seconds') o JOIN SLIDING(lineitem, '5 seconds') l ON o.o_orderkey = l.l_orderkey "
        "JOIN SLIDING(customer, '5 seconds') c ON o.o_custkey = c.c_custkey"
    )
    assert query.sql["flink"].endswith(
        f"c ON o.`o_custkey` = c.`c_custkey` AND c.`time` {near.format('o.`time`')} AND c.`moment` {near.format('l.`moment`')}"
    )
    assert query.sql["spark"].endswith(
        "rhs ON o.o_custkey = c.c_custkey AND rhs.time BETWEEN lhs.time - INTERVAL '5 seconds' AND lhs.time + INTERVAL "
        "'5 seconds' AND c.moment BETWEEN l.moment - 5000000 AND l.moment + 5000000)"
    )
    assert query.streams == ("orders", "lineitem", "customer")
    assert (query.size_us, query.slide_us) == (5_000_000 + DUCKDB_STEP_US, DUCKDB_STEP_US)


def test_flink_is_given_two_bounds_of_row_times_for_each_join():
    for query in (*TpchJoins().queries(10), *ChainJoins().queries(3)):
        for part in query.sql["flink"].split(" JOIN ")[1:]:
            assert part.count(".`time` BETWEEN") == 1
        assert query.sql["flink"].startswith("SELECT GREATEST(")


@every_set
def test_every_text_parses_and_has_outputs_of_different_names(made):
    for query in made.queries(20):
        assert list(query.sql) == ["headrace", "spark", "flink", "duckdb"]
        for name, text in query.sql.items():
            tree = sqlglot.parse_one(text, read="duckdb" if name == "duckdb" else "spark")
            assert tree.named_selects[0] == "window_end"
            assert len(set(tree.named_selects)) == len(tree.named_selects)
            tables = {table.name for table in tree.find_all(sqlglot.exp.Table)} | set(re.findall(r"SLIDING\((\w+)", text))
            assert set(query.streams) <= tables


@every_set
def test_queries_survive_json_and_the_first_ones_are_the_same_for_any_count(made):
    many = made.queries(20)
    assert made.queries(5) == many[:5]
    assert made.queries(0) == ()
    assert [query.name for query in many] == [f"q{number}" for number in range(1, 21)]
    assert len({query.sql["duckdb"] for query in many}) == 20
    assert BenchQuery.from_json(json.loads(json.dumps(many[0].to_json()))) == many[0]


def test_the_range_is_an_option():
    short = make_query_generator("tpch_joins", {"size": "250 ms"}).queries(3)
    assert [query.streams for query in short] == [query.streams for query in TpchJoins().queries(3)]
    assert "SLIDING(lineitem, '250 milliseconds')" in short[0].sql["headrace"]
    assert short[0].size_us == 250_000 + DUCKDB_STEP_US


@pytest.mark.parametrize(
    ("wrong", "message"),
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
def test_what_is_wrong_is_refused(wrong, message):
    with pytest.raises(HeadraceError, match=re.escape(message)):
        wrong()


# What is drawn


def test_the_five_and_the_ten_queries():
    ten = list(islice(draw_join_trees(TpchJoins().seed), 10))
    assert {len(tree.relations) for tree in ten[:5]} == {len(tree.relations) for tree in ten} == {3, 4}
    assert {name for tree in ten for name in tree.relations} == set(tpch.ROWS_AT_SCALE_1)
    assert len({frozenset(tree.edges) for tree in ten}) == 10
    for few in (ten[:5], ten):
        for tree in few:
            assert any(set(tree.edges) & set(other.edges) for other in few if other is not tree)
    columns = {column for tree in ten for edge in tree.edges if not edge.is_reference for column in edge.collect_columns()}
    assert {"l_linestatus", "o_orderstatus", "c_custkey", "n_nationkey"} <= columns
    assert [query.streams for query in TpchJoins().queries(10)] == [tree.relations for tree in ten]


@pytest.mark.parametrize("seed", [1, 2, TpchJoins().seed])
def test_trees_are_trees_and_none_is_drawn_twice(seed):
    found = list(draw_join_trees(seed))
    assert len(found) > 30
    assert len({frozenset(tree.edges) for tree in found}) == len(found)
    for tree in found:
        assert len(set(tree.relations)) == len(tree.relations) == len(tree.edges) + 1
        for number, edge in enumerate(tree.edges, 1):
            assert {edge.left, edge.right} & set(tree.relations[:number])
            assert tree.relations[number] in {edge.left, edge.right}


def test_columns_of_edges_are_there_and_of_one_type():
    for edge in TPCH_EDGES:
        for left, right in edge.pairs:
            one, two = STREAM_SCHEMAS[edge.left].to_arrow().field(left), STREAM_SCHEMAS[edge.right].to_arrow().field(right)
            assert one.type == two.type


def test_the_levels_of_a_chain():
    first, second, *_ = ChainJoins(levels="LMH").queries(27)
    assert [text in first.sql["headrace"] for text in ("b_low = r2.a_low", "b_mid = r3.a_mid", "b_high = r4.a_high")] == [
        True
    ] * 3
    assert second.sql != first.sql
    assert first.streams == ("r1", "r2", "r3", "r4")
    assert len({query.sql["headrace"] for query in ChainJoins().queries(27)}) == 27


# How many results there are


def test_results_of_two_streams_that_can_be_counted():
    """A row every second on both sides, all equal, and a range of 10 s: each finds itself, ten before and ten after."""
    assert estimate_results_per_second([1, 1], 10, 1.0) == 20
    assert estimate_results_per_second([2, 3], 10, 0.5) == 60


@pytest.mark.parametrize("count", range(1, 11))
def test_no_query_has_more_results_than_five_for_each_row(count):
    """Streams that nobody reads are not offered, and the others have their part of the rate."""
    few = list(islice(draw_join_trees(TpchJoins().seed), count))
    streams = {name for tree in few for name in tree.relations}
    assert {stream.name for stream in load_scenario("multiway-tpch").with_overrides(queries=count).used_streams()} == streams
    assert all(1e-5 < tree.estimate_results_per_row(streams=streams) < MAX_RESULTS_PER_ROW for tree in few)


def test_no_chain_has_more_results_than_five_for_each_row():
    found = {
        "".join(levels): estimate_chain_results_per_row("".join(levels)) for levels in product(tpch.SELECTIVITY_LEVELS, repeat=3)
    }
    assert max(found.values()) == found["HHH"] < MAX_RESULTS_PER_ROW
    assert min(found.values()) == found["LLL"] > 0.01
    assert found["MMM"] * 4 == pytest.approx(1, rel=0.05)  # every row of a stream is part of one result
    assert {stream.keys for stream in load_scenario("multiway-chain").streams} == {200_000}


def test_rates_and_keys_that_grow_together_leave_results_as_they_are():
    assert estimate_chain_results_per_row("MHL", 1e6, keys=2_000_000) == pytest.approx(estimate_chain_results_per_row("MHL"))
    tree = TpchJoinTree(("orders", "lineitem", "customer"), (TPCH_EDGES[6], TPCH_EDGES[5]))
    assert tree.estimate_results_per_row() == pytest.approx(0.69, abs=0.01)
    assert tree.estimate_results_per_row(rate=1e6, scale=1.0) == pytest.approx(tree.estimate_results_per_row())
    assert tree.estimate_results_per_row(rate=2e5) == pytest.approx(4 * tree.estimate_results_per_row())


def test_selectivities_of_a_chain():
    left, right = (pa.table(tpch.generate_chain(seed, 1000, 10, 50_000)) for seed in (1, 2))
    for level in tpch.SELECTIVITY_LEVELS.values():
        names = f"b_{level.suffix}", f"a_{level.suffix}"
        counts = [np.bincount(table[name], minlength=2000) for table, name in zip((left, right), names, strict=True)]
        share = float(counts[0] @ counts[1]) / (left.num_rows * right.num_rows)
        assert share == pytest.approx(1 / level.domain_size(1000), rel=0.02)
    assert [level.domain_size(1000) for level in tpch.SELECTIVITY_LEVELS.values()] == [2000, 1000, 500]


def born(streams: Sequence[StreamSpec], rate: float, seconds: float) -> dict[str, pa.Table]:
    """The rows of all streams, `rate` a second in all, from START on; times are whole milliseconds, which all engines have."""
    whole, found = sum(stream.share for stream in streams), {}
    for stream in streams:
        own = rate * stream.share / whole
        (pool,) = build_pools(replace(stream, partitions=1))
        rows = np.arange(int(own * seconds))
        times = round(START.timestamp() * 1e6) + (rows * 1000 / own).astype(np.int64) * 1000
        columns = {name: column.take(pa.array(rows % pool.rows)) for name, column in pool.columns.items()}
        found[stream.name] = pa.table({**columns, "time": pa.array(times).cast(pa.timestamp("us"))}).cast(
            stream.schema.to_arrow()
        )
    return found


def database(tables: dict[str, pa.Table]) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": 2})
    connection.execute("SET TimeZone = 'UTC'")
    for name, table in tables.items():
        connection.register(name, table)
    return connection


def counted(connection: duckdb.DuckDBPyConnection, query: BenchQuery, seconds: float) -> int:
    """How many results have their newest row in the second before."""
    text = f"SELECT COUNT(*) FROM ({query.sql['duckdb']})"
    ((count,),) = connection.execute(text, [START + timedelta(seconds=seconds)]).fetchall()
    return count


def test_tpch_joins_have_as_many_results_as_expected():
    """A window and a second of rows at the rate the set is made for.

    Where few rows have all the partners, results come in bunches: of 24 customers or suppliers more or less are in a window.
    """
    streams = [replace(stream, scale=NOMINAL_SCALE) for stream in load_scenario("multiway-tpch").streams]
    connection = database(born(streams, NOMINAL_RATE, 6))
    for tree, query in zip(draw_join_trees(TpchJoins().seed), TpchJoins("5 seconds").queries(16), strict=False):
        expected = NOMINAL_RATE * tree.estimate_results_per_row()
        bunches = any("n_nationkey" in edge.collect_columns() and not edge.is_reference for edge in tree.edges)
        assert counted(connection, query, 6) == pytest.approx(expected, rel=0.6 if bunches else 0.1), tree


@pytest.mark.parametrize("levels", ["MMM", "HLM", "LLH", "HHH"])
def test_chains_have_as_many_results_as_expected(levels):
    streams = [StreamSpec(f"r{number}", "chain", keys=20_000, seed=number, pool_rows=30_000) for number in range(1, 5)]
    connection = database(born(streams, 10_000, 6))
    (query,) = ChainJoins(levels=levels).queries(1)
    expected = 10_000 * estimate_chain_results_per_row(levels, 10_000, 5.0, 20_000)
    assert counted(connection, query, 6) == pytest.approx(expected, rel=0.15)


# That all texts mean the same


def small_chain() -> dict[str, pa.Table]:
    streams = [StreamSpec(f"r{number}", "chain", keys=12, seed=number, pool_rows=500) for number in range(1, 5)]
    return born(streams, 60, 8)


def matches(tables: dict[str, pa.Table], levels: str, range_us: int) -> list[tuple[int, ...]]:
    """Every combination, one stream after the other: when, and the values."""
    names = [f"r{number}" for number in range(1, len(levels) + 2)]
    rows = {name: tables[name].cast(_numbers(tables[name])).to_pylist() for name in names}
    found: list[list[dict]] = [[row] for row in rows["r1"]]
    for level, (_, right) in zip(levels, pairwise(names), strict=True):
        ending = tpch.SELECTIVITY_LEVELS[level].suffix
        pairs = ((one, row) for one in found for row in rows[right] if one[-1][f"b_{ending}"] == row[f"a_{ending}"])
        found = [[*one, row] for one, row in pairs if all(abs(row["time"] - each["time"]) <= range_us for each in one)]
    return sorted((max(row["time"] for row in one), *(row["value"] for row in one)) for one in found)


def _numbers(table: pa.Table) -> pa.Schema:
    return table.schema.set(table.schema.get_field_index("time"), pa.field("time", pa.int64()))


@pytest.mark.parametrize("levels", ["HM", "HHH", "LMH"])
def test_duckdb_gives_every_match_once_in_the_step_of_its_newest_row(levels):
    tables = small_chain()
    connection, found = database(tables), []
    (query,) = ChainJoins(ways=len(levels) + 1, levels=levels, size="1500 ms").queries(1)
    for second in range(1, 10):
        end = START + timedelta(seconds=second)
        found += connection.execute(query.sql["duckdb"], [end]).fetchall()
    expected = matches(tables, levels, 1_500_000)
    assert len(expected) > 20
    ends = [(-(-(newest + 1) // DUCKDB_STEP_US) * DUCKDB_STEP_US, *values) for newest, *values in expected]
    assert sorted((round(end.timestamp() * 1e6), *values) for end, *values in found) == sorted(ends)


@pytest.mark.parametrize("engine", ["spark", "flink"])
@pytest.mark.parametrize("levels", ["HM", "HHH", "LMH"])
def test_the_texts_of_others_mean_the_same(engine, levels):
    """DuckDB runs them in translation: only what they say of rows and times is tried, not whether the engine takes them."""
    tables = small_chain()
    (query,) = ChainJoins(ways=len(levels) + 1, levels=levels, size="1500 ms").queries(1)
    (text,) = sqlglot.transpile(query.sql[engine], read="spark", write="duckdb")
    connection = database(tables)
    connection.execute("CREATE MACRO timestamp_micros(number) AS make_timestamp(number)")
    found = connection.execute(text).fetchall()
    assert sorted((_micros(newest), *values) for newest, *values in found) == matches(tables, levels, 1_500_000)


@pytest.mark.parametrize("levels", ["HM", "LMH"])
def test_headrace_gives_the_same(levels):
    tables = small_chain()
    (query,) = ChainJoins(ways=len(levels) + 1, levels=levels, size="1500 ms").queries(1)
    with hr.Session(backend="reference") as session:
        for name in query.streams:
            source = hr.MemorySource(STREAM_SCHEMAS["chain"])
            session.create_stream(name, source, time="time")
            source.append(tables[name])
        asked = session.add(query.sql["headrace"])
        session.drain()
        found = [tuple(row.values()) for row in asked.results().to_pylist()]
    assert sorted((_micros(newest), *values) for newest, *values in found) == matches(tables, levels, 1_500_000)


@pytest.mark.parametrize("name", ["multiway-tpch", "multiway-chain"])
def test_headrace_takes_every_query(name):
    scenario = load_scenario(name)
    catalog = Catalog.of(Stream(stream.name, stream.schema, stream.time_column, 0) for stream in scenario.streams)
    for query in scenario.with_overrides(queries=27).initial_queries():
        plan = bind_query(query.sql["headrace"], catalog)
        assert plan.schema.names[0] == "window_end"
        assert set(plan.streams) == set(query.streams)


def _micros(moment: datetime) -> int:
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1e6)
