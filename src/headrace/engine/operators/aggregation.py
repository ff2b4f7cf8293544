"""Shared aggregation in the map stage: rows of a batch to partial aggregates per slice, key and cell, ready for the shuffle.

A batch is processed chunk by chunk, so that intermediate columns stay in the cache, and operator by operator, so that the cache
holds the accumulators of only one operator. Accumulators are dense over all (slice, key, cell) where that space is small
against the rows; otherwise only the combinations that occur are numbered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.compute.accumulators import Accumulator, PartialAggregate, ValueEntries, find_group_starts, reduce_listed
from headrace.engine.compute.columns import Numbers, combine_chunks, narrow_integers, take, to_numbers
from headrace.engine.kernels import group as group_kernels
from headrace.engine.kernels import select as select_kernels
from headrace.engine.operators.selection import CellAssigner, CellAssignment
from headrace.engine.row_batch import KeyEncoder, KeyTable, RowBatch
from headrace.model.expression import Column, is_always_null
from headrace.planner.predicate_index import CellLayout
from headrace.planner.shared_plan import SharedAggregation

Integers = npt.NDArray[np.int64]
AssignCells = Callable[[SharedAggregation, RowBatch], CellAssignment]
_DENSE_LIMIT = 1 << 20


@dataclass(slots=True)
class _DenseAggregation:
    """Accumulators of one operator for every (slice, key, cell) of the batch."""

    operator: SharedAggregation
    cell_assigner: CellAssigner
    accumulator: Accumulator

    def add_rows(self, chunk: RowBatch, assign: AssignCells, slots: Integers, oldest: int) -> None:
        """Add the rows of a chunk, in one fused pass where the operator allows it."""
        columns = [[chunk.evaluate(argument) for argument in component.args] for component in self.operator.components]
        if chunk.min_time >= oldest and self._add_fused(chunk, columns, slots):
            return
        assignment = assign(self.operator, chunk)
        self.accumulator.add(_compute_ids(chunk, assignment, slots, oldest), columns, assignment.rows)

    def _add_fused(self, chunk: RowBatch, columns: list[list[pa.Array]], slots: Integers) -> bool:
        dimensions = self.operator.predicate_index.dimensions
        if not all(
            isinstance(expression, Column)
            for expression in (*self.operator.arguments, *(dimension.expression for dimension in dimensions))
        ):
            return False
        table, index = self.cell_assigner.get_lookup_table(chunk), self.accumulator.find_fusable_sum(columns)
        if table is None or index is None:
            return False
        largest = chunk.find_max_magnitude(self.operator.components[index].args[0])
        return self.accumulator.add_selected(
            table, slots, self.cell_assigner.predicate_index.cell_count, to_numbers(combine_chunks(columns[index][0])), largest
        )


def aggregate_batch(
    operators: Sequence[SharedAggregation],
    assigners: Sequence[CellAssigner],
    assign: AssignCells,
    batch: RowBatch,
    encoder: KeyEncoder,
    oldest: Sequence[int],
) -> Iterator[tuple[int, int, PartialAggregate]]:
    """Yield (operator, partition, partial); rows before `oldest` of an operator belong to no open window and are skipped."""
    dense: dict[int, _DenseAggregation] = {}
    for index, operator in enumerate(operators):
        cells = (
            len(encoder.find_slice_edges(operator.slice_progressions))
            * encoder.get_key_table(operator.keys).key_count
            * operator.predicate_index.cell_count
        )
        if (
            operator.predicate_index.layout is CellLayout.GRID
            and cells <= max(_DENSE_LIMIT, 4 * batch.row_count)
            and all(component.is_dense for component in operator.components)
        ):
            accumulator = Accumulator(
                [component.signature for component in operator.components], cells, _find_null_components(operator)
            )
            dense[index] = _DenseAggregation(operator, assigners[index], accumulator)
    for index, aggregation in dense.items():
        offset = 0
        for chunk_number, chunk in enumerate(batch.chunks):
            slots = encoder.compute_slots(
                aggregation.operator.keys, aggregation.operator.slice_progressions, chunk_number, offset
            )
            aggregation.add_rows(chunk, assign, slots, oldest[index])
            offset += chunk.row_count
    for index, operator in enumerate(operators):
        table, edges = encoder.get_key_table(operator.keys), encoder.find_slice_edges(operator.slice_progressions)
        if index in dense:
            partials = _extract_partials(dense[index], table, edges)
        else:
            partials = _aggregate_sparse(operator, assign(operator, batch), batch, encoder, oldest[index])
        for partition, partial in partials:
            yield index, partition, partial


def _find_null_components(operator: SharedAggregation) -> frozenset[int]:
    """Return the components over NULL: those that a branch of a union lacks."""
    return frozenset(index for index, component in enumerate(operator.components) if any(map(is_always_null, component.args)))


def _compute_ids(batch: RowBatch, assignment: CellAssignment, slots: Integers, oldest: int) -> Integers:
    rows = assignment.rows
    ids: Integers = select_kernels.compute_slot_cell_ids(
        slots if rows is None else slots[rows], assignment.cells, assignment.wanted_cells, assignment.cell_count
    )
    if batch.row_count and batch.min_time < oldest:
        ids[(batch.times if rows is None else batch.times[rows]) < oldest] = -1
    return ids


def _extract_partials(aggregation: _DenseAggregation, table: KeyTable, edges: Integers) -> Iterator[tuple[int, PartialAggregate]]:
    if aggregation.accumulator.is_packed:
        yield from _extract_packed(aggregation, table, edges)
        return
    occupied = aggregation.accumulator.occupied_groups()
    yield from _split_by_partition(
        occupied,
        aggregation.accumulator.export_arrays(occupied),
        {},
        aggregation.operator.predicate_index.cell_count,
        None,
        table,
        edges,
    )


def _extract_packed(aggregation: _DenseAggregation, table: KeyTable, edges: Integers) -> Iterator[tuple[int, PartialAggregate]]:
    """Extract the partials of one slice and partition after the other, in one pass that unpacks, compacts and divides by key."""
    cell_count = aggregation.operator.predicate_index.cell_count
    for index, edge in enumerate(edges.tolist()):
        for partition in np.flatnonzero(np.diff(table.partition_bounds)).tolist():
            first, last = table.partition_bounds[partition : partition + 2].tolist()
            base = index * table.key_count
            export = aggregation.accumulator.export_packed(base + first, base + last, cell_count)
            if export.slots.size:
                keys = [take(column, export.slots + first) for column in table.columns]
                yield partition, PartialAggregate(edge, keys, export.starts, export.cells, export.dense)


def _aggregate_sparse(
    operator: SharedAggregation, assignment: CellAssignment, batch: RowBatch, encoder: KeyEncoder, oldest: int
) -> Iterator[tuple[int, PartialAggregate]]:
    """Assign ids to the (slice, key, cell) combinations that occur, over the whole batch at once."""
    table, edges = encoder.get_key_table(operator.keys), encoder.find_slice_edges(operator.slice_progressions)
    slots = group_kernels.assign_slots(batch.times, edges, encoder.compute_key_ids(operator.keys), table.key_count)
    distinct_ids, places = select_kernels.factorize_values(_compute_ids(batch, assignment, slots, oldest))
    order = np.argsort(distinct_ids)
    signatures = [component.signature if component.is_dense else None for component in operator.components]
    accumulator = Accumulator(signatures, len(distinct_ids), _find_null_components(operator))
    accumulator.add(
        places, [[batch.evaluate(argument) for argument in component.args] for component in operator.components], assignment.rows
    )
    entries = _collect_entries(operator, batch, assignment.rows, places, order)
    yield from _split_by_partition(
        distinct_ids[order], accumulator.export_arrays(order), entries, assignment.cell_count, assignment.labels, table, edges
    )


def _collect_entries(
    operator: SharedAggregation, batch: RowBatch, rows: Integers | None, ids: Integers, occupied: Integers
) -> dict[int, ValueEntries]:
    entries: dict[int, ValueEntries] = {}
    rank = np.empty(occupied.size, np.int64)
    rank[occupied] = np.arange(occupied.size)
    for index, component in enumerate(operator.components):
        if not component.is_dense:
            columns = [batch.evaluate(argument) for argument in component.args]
            selected = columns if rows is None else [column.take(pa.array(rows)) for column in columns]
            entry_ids, values, counts = reduce_listed(component.kind, selected, ids)
            order = np.argsort(rank[entry_ids], kind="stable")
            entries[index] = ValueEntries(
                rank[entry_ids][order], np.zeros(0, np.int64), [take(column, order) for column in values], counts[order]
            )
    return entries


def _split_by_partition(
    ids: Integers,
    dense: list[list[Numbers]],
    entries: dict[int, ValueEntries],
    cell_count: int,
    labels: Integers | None,
    table: KeyTable,
    edges: Integers,
) -> Iterator[tuple[int, PartialAggregate]]:
    """Split sorted partials by slice and partition."""
    slots = ids // cell_count
    cells = ids - slots * cell_count
    cells = cells if labels is None else labels[cells]
    narrow_cells = narrow_integers(cells)
    for index in range(len(edges)):
        cuts = np.searchsorted(slots, index * table.key_count + table.partition_bounds)
        for partition in np.flatnonzero(cuts[1:] > cuts[:-1]).tolist():
            first, last = int(cuts[partition]), int(cuts[partition + 1])
            distinct, starts = find_group_starts(slots[first:last] - index * table.key_count)
            keys = [take(column, distinct) for column in table.columns]
            slice_entries = {
                component: _slice_entries(component_entries, first, last, starts, cells)
                for component, component_entries in entries.items()
            }
            yield (
                partition,
                PartialAggregate(
                    int(edges[index]),
                    keys,
                    narrow_integers(starts),
                    narrow_cells[first:last],
                    _slice_arrays(dense, first, last),
                    slice_entries,
                ),
            )


def _slice_arrays(dense: list[list[Numbers]], first: int, last: int) -> list[list[Numbers]]:
    slices: dict[int, Numbers] = {}  # aliased arrays stay aliased, so that the shuffle ships them once
    return [[slices.setdefault(id(array), array[first:last]) for array in arrays] for arrays in dense]


def _slice_entries(entries: ValueEntries, first: int, last: int, starts: Integers, labels: Integers) -> ValueEntries:
    low, high = np.searchsorted(entries.keys, [first, last])
    entry_ids = entries.keys[low:high]
    keys = np.searchsorted(starts, entry_ids - first, side="right") - 1
    values = [take(column, np.arange(low, high)) for column in entries.values]
    return ValueEntries(
        narrow_integers(keys), narrow_integers(labels[entry_ids]), values, narrow_integers(entries.counts[low:high])
    )
