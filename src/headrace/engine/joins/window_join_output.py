"""Window joins prepared for workers, and their outputs: results, groups of an aggregation, or messages to the next level.

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

from headrace.engine.compute.accumulators import Accumulator, reduce_listed
from headrace.engine.compute.columns import combine_chunks, from_numbers, take, to_numbers, widen_integers
from headrace.engine.compute.keys import assign_partitions, encode_keys
from headrace.engine.failures import QueryFailures
from headrace.engine.joins.joined_rows import JoinedRows
from headrace.engine.joins.joiner import Joiner
from headrace.engine.kernels import join as join_kernels
from headrace.engine.operators.finalize import CombinedRows, ListedValues, finalize_rows
from headrace.engine.operators.query_sets import make_bitmap
from headrace.engine.operators.sessions import SessionRuns, merge_components, take_runs
from headrace.engine.stage_messages import ForwardedRows, LevelMessage
from headrace.model.expression import TRUE, Expression
from headrace.model.types import TIMESTAMP
from headrace.plan.logical import WINDOW_END, WINDOW_START, AggregateQuery
from headrace.planner.components import Component
from headrace.planner.join.window_join_plan import WindowJoinStep
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


def split_groups(groups: SessionRuns, partition_count: int) -> list[tuple[int, SessionRuns]]:
    """Split groups by the partition of their key; groups without a key by query."""
    count = len(groups.firsts)
    targets = assign_partitions(groups.keys[2:] or groups.keys[:1], count, partition_count)
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
OutputGroups = dict[tuple[object, ...], tuple[Joiner, list[SessionRuns]]]


@dataclass(slots=True)
class JoinOutputs:
    """The outputs of one partition at a level; `partition_count` is the number of partitions.

    `flush_if_full` is called after results were added.
    """

    partition: int
    partition_count: int
    results: BatchResults
    failures: QueryFailures
    flush_if_full: Callable[[], None]
    row_counts: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    _messages: dict[int, LevelMessage] = field(default_factory=dict)
    _groups: OutputGroups = field(default_factory=dict)

    def get_message(self, partition: int) -> LevelMessage:
        """Return the message to a partition."""
        return self._messages.setdefault(partition, LevelMessage(self.partition))

    def add_groups(self, joiner: Joiner, groups: SessionRuns) -> None:
        """Add groups built here; they are sent to the partition of their key."""
        group_lists = self._groups.setdefault(joiner.output_signature, (joiner, []))[1]
        group_lists.append(groups)
        if len(group_lists) > _MAX_GROUP_PARTS:  # merge early: a hot key has many pairs but few groups
            group_lists[:] = [merge_groups(joiner.required_components, group_lists)]

    def count_rows(self, rows: Mapping[tuple[int, int], int]) -> None:
        """Add the row counts of one round, by query and path length."""
        for count_key, count in rows.items():
            before, rounds = self.row_counts.get(count_key, (0, 0))
            self.row_counts[count_key] = (before + count, rounds + 1)

    def collect_messages(self) -> dict[int, LevelMessage]:
        """Return the messages to the next level, by partition."""
        for joiner, group_lists in self._groups.values():
            for target, groups in split_groups(merge_groups(joiner.required_components, group_lists), self.partition_count):
                self.get_message(target).groups.append((joiner.live.id, groups))
        self._groups = {}
        return self._messages

    def finalize_groups(self, groups: Iterable[tuple[Joiner, SessionRuns]]) -> None:
        """Merge the groups of all partitions and emit them as results."""
        by_output: OutputGroups = {}
        for joiner, runs in groups:
            by_output.setdefault(joiner.output_signature, (joiner, []))[1].append(runs)
        for joiner, group_lists in by_output.values():
            merged = merge_groups(joiner.required_components, group_lists)
            emit_groups(joiner.aggregate_plan, joiner.plan.longest_span, merged, self.results, self.failures)


class JoinRoundOutputs:
    """Consumes the rows of one round, in which each query (by its bit) has the window that ends at `ends`."""

    def __init__(self, outputs: JoinOutputs, number: int, ends: Mapping[int, int], width: int) -> None:
        """Add rows to `outputs`; `number` is the round, `width` the width of query-sets in words."""
        self._outputs, self._round_number, self._window_ends, self._set_width = outputs, number, ends, width

    def forward_rows(self, joiners: Sequence[Joiner], depth: int, step: WindowJoinStep, rows: JoinedRows) -> None:
        """Send joined rows to the partitions of the keys of the next step."""
        names = sorted(frozenset().union(*(joiner.list_columns(joiner.path[:depth]) for joiner in joiners)))
        keys = [combine_chunks(rows.evaluate(key)) for key in step.left_keys]
        targets = assign_partitions(keys, rows.row_count, self._outputs.partition_count)
        available = {name for selection in rows.selections for name in selection.table.columns}
        for target in np.unique(targets).tolist():
            target_rows = rows.take(np.flatnonzero(targets == target))
            message = ForwardedRows(
                joiners[0].live.id,
                depth,
                self._round_number,
                target_rows.materialize_columns([name for name in names if name in available]),
                target_rows.sets,
            )
            self._outputs.get_message(target).joined_rows.append(message)

    def finish_rows(self, joiners: Sequence[Joiner], rows: JoinedRows) -> None:
        """Output joined rows of the queries whose chain ends here: filter, then project or group."""
        by_output: dict[tuple[object, ...], list[Joiner]] = defaultdict(list)
        for joiner in joiners:
            by_output[joiner.output_signature].append(joiner)
        for joiners_of_output in by_output.values():
            self._finish_equal_outputs(joiners_of_output, rows)

    def _finish_equal_outputs(self, joiners: Sequence[Joiner], rows: JoinedRows) -> None:
        plan = joiners[0].plan
        bits, row_ids = join_kernels.list_rows_by_bit(rows.sets, make_bitmap([joiner.bit for joiner in joiners], self._set_width))
        if not bits.size:
            return
        query_of_bit = np.full(self._set_width * 64, -1, np.int64)
        end_of_bit = np.zeros(self._set_width * 64, np.int64)
        for joiner in joiners:
            query_of_bit[joiner.bit], end_of_bit[joiner.bit] = joiner.live.id, self._window_ends[joiner.bit]
        queries, window_ends = query_of_bit[bits], end_of_bit[bits]
        if plan.predicate != TRUE:
            self._record_errors(rows, plan.predicate, row_ids, queries)
            holds = np.asarray(combine_chunks(rows.evaluate(plan.predicate)).fill_null(False))[row_ids]
            row_ids, queries, window_ends = row_ids[holds], queries[holds], window_ends[holds]
        if not row_ids.size:
            return
        selected = rows.take(row_ids)
        selected.extra_columns[WINDOW_START.name] = from_numbers(window_ends - plan.longest_span, TIMESTAMP)
        selected.extra_columns[WINDOW_END.name] = from_numbers(window_ends, TIMESTAMP)
        all_rows = np.arange(len(row_ids))
        if plan.grouping is None:
            for expression in plan.output:
                self._record_errors(selected, expression, all_rows, queries)
            columns = [combine_chunks(selected.evaluate(expression)) for expression in plan.output]
            self._outputs.results.add(queries, pa.RecordBatch.from_arrays(columns, schema=plan.schema.to_arrow()))
            self._outputs.flush_if_full()
            return
        components = joiners[0].required_components
        for expression in (*plan.grouping.keys, *(arg for call in plan.grouping.aggregates for arg in call.args)):
            self._record_errors(selected, expression, all_rows, queries)
        keys = [combine_chunks(selected.evaluate(key)) for key in plan.grouping.keys]
        arguments = [[selected.evaluate(arg) for arg in component.args] for component in components]
        self._outputs.add_groups(joiners[0], build_groups(components, queries, window_ends, keys, arguments))

    def _record_errors(self, rows: JoinedRows, expression: Expression, row_ids: Integers, queries: Integers) -> None:
        errors = rows.evaluate.errors(expression)
        if errors is not None:
            mask = np.asarray(errors.to_numpy(zero_copy_only=False), np.bool_)[row_ids]
            self._outputs.failures.add_rows(queries[mask], rows.evaluate.message(expression))
