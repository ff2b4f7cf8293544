"""Packed row counts and sums equal those added row by row, for large and negative values and NULLs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.compute.accumulators import Accumulator

SIGNATURES = [("rows", []), ("add", [pa.int32()])]
PLACES, CELLS = 6, 3
TABLE = np.array([0, -1, 2], np.int64)  # no query needs the middle cell


def _naive(values, slots, summed):
    counts, sums = np.zeros(PLACES * CELLS, np.int64), np.zeros(PLACES * CELLS, np.int64)
    for value, slot, number in zip(values.tolist(), slots.tolist(), summed.tolist(), strict=True):
        cell = int(TABLE[min(max(value - 10, 0), 2)])
        if cell >= 0:
            counts[slot * CELLS + cell] += 1
            sums[slot * CELLS + cell] += number
    return counts, sums


@pytest.mark.parametrize("magnitude", [1, 1000, 1 << 27, (1 << 31) - 1])
def test_packed_sums_are_exact_over_many_pieces(magnitude):
    rng = np.random.default_rng(magnitude)
    accumulator = Accumulator(SIGNATURES, PLACES * CELLS)
    counts, sums = np.zeros(PLACES * CELLS, np.int64), np.zeros(PLACES * CELLS, np.int64)
    for piece in range(12):
        values, slots = rng.integers(5, 20, 200), rng.integers(0, PLACES, 200)
        summed = rng.choice(np.array([-magnitude, 0, magnitude]), 200)
        assert accumulator.add_selected((values, 10, TABLE), slots, CELLS, summed, magnitude)
        more = _naive(values, slots, summed)
        counts, sums = counts + more[0], sums + more[1]
        if piece == 5:  # a piece that cannot be packed, in between
            accumulator.add(slots * CELLS, [[], [pa.array(summed, pa.int32())]], None)
            np.add.at(counts, slots * CELLS, 1)
            np.add.at(sums, slots * CELLS, summed)
    occupied = accumulator.occupied_groups()
    assert occupied.tolist() == np.flatnonzero(counts).tolist()
    (rows,), (total,) = accumulator.export_arrays(occupied)
    assert rows.tolist() == counts[occupied].tolist()
    assert total.tolist() == sums[occupied].tolist()


@pytest.mark.parametrize("magnitude", [1, 127, 128, 1000, 40_000, 1 << 27, (1 << 31) - 1])
@pytest.mark.parametrize("first", [0, 2])
def test_packed_groups_are_exported_by_slot(magnitude, first):
    rng = np.random.default_rng(magnitude)
    accumulator = Accumulator([*SIGNATURES, ("count", []), None, ("count", [])], PLACES * CELLS, frozenset({4}))
    values, slots = rng.integers(5, 20, 60), rng.choice(np.array([0, 2, 3, 5]), 60)  # the other slots have no rows
    summed = rng.choice(np.array([-magnitude - 1, 0, magnitude]), 60)
    assert accumulator.add_selected((values, 10, TABLE), slots, CELLS, summed, magnitude + 1)
    counts, sums = _naive(values, slots, summed)
    assert accumulator.is_packed
    export = accumulator.export_packed(first, PLACES, CELLS)
    groups = np.repeat(export.slots + first, np.diff(export.starts.astype(np.int64))) * CELLS + export.cells
    assert groups.tolist() == [group for group in np.flatnonzero(counts).tolist() if group >= first * CELLS]
    assert np.all(np.diff(export.starts.astype(np.int64)) > 0)
    (rows,), (total,), (valid,), listed, (nulls,) = export.dense
    assert rows.tolist() == counts[groups].tolist()
    assert total.tolist() == sums[groups].tolist()
    assert valid is rows
    assert listed == []
    assert nulls.tolist() == [0] * len(groups)
    assert total.dtype.itemsize == next(size for size in (1, 2, 4, 8) if abs(sums[groups] + 0.5).max() < 2 ** (8 * size - 1))
    repeated = accumulator.export_packed(0, 2, CELLS).dense[1][0]  # another range does not change what was exported
    assert repeated.tolist() == sums[: 2 * CELLS][counts[: 2 * CELLS] > 0].tolist()
    assert total.tolist() == sums[groups].tolist()


def test_sums_too_large_to_pack_are_refused():
    accumulator = Accumulator(SIGNATURES, PLACES * CELLS)
    values, slots = np.full(300, 10), np.zeros(300, np.int64)
    assert not accumulator.add_selected((values, 10, TABLE), slots, CELLS, np.full(300, 1 << 31), 1 << 31)
    assert accumulator.occupied_groups().size == 0


def test_an_empty_accumulator_has_no_occupied_groups():
    accumulator = Accumulator(SIGNATURES, 4)
    assert accumulator.occupied_groups().tolist() == []
    assert [a.tolist() for (a,) in accumulator.export_arrays(accumulator.occupied_groups())] == [[], []]
