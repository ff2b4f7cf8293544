"""The rows of leaves in one round of joins: from buckets, or as the level before passed them on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.execution.bucketing import Bucket
from headrace.execution.joined_rows import JoinedRows, Pieces, Table, all_of
from headrace.execution.joiner import Joiner, leaf_of
from headrace.execution.onward import Moved
from headrace.kernels import compiled_join
from headrace.kernels.sets import Sets, set_of, widened
from headrace.model.expression import Expression
from headrace.plan.join import owner, present_column
from headrace.sharing.joining import Leaf


@dataclass(frozen=True, slots=True)
class BucketSlice:
    """A bucket of this partition: whose rows, from which slice."""

    stream: str
    keys: tuple[Expression, ...]
    slot: int
    columns: tuple[str, ...]
    bucket: Bucket


class BucketLeaves:
    """Puts rows together from buckets: those that lie in the window of some query."""

    def __init__(self, slices: Sequence[BucketSlice], joiners: Sequence[Joiner], ends: Mapping[int, int], width: int) -> None:
        """Take buckets and joins; `ends` has the end of the window of each query, by its bit."""
        self._slices, self._joiners, self._ends, self._width = slices, joiners, ends, width
        self._known: dict[Leaf, JoinedRows | None] = {}

    def rows(self, leaf: Leaf) -> JoinedRows | None:
        """Return the rows of a leaf with the queries they matter to; None if there are none."""
        if leaf not in self._known:
            self._known[leaf] = self._rows(leaf)
        return self._known[leaf]

    def _rows(self, leaf: Leaf) -> JoinedRows | None:
        users = [(joiner.bit, self._ends[joiner.bit], joiner.plan.inputs[leaf.input].window.size) for joiner in self._users(leaf)]
        looked_at = ((*owner(c.name), c.type) for joiner in self._users(leaf) for c in joiner.plan.joined_columns)
        types = {name: kind for number, name, kind in looked_at if number == leaf.input and name}
        names = tuple(sorted(types))
        columns: list[list[pa.Array]] = [[] for _ in names]
        sets: list[Sets] = []
        for one in self._slices:
            if (one.stream, one.keys, one.slot) != (leaf.stream, leaf.keys, leaf.slot):
                continue
            start = one.bucket.slice_start
            mask = set_of([bit for bit, end, size in users if end - size <= start < end], self._width)
            if not mask.any():
                continue
            found = widened(one.bucket.sets, self._width) & mask
            rows = compiled_join.alive(found)
            if rows.size:
                whole = rows.size == one.bucket.rows
                sets.append(found if whole else found[rows])
                picked = None if whole else pa.array(rows)
                for into, name in zip(columns, names, strict=True):
                    if name not in one.columns:  # it was kept later, for queries none of whose windows reach back here
                        into.append(pa.nulls(rows.size, types[name]))
                        continue
                    column = one.bucket.columns[one.columns.index(name)]
                    into.append(column if picked is None else column.take(picked))
        if not sets:
            return None
        joined = np.concatenate(sets) if len(sets) > 1 else sets[0]
        table = {f"{leaf.input}.{name}": Pieces(into) for name, into in zip(names, columns, strict=True)}
        table[present_column(leaf.input).name] = Pieces([pa.repeat(pa.scalar(True), len(joined))])
        return all_of(Table(table, len(joined)), joined)

    def _users(self, leaf: Leaf) -> list[Joiner]:
        return [joiner for joiner in self._joiners if leaf in map(leaf_of, joiner.path)]


class ArrivedLeaves:
    """Has what the level before passed on."""

    def __init__(self, moved: Sequence[Moved], joiners: Iterable[Joiner], width: int) -> None:
        """Take the rows of one round, and the joiners that have a window in it."""
        by_query = {joiner.live.id: joiner for joiner in joiners}
        self._known: dict[Leaf, JoinedRows] = {}
        for one in moved:
            leaf = by_query[one.query].chain.steps[one.depth].leaf
            self._known[leaf] = all_of(one.table, widened(one.sets, width))

    def rows(self, leaf: Leaf) -> JoinedRows | None:
        """Return the rows of a leaf; None if there are none."""
        return self._known.get(leaf)
