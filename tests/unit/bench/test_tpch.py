"""TPC-H relations: sizes, keys, foreign keys and selectivities."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.bench.driver import tpch
from headrace.bench.driver.generator import build_pools
from headrace.bench.driver.streams import STREAM_SCHEMAS, StreamSpec
from headrace.bench.queries.sliding_joins import TPCH_EDGES
from headrace.bench.scenarios.scenario import load_scenario
from headrace.errors import HeadraceError

REFERENCES = [edge for edge in TPCH_EDGES if edge.is_reference]
KEYS = {
    "region": ["r_regionkey"], "nation": ["n_nationkey"], "supplier": ["s_suppkey"], "part": ["p_partkey"],
    "partsupp": ["ps_partkey", "ps_suppkey"], "customer": ["c_custkey"], "orders": ["o_orderkey"],
    "lineitem": ["l_orderkey", "l_linenumber"],
}  # fmt: skip


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    """Return all relations, each with its own seed; keys match across seeds."""
    return {name: pa.table(tpch.generate_relation(name, seed, 0.01)) for seed, name in enumerate(tpch.ROWS_AT_SCALE_1)}


def list_values(table: pa.Table, names: list[str]) -> list[tuple]:
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def test_relation_sizes_follow_tpc_h(tables):
    sizes = {name: table.num_rows for name, table in tables.items()}
    assert sizes.pop("lineitem") == pytest.approx(60_000, rel=0.02)
    assert sizes == {
        "region": 5, "nation": 25, "supplier": 100, "part": 2000, "partsupp": 8000, "customer": 1500, "orders": 15_000,
    }  # fmt: skip
    assert tpch.count_rows("lineitem", 0.01) == 60_000
    assert len(tpch.generate_relation("orders", 0, 0.1)["o_orderkey"]) == 150_000


def test_keys_above_scale_1_are_sampled_from_the_full_domain():
    keys = np.asarray(tpch.generate_relation("customer", 1, 4.0)["c_custkey"])
    assert len(np.unique(keys)) == len(keys) == tpch.ROWS_AT_SCALE_1["customer"]
    assert abs(np.mean(keys) / tpch.count_rows("customer", 4.0) - 0.5) < 0.01
    parts = pa.table(tpch.generate_relation("partsupp", 1, 4.0))
    assert parts.num_rows == tpch.ROWS_AT_SCALE_1["partsupp"]
    assert set(pc.value_counts(parts["ps_partkey"]).field("counts").to_pylist()) == {4}
    assert (
        max(pc.max(parts["ps_partkey"]).as_py() - tpch.count_rows("part", 4.0), pc.max(parts["ps_suppkey"]).as_py() - 40_000) <= 0
    )


@pytest.mark.parametrize("relation", tpch.ROWS_AT_SCALE_1)
def test_primary_keys_are_unique(tables, relation):
    keys = list_values(tables[relation], KEYS[relation])
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("scale", [0.001, 0.01])
@pytest.mark.parametrize("edge", REFERENCES, ids=lambda edge: f"{edge.left}-{edge.right}")
def test_every_foreign_key_references_a_primary_key(edge, scale):
    own, others = zip(*edge.pairs, strict=True)
    referring, referred = (pa.table(tpch.generate_relation(name, 3, scale)) for name in (edge.left, edge.right))
    keys = list_values(referred, list(others))
    assert len(set(keys)) == len(keys)
    assert set(list_values(referring, list(own))) <= set(keys)


@pytest.mark.parametrize("name", tpch.key_domains(0.01))
def test_columns_cover_their_domains_evenly(tables, name):
    domain = tpch.key_domains(0.01)[name]
    (column,) = (table[name].to_numpy() for table in tables.values() if name in table.column_names)
    assert (column.min(), column.max()) == (domain[0], domain[-1])
    counts = np.bincount(column - domain[0])
    assert counts.max() < 2.2 * len(column) / len(domain) + 10


@pytest.mark.parametrize("edge", TPCH_EDGES, ids=lambda edge: "-".join(sorted(edge.collect_columns())))
def test_join_selectivities_match_the_estimates(tables, edge):
    left, right = tables[edge.left], tables[edge.right]
    own, others = map(list, zip(*edge.pairs, strict=True))
    matches = left.select(own).join(right.select(others), own, others, join_type="inner").num_rows
    assert matches / (left.num_rows * right.num_rows) == pytest.approx(edge.estimate_selectivity(0.01), rel=0.06)


def test_a_part_has_four_suppliers_and_a_supplier_eighty_parts(tables):
    keys = list_values(tables["partsupp"], ["ps_partkey", "ps_suppkey"])
    assert len(set(keys)) == 8000
    assert set(np.bincount(tables["partsupp"]["ps_partkey"].to_numpy())[1:]) == {4}
    assert set(np.bincount(tables["partsupp"]["ps_suppkey"].to_numpy())[1:]) == {80}


def test_the_order_status_equals_the_line_status_unless_partial(tables):
    status = dict(list_values(tables["orders"], ["o_orderkey", "o_orderstatus"]))
    lines = list_values(tables["lineitem"], ["l_orderkey", "l_linestatus"])
    assert set(status.values()) == {"F", "O", "P"}
    assert {(status[order], line) for order, line in lines} == {("F", "F"), ("O", "O"), ("P", "F"), ("P", "O")}
    assert np.mean([status[order] == line for order, line in lines]) == pytest.approx(tpch.SAME_STATUS_SHARE, abs=0.01)


def test_keys_are_not_correlated_with_row_order(tables):
    for name in ("orders", "lineitem", "partsupp", "customer"):
        key = tables[name][KEYS[name][0]].to_numpy()
        assert abs(np.corrcoef(np.arange(len(key)), key)[0, 1]) < 0.1


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_a_small_relation_is_spread_evenly_over_partitions(partitions):
    for name, rows in (("region", 5), ("nation", 25), ("supplier", 10)):
        pools = build_pools(StreamSpec(name, name, partitions=partitions, scale=0.001))
        keys = np.concatenate([pool.columns[KEYS[name][0]].to_numpy() for pool in pools])
        assert len(set(np.bincount(keys - keys.min()).tolist())) == 1
        assert len(set(keys.tolist())) == rows
        assert min(pool.rows for pool in pools) >= 4096


def test_a_relation_repeats_unchanged():
    pool = build_pools(StreamSpec("orders", "orders", scale=0.001, partitions=1))[0]
    assert not pool.increments
    assert pool.slice_column("o_orderkey", 3, 9) == pool.slice_column("o_orderkey", 3 + pool.rows, 9 + pool.rows)


def test_the_scenario_uses_the_tpch_rate_shares():
    streams = load_scenario("multiway-tpch").streams
    assert {stream.name: stream.share for stream in streams} == dict(tpch.RATE_SHARES)
    assert {stream.generator for stream in streams} == set(tpch.ROWS_AT_SCALE_1)
    assert tpch.RATE_SHARES["lineitem"] > 1000 * tpch.RATE_SHARES["nation"] > 1000 * tpch.RATE_SHARES["region"] > 0


def test_columns_have_the_prefix_of_their_relation():
    prefixes = {"region": "r_", "nation": "n_", "supplier": "s_", "part": "p_", "partsupp": "ps_", "customer": "c_"}
    for name, prefix in {**prefixes, "orders": "o_", "lineitem": "l_"}.items():
        *own, time = STREAM_SCHEMAS[name].names
        assert time == "time"
        assert all(column.startswith(prefix) for column in own)


def test_prices_dates_and_line_numbers_follow_tpc_h(tables):
    prices = dict(zip(tables["part"]["p_partkey"].to_pylist(), tables["part"]["p_retailprice"].to_pylist(), strict=True))
    assert [prices[key] for key in (1, 10, 1000, 1999)] == [901.0, 910.01, 901.0, 1900.99]
    ordered = dict(zip(*(tables["orders"][name].to_pylist() for name in ("o_orderkey", "o_orderdate")), strict=True))
    names = ["l_orderkey", "l_linenumber", "l_partkey", "l_quantity", "l_extendedprice", "l_discount", "l_shipdate"]
    numbers: dict[int, list[int]] = {}
    days, discounts = set(), set()
    for order, number, part, quantity, price, discount, shipped in list_values(tables["lineitem"], names):
        assert price == pytest.approx(quantity * prices[part])
        numbers.setdefault(order, []).append(number)
        days.add(shipped - ordered[order])
        discounts.add(round(discount * 100))
    assert all(sorted(lines) == list(range(1, len(lines) + 1)) for lines in numbers.values())
    assert (min(days), max(days)) == (1, 121)
    assert discounts == set(range(11))


def test_a_selectivity_has_a_number_of_values_for_every_two_keys():
    assert tpch.SelectivityLevel("x", 3).domain_size(10) == 15
    assert tpch.SelectivityLevel("x", 1).domain_size(1) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": 1 << 31}, "has keys = 2147483648"),
        ({"keys": 0}, "has keys = 0"),
        ({"disorder": 1800}, "has disorder = 1800"),
        ({"watermark": -1}, "has watermark = -1"),
        ({"match_every": 1 << 31}, "has match_every = 2147483648"),
        ({"match_every": 2, "keys": 1 << 30}, "keys must be below 2"),
        ({"share": 0}, "has share = 0"),
    ],
)
def test_streams_that_cannot_be_generated_are_refused(options, message):
    with pytest.raises(HeadraceError, match=message):
        StreamSpec("s", "fields", **options)
