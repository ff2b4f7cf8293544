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
from headrace.execution.join_search import Known, Rests, Search, searches
from headrace.execution.joined_rows import JoinedRows, Part, Pieces, Table, all_of
from headrace.execution.joiner import Joiner, Path, leaf_of
from headrace.execution.onward import Moved
from headrace.kernels import compiled_join
from headrace.kernels.columns import combine_chunks
from headrace.kernels.sets import QueryBitmaps, make_bitmap, resize_bitmaps
from headrace.model.expression import TRUE
from headrace.plan.join import JoinKind, to_joined_columns
from headrace.sharing.joining import WindowJoinLeaf, WindowJoinStep

Integers = npt.NDArray[np.int64]
Pairs = tuple[Integers, Integers, QueryBitmaps]
Rows = Callable[[WindowJoinLeaf], JoinedRows | None]
PAIRS = 1 << 20  # limit of pairs in memory at once
_FEW_PAIRS = 1 << 14


class Taker(Protocol):
    """Consumes rows that leave the round."""

    def finish(self, joiners: Sequence[Joiner], rows: JoinedRows) -> None:
        """Take rows at the end of the path of these queries."""

    def move(self, joiners: Sequence[Joiner], depth: int, step: WindowJoinStep, rows: JoinedRows) -> None:
        """Take rows that must move to another partition before the next step."""


