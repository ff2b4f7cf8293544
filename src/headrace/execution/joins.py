"""Shared joins: the windows that close, joined for all queries at once.

In one round every query has at most one window; rows carry the queries in whose window they lie, and a pair lives while the
sets of its rows meet. So each pair of rows is found once, whatever the number of queries and windows that contain both. A
second round is only needed where two windows of one query close in the same micro-batch.

Rounds are counted back from the last window that closes, so that all partitions agree about them. Where keys change, rows go
on to the next level, another exchange of the same job; there only rows that came from the level before are at hand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from headrace.execution.join_leaves import ArrivedLeaves, BucketLeaves, BucketSlice
from headrace.execution.join_outputs import Outputs, RoundOutputs
from headrace.execution.join_round import Round, Rows
from headrace.execution.joined_rows import JoinedRows
from headrace.execution.joiner import Joiner, leaf_of
from headrace.execution.onward import Moved, Onward
from headrace.kernels.sets import words
from headrace.model.expression import Expression
from headrace.sharing.joining import Leaf


class JoinLevel:
    """The joins of one partition at one level of a micro-batch."""

    def __init__(self, joiners: Sequence[Joiner], closing: Mapping[int, tuple[int, int]], outputs: Outputs) -> None:
        """Take the joins; `closing` has, for each whose windows may close, (before, last end)."""
        self._joiners = [joiner for joiner in joiners if joiner.live.id in closing]
        self._closing, self._outputs = closing, outputs
        self._width = words([joiner.bit for joiner in self._joiners])

    def first(self, slices: Sequence[BucketSlice]) -> dict[int, Onward]:
        """Join what this partition has buckets of; return what goes on, by partition."""
        for number in self._rounds(slices):
            active = self._active(number)
            ends = {joiner.bit: end for joiner, end in active.items()}
            self._round(0, number, active, BucketLeaves(slices, list(active), ends, self._width).rows)
        return self._outputs.onward()

    def later(self, level: int, arrived: Sequence[Onward]) -> dict[int, Onward]:
        """Go on with what the level before sent of these joins; `level` counts from that of their buckets."""
        by_query = {joiner.live.id: joiner for joiner in self._joiners}
        groups = ((query, found) for one in arrived for query, found in one.groups if query in by_query)
        self._outputs.finish_groups((by_query[query], found) for query, found in groups)
        rows = [moved for one in arrived for moved in one.rows if moved.query in by_query]
        passed = [moved for one in arrived for moved in one.leaves if moved.query in by_query]
        for number in sorted({moved.round for moved in (*rows, *passed)}, reverse=True):
            active = self._active(number)
            leaves = ArrivedLeaves([moved for moved in passed if moved.round == number], active, self._width)
            self._round(level, number, active, leaves.rows, [moved for moved in rows if moved.round == number])
        return self._outputs.onward()

    def _round(self, level: int, number: int, active: Mapping[Joiner, int], leaves: Rows, arrived: Sequence[Moved] = ()) -> None:
        taker = RoundOutputs(self._outputs, number, {joiner.bit: end for joiner, end in active.items()}, self._width)
        work = Round(list(active), self._width, leaves, taker)
        work.start(level, arrived)
        self._outputs.count(work.rows)
        sent: set[Leaf] = set()
        for joiner in active:
            depth = 0
            for index, step in enumerate(joiner.chain.steps):
                depth += step.moves
                if depth > level and step.leaf not in sent:
                    sent.add(step.leaf)
                    self._pass_on(joiner, index, number, leaves(step.leaf))

    def _active(self, number: int) -> dict[Joiner, int]:
        """Return the joiners that have a window in a round, with its end; of a query there is one at most."""
        found = {}
        for joiner in self._joiners:
            before, last = self._closing[joiner.live.id]
            end = last - number * joiner.ends.step
            if end > before and joiner.since <= end - joiner.size < joiner.until:
                found[joiner] = end
        return found

    def _rounds(self, slices: Sequence[BucketSlice]) -> list[int]:
        """Return the rounds in which some window holds a slice, that of the earliest windows first."""
        starts: dict[tuple[str, tuple[Expression, ...], int], set[int]] = defaultdict(set)
        for one in slices:
            starts[one.stream, one.keys, one.slot].add(one.bucket.slice_start)
        found: set[int] = set()
        known: set[tuple[object, ...]] = set()
        for joiner in self._joiners:
            before, last = self._closing[joiner.live.id]
            for leaf in map(leaf_of, joiner.path):
                at = (leaf.stream, leaf.keys, leaf.slot)
                size = joiner.plan.inputs[leaf.input].window.size
                signature = (at, size, joiner.ends, before, last)
                if signature in known:
                    continue
                known.add(signature)
                for start in starts[at]:
                    ends = joiner.ends.containing(size, start)
                    found.update((last - end) // joiner.ends.step for end in ends if before < end <= last)
        return sorted(found, reverse=True)

    def _pass_on(self, joiner: Joiner, index: int, number: int, rows: JoinedRows | None) -> None:
        """Hand the rows of a leaf on to the next level of this partition."""
        if rows is not None and rows.count:
            table = rows.gathered([name for part in rows.parts for name in part.table.columns])
            self._outputs.to(self._outputs.partition).leaves.append(Moved(joiner.live.id, index, number, table, rows.sets))
