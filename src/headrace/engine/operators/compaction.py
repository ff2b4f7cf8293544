"""Compaction of the partial aggregates of a slice after a batch: many are merged, so that a slice never has many.

A slice that receives rows in many batches thus stays fast to read. Entries that are stored already have a reference; new and
merged ones are still to be written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.batch_job import StateRef
from headrace.engine.compute.accumulators import (
    PartialAggregate,
    ValueEntries,
    allocate_neutral,
    combine_partials,
    find_group_starts,
    reduce_listed,
)
from headrace.engine.compute.columns import narrow_integers, take, widen_integers
from headrace.engine.compute.keys import unify_keys
from headrace.engine.operators.windows import SlicePartial
from headrace.planner.components import Component

Integers = npt.NDArray[np.int64]


def merge_partials(components: Sequence[Component], partials: Sequence[PartialAggregate]) -> PartialAggregate:
    """Return one partial with the content of all `partials`, which belong to one slice and operator."""
    columns, _, key_maps = unify_keys([(partial.keys, partial.key_count) for partial in partials])
    keys = np.concatenate(
        [np.repeat(key_map, np.diff(widen_integers(partial.starts))) for partial, key_map in zip(partials, key_maps, strict=True)]
    )
    cells = np.concatenate([widen_integers(partial.cells) for partial in partials])
    order = np.lexsort((cells, keys))
    is_first = np.concatenate([[True], (np.diff(keys[order]) != 0) | (np.diff(cells[order]) != 0)])
    entry_ids = np.empty(len(order), np.int64)
    entry_ids[order] = np.cumsum(is_first) - 1
    first_entries = order[np.flatnonzero(is_first)]
    used_keys, starts = find_group_starts(keys[first_entries])
    offsets = np.cumsum([0, *(len(partial.cells) for partial in partials)])
    dense, entries = [], {}
    for index, component in enumerate(components):
        totals = allocate_neutral(*component.signature, len(first_entries)) if component.is_dense else []
        for partial, offset in zip(partials, offsets, strict=False):
            if component.is_dense:
                combine_partials(component.kind, partial.dense[index], entry_ids[offset : offset + len(partial.cells)], totals)
        if not component.is_dense:
            entries[index] = _merge_entries(component, [partial.listed[index] for partial in partials], key_maps, used_keys)
        dense.append([narrow_integers(array) for array in totals])
    return PartialAggregate(
        partials[0].slice_start,
        [take(column, used_keys) for column in columns],
        narrow_integers(starts),
        narrow_integers(cells[first_entries]),
        dense,
        entries,
    )


def _merge_entries(
    component: Component, entry_lists: Sequence[ValueEntries], key_maps: Sequence[Integers], used_keys: Integers
) -> ValueEntries:
    keys = np.concatenate([key_map[widen_integers(entries.keys)] for entries, key_map in zip(entry_lists, key_maps, strict=True)])
    cells = np.concatenate([widen_integers(entries.cells) for entries in entry_lists])
    labels, label_ids = np.unique(cells, return_inverse=True)
    columns = [pa.concat_arrays([entries.values[i] for entries in entry_lists]) for i in range(len(component.args))]
    groups = keys * max(len(labels), 1) + label_ids.reshape(-1)
    group_ids, values, counts = reduce_listed(
        component.kind, columns, groups, np.concatenate([widen_integers(entries.counts) for entries in entry_lists])
    )
    new_keys = np.searchsorted(used_keys, group_ids // max(len(labels), 1))
    return ValueEntries(
        narrow_integers(new_keys), narrow_integers(labels[group_ids % max(len(labels), 1)]), values, narrow_integers(counts)
    )


_MAX_SLICE_PARTIALS = 8


def compact_slices(slice_partials: Sequence[tuple[StateRef | None, SlicePartial]]) -> list[tuple[StateRef | None, SlicePartial]]:
    """Return the partials of one slice of an operator, merged if there are more than 8."""
    if len(slice_partials) <= _MAX_SLICE_PARTIALS:
        return list(slice_partials)
    first = slice_partials[0][1]
    merged = merge_partials(first.operator.components, [slice_partial.load() for _, slice_partial in slice_partials])
    return [(None, SlicePartial(first.operator, first.cell_assigner, first.start, make_constant_loader(merged)))]


def make_constant_loader(partial: PartialAggregate) -> Callable[[], PartialAggregate]:
    """Return a loader of a partial that is in memory already."""
    return lambda: partial
