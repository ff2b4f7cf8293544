"""One round of joins: every query has at most one window, and rows are pushed along the paths of all queries.

Partners are found by hash where a step has equalities, and as `execution/join_search.py` says where it has none.
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
from headrace.kernels.columns import flat
from headrace.kernels.sets import Sets, set_of, widened
from headrace.model.expression import TRUE
from headrace.plan.join import JoinKind, lifted
from headrace.sharing.joining import Leaf, Step

Integers = npt.NDArray[np.int64]
Pairs = tuple[Integers, Integers, Sets]
Rows = Callable[[Leaf], JoinedRows | None]
PAIRS = 1 << 20  # at most so many pairs are held at once
_FEW_PAIRS = 1 << 14


class Taker(Protocol):
    """Who takes rows that go no further here."""

    def finish(self, joiners: Sequence[Joiner], rows: JoinedRows) -> None:
        """Take rows at the end of the path of these queries."""

    def move(self, joiners: Sequence[Joiner], depth: int, step: Step, rows: JoinedRows) -> None:
        """Take rows that must go to another partition before the next step."""


class Round:
    """One round of one level: rows pushed along the paths of all queries, equal beginnings once."""

    def __init__(self, joiners: Sequence[Joiner], width: int, leaves: Rows, taker: Taker) -> None:
        """`width` is that of query-sets, in words."""
        self._joiners, self._width, self._leaf, self._taker = joiners, width, leaves, taker
        self._matched: dict[Path, Sets] = {}
        self._sorted: dict[Leaf, Known] = defaultdict(dict)
        self.rows: dict[tuple[int, int], int] = {}
        """How many rows came to the end of a path, by the first query on it and its length."""
        self._at = 0

    def start(self, level: int, arrived: Sequence[Moved] = ()) -> None:
        """Begin with first leaves (level 0) or with what arrived; then give unmatched rows of right sides their turn."""
        self._at = level
        if level == 0:
            for leaf in dict.fromkeys(joiner.chain.first for joiner in self._joiners):
                rows = self._leaf(leaf)
                if rows is not None:
                    self._push((leaf,), rows)
        by_path: dict[Path, list[Moved]] = defaultdict(list)
        for one in arrived:
            joiner = next(j for j in self._joiners if j.live.id == one.query)
            by_path[joiner.path[: one.depth + 1]].append(one)
        for path, moved in by_path.items():
            step = path[-1]
            assert isinstance(step, Step)
            self._join(path[:-1], step, _united(moved, self._width))
        self._unmatched()

    def _users(self, path: Path) -> list[Joiner]:
        return [joiner for joiner in self._joiners if joiner.path[: len(path)] == path]

    def _level_of(self, path: Path) -> int:
        return sum(one.moves for one in path if isinstance(one, Step))

    def _push(self, path: Path, rows: JoinedRows) -> None:
        """Take rows that came to the end of a path: to queries that end here, and on along all steps that follow."""
        users = self._users(path)
        at = (users[0].live.id, len(path))
        self.rows[at] = self.rows.get(at, 0) + rows.count
        ending = [joiner for joiner in users if len(joiner.path) == len(path)]
        if ending:
            self._taker.finish(ending, rows)
        for step in dict.fromkeys(joiner.path[len(path)] for joiner in users if len(joiner.path) > len(path)):
            assert isinstance(step, Step)
            following = [joiner for joiner in users if joiner.path[len(path) : len(path) + 1] == (step,)]
            mine = self._restricted(rows, following)
            if not mine.count:
                continue
            if step.moves:
                self._taker.move(following, len(path), step, mine)
            else:
                self._join(path, step, mine)

    def _restricted(self, rows: JoinedRows, joiners: Sequence[Joiner]) -> JoinedRows:
        sets = rows.sets & set_of([joiner.bit for joiner in joiners], self._width)
        alive = compiled_join.alive(sets)
        if alive.size == rows.count:
            return JoinedRows(rows.parts, sets)
        return rows.take(alive, sets[alive])

    def _join(self, path: Path, step: Step, left: JoinedRows) -> None:
        reached = (*path, step)
        right = self._leaf(step.leaf)
        matched = np.zeros_like(left.sets) if step.kind is not JoinKind.INNER else left.sets
        if right is not None:
            seen = self._matched.setdefault(reached, np.zeros_like(right.sets)) if step.kind.keeps_right else None
            for own, theirs, sets in self._pairs(reached, step, left, right):
                if step.kind is not JoinKind.INNER:
                    compiled_join.join_sets(own, sets, matched)
                if seen is not None:
                    compiled_join.join_sets(theirs, sets, seen)
                if step.kind.pairs:
                    self._push(reached, left.beside(own, right, theirs, sets))
        if step.kind in (JoinKind.LEFT, JoinKind.FULL):
            self._push_some(reached, left, left.sets & ~matched, [step.leaf])
        elif step.kind is JoinKind.SEMI:
            self._push_some(reached, left, left.sets & matched)
        elif step.kind is JoinKind.ANTI:
            self._push_some(reached, left, left.sets & ~matched)

    def _push_some(self, path: Path, rows: JoinedRows, sets: Sets, lacking: Sequence[Leaf] = ()) -> None:
        """Push those of the rows whose set is not empty; of the leaves they lack, all columns are NULL."""
        alive = compiled_join.alive(sets)
        if alive.size:
            found = rows.take(alive, sets[alive])
            if lacking:
                tables = [joiner.absent({leaf.input for leaf in lacking}) for joiner in self._users(path)]
                absent = Table({name: column for table in tables for name, column in table.columns.items()}, 0)
                found.parts = [*found.parts, Part(absent, np.full(found.count, -1, np.int64))]
            self._push(path, found)

    def _pairs(self, path: Path, step: Step, left: JoinedRows, right: JoinedRows) -> Iterator[Pairs]:
        """Yield (left rows, right rows, sets) of partners, a bounded number at a time."""
        rests: Rests = defaultdict(list)
        for joiner in self._users(path):
            rests[joiner.rests[len(path) - 2]].append(joiner.bit)
        if step.left_keys:
            for pairs in self._equal(step, left, right):
                yield from self._accepted(rests, left, right, *pairs)
            return
        for search in searches(left, right, step.leaf.input, rests, self._sorted[step.leaf]):
            for pairs in self._within(search, left, right):
                yield from self._accepted(search.rests, left, right, *pairs)

    def _equal(self, step: Step, left: JoinedRows, right: JoinedRows) -> Iterator[Pairs]:
        """Yield pairs of rows that have equal keys."""
        matched = match_keys(
            [flat(left.evaluate(key)) for key in step.left_keys],
            [flat(right.evaluate(lifted(key, step.leaf.input))) for key in step.leaf.keys],
        )
        sets = right.sets[matched.order]
        row = place = 0
        while row < left.count:
            size = min(PAIRS, max(_FEW_PAIRS, left.count))
            own, theirs = np.empty(size, np.int64), np.empty(size, np.int64)
            common = np.empty((size + 1, self._width), np.uint64)
            found, row, place = compiled_join.pairs(
                matched.codes, left.sets, matched.starts, matched.order, sets, row, place, own, theirs, common
            )
            if found:
                yield own[:found], theirs[:found], common[:found]

    def _within(self, search: Search, left: JoinedRows, right: JoinedRows) -> Iterator[Pairs]:
        """Yield pairs of rows that a search allows."""
        own_sets = left.sets & set_of([bit for bits in search.rests.values() for bit in bits], self._width)
        sets = right.sets[search.order]
        size = min(PAIRS, max(1, search.candidates))
        row = place = 0
        while row < left.count:
            own, theirs = np.empty(size, np.int64), np.empty(size, np.int64)
            common = np.empty((size, self._width), np.uint64)
            found, row, place = compiled_join.pairs_within(
                search.begins, search.ends, own_sets, search.order, sets, row, place, own, theirs, common
            )
            if found:
                yield own[:found], theirs[:found], common[:found]

    def _accepted(
        self, rests: Rests, left: JoinedRows, right: JoinedRows, own: Integers, theirs: Integers, sets: Sets
    ) -> Iterator[Pairs]:
        """Look at the further conditions that queries have here; what overflows is unknown, as NULL is."""
        if set(rests) != {TRUE}:
            rows = left.beside(own, right, theirs, sets)
            for rest, bits in rests.items():
                if rest != TRUE:
                    holds = np.asarray(flat(rows.evaluate(rest)).fill_null(False))
                    sets[~holds] &= ~set_of(bits, self._width)
            alive = compiled_join.alive(sets)
            own, theirs, sets = own[alive], theirs[alive], sets[alive]
        if own.size:
            yield own, theirs, sets

    def _unmatched(self) -> None:
        """Give rows of right sides that found no partner to the queries that want them, steps in order."""
        paths = {joiner.path[:depth] for joiner in self._joiners for depth in range(2, len(joiner.path) + 1)}
        for path in sorted(paths, key=len):
            step = path[-1]
            assert isinstance(step, Step)
            right = self._leaf(step.leaf)
            if not step.kind.keeps_right or right is None or self._level_of(path) != self._at:
                continue
            users = set_of([joiner.bit for joiner in self._users(path)], self._width)
            sets = right.sets & users & ~self._matched.get(path, np.zeros_like(right.sets))
            self._push_some(path, right, sets, [leaf_of(one) for one in path[:-1]])


def _united(moved: Sequence[Moved], width: int) -> JoinedRows:
    """Return rows from several senders as one."""
    names = [name for name in moved[0].table.columns if all(name in one.table.columns for one in moved)]
    sets = np.concatenate([widened(one.sets, width) for one in moved])
    columns = {name: Pieces([one.table.columns[name].whole() for one in moved]) for name in names}
    return all_of(Table(columns, len(sets)), sets)
