"""Shared aggregation, first half: rows of a batch to partial aggregates per slice, key and cell, ready for the exchange."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.execution.batch import Batch
from headrace.execution.selection import Tagged
from headrace.kernels import compiled
from headrace.kernels.columns import narrow, take
from headrace.kernels.component import accumulate, listed
from headrace.kernels.keys import encode, partitions
from headrace.kernels.partial import Entries, Partial, group_starts
from headrace.model.expression import Expression
from headrace.sharing.shared_plan import Store
from headrace.sharing.slicing import edges_for

Integers = npt.NDArray[np.int64]
_DENSE = 1 << 20


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """Rows with key codes numbered so that the keys of partition p are bounds[p] … bounds[p + 1] − 1."""

    codes: Integers
    columns: list[pa.Array]
    bounds: Integers

    @property
    def count(self) -> int:
        """The number of keys."""
        return int(self.bounds[-1])


class Keying:
    """Key codes and slots of one batch, computed once for all operators that use the same keys and slices."""

    def __init__(self, batch: Batch, parts: int, epoch_start: int) -> None:
        """`parts` is the number of key partitions."""
        self._batch, self._parts, self._epoch_start = batch, parts, epoch_start
        self._keyed: dict[tuple[Expression, ...], KeyedRows] = {}
        self._slots: dict[object, tuple[Integers, Integers]] = {}

    def keyed(self, keys: tuple[Expression, ...]) -> KeyedRows:
        """Return the key codes of all rows."""
        if keys not in self._keyed:
            found = encode([self._batch.evaluate(k) for k in keys], self._batch.rows)
            parts = partitions(found.columns, found.count, self._parts)
            order = np.argsort(parts, kind="stable")
            place = np.empty(found.count, np.int64)
            place[order] = np.arange(found.count)
            bounds = np.searchsorted(parts[order], np.arange(self._parts + 1))
            self._keyed[keys] = KeyedRows(place[found.codes], [take(c, order) for c in found.columns], bounds.astype(np.int64))
        return self._keyed[keys]

    def slots(self, keys: tuple[Expression, ...], steps: tuple[tuple[int, int], ...]) -> tuple[Integers, Integers]:
        """Return (slice starts, slice · keys + key of each row)."""
        at = (keys, steps)
        if at not in self._slots:
            edges = edges_for(self._batch.times, steps, self._epoch_start)
            keyed = self.keyed(keys)
            self._slots[at] = edges, compiled.slots(self._batch.times, edges, keyed.codes, keyed.count)
        return self._slots[at]


def aggregate(store: Store, tagged: Tagged, batch: Batch, keying: Keying, oldest: int) -> Iterator[tuple[int, Partial]]:
    """Yield (partition, partial); rows before `oldest` belong to no open window and are left out."""
    keyed = keying.keyed(store.keys)
    edges, slots = keying.slots(store.keys, store.steps)
    rows = tagged.rows
    at = compiled.ids(slots if rows is None else slots[rows], tagged.cells, tagged.keep, tagged.size)
    if batch.times.size and int(batch.times.min()) < oldest:
        at[(batch.times if rows is None else batch.times[rows]) < oldest] = -1
    numbers, at = _number(at, len(edges) * keyed.count * tagged.size)
    size = numbers if isinstance(numbers, int) else len(numbers)
    counts = np.zeros(size, np.int64)
    compiled.add_rows(at, counts)
    occupied = np.flatnonzero(counts) if isinstance(numbers, int) else np.argsort(numbers)
    ids = occupied if isinstance(numbers, int) else numbers[occupied]
    dense: list[list[Integers]] = []
    kept = {id(counts): narrow(counts[occupied])}  # a count without NULLs *is* the row count, and shipped once
    for component in store.components:
        arrays = []
        if component.is_dense:
            arrays = accumulate(component.kind, [batch.evaluate(a) for a in component.args], at, rows, size, counts)
        dense.append([kept[id(a)] if id(a) in kept else narrow(a[occupied]) for a in arrays])
    values = _listed(store, batch, rows, at, occupied, size)
    yield from _split(ids, dense, values, tagged, keyed, edges)


def _number(at: Integers, total: int) -> tuple[int | Integers, Integers]:
    """Use ids as places where the space is small against the rows, else number the ids that occur."""
    if total <= max(_DENSE, 4 * at.size):
        return total, at
    return compiled.compress(at)  # type: ignore[no-any-return]


def _listed(store: Store, batch: Batch, rows: Integers | None, at: Integers, occupied: Integers, size: int) -> dict[int, Entries]:
    found: dict[int, Entries] = {}
    rank = np.full(size, -1, np.int64)
    rank[occupied] = np.arange(occupied.size)
    for index, component in enumerate(store.components):
        if not component.is_dense:
            columns = [batch.evaluate(a) for a in component.args]
            picked = columns if rows is None else [c.take(pa.array(rows)) for c in columns]
            places, values, counts = listed(component.kind, picked, at)
            order = np.argsort(rank[places], kind="stable")
            found[index] = Entries(rank[places][order], np.zeros(0, np.int64), [take(v, order) for v in values], counts[order])
    return found


def _split(
    ids: Integers, dense: list[list[Integers]], values: dict[int, Entries], tagged: Tagged, keyed: KeyedRows, edges: Integers
) -> Iterator[tuple[int, Partial]]:
    """Cut sorted partials into one piece a slice and partition."""
    slots = ids // tagged.size
    cells = ids - slots * tagged.size
    labels = narrow(cells if tagged.labels is None else tagged.labels[cells])
    for index in range(len(edges)):
        cuts = np.searchsorted(slots, index * keyed.count + keyed.bounds)
        for partition in np.flatnonzero(cuts[1:] > cuts[:-1]).tolist():
            first, last = int(cuts[partition]), int(cuts[partition + 1])
            distinct, starts = group_starts(slots[first:last] - index * keyed.count)
            keys = [take(c, distinct) for c in keyed.columns]
            arrays = _sliced(dense, first, last)
            entries = {i: _entries(e, first, last, starts, cells if tagged.labels is None else tagged.labels[cells]) for i, e in values.items()}
            yield partition, Partial(int(edges[index]), keys, narrow(starts), labels[first:last], arrays, entries)


def _sliced(dense: list[list[Integers]], first: int, last: int) -> list[list[Integers]]:
    seen: dict[int, Integers] = {}  # arrays that are one object stay one object, so that they are shipped once
    return [[seen.setdefault(id(a), a[first:last]) for a in arrays] for arrays in dense]


def _entries(entries: Entries, first: int, last: int, starts: Integers, labels: Integers) -> Entries:
    low, high = np.searchsorted(entries.keys, [first, last])
    places = entries.keys[low:high]
    keys = np.searchsorted(starts, places - first, side="right") - 1
    values = [take(v, np.arange(low, high)) for v in entries.values]
    return Entries(narrow(keys), narrow(labels[places]), values, narrow(entries.counts[low:high]))
