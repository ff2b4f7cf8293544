"""The output of joins: joined rows become results, groups of an aggregation, or messages to the next level.

An aggregation over joined rows groups by query, window and key; groups are built where rows are joined and merged by key
partition. A window is final when its rows are joined, so a group lives for one micro-batch only. Groups are stored as
`SessionRuns`, whose first two key columns are then the query and the end of the window.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.budgets import BudgetMeter
from headrace.engine.compute.accumulators import Accumulator, reduce_listed
from headrace.engine.compute.columns import combine_chunks, from_numbers, take, to_numbers, widen_integers
from headrace.engine.compute.keys import assign_partitions, encode_keys
from headrace.engine.failures import QueryFailures
from headrace.engine.joins.joined_rows import JoinedRows
from headrace.engine.joins.output_spec import FinishedQuery, OutputSpec
from headrace.engine.kernels import join as join_kernels
from headrace.engine.operators.finalize import CombinedRows, ListedValues, finalize_rows
from headrace.engine.operators.query_sets import make_bitmap
from headrace.engine.operators.sessions import SessionRuns, merge_components, take_runs
from headrace.engine.stage_messages import Outbox
from headrace.model.expression import TRUE, Expression
from headrace.model.partition_map import PartitionMap
from headrace.model.types import TIMESTAMP
from headrace.plan.logical import WINDOW_END, WINDOW_START, AggregateQuery
from headrace.planner.components import Component
from headrace.planner.join.normalized_join import format_expression
from headrace.storage.result_files import BatchResults

Integers = npt.NDArray[np.int64]


def build_groups(
    components: Sequence[Component],
    queries: Integers,
    ends: Integers,
    keys: Sequence[pa.Array],
    arguments: Sequence[list[pa.Array]],
) -> SessionRuns:
    """Aggregate rows of queries and windows; `arguments[c]` holds the arguments of component c."""
    columns = [pa.array(queries), pa.array(ends), *keys]
    encoded = encode_keys(columns, len(queries))
    accumulator = Accumulator([component.signature if component.is_dense else None for component in components], encoded.count)
    accumulator.add(encoded.codes, arguments, None)
    entries = {
        index: ListedValues(*reduce_listed(component.kind, arguments[index], encoded.codes))
        for index, component in enumerate(components)
        if not component.is_dense
    }
    dense, group_ends = accumulator.export_arrays(np.arange(encoded.count)), to_numbers(encoded.columns[1])
    groups = SessionRuns(encoded.columns, group_ends, group_ends, dense, entries)
    return take_runs(groups, np.unique(encoded.codes))


def merge_groups(components: Sequence[Component], group_lists: Sequence[SessionRuns]) -> SessionRuns:
    """Merge groups of equal query, window and key."""
    if len(group_lists) == 1:
        return group_lists[0]
    columns = [pa.concat_arrays([groups.keys[i] for groups in group_lists]) for i in range(len(group_lists[0].keys))]
    encoded = encode_keys(columns, len(columns[0]))
    group_codes, group_ids = np.unique(encoded.codes, return_inverse=True)
    dense, entries = merge_components(components, group_lists, group_ids.astype(np.int64), len(group_codes))
    key_columns = [take(column, group_codes) for column in encoded.columns]
    return SessionRuns(key_columns, to_numbers(key_columns[1]), to_numbers(key_columns[1]), dense, entries)


def split_groups(groups: SessionRuns, partitions: PartitionMap) -> list[tuple[int, SessionRuns]]:
    """Split groups by the partition of their key; groups without a key by query."""
    count = len(groups.firsts)
    targets = assign_partitions(groups.keys[2:] or groups.keys[:1], count, partitions)
    return [(int(target), take_runs(groups, np.flatnonzero(targets == target))) for target in np.unique(targets)]


def emit_groups(plan: AggregateQuery, size: int, groups: SessionRuns, results: BatchResults, failures: QueryFailures) -> None:
    """Emit groups as result rows, in the order of query and window; `size` is the length of windows."""
    queries, ends = widen_integers(to_numbers(groups.keys[0])), widen_integers(to_numbers(groups.keys[1]))
    order = np.lexsort((ends, queries))
    ordered = take_runs(groups, order)
    dense = [[widen_integers(array) for array in accumulators] for accumulators in ordered.dense]
    finalize_rows(
        plan,
        CombinedRows(queries[order], ends[order] - size, ends[order], ordered.keys[2:], dense, ordered.listed),
        results,
        failures,
    )


_MAX_GROUP_PARTS = 16
_NO_WINDOWS: Mapping[int, int] = {}


@dataclass(slots=True)
class JoinOutput:
    """The output of the joins of one partition at a level; `flush_if_full` is called after results were added."""

    outbox: Outbox
    results: BatchResults
    failures: QueryFailures
    flush_if_full: Callable[[], None]
    meter: BudgetMeter
    _groups: dict[OutputSpec, tuple[int, list[SessionRuns]]] = field(default_factory=dict)

    def finish_rows(
        self, queries: Iterable[FinishedQuery], rows: JoinedRows, window_ends: Mapping[int, int] = _NO_WINDOWS
    ) -> None:
        """Output the complete rows of queries: filter, then project or group; `window_ends` has the end of the window by bit."""
        by_output: dict[OutputSpec, list[FinishedQuery]] = defaultdict(list)
        for query in queries:
            by_output[query.output].append(query)
        for spec, same_output in by_output.items():
            self._finish_equal_outputs(spec, same_output, rows, window_ends)

    def _finish_equal_outputs(
        self, spec: OutputSpec, same_output: Sequence[FinishedQuery], rows: JoinedRows, window_ends: Mapping[int, int]
    ) -> None:
        width = rows.sets.shape[1]
        starts, row_ids = join_kernels.list_rows_by_bit(rows.sets, make_bitmap([query.bit for query in same_output], width))
        if not row_ids.size:
            return
        query_of_bit, end_of_bit = np.full(width * 64, -1, np.int64), np.zeros(width * 64, np.int64)
        for query in same_output:
            query_of_bit[query.bit], end_of_bit[query.bit] = query.id, window_ends.get(query.bit, 0)
        queries, ends = (np.repeat(of_bit, np.diff(starts)) for of_bit in (query_of_bit, end_of_bit))
        if spec.predicate != TRUE:
            self._record_errors(rows, [spec.predicate], queries, row_ids)
            holds = np.asarray(combine_chunks(rows.evaluate(spec.predicate)).fill_null(False))[row_ids]
            row_ids, queries, ends = row_ids[holds], queries[holds], ends[holds]
        if not row_ids.size:
            return
        selected = rows.take_columns(row_ids)
        if window_ends:
            selected.extra_columns[WINDOW_START.name] = from_numbers(ends - spec.span, TIMESTAMP)
            selected.extra_columns[WINDOW_END.name] = from_numbers(ends, TIMESTAMP)
        if spec.grouping is None:
            self._record_errors(selected, spec.output, queries)
            columns = [combine_chunks(selected.evaluate(expression)) for expression in spec.output]
            self.results.add(queries, pa.RecordBatch.from_arrays(columns, schema=spec.schema.to_arrow()))
            self.flush_if_full()
            return
        arguments = [arg for call in spec.grouping.aggregates for arg in call.args]
        self._record_errors(selected, (*spec.grouping.keys, *arguments), queries)
        keys = [combine_chunks(selected.evaluate(key)) for key in spec.grouping.keys]
        components = spec.required_components
        values = [[selected.evaluate(arg) for arg in component.args] for component in components]
        self._add_groups(spec, same_output[0].id, build_groups(components, queries, ends, keys, values))

    def _record_errors(
        self, rows: JoinedRows, expressions: Iterable[Expression], queries: Integers, row_ids: Integers | None = None
    ) -> None:
        """Fail the queries of rows (by default one query for each row) on which an expression has an error."""
        for expression in expressions:
            errors = rows.evaluate.errors(expression)
            if errors is not None:
                mask = np.asarray(errors.to_numpy(zero_copy_only=False), np.bool_)
                message = format_expression(rows.evaluate.message(expression))
                self.failures.add_rows(queries[mask if row_ids is None else mask[row_ids]], message)

    def _add_groups(self, spec: OutputSpec, query_id: int, groups: SessionRuns) -> None:
        group_lists = self._groups.setdefault(spec, (query_id, []))[1]
        group_lists.append(groups)
        if len(group_lists) > _MAX_GROUP_PARTS:  # merge early: a hot key has many pairs but few groups
            group_lists[:] = [merge_groups(spec.required_components, group_lists)]

    def send_groups(self) -> None:
        """Send the groups built here to the partitions of their keys, each kind with the id of a query that represents it."""
        for spec, (query_id, group_lists) in self._groups.items():
            merged = merge_groups(spec.required_components, group_lists)
            for target, groups in split_groups(merged, self.outbox.partitions):
                self.outbox.get_message(target).groups.append((query_id, groups))
        self._groups = {}

    def keep_groups(self, groups: Iterable[tuple[int, SessionRuns]]) -> None:
        """Pass groups that have reached the partitions of their keys on to the next level: there will be more of them."""
        for entry in groups:
            self.outbox.get_message(self.outbox.sender).groups.append(entry)

    def finalize_groups(self, groups: Iterable[tuple[OutputSpec, SessionRuns]]) -> None:
        """Merge the groups of all partitions and emit them as results."""
        by_output: dict[OutputSpec, list[SessionRuns]] = defaultdict(list)
        for spec, runs in groups:
            by_output[spec].append(runs)
        for spec, group_lists in by_output.items():
            merged = merge_groups(spec.required_components, group_lists)
            emit_groups(spec.aggregate_plan, spec.span, merged, self.results, self.failures)
