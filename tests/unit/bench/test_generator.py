"""Row pools: key distributions, partitioning and determinism."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from headrace.bench.driver import nexmark
from headrace.bench.driver.distributions import draw_keys
from headrace.bench.driver.generator import RowPool, build_pools
from headrace.bench.driver.streams import STREAM_SCHEMAS, StreamSpec
from headrace.connectors import GENERATORS
from headrace.errors import HeadraceError
from support.in_process_driver import small_stream


def count_keys(distribution: str, rows: int = 100_000, keys: int = 100) -> np.ndarray:
    key_counts = draw_keys(distribution, 3, rows, keys)
    assert key_counts.dtype == np.int32
    return np.bincount(key_counts, minlength=keys)


def test_uniform_keys_are_equally_frequent():
    key_counts = count_keys("uniform")
    assert len(key_counts) == 100
    assert key_counts.min() > 850
    assert key_counts.max() < 1150


def test_round_robin_keys_take_turns():
    assert draw_keys("round_robin", 0, 7, 3).tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_normal_keys_cluster_around_the_middle():
    key_counts = count_keys("normal")
    assert key_counts[45:55].mean() > 4 * key_counts[15:25].mean() > 4 * key_counts[0:5].mean()
    assert abs(int(key_counts[:50].sum()) - 50_000) < 1000
    assert key_counts.min() > 0


def test_zipf_key_frequency_is_inverse_to_the_rank():
    key_counts = count_keys("zipf")
    assert key_counts[0] / key_counts[9] == pytest.approx(10, rel=0.1)
    assert key_counts[0] / key_counts[99] == pytest.approx(100, rel=0.3)


def test_the_single_distribution_has_one_key():
    assert count_keys("single")[0] == 100_000


@pytest.mark.parametrize("generator", STREAM_SCHEMAS)
def test_pool_columns_match_the_schema(generator):
    spec = small_stream(generator=generator, partitions=3)
    for pool in build_pools(spec):
        expected = spec.schema.to_arrow().remove(len(spec.schema) - 1)
        assert pa.schema([(name, column.type) for name, column in pool.columns.items()]).equals(expected)
        assert {len(column) for column in pool.columns.values()} == {pool.rows}
        assert sum(column.null_count for column in pool.columns.values()) == 0
    assert spec.schema.names[-1] == spec.time_column


@pytest.mark.parametrize("generator", STREAM_SCHEMAS)
def test_the_same_seed_gives_the_same_rows(generator):
    first, again, other = (build_pools(small_stream(generator=generator, seed=seed))[1] for seed in (1, 1, 2))
    assert first.columns == again.columns
    assert first.columns != other.columns


def test_rows_are_assigned_to_partitions_round_robin():
    whole = build_pools(small_stream(partitions=1, pool_rows=999))[0]
    parts = build_pools(small_stream(partitions=3, pool_rows=999))
    assert whole.rows == 999
    for number, part in enumerate(parts):
        for name, column in part.columns.items():
            assert column.to_pylist() == whole.columns[name].to_pylist()[number::3]


def test_round_robin_keys_continue_after_the_end_of_the_pool():
    first, second = build_pools(small_stream(distribution="round_robin", keys=7, partitions=2, pool_rows=100))
    assert first.rows == 56  # 112 rows in all: the next multiple of 7 and 2
    keys_in_order = [
        key for pair in zip(first.columns["key"].to_pylist(), second.columns["key"].to_pylist(), strict=True) for key in pair
    ]
    assert keys_in_order + keys_in_order[:3] == [row % 7 for row in range(115)]


def test_match_every_gives_streams_common_keys_at_that_interval():
    def keys(name: str, seed: int) -> list[int]:
        spec = small_stream(
            generator=name, key="user_id", keys=1_000_000, match_every=10, seed=seed, partitions=2, pool_rows=1000
        )
        pools = build_pools(spec)
        parts = [pool.slice_column("user_id", first, first + 500).to_pylist() for first in (0, 500) for pool in pools]
        return [key for pair in (parts[:2], parts[2:]) for row_keys in zip(*pair, strict=True) for key in row_keys]

    purchases, ads = keys("purchases", 0), keys("ads", 1)
    assert len(purchases) == 2000
    assert [number for number, (purchase, ad) in enumerate(zip(purchases, ads, strict=True)) if purchase == ad] == list(
        range(0, 2000, 10)
    )
    assert len(set(purchases) & set(ads)) == 200


def test_a_wide_key_range_is_nearly_covered():
    pool = build_pools(small_stream(generator="purchases", keys=20_000, partitions=1))[0]
    assert len(pool.columns["gem_pack"].unique()) > 0.97 * 20_000


@pytest.mark.parametrize("column", ["gem_pack", "user_id"])
def test_two_streams_share_the_key_range(column):
    ads, purchases = (
        build_pools(small_stream(generator=g, key=column, keys=50))[0].columns[column] for g in ("ads", "purchases")
    )
    assert set(ads.to_pylist()) == set(purchases.to_pylist()) == set(range(50))
    assert ads != purchases


def test_slice_column_copies_no_data():
    pool = build_pools(small_stream(partitions=1))[0]
    part = pool.slice_column("f1", 2_100, 2_200)
    assert part.to_pylist() == pool.columns["f1"].to_pylist()[100:200]
    assert part.buffers()[1].address == pool.columns["f1"].buffers()[1].address


def test_split_range_cuts_at_the_end_of_the_pool():
    pool = RowPool({"x": pa.array(range(10))}, 10)
    assert list(pool.split_range(7, 25, 6)) == [(7, 10), (10, 16), (16, 20), (20, 25)]
    assert list(pool.split_range(5, 5, 6)) == []


# Nexmark: 1 person, 3 auctions, 46 bids a round


def generate_column(stream: str, name: str) -> np.ndarray:
    return nexmark.generate_events(stream, 0, 5_000)[name].to_numpy()


def compute_hot_share(numbers: np.ndarray, offset: int = 0) -> float:
    return float(np.mean((numbers - offset) % 100 == 0))


def test_hot_auctions_bidders_and_sellers_have_their_share():
    assert compute_hot_share(generate_column("bids", "auction")) == pytest.approx(1 / 2, abs=0.02)
    assert compute_hot_share(generate_column("bids", "bidder"), 1) == pytest.approx(3 / 4, abs=0.02)
    assert compute_hot_share(generate_column("auctions", "seller")) == pytest.approx(3 / 4, abs=0.02)


def test_bids_refer_to_recent_auctions():
    auction = generate_column("bids", "auction")
    latest = nexmark.FIRST_NUMBER + 3 * (np.arange(len(auction)) // 46) + 2
    behind = latest - auction
    assert behind.max() < 100
    assert behind.min() == -10
    assert np.array_equal(generate_column("auctions", "id"), nexmark.FIRST_NUMBER + np.arange(15_000))
    assert np.array_equal(generate_column("persons", "id"), nexmark.FIRST_NUMBER + np.arange(5_000))


def test_ids_increase_with_each_pass_over_the_pool():
    auctions, bids = (build_pools(StreamSpec(name, name, partitions=2))[0] for name in ("auctions", "bids"))
    rounds = nexmark.POOL_ROUNDS
    assert auctions.slice_column("id", auctions.rows * 2, auctions.rows * 2 + 3).to_pylist() == [
        nexmark.FIRST_NUMBER + 2 * 3 * rounds + row for row in (0, 2, 4)
    ]
    earlier, later = (
        bids.slice_column("auction", 5, 9).to_numpy(),
        bids.slice_column("auction", 5 + bids.rows, 9 + bids.rows).to_numpy(),
    )
    assert (later - earlier).tolist() == [3 * rounds] * 4
    assert bids.slice_column("price", 5, 9) == bids.slice_column("price", 5 + bids.rows, 9 + bids.rows)


def test_nexmark_pools_keep_the_row_proportions():
    rows = {name: build_pools(StreamSpec(name, name, partitions=4))[0].rows for name in nexmark.ROWS_PER_ROUND}
    assert rows["auctions"] == 3 * rows["persons"]
    assert rows["bids"] == 46 * rows["persons"]


# Stream specifications


def test_a_stream_spec_round_trips_through_json():
    spec = small_stream("bids", "ads", distribution="zipf", share=0.3, disorder=0.5, watermark=1.0, key="ad_id")
    assert StreamSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert spec.schema == GENERATORS["ads"].schema


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"generator": "nope"}, "stream 's' has unknown generator 'nope'\ndetail: known: purchases, ads, fields, persons"),
        ({"distribution": "odd"}, "unknown distribution 'odd'\ndetail: known: uniform, round_robin"),
        ({"key": "price", "generator": "ads"}, "unknown key 'price'\ndetail: known: gem_pack, user_id, ad_id"),
        ({"generator": "bids", "distribution": "zipf"}, "'bids', whose keys are fixed"),
        ({"keys": 0}, "keys = 0"),
        ({"partitions": 0}, "partitions = 0"),
        ({"share": 0.0}, "share = 0.0"),
        ({"disorder": -1.0}, "disorder = -1.0"),
        ({"name": " "}, "has no name"),
    ],
)
def test_invalid_stream_specs_are_refused(given, message):
    with pytest.raises(HeadraceError, match=message):
        small_stream(**given)


def test_json_with_unknown_fields_is_refused():
    with pytest.raises(HeadraceError, match="unexpected keyword argument 'speed'"):
        StreamSpec.from_json({"name": "s", "generator": "ads", "speed": 3})
