"""Shared window joins: the windows that close, joined for all queries at once.

In one round each query has at most one window; rows carry the queries in whose window they lie, and a pair survives while the
query-sets of its rows intersect. So each pair of rows is found once, regardless of the number of queries and windows that
contain it. A second round is only needed where two windows of one query close in the same micro-batch.

Rounds are numbered backwards from the last window that closes, so that all partitions agree on them. Where keys change, rows
are forwarded to the next level, after another shuffle of the same job; that level has only the rows that the level before
forwarded.
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
from headrace.kernels.sets import count_words
from headrace.model.expression import Expression
from headrace.sharing.joining import WindowJoinLeaf


class JoinLevel:
    """The window joins of one partition at one level of a micro-batch."""

    def __init__(self, joiners: Sequence[Joiner], closing_ends: Mapping[int, tuple[int, int]], outputs: Outputs) -> None:
        """Take the joiners; `closing_ends` maps each join whose windows may close to (watermark before, last end)."""
        self._joiners = [joiner for joiner in joiners if joiner.live.id in closing_ends]
        self._closing, self._outputs = closing_ends, outputs
        self._width = count_words([joiner.bit for joiner in self._joiners])

    def first(self, slices: Sequence[BucketSlice]) -> dict[int, Onward]:
        """Join the buffers of this partition; return the messages to the next level, by partition."""
        for number in self._rounds(slices):
            active = self._active(number)
            ends = {joiner.bit: end for joiner, end in active.items()}
            self._round(0, number, active, BucketLeaves(slices, list(active), ends, self._width).rows)
        return self._outputs.onward()

    def later(self, level: int, messages: Sequence[Onward]) -> dict[int, Onward]:
        """Continue with the rows that the level before forwarded; `level` counts from the level of the buffers."""
        by_query = {joiner.live.id: joiner for joiner in self._joiners}
        groups = ((query, runs) for message in messages for query, runs in message.groups if query in by_query)
        self._outputs.finish_groups((by_query[query], runs) for query, runs in groups)
        rows = [forwarded for message in messages for forwarded in message.rows if forwarded.query in by_query]
        leaf_rows = [forwarded for message in messages for forwarded in message.leaves if forwarded.query in by_query]
        for number in sorted({forwarded.round for forwarded in (*rows, *leaf_rows)}, reverse=True):
            active = self._active(number)
            leaves = ArrivedLeaves([forwarded for forwarded in leaf_rows if forwarded.round == number], active, self._width)
            self._round(level, number, active, leaves.rows, [forwarded for forwarded in rows if forwarded.round == number])
        return self._outputs.onward()

    def _round(
        self, level: int, number: int, active: Mapping[Joiner, int], get_leaf_rows: Rows, forwarded: Sequence[Moved] = ()
    ) -> None:
        consumer = RoundOutputs(self._outputs, number, {joiner.bit: end for joiner, end in active.items()}, self._width)
        join_round = Round(list(active), self._width, get_leaf_rows, consumer)
        join_round.start(level, forwarded)
        self._outputs.count(join_round.rows)
        forwarded_leaves: set[WindowJoinLeaf] = set()
        for joiner in active:
            step_level = 0
            for index, step in enumerate(joiner.chain.steps):
                step_level += step.repartitions
                if step_level > level and step.leaf not in forwarded_leaves:
                    forwarded_leaves.add(step.leaf)
                    self._pass_on(joiner, index, number, get_leaf_rows(step.leaf))

    def _active(self, number: int) -> dict[Joiner, int]:
        """Return the joiners with a window in a round, with its end; at most one joiner per query."""
        window_ends = {}
        for joiner in self._joiners:
            before, last = self._closing[joiner.live.id]
            end = last - number * joiner.ends.step
            if end > before and joiner.since <= end - joiner.size < joiner.until:
                window_ends[joiner] = end
        return window_ends

    def _rounds(self, slices: Sequence[BucketSlice]) -> list[int]:
        """Return the rounds in which a window contains a slice, earliest windows first."""
        starts: dict[tuple[str, tuple[Expression, ...], int], set[int]] = defaultdict(set)
        for buffer_slice in slices:
            starts[buffer_slice.stream, buffer_slice.keys, buffer_slice.slot].add(buffer_slice.bucket.slice_start)
        rounds: set[int] = set()
        seen_signatures: set[tuple[object, ...]] = set()
        for joiner in self._joiners:
            before, last = self._closing[joiner.live.id]
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

    def _pass_on(self, joiner: Joiner, index: int, number: int, rows: JoinedRows | None) -> None:
        """Forward the rows of a leaf to the next level of this partition."""
        if rows is not None and rows.count:
            table = rows.gathered([name for selection in rows.parts for name in selection.table.columns])
            self._outputs.to(self._outputs.partition).leaves.append(Moved(joiner.live.id, index, number, table, rows.sets))
