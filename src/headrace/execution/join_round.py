"""One round of window joins: each query has at most one window, and rows are pushed along the paths of all queries.

A step with equalities uses a hash join; a step without uses the range search of `joins/index.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.execution.join_keys import match_keys
from headrace.execution.join_search import IndexCache, RangeSearch, ResidualPredicates, plan_searches
from headrace.execution.joined_rows import ChunkedColumn, JoinedRows, JoinTable, TableSelection, select_all_rows
from headrace.execution.joiner import Joiner, JoinPath, leaf_of
from headrace.execution.onward import ForwardedRows
from headrace.kernels import compiled_join
from headrace.kernels.columns import combine_chunks
from headrace.kernels.sets import QueryBitmaps, make_bitmap, resize_bitmaps
from headrace.model.expression import TRUE
from headrace.plan.join import JoinKind, to_joined_columns
from headrace.sharing.joining import WindowJoinLeaf, WindowJoinStep

Integers = npt.NDArray[np.int64]
RowPairs = tuple[Integers, Integers, QueryBitmaps]
LeafLookup = Callable[[WindowJoinLeaf], JoinedRows | None]
MAX_PAIRS = 1 << 20  # limit of pairs in memory at once
_MIN_PAIRS = 1 << 14


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
        self._index_caches: dict[WindowJoinLeaf, IndexCache] = defaultdict(dict)
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
        alive = compiled_join.find_live_rows(sets)
        if alive.size == rows.row_count:
            return JoinedRows(rows.selections, sets)
        return rows.take(alive, sets[alive])

    def _join_step(self, path: JoinPath, step: WindowJoinStep, probe: JoinedRows) -> None:
        reached = (*path, step)
        build = self._get_leaf_rows(step.leaf)
        probe_matched = np.zeros_like(probe.sets) if step.kind is not JoinKind.INNER else probe.sets
        if build is not None:
            build_matched = self._matched_sets.setdefault(reached, np.zeros_like(build.sets)) if step.kind.keeps_right else None
            for probe_ids, build_ids, sets in self._find_pairs(reached, step, probe, build):
                if step.kind is not JoinKind.INNER:
                    compiled_join.merge_sets(probe_ids, sets, probe_matched)
                if build_matched is not None:
                    compiled_join.merge_sets(build_ids, sets, build_matched)
                if step.kind.has_both_sides:
                    self._push_rows(reached, probe.pair_with(probe_ids, build, build_ids, sets))
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
        alive = compiled_join.find_live_rows(sets)
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
        """Yield (probe rows, build rows, query-sets) of matches, a bounded number at a time."""
        residuals: ResidualPredicates = defaultdict(list)
        for joiner in self._find_users(path):
            residuals[joiner.residuals[len(path) - 2]].append(joiner.bit)
        if step.left_keys:
            for pairs in self._find_equal_pairs(step, probe, build):
                yield from self._filter_pairs(residuals, probe, build, *pairs)
            return
        for search in plan_searches(probe, build, step.leaf.input_index, residuals, self._index_caches[step.leaf]):
            for pairs in self._find_range_pairs(search, probe, build):
                yield from self._filter_pairs(search.residuals, probe, build, *pairs)

    def _find_equal_pairs(self, step: WindowJoinStep, probe: JoinedRows, build: JoinedRows) -> Iterator[RowPairs]:
        """Yield pairs of rows with equal keys."""
        matches = match_keys(
            [combine_chunks(probe.evaluate(key)) for key in step.left_keys],
            [combine_chunks(build.evaluate(to_joined_columns(key, step.leaf.input_index))) for key in step.leaf.keys],
        )
        sets = build.sets[matches.order]
        row = offset = 0
        while row < probe.row_count:
            size = min(MAX_PAIRS, max(_MIN_PAIRS, probe.row_count))
            probe_ids, build_ids = np.empty(size, np.int64), np.empty(size, np.int64)
            common = np.empty((size + 1, self._set_width), np.uint64)
            count, row, offset = compiled_join.find_pairs_by_key(
                matches.codes, probe.sets, matches.starts, matches.order, sets, row, offset, probe_ids, build_ids, common
            )
            if count:
                yield probe_ids[:count], build_ids[:count], common[:count]

    def _find_range_pairs(self, search: RangeSearch, probe: JoinedRows, build: JoinedRows) -> Iterator[RowPairs]:
        """Yield the candidate pairs of a search."""
        probe_sets = probe.sets & make_bitmap([bit for bits in search.residuals.values() for bit in bits], self._set_width)
        build_sets = build.sets[search.order]
        size = min(MAX_PAIRS, max(1, search.candidate_count))
        row = offset = 0
        while row < probe.row_count:
            probe_ids, build_ids = np.empty(size, np.int64), np.empty(size, np.int64)
            common = np.empty((size, self._set_width), np.uint64)
            count, row, offset = compiled_join.find_pairs_in_ranges(
                search.begins, search.ends, probe_sets, search.order, build_sets, row, offset, probe_ids, build_ids, common
            )
            if count:
                yield probe_ids[:count], build_ids[:count], common[:count]

    def _filter_pairs(
        self,
        residuals: ResidualPredicates,
        probe: JoinedRows,
        build: JoinedRows,
        probe_ids: Integers,
        build_ids: Integers,
        sets: QueryBitmaps,
    ) -> Iterator[RowPairs]:
        """Filter pairs by residual predicates; an overflow counts as unknown, like NULL."""
        if set(residuals) != {TRUE}:
            rows = probe.pair_with(probe_ids, build, build_ids, sets)
            for residual, bits in residuals.items():
                if residual != TRUE:
                    holds = np.asarray(combine_chunks(rows.evaluate(residual)).fill_null(False))
                    sets[~holds] &= ~make_bitmap(bits, self._set_width)
            alive = compiled_join.find_live_rows(sets)
            probe_ids, build_ids, sets = probe_ids[alive], build_ids[alive], sets[alive]
        if probe_ids.size:
            yield probe_ids, build_ids, sets

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
