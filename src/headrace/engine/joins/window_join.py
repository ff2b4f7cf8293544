"""Shared window joins: the windows that close, joined for all queries at once.

In one round each query has at most one window, and rows are pushed along the paths of all queries. Rows carry the queries in
whose window they lie, and a pair survives while the query-sets of its rows intersect. So each pair of rows is found once,
regardless of the number of queries and windows that contain it. A second round is only needed where two windows of one query
close in the same micro-batch. A step with equalities uses a hash join; a step without uses the range search of
`joins/index.py`.

Rounds are numbered backwards from the last window that closes, so that all partitions agree on them. Where keys change, rows
are forwarded to the next level, after another shuffle of the same job; that level has only the rows that the level before
forwarded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from headrace.engine.compute.columns import combine_chunks
from headrace.engine.joins.index import (
    RangeSearch,
    ResidualPredicates,
    RowIndexes,
    RowPairs,
    find_pairs,
    is_exact_key,
    plan_searches,
    search_hashes,
)
from headrace.engine.joins.join_buffer import BufferedRows
from headrace.engine.joins.joined_rows import ChunkedColumn, JoinedRows, JoinTable, TableSelection, select_all_rows
from headrace.engine.joins.joiner import Joiner, JoinPath, leaf_of
from headrace.engine.joins.window_join_output import JoinOutputs, JoinRoundOutputs
from headrace.engine.kernels import join as join_kernels
from headrace.engine.operators.query_sets import QueryBitmaps, count_words, make_bitmap, resize_bitmaps
from headrace.engine.stage_messages import ForwardedRows, LevelMessage
from headrace.model.expression import TRUE, Call, Expression, combine_conjuncts
from headrace.plan.window_join import JoinKind, present_column, split_joined_name, to_joined_columns
from headrace.planner.join.window_join_plan import WindowJoinLeaf, WindowJoinStep


@dataclass(frozen=True, slots=True)
class BufferSlice:
    """Buffered rows of this partition, with their stream, keys, slot and columns."""

    stream: str
    keys: tuple[Expression, ...]
    slot: int
    columns: tuple[str, ...]
    buffered_rows: BufferedRows


class BufferedLeaves:
    """Collects rows from join buffers: those that lie in the window of at least one query."""

    def __init__(self, slices: Sequence[BufferSlice], joiners: Sequence[Joiner], ends: Mapping[int, int], width: int) -> None:
        """Take buffers and joiners; `ends` maps the bit of each query to the end of its window."""
        self._slices, self._joiners, self._window_ends, self._set_width = slices, joiners, ends, width
        self._rows_by_leaf: dict[WindowJoinLeaf, JoinedRows | None] = {}

    def get_rows(self, leaf: WindowJoinLeaf) -> JoinedRows | None:
        """Return the rows of a leaf with their query-sets; None if there are none."""
        if leaf not in self._rows_by_leaf:
            self._rows_by_leaf[leaf] = self._collect_rows(leaf)
        return self._rows_by_leaf[leaf]

    def _collect_rows(self, leaf: WindowJoinLeaf) -> JoinedRows | None:
        users = [
            (joiner.bit, self._window_ends[joiner.bit], joiner.plan.inputs[leaf.input_index].window.size)
            for joiner in self._find_users(leaf)
        ]
        input_columns = (
            (*split_joined_name(column.name), column.type)
            for joiner in self._find_users(leaf)
            for column in joiner.plan.joined_columns
        )
        types = {name: kind for input_number, name, kind in input_columns if input_number == leaf.input_index and name}
        names = tuple(sorted(types))
        columns: list[list[pa.Array]] = [[] for _ in names]
        sets: list[QueryBitmaps] = []
        for buffer_slice in self._slices:
            if (buffer_slice.stream, buffer_slice.keys, buffer_slice.slot) != (leaf.stream, leaf.keys, leaf.slot):
                continue
            start = buffer_slice.buffered_rows.slice_start
            mask = make_bitmap([bit for bit, end, size in users if end - size <= start < end], self._set_width)
            if not mask.any():
                continue
            query_sets = resize_bitmaps(buffer_slice.buffered_rows.sets, self._set_width) & mask
            rows = join_kernels.find_live_rows(query_sets)
            if rows.size:
                is_full = rows.size == buffer_slice.buffered_rows.row_count
                sets.append(query_sets if is_full else query_sets[rows])
                row_ids = None if is_full else pa.array(rows)
                for arrays, name in zip(columns, names, strict=True):
                    # A later epoch added the column, for queries without a window over this slice.
                    if name not in buffer_slice.columns:
                        arrays.append(pa.nulls(rows.size, types[name]))
                        continue
                    column = buffer_slice.buffered_rows.columns[buffer_slice.columns.index(name)]
                    arrays.append(column if row_ids is None else column.take(row_ids))
        if not sets:
            return None
        all_sets = np.concatenate(sets) if len(sets) > 1 else sets[0]
        table = {f"{leaf.input_index}.{name}": ChunkedColumn(arrays) for name, arrays in zip(names, columns, strict=True)}
        table[present_column(leaf.input_index).name] = ChunkedColumn([pa.repeat(pa.scalar(True), len(all_sets))])
        return select_all_rows(JoinTable(table, len(all_sets)), all_sets)

    def _find_users(self, leaf: WindowJoinLeaf) -> list[Joiner]:
        return [joiner for joiner in self._joiners if leaf in map(leaf_of, joiner.path)]


class ForwardedLeaves:
    """Holds the rows that the level before forwarded."""

    def __init__(self, forwarded: Sequence[ForwardedRows], joiners: Iterable[Joiner], width: int) -> None:
        """Take the rows of one round, and the joiners that have a window in it."""
        by_query = {joiner.live.id: joiner for joiner in joiners}
        self._rows_by_leaf: dict[WindowJoinLeaf, JoinedRows] = {}
        for rows in forwarded:
            leaf = by_query[rows.query_id].chain.steps[rows.depth].leaf
            self._rows_by_leaf[leaf] = select_all_rows(rows.table, resize_bitmaps(rows.sets, width))

    def get_rows(self, leaf: WindowJoinLeaf) -> JoinedRows | None:
        """Return the rows of a leaf; None if there are none."""
        return self._rows_by_leaf.get(leaf)


LeafLookup = Callable[[WindowJoinLeaf], JoinedRows | None]


class JoinedRowConsumer(Protocol):
    """Consumes rows that leave the round."""

    def finish_rows(self, joiners: Sequence[Joiner], rows: JoinedRows) -> None:
        """Take rows at the end of the path of these queries."""

    def forward_rows(self, joiners: Sequence[Joiner], depth: int, step: WindowJoinStep, rows: JoinedRows) -> None:
        """Take rows that must move to another partition before the next step."""


class JoinRound:
    """One round of one level: rows are pushed along the paths of all queries, common prefixes once."""

    def __init__(self, joiners: Sequence[Joiner], width: int, get_leaf_rows: LeafLookup, consumer: JoinedRowConsumer) -> None:
        """`width` is that of query-sets, in words."""
        self._joiners, self._set_width, self._get_leaf_rows, self._consumer = joiners, width, get_leaf_rows, consumer
        self._matched_sets: dict[JoinPath, QueryBitmaps] = {}
        self._indexes: dict[WindowJoinLeaf, RowIndexes] = {}
        self.row_counts: dict[tuple[int, int], int] = {}
        """Rows that reached the end of a path, by the first query on it and its length."""
        self._level = 0

    def run(self, level: int, forwarded: Sequence[ForwardedRows] = ()) -> None:
        """Push the rows of first leaves (level 0) or the forwarded rows, then the unmatched rows of build sides."""
        self._level = level
        if level == 0:
            for leaf in dict.fromkeys(joiner.chain.first_leaf for joiner in self._joiners):
                rows = self._get_leaf_rows(leaf)
                if rows is not None:
                    self._push_rows((leaf,), rows)
        by_path: dict[JoinPath, list[ForwardedRows]] = defaultdict(list)
        for message in forwarded:
            joiner = next(j for j in self._joiners if j.live.id == message.query_id)
            by_path[joiner.path[: message.depth + 1]].append(message)
        for path, messages in by_path.items():
            step = path[-1]
            assert isinstance(step, WindowJoinStep)
            self._join_step(path[:-1], step, _concat_forwarded(messages, self._set_width))
        self._push_unmatched()

    def _find_users(self, path: JoinPath) -> list[Joiner]:
        return [joiner for joiner in self._joiners if joiner.path[: len(path)] == path]

    def _get_level(self, path: JoinPath) -> int:
        return sum(node.repartitions for node in path if isinstance(node, WindowJoinStep))

    def _push_rows(self, path: JoinPath, rows: JoinedRows) -> None:
        """Process rows at the end of a path: finish the queries that end here, and join along all following steps."""
        users = self._find_users(path)
        count_key = (users[0].live.id, len(path))
        self.row_counts[count_key] = self.row_counts.get(count_key, 0) + rows.row_count
        ending = [joiner for joiner in users if len(joiner.path) == len(path)]
        if ending:
            self._consumer.finish_rows(ending, rows)
        for step in dict.fromkeys(joiner.path[len(path)] for joiner in users if len(joiner.path) > len(path)):
            assert isinstance(step, WindowJoinStep)
            following = [joiner for joiner in users if joiner.path[len(path) : len(path) + 1] == (step,)]
            restricted = self._restrict_rows(rows, following)
            if not restricted.row_count:
                continue
            if step.repartitions:
                self._consumer.forward_rows(following, len(path), step, restricted)
            else:
                self._join_step(path, step, restricted)

    def _restrict_rows(self, rows: JoinedRows, joiners: Sequence[Joiner]) -> JoinedRows:
        sets = rows.sets & make_bitmap([joiner.bit for joiner in joiners], self._set_width)
        alive = join_kernels.find_live_rows(sets)
        if alive.size == rows.row_count:
            return JoinedRows(rows.selections, sets)
        return rows.take(alive, sets[alive])

    def _join_step(self, path: JoinPath, step: WindowJoinStep, probe: JoinedRows) -> None:
        reached = (*path, step)
        build = self._get_leaf_rows(step.leaf)
        probe_matched = np.zeros_like(probe.sets) if step.kind is not JoinKind.INNER else probe.sets
        if build is not None:
            build_matched = self._matched_sets.setdefault(reached, np.zeros_like(build.sets)) if step.kind.keeps_right else None
            for pairs in self._find_pairs(reached, step, probe, build):
                if step.kind is not JoinKind.INNER:
                    join_kernels.merge_sets(pairs.probe_ids, pairs.sets, probe_matched)
                if build_matched is not None:
                    join_kernels.merge_sets(pairs.build_ids, pairs.sets, build_matched)
                if step.kind.has_both_sides:
                    self._push_rows(reached, probe.pair_with(pairs.probe_ids, build, pairs.build_ids, pairs.sets))
        if step.kind in (JoinKind.LEFT, JoinKind.FULL):
            self._push_masked(reached, probe, probe.sets & ~probe_matched, [step.leaf])
        elif step.kind is JoinKind.SEMI:
            self._push_masked(reached, probe, probe.sets & probe_matched)
        elif step.kind is JoinKind.ANTI:
            self._push_masked(reached, probe, probe.sets & ~probe_matched)

    def _push_masked(
        self, path: JoinPath, rows: JoinedRows, sets: QueryBitmaps, missing_leaves: Sequence[WindowJoinLeaf] = ()
    ) -> None:
        """Push the rows with a non-empty query-set; the columns of `missing_leaves` are NULL."""
        alive = join_kernels.find_live_rows(sets)
        if alive.size:
            selected = rows.take(alive, sets[alive])
            if missing_leaves:
                tables = [
                    joiner.make_empty_table({leaf.input_index for leaf in missing_leaves}) for joiner in self._find_users(path)
                ]
                null_table = JoinTable({name: column for table in tables for name, column in table.columns.items()}, 0)
                selected.selections = [
                    *selected.selections,
                    TableSelection(null_table, np.full(selected.row_count, -1, np.int64)),
                ]
            self._push_rows(path, selected)

    def _find_pairs(self, path: JoinPath, step: WindowJoinStep, probe: JoinedRows, build: JoinedRows) -> Iterator[RowPairs]:
        """Yield matches, a bounded number at a time."""
        residuals: ResidualPredicates = defaultdict(list)
        for joiner in self._find_users(path):
            residuals[joiner.residuals[len(path) - 2]].append(joiner.bit)
        indexes = self._indexes.setdefault(step.leaf, RowIndexes(build.evaluate, build.row_count))
        if step.left_keys:
            build_keys = tuple(to_joined_columns(key, step.leaf.input_index) for key in step.leaf.keys)
            probe_keys = [combine_chunks(probe.evaluate(key)) for key in step.left_keys]
            candidates = search_hashes(indexes.get_hash_index(build_keys), probe_keys, probe.row_count)
            if not is_exact_key(build_keys):
                equalities = [Call("eq", pair, TRUE.type) for pair in zip(step.left_keys, build_keys, strict=True)]
                residuals = {combine_conjuncts([*equalities, residual]): bits for residual, bits in residuals.items()}
            searches = [RangeSearch(candidates, residuals)]
        else:
            searches = plan_searches(probe, build, step.leaf.input_index, residuals, indexes)
        for search in searches:
            users = make_bitmap([bit for bits in search.residuals.values() for bit in bits], self._set_width)
            for pairs in find_pairs(search.candidates, probe.sets & users, build.sets):
                yield from self._filter_pairs(search.residuals, probe, build, pairs)

    def _filter_pairs(
        self, residuals: ResidualPredicates, probe: JoinedRows, build: JoinedRows, pairs: RowPairs
    ) -> Iterator[RowPairs]:
        """Filter pairs by residual predicates; an overflow counts as unknown, like NULL."""
        if set(residuals) != {TRUE}:
            rows = probe.pair_with(pairs.probe_ids, build, pairs.build_ids, pairs.sets)
            for residual, bits in residuals.items():
                if residual != TRUE:
                    holds = np.asarray(combine_chunks(rows.evaluate(residual)).fill_null(False))
                    pairs.sets[~holds] &= ~make_bitmap(bits, self._set_width)
            alive = join_kernels.find_live_rows(pairs.sets)
            pairs = RowPairs(pairs.probe_ids[alive], pairs.build_ids[alive], pairs.sets[alive])
        if pairs.pair_count:
            yield pairs

    def _push_unmatched(self) -> None:
        """Push build-side rows without a match to the queries of RIGHT and FULL joins, steps in order."""
        paths = {joiner.path[:depth] for joiner in self._joiners for depth in range(2, len(joiner.path) + 1)}
        for path in sorted(paths, key=len):
            step = path[-1]
            assert isinstance(step, WindowJoinStep)
            build = self._get_leaf_rows(step.leaf)
            if not step.kind.keeps_right or build is None or self._get_level(path) != self._level:
                continue
            user_set = make_bitmap([joiner.bit for joiner in self._find_users(path)], self._set_width)
            sets = build.sets & user_set & ~self._matched_sets.get(path, np.zeros_like(build.sets))
            self._push_masked(path, build, sets, [leaf_of(node) for node in path[:-1]])


def _concat_forwarded(messages: Sequence[ForwardedRows], width: int) -> JoinedRows:
    """Concatenate the rows of several senders."""
    names = [name for name in messages[0].table.columns if all(name in message.table.columns for message in messages)]
    sets = np.concatenate([resize_bitmaps(message.sets, width) for message in messages])
    columns = {name: ChunkedColumn([message.table.columns[name].combine_chunks() for message in messages]) for name in names}
    return select_all_rows(JoinTable(columns, len(sets)), sets)


class WindowJoinLevel:
    """The window joins of one partition at one level of a micro-batch."""

    def __init__(self, joiners: Sequence[Joiner], closing_ends: Mapping[int, tuple[int, int]], outputs: JoinOutputs) -> None:
        """Take the joiners; `closing_ends` maps each join whose windows may close to (watermark before, last end)."""
        self._joiners = [joiner for joiner in joiners if joiner.live.id in closing_ends]
        self._closing_ends, self._outputs = closing_ends, outputs
        self._set_width = count_words([joiner.bit for joiner in self._joiners])

    def join_buffers(self, slices: Sequence[BufferSlice]) -> dict[int, LevelMessage]:
        """Join the buffers of this partition; return the messages to the next level, by partition."""
        for number in self._find_rounds(slices):
            active = self._find_active(number)
            ends = {joiner.bit: end for joiner, end in active.items()}
            self._run_round(0, number, active, BufferedLeaves(slices, list(active), ends, self._set_width).get_rows)
        return self._outputs.collect_messages()

    def join_forwarded(self, level: int, messages: Sequence[LevelMessage]) -> dict[int, LevelMessage]:
        """Continue with the rows that the level before forwarded; `level` counts from the level of the buffers."""
        by_query = {joiner.live.id: joiner for joiner in self._joiners}
        groups = ((query, runs) for message in messages for query, runs in message.groups if query in by_query)
        self._outputs.finalize_groups((by_query[query], runs) for query, runs in groups)
        rows = [forwarded for message in messages for forwarded in message.joined_rows if forwarded.query_id in by_query]
        leaf_rows = [forwarded for message in messages for forwarded in message.leaf_rows if forwarded.query_id in by_query]
        for number in sorted({forwarded.round_number for forwarded in (*rows, *leaf_rows)}, reverse=True):
            active = self._find_active(number)
            leaves = ForwardedLeaves(
                [forwarded for forwarded in leaf_rows if forwarded.round_number == number], active, self._set_width
            )
            self._run_round(
                level, number, active, leaves.get_rows, [forwarded for forwarded in rows if forwarded.round_number == number]
            )
        return self._outputs.collect_messages()

    def _run_round(
        self,
        level: int,
        number: int,
        active: Mapping[Joiner, int],
        get_leaf_rows: LeafLookup,
        forwarded: Sequence[ForwardedRows] = (),
    ) -> None:
        consumer = JoinRoundOutputs(self._outputs, number, {joiner.bit: end for joiner, end in active.items()}, self._set_width)
        join_round = JoinRound(list(active), self._set_width, get_leaf_rows, consumer)
        join_round.run(level, forwarded)
        self._outputs.count_rows(join_round.row_counts)
        forwarded_leaves: set[WindowJoinLeaf] = set()
        for joiner in active:
            step_level = 0
            for index, step in enumerate(joiner.chain.steps):
                step_level += step.repartitions
                if step_level > level and step.leaf not in forwarded_leaves:
                    forwarded_leaves.add(step.leaf)
                    self._forward_leaf(joiner, index, number, get_leaf_rows(step.leaf))

    def _find_active(self, number: int) -> dict[Joiner, int]:
        """Return the joiners with a window in a round, with its end; at most one joiner per query."""
        window_ends = {}
        for joiner in self._joiners:
            before, last = self._closing_ends[joiner.live.id]
            end = last - number * joiner.ends.step
            if end > before and joiner.since <= end - joiner.size < joiner.until:
                window_ends[joiner] = end
        return window_ends

    def _find_rounds(self, slices: Sequence[BufferSlice]) -> list[int]:
        """Return the rounds in which a window contains a slice, earliest windows first."""
        starts: dict[tuple[str, tuple[Expression, ...], int], set[int]] = defaultdict(set)
        for buffer_slice in slices:
            starts[buffer_slice.stream, buffer_slice.keys, buffer_slice.slot].add(buffer_slice.buffered_rows.slice_start)
        rounds: set[int] = set()
        seen_signatures: set[tuple[object, ...]] = set()
        for joiner in self._joiners:
            before, last = self._closing_ends[joiner.live.id]
            for leaf in map(leaf_of, joiner.path):
                leaf_key = (leaf.stream, leaf.keys, leaf.slot)
                size = joiner.plan.inputs[leaf.input_index].window.size
                signature = (leaf_key, size, joiner.ends, before, last)
                if signature in seen_signatures:
                    continue
                seen_signatures.add(signature)
                for start in starts[leaf_key]:
                    ends = joiner.ends.ends_containing(size, start)
                    rounds.update((last - end) // joiner.ends.step for end in ends if before < end <= last)
        return sorted(rounds, reverse=True)

    def _forward_leaf(self, joiner: Joiner, index: int, number: int, rows: JoinedRows | None) -> None:
        """Forward the rows of a leaf to the next level of this partition."""
        if rows is not None and rows.row_count:
            table = rows.materialize_columns([name for selection in rows.selections for name in selection.table.columns])
            self._outputs.get_message(self._outputs.partition).leaf_rows.append(
                ForwardedRows(joiner.live.id, index, number, table, rows.sets)
            )
