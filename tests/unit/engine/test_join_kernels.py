"""Join kernels against plain Python."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.joins.index import Candidates, build_hash_index, search_hashes
from headrace.engine.kernels import join as join_kernels
from headrace.engine.operators.query_sets import count_words, make_bitmap, resize_bitmaps

BITS = st.sets(st.integers(0, 99), max_size=6)
ROWS = st.lists(st.tuples(st.integers(0, 3), BITS), max_size=12)


def matrix(sets: list[set[int]], width: int = 2) -> np.ndarray:
    return np.array([make_bitmap(bits, width) for bits in sets], np.uint64).reshape(-1, width)


def bits_of(row: np.ndarray) -> set[int]:
    return {bit for bit in range(len(row) * 64) if int(row[bit // 64]) >> (bit % 64) & 1}


def match_keys(probe: list[pa.Array], build: list[pa.Array]) -> Candidates:
    return search_hashes(build_hash_index(build, len(build[0])), probe, len(probe[0]))


def list_candidates(found: Candidates) -> list[list[int]]:
    assert found.order is not None
    return [found.order[begin:end].tolist() for begin, end in found.ranges.tolist()]


@given(st.lists(BITS, max_size=10), BITS)
def test_members_lists_the_rows_of_each_bit(sets, mask) -> None:
    starts, rows = join_kernels.list_rows_by_bit(matrix(sets), make_bitmap(mask, 2))
    for bit in range(128):
        expected = [row for row, one in enumerate(sets) if bit in one and bit in mask]
        assert rows[starts[bit] : starts[bit + 1]].tolist() == expected


def test_rows_are_listed_for_every_position_of_a_bit() -> None:
    starts, rows = join_kernels.list_rows_by_bit(matrix([{bit} for bit in range(128)]), make_bitmap(range(128), 2))
    assert (starts.tolist(), rows.tolist()) == (list(range(129)), list(range(128)))


def test_rows_with_an_empty_query_set_are_dropped() -> None:
    assert join_kernels.find_live_rows(matrix([{1}, set(), {99}])).tolist() == [0, 2]


def test_query_sets_are_resized_with_the_number_of_queries() -> None:
    assert count_words([]) == count_words([63]) == 1
    assert count_words([64]) == 2
    wide = resize_bitmaps(matrix([{3, 70}]), 3)
    assert bits_of(wide[0]) == {3, 70}
    assert bits_of(resize_bitmaps(wide, 1)[0]) == {3}


@given(
    st.sampled_from([pa.int32(), pa.int64(), pa.string(), pa.float64(), pa.bool_(), pa.decimal128(30, 2)]),
    st.lists(st.tuples(st.sampled_from([0, 1, 2, None]), st.sampled_from([0, 1, None])), max_size=10),
    st.lists(st.tuples(st.sampled_from([0, 1, 2, None]), st.sampled_from([0, 1, None])), max_size=10),
)
def test_rows_with_equal_keys_are_candidates(kind, left, right) -> None:
    def columns(rows):
        return [pa.array([row[0] for row in rows], pa.int64()).cast(kind), pa.array([row[1] for row in rows], pa.int16())]

    one, two = columns(left), columns(right)
    keys = [list(zip(*(column.to_pylist() for column in side), strict=True)) for side in (one, two)]
    for partners, key in zip(list_candidates(match_keys(one, two)), keys[0], strict=True):
        assert partners == [j for j, other in enumerate(keys[1]) if key == other and None not in key]


@pytest.mark.parametrize("keys", [1, 60_000, 1 << 60])
@pytest.mark.parametrize("probe_rows", [5_000, 50_000])
def test_large_inputs_are_matched_in_parts(keys: int, probe_rows: int) -> None:
    chance = np.random.default_rng(5)
    build = chance.integers(0, keys, 70_000)
    probe = np.concatenate([chance.integers(0, keys, probe_rows), build[:100]]) if keys > 1 else np.array([0, 1])
    by_value: dict[int, list[int]] = {}
    for place, value in enumerate(build.tolist()):
        by_value.setdefault(value, []).append(place)
    found = list_candidates(match_keys([pa.array(probe)], [pa.array(build)]))
    assert found == [by_value.get(value, []) for value in probe.tolist()]
