"""References to rows that another join buffer stores: the id of the row, and the hash of its key there.

    id      batch (26 bits) │ map task (14 bits) │ position in the task (24 bits)

The id of a row is unique among the rows that windows retain; a batch that runs again gives the same ids. The hash tells the
partition of the row under any partition map. Rows that have no id, because a task has too many, are stored in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.compute.keys import hash_to_range
from headrace.engine.joins.joined_rows import Integers
from headrace.plan.window_join import joined_column

ROW_ID, ROW_REFERENCE, HOME_HASH = "#id", "#row", "#home"
"""Columns of a home buffer, and of a buffer with references; names of streams' columns do not begin with #."""

_BATCH_BITS, _TASK_BITS, _POSITION_BITS = 26, 14, 24
ColumnTypes = dict[str, pa.DataType]


def make_row_ids(batch: int, task: int, first_position: int, count: int) -> pa.Array | None:
    """Return the ids of rows at consecutive positions of a map task; None if the positions do not fit."""
    if task >> _TASK_BITS or (first_position + count) >> _POSITION_BITS:
        return None
    high = np.uint64(((batch % (1 << _BATCH_BITS)) << _TASK_BITS | task) << _POSITION_BITS)
    positions = np.arange(first_position, first_position + count, dtype=np.uint64)
    return pa.array((positions | high).view(np.int64))


def make_references(row_ids: pa.Array, home_keys: Sequence[pa.Array]) -> dict[str, pa.Array]:
    """Return the columns of references to rows with these ids and keys in the home buffer."""
    hashes = hash_to_range(home_keys, len(row_ids)).astype(np.int32)
    return {ROW_REFERENCE: row_ids, HOME_HASH: pa.array(hashes)}


def list_reference_types(index: int) -> ColumnTypes:
    """Return the joined columns that hold the references of an input."""
    return {
        joined_column(index, ROW_REFERENCE, pa.int64()).name: pa.int64(),
        joined_column(index, HOME_HASH, pa.int32()).name: pa.int32(),
    }


class RowDirectory:
    """Finds rows by id in the parts of a home buffer that are in one partition."""

    def __init__(self, id_columns: Iterable[pa.Array]) -> None:
        """Take the ids of the rows of each part; rows without an id are stored in full where they are joined."""
        ids, places, first = [], [], 0
        for column in id_columns:
            known = np.arange(len(column)) if not column.null_count else np.flatnonzero(column.is_valid().to_numpy(False))
            ids.append(column.to_numpy(zero_copy_only=False)[known].astype(np.int64))
            places.append(known + first)
            first += len(column)
        all_ids, all_places = np.concatenate(ids), np.concatenate(places)
        order = np.argsort(all_ids, kind="stable")  # ids of a part ascend, so that there are few runs to merge
        self._ids, self._places = all_ids[order], all_places[order]

    def find_places(self, ids: npt.NDArray[np.int64]) -> Integers:
        """Return the position of each row in the parts one after the other; raises LookupError if a row is missing."""
        positions = np.searchsorted(self._ids, ids)
        is_missing = (positions >= len(self._ids)) | (self._ids[np.minimum(positions, len(self._ids) - 1)] != ids)
        if is_missing.any():
            raise LookupError(f"{np.count_nonzero(is_missing)} rows of a join are missing in their home buffer")
        return self._places[positions]
