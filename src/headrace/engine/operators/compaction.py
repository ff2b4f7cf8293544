"""Compaction of stored slices after a batch: many small entries are merged, so that a slice never has many.

A slice that receives rows in many batches thus stays fast to read. Entries that are stored already have a reference; new and
merged ones are still to be written.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

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
from headrace.engine.joins.join_buffer import BufferedRows
from headrace.engine.joins.query_sets import resize_bitmaps
from headrace.engine.operators.windows import SlicePartial
from headrace.planner.components import Component
from headrace.storage.posix import write_atomically

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
_MAX_SMALL_BUFFERS = 16
_SMALL_BUFFER_ROWS = 1 << 16  # larger buffers are not merged: no row is written more than a few times


def compact_slices(slice_partials: Sequence[tuple[StateRef | None, SlicePartial]]) -> list[tuple[StateRef | None, SlicePartial]]:
    """Return the partials of one slice of an operator, merged if there are more than 8."""
    if len(slice_partials) <= _MAX_SLICE_PARTIALS:
        return list(slice_partials)
    first = slice_partials[0][1]
    merged = merge_partials(first.operator.components, [slice_partial.load() for _, slice_partial in slice_partials])
    return [(None, SlicePartial(first.operator, first.cell_assigner, first.start, make_constant_loader(merged)))]


def compact_buffers(buffers: Sequence[tuple[StateRef, BufferedRows]]) -> list[tuple[StateRef, BufferedRows]]:
    """Return join buffers, the small ones of a slice merged where there are many; those without a file are to be written."""
    slices: dict[tuple[str, int, int, int], list[tuple[StateRef, BufferedRows]]] = defaultdict(list)
    for ref, rows in buffers:
        slices[ref.slice_key].append((ref, rows))
    compacted: list[tuple[StateRef, BufferedRows]] = []
    for slice_buffers in slices.values():
        small_buffers = [entry for entry in slice_buffers if entry[1].row_count < _SMALL_BUFFER_ROWS]
        if len(small_buffers) > _MAX_SMALL_BUFFERS:
            compacted += [entry for entry in slice_buffers if entry[1].row_count >= _SMALL_BUFFER_ROWS]
            compacted.append(
                (replace(small_buffers[0][0], file="", index=0), _concat_buffers([rows for _, rows in small_buffers]))
            )
        else:
            compacted += slice_buffers
    return compacted


class ShuffleFilePromoter:
    """Promotes shuffle files of the checkpoint to state files: their rows are linked, not written again."""

    def __init__(self, directory: Path) -> None:
        """Take the directory of the checkpoint."""
        self._directory = directory
        self._promoted: set[str] = set()

    def __call__(self, ref: StateRef) -> StateRef:
        """Return the state reference of buffered rows, after promoting their shuffle file."""
        folder, _, name = ref.file.partition("/")
        if folder == "state":
            return ref
        if name not in self._promoted:
            self._promoted.add(name)
            write_atomically(
                self._directory / "state" / name, lambda temporary: _link_or_copy(self._directory / ref.file, temporary)
            )
        return replace(ref, file=f"state/{name}")


def _link_or_copy(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:  # the file system has no hard links
        shutil.copyfile(source, target)


def _concat_buffers(buffers: Sequence[BufferedRows]) -> BufferedRows:
    width = max(rows.sets.shape[1] for rows in buffers)
    columns = [pa.concat_arrays(arrays) for arrays in zip(*(rows.columns for rows in buffers), strict=True)]
    return BufferedRows(buffers[0].slice_start, columns, np.concatenate([resize_bitmaps(rows.sets, width) for rows in buffers]))


def make_constant_loader(partial: PartialAggregate) -> Callable[[], PartialAggregate]:
    """Return a loader of a partial that is in memory already."""
    return lambda: partial