class Round:
    """One round of one level: rows are pushed along the paths of all queries, common prefixes once."""

    def __init__(self, joiners: Sequence[Joiner], width: int, get_leaf_rows: Rows, consumer: Taker) -> None:
        """`width` is that of query-sets, in words."""
        self._joiners, self._width, self._leaf, self._taker = joiners, width, get_leaf_rows, consumer
        self._matched: dict[Path, QueryBitmaps] = {}
        self._sorted: dict[WindowJoinLeaf, Known] = defaultdict(dict)
        self.rows: dict[tuple[int, int], int] = {}
        """Rows that reached the end of a path, by the first query on it and its length."""
        self._at = 0

    def start(self, level: int, forwarded: Sequence[Moved] = ()) -> None:
        """Push the rows of first leaves (level 0) or the forwarded rows, then the unmatched rows of build sides."""
        self._at = level
        if level == 0:
            for leaf in dict.fromkeys(joiner.chain.first_leaf for joiner in self._joiners):
                rows = self._leaf(leaf)
                if rows is not None:
                    self._push((leaf,), rows)
        by_path: dict[Path, list[Moved]] = defaultdict(list)
        for message in forwarded:
            joiner = next(j for j in self._joiners if j.live.id == message.query)
            by_path[joiner.path[: message.depth + 1]].append(message)
        for path, messages in by_path.items():
            step = path[-1]
            assert isinstance(step, WindowJoinStep)
            self._join(path[:-1], step, _united(messages, self._width))
        self._unmatched()

    def _users(self, path: Path) -> list[Joiner]:
        return [joiner for joiner in self._joiners if joiner.path[: len(path)] == path]

    def _level_of(self, path: Path) -> int:
        return sum(node.repartitions for node in path if isinstance(node, WindowJoinStep))

    def _push(self, path: Path, rows: JoinedRows) -> None:
        """Process rows at the end of a path: finish the queries that end here, and join along all following steps."""
        users = self._users(path)
        count_key = (users[0].live.id, len(path))
        self.rows[count_key] = self.rows.get(count_key, 0) + rows.count
        ending = [joiner for joiner in users if len(joiner.path) == len(path)]
        if ending:
            self._taker.finish(ending, rows)
        for step in dict.fromkeys(joiner.path[len(path)] for joiner in users if len(joiner.path) > len(path)):
            assert isinstance(step, WindowJoinStep)
            following = [joiner for joiner in users if joiner.path[len(path) : len(path) + 1] == (step,)]
            restricted = self._restricted(rows, following)
            if not restricted.count:
                continue
            if step.repartitions:
                self._taker.move(following, len(path), step, restricted)
            else:
                self._join(path, step, restricted)

    def _restricted(self, rows: JoinedRows, joiners: Sequence[Joiner]) -> JoinedRows:
        sets = rows.sets & make_bitmap([joiner.bit for joiner in joiners], self._width)
        alive = compiled_join.find_live_rows(sets)
        if alive.size == rows.count:
            return JoinedRows(rows.parts, sets)
        return rows.take(alive, sets[alive])

    def _join(self, path: Path, step: WindowJoinStep, probe: JoinedRows) -> None:
        reached = (*path, step)
        build = self._leaf(step.leaf)
        probe_matched = np.zeros_like(probe.sets) if step.kind is not JoinKind.INNER else probe.sets
        if build is not None:
            build_matched = self._matched.setdefault(reached, np.zeros_like(build.sets)) if step.kind.keeps_right else None
            for probe_ids, build_ids, sets in self._pairs(reached, step, probe, build):
                if step.kind is not JoinKind.INNER:
                    compiled_join.merge_sets(probe_ids, sets, probe_matched)
                if build_matched is not None:
                    compiled_join.merge_sets(build_ids, sets, build_matched)
                if step.kind.has_both_sides:
                    self._push(reached, probe.beside(probe_ids, build, build_ids, sets))
        if step.kind in (JoinKind.LEFT, JoinKind.FULL):
            self._push_some(reached, probe, probe.sets & ~probe_matched, [step.leaf])
        elif step.kind is JoinKind.SEMI:
            self._push_some(reached, probe, probe.sets & probe_matched)
        elif step.kind is JoinKind.ANTI:
            self._push_some(reached, probe, probe.sets & ~probe_matched)

    def _push_some(self, path: Path, rows: JoinedRows, sets: QueryBitmaps, missing_leaves: Sequence[WindowJoinLeaf] = ()) -> None:
        """Push the rows with a non-empty query-set; the columns of `missing_leaves` are NULL."""
        alive = compiled_join.find_live_rows(sets)
        if alive.size:
            selected = rows.take(alive, sets[alive])
            if missing_leaves:
                tables = [joiner.absent({leaf.input_index for leaf in missing_leaves}) for joiner in self._users(path)]
                null_table = Table({name: column for table in tables for name, column in table.columns.items()}, 0)
                selected.parts = [*selected.parts, Part(null_table, np.full(selected.count, -1, np.int64))]
            self._push(path, selected)

    def _pairs(self, path: Path, step: WindowJoinStep, probe: JoinedRows, build: JoinedRows) -> Iterator[Pairs]:
        """Yield (probe rows, build rows, query-sets) of matches, a bounded number at a time."""
        residuals: Rests = defaultdict(list)
        for joiner in self._users(path):
            residuals[joiner.rests[len(path) - 2]].append(joiner.bit)
        if step.left_keys:
            for pairs in self._equal(step, probe, build):
                yield from self._accepted(residuals, probe, build, *pairs)
            return
        for search in searches(probe, build, step.leaf.input_index, residuals, self._sorted[step.leaf]):
            for pairs in self._within(search, probe, build):
                yield from self._accepted(search.rests, probe, build, *pairs)

    def _equal(self, step: WindowJoinStep, probe: JoinedRows, build: JoinedRows) -> Iterator[Pairs]:
        """Yield pairs of rows with equal keys."""
        matches = match_keys(
            [combine_chunks(probe.evaluate(key)) for key in step.left_keys],
            [combine_chunks(build.evaluate(to_joined_columns(key, step.leaf.input_index))) for key in step.leaf.keys],
        )
        sets = build.sets[matches.order]
        row = offset = 0
        while row < probe.count:
            size = min(PAIRS, max(_FEW_PAIRS, probe.count))
            probe_ids, build_ids = np.empty(size, np.int64), np.empty(size, np.int64)
            common = np.empty((size + 1, self._width), np.uint64)
            count, row, offset = compiled_join.find_pairs_by_key(
                matches.codes, probe.sets, matches.starts, matches.order, sets, row, offset, probe_ids, build_ids, common
            )
            if count:
                yield probe_ids[:count], build_ids[:count], common[:count]

    def _within(self, search: Search, probe: JoinedRows, build: JoinedRows) -> Iterator[Pairs]:
        """Yield the candidate pairs of a search."""
        probe_sets = probe.sets & make_bitmap([bit for bits in search.rests.values() for bit in bits], self._width)
        build_sets = build.sets[search.order]
        size = min(PAIRS, max(1, search.candidates))
        row = offset = 0
        while row < probe.count:
            probe_ids, build_ids = np.empty(size, np.int64), np.empty(size, np.int64)
            common = np.empty((size, self._width), np.uint64)
            count, row, offset = compiled_join.find_pairs_in_ranges(
                search.begins, search.ends, probe_sets, search.order, build_sets, row, offset, probe_ids, build_ids, common
            )
            if count:
                yield probe_ids[:count], build_ids[:count], common[:count]

    def _accepted(
        self, residuals: Rests, probe: JoinedRows, build: JoinedRows, probe_ids: Integers, build_ids: Integers, sets: QueryBitmaps
    ) -> Iterator[Pairs]:
        """Filter pairs by residual predicates; an overflow counts as unknown, like NULL."""
        if set(residuals) != {TRUE}:
            rows = probe.beside(probe_ids, build, build_ids, sets)
            for residual, bits in residuals.items():
                if residual != TRUE:
                    holds = np.asarray(combine_chunks(rows.evaluate(residual)).fill_null(False))
                    sets[~holds] &= ~make_bitmap(bits, self._width)
            alive = compiled_join.find_live_rows(sets)
            probe_ids, build_ids, sets = probe_ids[alive], build_ids[alive], sets[alive]
        if probe_ids.size:
            yield probe_ids, build_ids, sets

    def _unmatched(self) -> None:
        """Push build-side rows without a match to the queries of RIGHT and FULL joins, steps in order."""
        paths = {joiner.path[:depth] for joiner in self._joiners for depth in range(2, len(joiner.path) + 1)}
        for path in sorted(paths, key=len):
            step = path[-1]
            assert isinstance(step, WindowJoinStep)
            build = self._leaf(step.leaf)
            if not step.kind.keeps_right or build is None or self._level_of(path) != self._at:
                continue
            user_set = make_bitmap([joiner.bit for joiner in self._users(path)], self._width)
            sets = build.sets & user_set & ~self._matched.get(path, np.zeros_like(build.sets))
            self._push_some(path, build, sets, [leaf_of(node) for node in path[:-1]])


def _united(messages: Sequence[Moved], width: int) -> JoinedRows:
    """Concatenate the rows of several senders."""
    names = [name for name in messages[0].table.columns if all(name in message.table.columns for message in messages)]
    sets = np.concatenate([resize_bitmaps(message.sets, width) for message in messages])
    columns = {name: Pieces([message.table.columns[name].whole() for message in messages]) for name in names}
    return all_of(Table(columns, len(sets)), sets)
