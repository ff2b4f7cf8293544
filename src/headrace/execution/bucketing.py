"""Rows of joins, first half: each to its slice and its key partition, with the set of queries it matters to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.execution.batch import Batch
from headrace.execution.keying import Keying
from headrace.execution.query_sets import QuerySets
from headrace.kernels import compiled_join
from headrace.kernels.columns import flat
from headrace.kernels.keys import encode, partitions
from headrace.kernels.sets import Sets
from headrace.model.expression import Expression
from headrace.sharing.shared_plan import Buckets

SAMPLE = 256  # rows of a batch
_SAMPLED_KEYS = 1 << 14


@dataclass(frozen=True, slots=True)
class Bucket:
    """Rows of one slice and partition, in order of arrival: the columns that joins need, and a query-set beside each row."""

    slice_start: int
    columns: list[pa.Array]
    sets: Sets

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.sets)

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        return int(self.sets.nbytes + sum(column.nbytes for column in self.columns))


def bucket(
    operator: Buckets,
    sets: QuerySets,
    live: Sets,
    batch: Batch,
    keying: Keying,
    parts: int,
    oldest: int,
    sampled: list[Sets],
) -> Iterator[tuple[int, Bucket]]:
    """Yield (partition, bucket); rows that matter to none of the `live` queries, or are older than `oldest`, are left out.

    Query-sets of some rows are added to `sampled`.
    """
    found = sets.of(batch)
    found &= live
    sampled.append(found[:: max(1, batch.rows // SAMPLE)].copy())
    if batch.first < oldest:
        found[batch.times < oldest] = 0
    rows = compiled_join.alive(found)
    if not rows.size:
        return
    everything = rows.size == batch.rows
    picked = pa.array(rows)
    keys = [flat(batch.evaluate(key)) for key in operator.keys]
    keys = keys if everything else [key.take(picked) for key in keys]
    edges = keying.edges(operator.steps)
    slices = np.searchsorted(edges, batch.times if everything else batch.times[rows], side="right") - 1
    places = partitions(keys, rows.size, parts) * len(edges) + slices
    starts, order = compiled_join.by_key(places, parts * len(edges))
    taken = order if everything else rows[order]
    columns = [flat(batch.table[name]) for name in operator.columns]
    for place in np.flatnonzero(np.diff(starts)).tolist():
        mine = taken[starts[place] : starts[place + 1]]
        wanted = pa.array(mine)  # each piece is copied for itself: a slice would take all rows along when it is packed
        yield place // len(edges), Bucket(int(edges[place % len(edges)]), [c.take(wanted) for c in columns], found[mine])


def keys_sampled(keys: Sequence[Expression], batch: Batch) -> int:
    """Return about how many distinct keys a stream has, from some neighbouring rows: few that repeat, or many."""
    if not keys:
        return 1
    rows = min(batch.rows, _SAMPLED_KEYS)
    columns = [flat(batch.evaluate(key)).slice(0, rows) for key in keys]
    distinct = encode(columns, rows)
    seen = len(np.unique(distinct.codes))
    low, high = float(seen), 1e12
    for _ in range(60):  # of D keys, n rows show about D (1 − e^(−n/D))
        middle = (low * high) ** 0.5
        low, high = (middle, high) if middle * -np.expm1(-rows / middle) < seen else (low, middle)
    return round(low)
