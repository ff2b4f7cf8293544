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

from headrace.execution.join_leaves import BufferedLeaves, BufferSlice, ForwardedLeaves
from headrace.execution.join_outputs import JoinOutputs, JoinRoundOutputs
from headrace.execution.join_round import JoinRound, LeafLookup
from headrace.execution.joined_rows import JoinedRows
from headrace.execution.joiner import Joiner, leaf_of
from headrace.execution.onward import ForwardedRows, LevelMessage
from headrace.kernels.sets import count_words
from headrace.model.expression import Expression
from headrace.sharing.joining import WindowJoinLeaf


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
