"""Join kernels against plain Python."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.joins.index import match_keys
from headrace.engine.kernels import join as join_kernels
from headrace.engine.operators.query_sets import count_words, make_bitmap, resize_bitmaps

BITS = st.sets(st.integers(0, 99), max_size=6)
ROWS = st.lists(st.tuples(st.integers(0, 3), BITS), max_size=12)


def matrix(sets: list[set[int]], width: int = 2) -> np.ndarray:
    return np.array([make_bitmap(bits, width) for bits in sets], np.uint64).reshape(-1, width)


def bits_of(row: np.ndarray) -> set[int]:
    return {bit for bit in range(len(row) * 64) if int(row[bit // 64]) >> (bit % 64) & 1}


@given(ROWS, ROWS, st.integers(1, 5))
def test_pairs_have_equal_keys_and_common_query_bits(left, right, room) -> None:
    keys = match_keys([pa.array([k for k, _ in left], pa.int32())], [pa.array([k for k, _ in right], pa.int32())])
    left_sets, right_sets = matrix([s for _, s in left]), matrix([s for _, s in right])[keys.order]
    found, row, place = [], 0, 0
    while row < len(left):
        own, theirs = np.empty(room, np.int64), np.empty(room, np.int64)
        sets = np.empty((room + 1, 2), np.uint64)
        n, row, place = join_kernels.find_pairs_by_key(
            keys.codes, left_sets, keys.starts, keys.order, right_sets, row, place, own, theirs, sets
        )
        assert n <= room
        found += [(int(own[i]), int(theirs[i]), frozenset(bits_of(sets[i]))) for i in range(n)]
    expected = [
        (i, j, frozenset(one & two))
        for i, (k, one) in enumerate(left)
        for j, (m, two) in enumerate(right)
        if k == m and one & two
    ]
    assert sorted(found, key=lambda p: p[:2]) == expected


@given(st.lists(BITS, max_size=10), BITS)
def test_members_lists_the_rows_of_each_bit(sets, mask) -> None:
    bits, rows = join_kernels.list_rows_by_bit(matrix(sets), make_bitmap(mask, 2))
    expected = [(bit, row) for bit in sorted(mask) for row, one in enumerate(sets) if bit in one]
    assert list(zip(bits.tolist(), rows.tolist(), strict=True)) == expected


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
def test_equal_keys_of_different_types_have_equal_codes(kind, left, right) -> None:
    def columns(rows):
        return [pa.array([row[0] for row in rows], pa.int64()).cast(kind), pa.array([row[1] for row in rows], pa.int16())]

    one, two = columns(left), columns(right)
    found = match_keys(one, two)
    keys = [list(zip(*(column.to_pylist() for column in side), strict=True)) for side in (one, two)]
    for code, key in zip(found.codes.tolist(), keys[0], strict=True):
        partners = [] if code < 0 else found.order[found.starts[code] : found.starts[code + 1]].tolist()
        assert partners == [j for j, other in enumerate(keys[1]) if key == other and None not in key]


@pytest.mark.parametrize("room", [1, 3, 7, 100])
def test_pairs_within_ranges_are_produced_in_bounded_pieces(room: int) -> None:
    begins, ends = np.array([0, 2, 1, 0]), np.array([3, 2, 5, 5])
    order = np.array([4, 0, 3, 1, 2], np.int32)
    left, right = np.array([[1], [3], [2], [3]], np.uint64), np.array([[1], [2], [3], [0], [2]], np.uint64)
    found: list[tuple[int, int, int]] = []
    row = place = 0
    while row < 4:
        own, theirs, sets = np.empty(room, np.int64), np.empty(room, np.int64), np.empty((room, 1), np.uint64)
        count, row, place = join_kernels.find_pairs_in_ranges(begins, ends, left, order, right, row, place, own, theirs, sets)
        assert count <= room
        found += zip(own[:count].tolist(), theirs[:count].tolist(), sets[:count, 0].tolist(), strict=True)
    pairs = [(i, at) for i in range(4) for at in range(begins[i], ends[i])]
    assert found == [(i, int(order[at]), int(s)) for i, at in pairs if (s := left[i, 0] & right[at, 0])]


def test_large_inputs_are_matched_in_parts() -> None:
    chance = np.random.default_rng(5)
    left, right = chance.integers(-30_000, 30_000, 50_000), chance.integers(-30_000, 30_000, 70_000)
    found = match_keys([pa.array(left)], [pa.array(right)])
    by_value: dict[int, list[int]] = {}
    for place, value in enumerate(right.tolist()):
        by_value.setdefault(value, []).append(place)
    for code, value in zip(found.codes.tolist(), left.tolist(), strict=True):
        partners = [] if code < 0 else found.order[found.starts[code] : found.starts[code + 1]].tolist()
        assert partners == by_value.get(value, [])
