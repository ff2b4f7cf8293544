"""Joined rows refer to rows of tables; columns are materialized on demand."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.joins.joined_rows import ChunkedColumn, JoinedRows, JoinTable, TableSelection
from headrace.engine.joins.segment import pack_rows

VALUES = ["a", None, "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"]


@pytest.mark.parametrize("places", [[11, 0], [5, -1, 1], [], list(range(12)) * 2, [-1], [4, 4, 3]])
def test_take_reads_values_from_several_chunks(places: list[int]) -> None:
    column = ChunkedColumn([pa.array(VALUES[:4]), pa.array([], pa.string()), pa.array(VALUES[4:5]), pa.array(VALUES[5:])])
    assert column.take(np.array(places, np.int64)).to_pylist() == [None if p < 0 else VALUES[p] for p in places]
    assert len(column) == len(VALUES)
    assert column.combine_chunks().to_pylist() == VALUES


def test_rows_without_a_partner_have_null_columns() -> None:
    left = TableSelection(JoinTable({"0.x": ChunkedColumn([pa.array([1, 2, 3])])}, 3))
    right = TableSelection(JoinTable({"1.y": ChunkedColumn([pa.array([10, 20])])}, 2))
    sets = np.ones((3, 1), np.uint64)
    rows = JoinedRows([left], sets).pair_with(np.array([2, 0, 1]), JoinedRows([right], sets[:2]), np.array([1, -1, 0]), sets)
    assert rows.get_column("0.x").to_pylist() == [3, 1, 2]
    assert rows.get_column("1.y").to_pylist() == [20, None, 10]
    some = rows.take(np.array([1, 2]))
    assert some.get_column("1.y").to_pylist() == [None, 10]
    assert pack_rows(some, ["0.x", "1.z"]).columns == {"0.x": pa.array([1, 2])}
