"""Pools of rows: which keys, dealt how, the same for everyone."""

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


def counts(distribution: str, rows: int = 100_000, keys: int = 100) -> np.ndarray:
    found = draw_keys(distribution, 3, rows, keys)
    assert found.dtype == np.int32
    return np.bincount(found, minlength=keys)


def test_uniform_keys_are_equally_frequent():
    found = counts("uniform")
    assert len(found) == 100
    assert found.min() > 850
    assert found.max() < 1150


def test_round_robin_keys_take_turns():
    assert draw_keys("round_robin", 0, 7, 3).tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_normal_keys_are_around_the_middle():
    found = counts("normal")
    assert found[45:55].mean() > 4 * found[15:25].mean() > 4 * found[0:5].mean()
    assert abs(int(found[:50].sum()) - 50_000) < 1000
    assert found.min() > 0


def test_zipf_keys_fall_off_as_one_over_rank():
    found = counts("zipf")
    assert found[0] / found[9] == pytest.approx(10, rel=0.1)
    assert found[0] / found[99] == pytest.approx(100, rel=0.3)


def test_a_single_key():
    assert counts("single")[0] == 100_000


@pytest.mark.parametrize("generator", STREAM_SCHEMAS)
def test_columns_are_those_of_the_schema(generator):
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


def test_rows_are_dealt_to_partitions_in_turn():
    whole = build_pools(small_stream(partitions=1, pool_rows=999))[0]
    parts = build_pools(small_stream(partitions=3, pool_rows=999))
    assert whole.rows == 999
    for number, part in enumerate(parts):
        for name, column in part.columns.items():
            assert column.to_pylist() == whole.columns[name].to_pylist()[number::3]


def test_round_robin_goes_on_at_the_end_of_the_pool():
    first, second = build_pools(small_stream(distribution="round_robin", keys=7, partitions=2, pool_rows=100))
    assert first.rows == 56  # 112 rows in all: the next multiple of 7 and 2
    dealt = [
        key for pair in zip(first.columns["key"].to_pylist(), second.columns["key"].to_pylist(), strict=True) for key in pair
    ]
    assert dealt + dealt[:3] == [row % 7 for row in range(115)]


def test_one_row_in_so_many_has_the_key_of_the_same_row_elsewhere_and_no_key_comes_again():
    def keys(name: str, seed: int) -> list[int]:
        spec = small_stream(
            generator=name, key="user_id", keys=1_000_000, match_every=10, seed=seed, partitions=2, pool_rows=1000
        )
        dealt = [pool.slice_column("user_id", first, first + 500).to_pylist() for first in (0, 500) for pool in build_pools(spec)]
        return [key for pair in (dealt[:2], dealt[2:]) for both in zip(*pair, strict=True) for key in both]

    purchases, ads = keys("purchases", 0), keys("ads", 1)
    assert len(purchases) == 2000
    assert [number for number, (one, two) in enumerate(zip(purchases, ads, strict=True)) if one == two] == list(
        range(0, 2000, 10)
    )
    assert len(set(purchases) & set(ads)) == 200


def test_nearly_all_keys_of_a_wide_range_come():
    pool = build_pools(small_stream(generator="purchases", keys=20_000, partitions=1))[0]
    assert len(pool.columns["gem_pack"].unique()) > 0.97 * 20_000


@pytest.mark.parametrize("column", ["gem_pack", "user_id"])
def test_two_streams_share_the_range_of_the_chosen_key(column):
    ads, purchases = (
        build_pools(small_stream(generator=g, key=column, keys=50))[0].columns[column] for g in ("ads", "purchases")
    )
    assert set(ads.to_pylist()) == set(purchases.to_pylist()) == set(range(50))
    assert ads != purchases


def test_taking_rows_copies_nothing():
    pool = build_pools(small_stream(partitions=1))[0]
    part = pool.slice_column("f1", 2_100, 2_200)
    assert part.to_pylist() == pool.columns["f1"].to_pylist()[100:200]
    assert part.buffers()[1].address == pool.columns["f1"].buffers()[1].address


def test_cuts_end_at_the_end_of_the_pool():
    pool = RowPool({"x": pa.array(range(10))}, 10)
    assert list(pool.split_range(7, 25, 6)) == [(7, 10), (10, 16), (16, 20), (20, 25)]
    assert list(pool.split_range(5, 5, 6)) == []


# Nexmark: 1 person, 3 auctions, 46 bids a round


def column(stream: str, name: str) -> np.ndarray:
    return nexmark.generate_events(stream, 0, 5_000)[name].to_numpy()


def share_of_hot(numbers: np.ndarray, beside: int = 0) -> float:
    return float(np.mean((numbers - beside) % 100 == 0))


def test_hot_auctions_bidders_and_sellers():
    assert share_of_hot(column("bids", "auction")) == pytest.approx(1 / 2, abs=0.02)
    assert share_of_hot(column("bids", "bidder"), 1) == pytest.approx(3 / 4, abs=0.02)
    assert share_of_hot(column("auctions", "seller")) == pytest.approx(3 / 4, abs=0.02)


def test_bids_are_for_recent_auctions():
    auction = column("bids", "auction")
    latest = nexmark.FIRST_NUMBER + 3 * (np.arange(len(auction)) // 46) + 2
    behind = latest - auction
    assert behind.max() < 100
    assert behind.min() == -10
    assert np.array_equal(column("auctions", "id"), nexmark.FIRST_NUMBER + np.arange(15_000))
    assert np.array_equal(column("persons", "id"), nexmark.FIRST_NUMBER + np.arange(5_000))


def test_numbers_go_on_each_time_around():
    auctions, bids = (build_pools(StreamSpec(name, name, partitions=2))[0] for name in ("auctions", "bids"))
    rounds = nexmark.POOL_ROUNDS
    assert auctions.slice_column("id", auctions.rows * 2, auctions.rows * 2 + 3).to_pylist() == [
        nexmark.FIRST_NUMBER + 2 * 3 * rounds + row for row in (0, 2, 4)
    ]
    then, now = (
        bids.slice_column("auction", 5, 9).to_numpy(),
        bids.slice_column("auction", 5 + bids.rows, 9 + bids.rows).to_numpy(),
    )
    assert (now - then).tolist() == [3 * rounds] * 4
    assert bids.slice_column("price", 5, 9) == bids.slice_column("price", 5 + bids.rows, 9 + bids.rows)


def test_pools_of_nexmark_keep_the_proportions():
    rows = {name: build_pools(StreamSpec(name, name, partitions=4))[0].rows for name in nexmark.ROWS_PER_ROUND}
    assert rows["auctions"] == 3 * rows["persons"]
    assert rows["bids"] == 46 * rows["persons"]


# What a stream is


def test_json_and_back():
    spec = small_stream("bids", "ads", distribution="zipf", share=0.3, disorder=0.5, watermark=1.0, key="ad_id")
    assert StreamSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert spec.schema == GENERATORS["ads"].schema


@pytest.mark.parametrize(
    ("given", "says"),
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
def test_refusals(given, says):
    with pytest.raises(HeadraceError, match=says):
        small_stream(**given)


def test_json_that_is_no_stream():
    with pytest.raises(HeadraceError, match="unexpected keyword argument 'speed'"):
        StreamSpec.from_json({"name": "s", "generator": "ads", "speed": 3})
