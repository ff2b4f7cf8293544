"""Shared aggregation, first half: rows of a batch to partial aggregates per slice, key and cell, ready for the exchange.

The batch is worked through piece by piece, so that what is found of a row is still in the cache when it is used, and store
by store, so that the accumulators of only one store are. Accumulators lie side by side for every (slice, key, cell) where
that space is small against the rows, else only the combinations that occur are numbered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.execution.batch import Batch
from headrace.execution.keying import Keying, KeyTable
from headrace.execution.selection import SharedSelection, Tagged
from headrace.kernels import compiled, compiled_slots
from headrace.kernels.columns import Numbers, flat, narrow, numbers, take
from headrace.kernels.component import Accumulator, listed
from headrace.kernels.partial import Entries, Partial, group_starts
from headrace.model.expression import Column, is_always_null
from headrace.sharing.selection import Layout
from headrace.sharing.shared_plan import Store

Integers = npt.NDArray[np.int64]
Tag = Callable[[Store, Batch], Tagged]
_DENSE = 1 << 20


@dataclass(slots=True)
class _Dense:
    """Accumulators of one store for every (slice, key, cell) of the batch."""

    store: Store
    selection: SharedSelection
    accumulator: Accumulator

    def add(self, piece: Batch, tag: Tag, slots: Integers, oldest: int) -> None:
        """Take the rows of a piece: in one fused pass where the shape allows it."""
        columns = [[piece.evaluate(a) for a in c.args] for c in self.store.components]
        if piece.first >= oldest and self._add_fused(piece, columns, slots):
            return
        tagged = tag(self.store, piece)
        self.accumulator.add(_ids(piece, tagged, slots, oldest), columns, tagged.rows)

    def _add_fused(self, piece: Batch, columns: list[list[pa.Array]], slots: Integers) -> bool:
        dimensions = self.store.selection.dimensions
        if not all(isinstance(e, Column) for e in (*self.store.arguments, *(d.expression for d in dimensions))):
            return False
        table, index = self.selection.table(piece), self.accumulator.only_sum(columns)
        if table is None or index is None:
            return False
        largest = piece.largest(self.store.components[index].args[0])
        return self.accumulator.add_selected(
            table, slots, self.selection.selection.size, numbers(flat(columns[index][0])), largest
        )


def aggregate(
    stores: Sequence[Store], selections: Sequence[SharedSelection], tag: Tag, batch: Batch, keying: Keying, oldest: Sequence[int]
) -> Iterator[tuple[int, int, Partial]]:
    """Yield (store, partition, partial); rows before `oldest` of a store belong to no open window and are left out."""
    dense: dict[int, _Dense] = {}
    for index, store in enumerate(stores):
        cells = len(keying.edges(store.steps)) * keying.table(store.keys).count * store.selection.size
        if (
            store.selection.layout is Layout.GRID
            and cells <= max(_DENSE, 4 * batch.rows)
            and all(c.is_dense for c in store.components)
        ):
            accumulator = Accumulator([c.signature for c in store.components], cells, _nothing(store))
            dense[index] = _Dense(store, selections[index], accumulator)
    for index, one in dense.items():
        offset = 0
        for number, piece in enumerate(batch.pieces):
            slots = keying.slots(one.store.keys, one.store.steps, number, offset)
            one.add(piece, tag, slots, oldest[index])
            offset += piece.rows
    for index, store in enumerate(stores):
        table, edges = keying.table(store.keys), keying.edges(store.steps)
        if index in dense:
            found = _from_dense(dense[index], table, edges)
        else:
            found = _from_rows(store, tag(store, batch), batch, keying, oldest[index])
        for partition, partial in found:
            yield index, partition, partial


def _nothing(store: Store) -> frozenset[int]:
    """Return the components that are over NULL: what a union lacks on one side."""
    return frozenset(i for i, component in enumerate(store.components) if any(map(is_always_null, component.args)))


def _ids(batch: Batch, tagged: Tagged, slots: Integers, oldest: int) -> Integers:
    rows = tagged.rows
    at: Integers = compiled.ids(slots if rows is None else slots[rows], tagged.cells, tagged.keep, tagged.size)
    if batch.rows and batch.first < oldest:
        at[(batch.times if rows is None else batch.times[rows]) < oldest] = -1
    return at


def _from_dense(found: _Dense, table: KeyTable, edges: Integers) -> Iterator[tuple[int, Partial]]:
    occupied = found.accumulator.occupied()
    yield from _split(occupied, found.accumulator.arrays(occupied), {}, found.store.selection.size, None, table, edges)


def _from_rows(store: Store, tagged: Tagged, batch: Batch, keying: Keying, oldest: int) -> Iterator[tuple[int, Partial]]:
    """Give numbers to the (slice, key, cell) combinations that occur, over the whole batch at once."""
    table, edges = keying.table(store.keys), keying.edges(store.steps)
    slots = compiled_slots.slots(batch.times, edges, keying.codes(store.keys), table.count)
    numbers, at = compiled.compress(_ids(batch, tagged, slots, oldest))
    order = np.argsort(numbers)
    signatures = [c.signature if c.is_dense else None for c in store.components]
    accumulator = Accumulator(signatures, len(numbers), _nothing(store))
    accumulator.add(at, [[batch.evaluate(a) for a in c.args] for c in store.components], tagged.rows)
    values = _listed(store, batch, tagged.rows, at, order)
    yield from _split(numbers[order], accumulator.arrays(order), values, tagged.size, tagged.labels, table, edges)


def _listed(store: Store, batch: Batch, rows: Integers | None, at: Integers, occupied: Integers) -> dict[int, Entries]:
    found: dict[int, Entries] = {}
    rank = np.empty(occupied.size, np.int64)
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
    ids: Integers,
    dense: list[list[Numbers]],
    values: dict[int, Entries],
    size: int,
    labels: Integers | None,
    table: KeyTable,
    edges: Integers,
) -> Iterator[tuple[int, Partial]]:
    """Cut sorted partials into one piece a slice and partition."""
    slots = ids // size
    cells = ids - slots * size
    cells = cells if labels is None else labels[cells]
    shipped = narrow(cells)
    for index in range(len(edges)):
        cuts = np.searchsorted(slots, index * table.count + table.bounds)
        for partition in np.flatnonzero(cuts[1:] > cuts[:-1]).tolist():
            first, last = int(cuts[partition]), int(cuts[partition + 1])
            distinct, starts = group_starts(slots[first:last] - index * table.count)
            keys = [take(c, distinct) for c in table.columns]
            entries = {i: _entries(e, first, last, starts, cells) for i, e in values.items()}
            yield (
                partition,
                Partial(int(edges[index]), keys, narrow(starts), shipped[first:last], _sliced(dense, first, last), entries),
            )


def _sliced(dense: list[list[Numbers]], first: int, last: int) -> list[list[Numbers]]:
    seen: dict[int, Numbers] = {}  # arrays that are one object stay one object, so that they are shipped once
    return [[seen.setdefault(id(a), a[first:last]) for a in arrays] for arrays in dense]


def _entries(entries: Entries, first: int, last: int, starts: Integers, labels: Integers) -> Entries:
    low, high = np.searchsorted(entries.keys, [first, last])
    places = entries.keys[low:high]
    keys = np.searchsorted(starts, places - first, side="right") - 1
    values = [take(v, np.arange(low, high)) for v in entries.values]
    return Entries(narrow(keys), narrow(labels[places]), values, narrow(entries.counts[low:high]))
