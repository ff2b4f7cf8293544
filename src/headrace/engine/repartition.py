"""Repartitioning of state: when the partition map changes, partitions whose range changed select their share of stored state.

    map before   0 ── a ──┬────── b ──────┬── c ── 2³¹
    map after    0 ── a ──┴── b ──┬── d ──┴── c ── 2³¹      a and c keep their files; b and d read those of b

A partition whose range is the same keeps its state as it is, under another number if the partition got one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.engine.compute.accumulators import PartialAggregate, ValueEntries
from headrace.engine.compute.columns import narrow_integers, take, widen_integers
from headrace.engine.compute.keys import assign_partitions
from headrace.engine.operators.sessions import SessionRuns, take_runs
from headrace.model.partition_map import PartitionMap

AnyRef = TypeVar("AnyRef", bound=Any)


@dataclass(frozen=True, slots=True)
class StateOrigin:
    """Where the stored state of `partition` is: in the files of the partitions of the map before whose ranges overlap its own.

    `heirs` has the partitions that each of those has become. `is_moved`: only a share of the state belongs to the partition.
    """

    partition: int
    partitions: PartitionMap
    heirs: Mapping[int, tuple[int, ...]]
    is_moved: bool

    def has(self, ref: Any) -> bool:
        """Return whether a reference to stored state, under the map before, may be for state of this partition."""
        return ref.partition in self.heirs

    def adopt(self, ref: AnyRef) -> AnyRef:
        """Return a reference to state that is not moved, with the number that the partition has now."""
        adopted: AnyRef = ref if ref.partition == self.partition else replace(ref, partition=self.partition)
        return adopted

    def filter_partial(self, partial: PartialAggregate) -> PartialAggregate:
        """Return the keys of this partition, with their entries."""
        selected_keys = assign_partitions(partial.keys, partial.key_count, self.partitions) == self.partition
        sizes = np.diff(widen_integers(partial.starts))
        selected_entries = np.repeat(selected_keys, sizes)
        return PartialAggregate(
            partial.slice_start,
            [take(column, np.flatnonzero(selected_keys)) for column in partial.keys],
            narrow_integers(np.concatenate([[0], np.cumsum(sizes[selected_keys])])),
            partial.cells[selected_entries],
            [[array[selected_entries] for array in arrays] for arrays in partial.dense],
            {component: _filter_entries(values, selected_keys) for component, values in partial.listed.items()},
        )

    def filter_runs(self, runs: SessionRuns) -> SessionRuns:
        """Return the sessions whose keys belong to this partition."""
        owners = assign_partitions(runs.keys, len(runs.firsts), self.partitions)
        return take_runs(runs, np.flatnonzero(owners == self.partition))


def find_origin(before: PartitionMap, after: PartitionMap, partition: int) -> StateOrigin:
    """Return where the state of a partition of the map `after` is, if it was stored under the map `before`."""
    if before == after:
        return StateOrigin(partition, after, {partition: (partition,)}, is_moved=False)
    return _find_origins(before, after)[partition]


@lru_cache(maxsize=4)
def _find_origins(before: PartitionMap, after: PartitionMap) -> tuple[StateOrigin, ...]:
    heirs: dict[int, list[int]] = defaultdict(list)
    sources: dict[int, list[int]] = defaultdict(list)
    unmoved = {(item.start, item.end) for item in before.list_ranges()}
    old_ranges, index = before.list_ranges(), 0
    for item in after.list_ranges():
        while old_ranges[index].end <= item.start:
            index += 1
        overlapping = index
        while overlapping < before.count and old_ranges[overlapping].start < item.end:
            heirs[old_ranges[overlapping].partition].append(item.partition)
            sources[item.partition].append(old_ranges[overlapping].partition)
            overlapping += 1
    return tuple(
        StateOrigin(
            item.partition,
            after,
            {source: tuple(heirs[source]) for source in sources[item.partition]},
            is_moved=(item.start, item.end) not in unmoved,
        )
        for item in sorted(after.list_ranges(), key=lambda item: item.partition)
    )


def _filter_entries(entries: ValueEntries, selected_keys: npt.NDArray[np.bool_]) -> ValueEntries:
    entry_ids = np.flatnonzero(selected_keys[widen_integers(entries.keys)])
    new_ids = np.cumsum(selected_keys) - 1
    values = [take(column, entry_ids) for column in entries.values]
    return ValueEntries(
        narrow_integers(new_ids[widen_integers(entries.keys)[entry_ids]]),
        entries.cells[entry_ids],
        values,
        entries.counts[entry_ids],
    )
