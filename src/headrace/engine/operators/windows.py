"""Shared aggregation in the reduce stage: windows that close, evaluated over slices for all queries at once.

Every slice is read once; each (query, window) takes from it the entries in the cell spans of its predicate. Slices of older
epochs have other cell layouts: the query is looked up in the plan of the slice's own epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.compute.accumulators import PartialAggregate, ValueEntries, allocate_neutral, neutral_extreme, reduce_listed
from headrace.engine.compute.columns import Numbers, take, widen_integers
from headrace.engine.compute.keys import unify_keys
from headrace.engine.failures import QueryFailures
from headrace.engine.kernels import group as group_kernels
from headrace.engine.kernels import window as window_kernels
from headrace.engine.operators.finalize import CombinedRows, ListedValues, finalize_rows
from headrace.engine.operators.selection import CellAssigner
from headrace.plan.logical import AggregateQuery
from headrace.planner.components import Component
from headrace.planner.predicate_index import CellLayout, CellSpans, compute_cell_spans
from headrace.planner.shared_plan import SharedAggregation
from headrace.storage.result_files import BatchResults

Integers = npt.NDArray[np.int64]
_MAX_ACCUMULATORS = 1 << 23
_FORCE_SPARSE: bool | None = None  # for tests: always or never scan partials entry by entry


@dataclass(frozen=True, slots=True)
class SlicePartial:
    """A partial aggregate of one slice, with the operator that defines its cell layout."""

    operator: SharedAggregation
    cell_assigner: CellAssigner
    start: int
    load: Callable[[], PartialAggregate]


@dataclass(frozen=True, slots=True)
class DueWindows:
    """Windows to evaluate, sorted by (query, start); all of one shape."""

    queries: Integers
    starts: Integers
    ends: Integers

    def take_range(self, first: int, last: int) -> DueWindows:
        """Return a range of the windows."""
        return DueWindows(self.queries[first:last], self.starts[first:last], self.ends[first:last])


@dataclass(frozen=True, slots=True)
class _WindowUses:
    """The subscribers of one operator, once for each due window: window, predicate, and places of the components."""

    windows: Integers
    predicates: Integers
    place_patterns: list[tuple[int, ...]]
    pattern_ids: Integers


@dataclass(frozen=True, slots=True)
class _LoadedSlices:
    """The required partials of one operator, by slice, with the cells of all of them in one numbering.

    `key_ids[p]` gives for each key of partial p its number among all keys.
    """

    starts: Integers
    partials: list[PartialAggregate]
    key_ids: list[Integers]
    cells: list[Integers]
    spans: CellSpans
    labels: Integers | None


def evaluate_windows(
    plan: AggregateQuery,
    components: Sequence[Component],
    due: DueWindows,
    slices: Sequence[SlicePartial],
    results: BatchResults,
    failures: QueryFailures,
) -> None:
    """Evaluate due windows of queries that share a shape; `components` are the components of that shape."""
    first_start, last_end = int(due.starts.min()), int(due.ends.max())
    by_operator: dict[int, list[SlicePartial]] = {}
    for slice_partial in slices:
        if first_start <= slice_partial.start < last_end:
            by_operator.setdefault(id(slice_partial.operator), []).append(slice_partial)
    used_groups = [
        (group, users) for group in by_operator.values() if (users := _find_window_uses(group[0].operator, due)).windows.size
    ]
    if not used_groups:
        return
    loaded = [[(s, s.load()) for s in sorted(group, key=lambda s: s.start)] for group, _ in used_groups]
    columns, count, maps = unify_keys([(partial.keys, partial.key_count) for group in loaded for _, partial in group])
    key_maps = iter(maps)
    loaded_slices = [_combine_slices(group, [next(key_maps) for _ in group]) for group in loaded]
    step = max(1, _MAX_ACCUMULATORS // max(count, 1))
    for begin in range(0, len(due.queries), step):
        due_range = due.take_range(begin, begin + step)
        grid = _WindowGrid(components, due_range, count)
        for (group, users), operator_slices in zip(used_groups, loaded_slices, strict=True):
            grid.add_slices(
                operator_slices, users if step >= len(due.queries) else _find_window_uses(group[0].operator, due_range)
            )
        finalize_rows(plan, grid.build_combined_rows(columns), results, failures)


def _find_window_uses(operator: SharedAggregation, due: DueWindows) -> _WindowUses:
    windows: list[int] = []
    predicates: list[int] = []
    pattern_ids: list[int] = []
    patterns: dict[tuple[int, ...], int] = {}
    window_ranges = dict(zip(*_find_query_ranges(due.queries), strict=True))
    for subscriber, predicate, places in zip(
        operator.subscribers, operator.predicate_numbers, operator.component_numbers, strict=True
    ):
        window_range = window_ranges.get(subscriber.query_id)
        if window_range is not None:
            pattern_id = patterns.setdefault(places, len(patterns))
            windows += range(*window_range)
            predicates += [predicate] * (window_range[1] - window_range[0])
            pattern_ids += [pattern_id] * (window_range[1] - window_range[0])
    return _WindowUses(
        np.array(windows, np.int64), np.array(predicates, np.int64), list(patterns), np.array(pattern_ids, np.int64)
    )


def _find_query_ranges(queries: Integers) -> tuple[list[int], list[tuple[int, int]]]:
    cuts = (
        np.flatnonzero(np.concatenate([[True], queries[1:] != queries[:-1], [True]])) if queries.size else np.zeros(1, np.int64)
    )
    ranges = list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
    return [int(queries[begin]) for begin, _ in ranges], ranges


def _combine_slices(group: Sequence[tuple[SlicePartial, PartialAggregate]], key_ids: list[Integers]) -> _LoadedSlices:
    starts = np.array([s.start for s, _ in group], np.int64)
    partials = [partial for _, partial in group]
    cells = [partial.cells for partial in partials]
    cell_assigner = group[0][0].cell_assigner
    if cell_assigner.predicate_index.layout is not CellLayout.SIGNATURES:
        return _LoadedSlices(starts, partials, key_ids, cells, cell_assigner.spans, None)
    labels = np.unique(np.concatenate(cells))
    cells = [np.searchsorted(labels, local_cells) for local_cells in cells]
    return _LoadedSlices(starts, partials, key_ids, cells, compute_cell_spans(cell_assigner.predicate_index, labels), labels)


class _WindowGrid:
    """Accumulators for every due window and key.

    A count of values is stored as its difference to the row count: usually zero, and then not computed at all.
    """

    def __init__(self, components: Sequence[Component], due: DueWindows, key_count: int) -> None:
        self._components, self._due, self._key_count = components, due, key_count
        width = len(due.queries)
        self._dense: list[list[Numbers]] = [
            [array.reshape(width, key_count) for array in allocate_neutral(*component.signature, width * key_count)]
            if component.is_dense
            else []
            for component in components
        ]
        self._listed: dict[int, list[tuple[Integers, list[Any], Integers]]] = {
            index: [] for index, component in enumerate(components) if not component.is_dense
        }

    def add_slices(self, slices: _LoadedSlices, uses: _WindowUses) -> None:
        """Add the slices of an operator to every window over them."""
        begins = np.searchsorted(slices.starts, self._due.starts[uses.windows])
        ends = np.searchsorted(slices.starts, self._due.ends[uses.windows])
        for pattern_id, places in enumerate(uses.place_patterns):
            chosen = np.flatnonzero((uses.pattern_ids == pattern_id) & (begins < ends))
            if chosen.size:
                sparse = (
                    _FORCE_SPARSE
                    if _FORCE_SPARSE is not None
                    else _is_sparse(slices, int((ends[chosen] - begins[chosen]).sum()), chosen.size)
                )
                if not sparse:
                    spans = _gather_spans(slices.spans, uses.predicates[chosen])
                    self._add_sums(slices, places, begins[chosen], ends[chosen], uses.windows[chosen], spans)
                for index in range(len(slices.partials)):
                    covering = np.flatnonzero((begins[chosen] <= index) & (index < ends[chosen]))
                    if covering.size:
                        window_table = (
                            uses.windows[chosen][covering],
                            *_gather_spans(slices.spans, uses.predicates[chosen][covering]),
                        )
                        if sparse:
                            self._add_sparse_sums(slices, index, places, window_table)
                        self._add_other_components(slices, index, places, window_table, sparse=sparse)

    def _add_sums(
        self,
        slices: _LoadedSlices,
        places: Sequence[int],
        begins: Integers,
        ends: Integers,
        windows: Integers,
        spans: tuple[Integers, ...],
    ) -> None:
        cells = np.concatenate(slices.cells, dtype=np.int32)  # a cell number is at most the number of groups
        base = (*_find_cell_ranges(slices, self._key_count), cells)
        uses = (slices.spans.cell_count, begins, ends, windows, *spans)
        paired = self._add_counts_and_sums(slices, places, base, uses)
        for index, (component, place) in enumerate(zip(self._components, places, strict=True)):
            if component.kind not in {"rows", "count", "add"} or index in paired:
                continue
            for limb, total in enumerate(self._dense[index]):
                values = _concat_component(slices, place, limb, places[0] if component.kind == "count" else None)
                if values is not None:
                    window_kernels.window_sums_prefix(*base, values, *uses, total)

    def _add_counts_and_sums(
        self, slices: _LoadedSlices, places: Sequence[int], base: tuple[Any, ...], uses: tuple[Any, ...]
    ) -> tuple[int, ...]:
        """Add row counts and the first plain sum in one pass, if both fit one word; return the components that were added."""
        paired = next(
            (i for i, component in enumerate(self._components) if component.kind == "add" and len(self._dense[i]) == 1), None
        )
        if paired is None:
            return ()
        counts, sums = (
            _concat_narrow([partial.dense[place][0] for partial in slices.partials]) for place in (places[0], places[paired])
        )
        if not _fits_packed(counts, sums, len(slices.partials) * slices.spans.cell_count):
            return ()
        window_kernels.window_counts_and_sums_prefix(*base, counts, sums, *uses, self._dense[0][0], self._dense[paired][0])
        return 0, paired

    def _add_sparse_sums(
        self, slices: _LoadedSlices, number: int, places: Sequence[int], window_table: tuple[Integers, ...]
    ) -> None:
        """Add the sums of one partial, entry by entry."""
        partial, key_ids = slices.partials[number], slices.key_ids[number]
        base = (widen_integers(partial.starts), slices.cells[number])
        for index, (component, place) in enumerate(zip(self._components, places, strict=True)):
            if component.kind == "count":
                counts, row_counts = partial.dense[place][0], partial.dense[places[0]][0]
                if counts is not row_counts:
                    window_kernels.window_sums_scan(
                        *base, widen_integers(row_counts) - widen_integers(counts), key_ids, *window_table, self._dense[index][0]
                    )
            elif component.kind in {"rows", "add"}:
                for limb, total in enumerate(self._dense[index]):
                    window_kernels.window_sums_scan(
                        *base, widen_integers(partial.dense[place][limb]), key_ids, *window_table, total
                    )

    def _add_other_components(
        self, slices: _LoadedSlices, number: int, places: Sequence[int], window_table: tuple[Integers, ...], *, sparse: bool
    ) -> None:
        partial, key_ids, cell_count = slices.partials[number], slices.key_ids[number], slices.spans.cell_count
        base = (widen_integers(partial.starts), widen_integers(slices.cells[number]))
        for index, (component, place) in enumerate(zip(self._components, places, strict=True)):
            totals = self._dense[index]
            if component.kind in {"float", "square"} and sparse:
                window_kernels.window_floats_scan(*base, *partial.dense[place], key_ids, *window_table, *totals)
            elif component.kind in {"float", "square"}:
                window_kernels.window_floats_tree(*base, *partial.dense[place], key_ids, cell_count, *window_table, *totals)
            elif component.kind in {"min", "max"}:
                neutral_value = neutral_extreme(component.kind, component.args[0].type)
                values = widen_integers(partial.dense[place][0])
                window_kernels.window_extremes_tree(
                    int(component.kind == "max"), neutral_value, *base, values, key_ids, cell_count, *window_table, totals[0]
                )
            elif not component.is_dense:
                entries = partial.listed[place]
                cells = widen_integers(entries.cells)
                local_cells = cells if slices.labels is None else np.searchsorted(slices.labels, cells)
                self._add_entries(index, entries, local_cells, key_ids[widen_integers(entries.keys)], window_table)

    def _add_entries(
        self, index: int, entries: ValueEntries, cells: Integers, keys: Integers, window_table: tuple[Integers, ...]
    ) -> None:
        windows, offsets, lows, highs = window_table
        for use, window in enumerate(windows.tolist()):
            mask = np.zeros(len(cells), np.bool_)
            for span in range(int(offsets[use]), int(offsets[use + 1])):
                mask |= (cells >= lows[span]) & (cells < highs[span])
            entry_ids = np.flatnonzero(mask)
            if entry_ids.size:
                slots = window * self._key_count + keys[entry_ids]
                self._listed[index].append(
                    (slots, [take(column, entry_ids) for column in entries.values], widen_integers(entries.counts)[entry_ids])
                )

    def build_combined_rows(self, columns: list[Any]) -> CombinedRows:
        """Return the windows and keys that have rows, sorted by query, window and key."""
        rows = self._dense[0][0]
        counts = window_kernels.count_nonzero_entries(rows)
        total = int(counts.sum())
        if total == rows.size:
            dense = [[array.reshape(-1) for array in arrays] for arrays in self._dense]
            key_ids = np.tile(np.arange(self._key_count, dtype=np.int32), len(counts))
        else:
            dense = [[window_kernels.pick_nonzero_entries(rows, array, total) for array in arrays] for arrays in self._dense]
            key_ids = window_kernels.list_nonzero_columns(rows, total)
        for index, component in enumerate(self._components):
            if component.kind == "count":
                dense[index] = [dense[0][0] - dense[index][0]]
        slots = np.flatnonzero(rows) if self._listed else np.zeros(0, np.int64)
        entries = {index: self._reduce_listed(index, slots) for index in self._listed}
        keys = [take(column, key_ids) for column in columns]
        return CombinedRows(self._due.queries, self._due.starts, self._due.ends, keys, dense, entries, counts)

    def _reduce_listed(self, index: int, slots: Integers) -> ListedValues:
        entry_lists = self._listed[index]
        types = [argument.type for argument in self._components[index].args]
        if not entry_lists:
            return ListedValues(np.zeros(0, np.int64), [pa.array([], kind) for kind in types], np.zeros(0, np.int64))
        rows = np.searchsorted(slots, np.concatenate([entries[0] for entries in entry_lists]))
        values = [pa.concat_arrays([entries[1][i] for entries in entry_lists]) for i in range(len(types))]
        return ListedValues(
            *reduce_listed(self._components[index].kind, values, rows, np.concatenate([entries[2] for entries in entry_lists]))
        )


def _is_sparse(slices: _LoadedSlices, covered: int, window_count: int) -> bool:
    """Return whether a scan of partials entry by entry costs less than prefix sums, for one key.

    `covered` is the total number of partials under all windows: a scan reads each of their entries once for each window.
    """
    keys = sum(partial.key_count for partial in slices.partials)
    entries = sum(len(partial.cells) for partial in slices.partials) / max(keys, 1)
    return covered * entries <= 3 * len(slices.partials) * slices.spans.cell_count + 4 * window_count


def _find_cell_ranges(slices: _LoadedSlices, key_count: int) -> tuple[Integers, Integers]:
    """Return for each partial and key where its cells begin and end, among the cells of all partials."""
    firsts, lasts = np.zeros((len(slices.partials), key_count), np.int64), np.zeros((len(slices.partials), key_count), np.int64)
    offset = 0
    for index, (partial, key_ids) in enumerate(zip(slices.partials, slices.key_ids, strict=True)):
        starts = widen_integers(partial.starts) + offset
        firsts[index, key_ids], lasts[index, key_ids] = starts[:-1], starts[1:]
        offset += len(partial.cells)
    return firsts, lasts


def _concat_component(slices: _LoadedSlices, place: int, limb: int, against: int | None) -> Integers | None:
    """Return an array of a component over all partials; for a count its difference to the row count `against`, None if zero."""
    if against is None:
        return _concat_narrow([partial.dense[place][limb] for partial in slices.partials])
    if all(partial.dense[place][0] is partial.dense[against][0] for partial in slices.partials):
        return None
    return np.concatenate(
        [widen_integers(partial.dense[against][0]) - widen_integers(partial.dense[place][0]) for partial in slices.partials]
    )


def _fits_packed(counts: Integers, sums: Integers, key_entries: int) -> bool:
    """Return whether counts and sums over so many entries fit one word, and both arrays have the width that is compiled."""
    if counts.dtype != np.int32 or sums.dtype != np.int32 or not counts.size:
        return False
    largest = max(int(sums.max()), -int(sums.min()))
    return int(counts.max()) * key_entries < 1 << 23 and largest * key_entries < int(group_kernels.PACKED_HALF_ROW)


def _concat_narrow(arrays: Sequence[Integers]) -> Integers:
    """Concatenate narrow integers to one of two widths: each width compiles its own version of a kernel."""
    return np.concatenate(arrays, dtype=np.int32 if max(array.itemsize for array in arrays) <= 4 else np.int64)


def _gather_spans(spans: CellSpans, predicates: Integers) -> tuple[Integers, Integers, Integers]:
    """Return the spans of several predicates, concatenated."""
    firsts, counts = spans.offsets[predicates], spans.offsets[predicates + 1] - spans.offsets[predicates]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    places = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts) + np.repeat(firsts, counts)
    return offsets.astype(np.int64), spans.lows[places], spans.highs[places]


def build_due_windows(windows: Iterable[tuple[int, Sequence[int], int]]) -> DueWindows:
    """Return due windows from (query, starts, size), sorted."""
    rows = sorted((query, start, start + size) for query, starts, size in windows for start in starts)
    table = np.array(rows, np.int64).reshape(-1, 3)
    return DueWindows(*(np.ascontiguousarray(table[:, i]) for i in range(3)))
