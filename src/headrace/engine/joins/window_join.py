"""Shared window joins: the windows that close, joined for all queries at once.

In one round each query has at most one window, and rows are pushed along the paths of all queries. Rows carry the queries in
whose window they lie, and a pair survives while the query-sets of its rows intersect. So each pair of rows is found once,
regardless of the number of queries and windows that contain it. A second round is only needed where two windows of one query
close in the same micro-batch. A step with equalities uses a hash join; a step without uses the search of
`joins/pair_search.py`.

Rounds are numbered backwards from the last window that closes, so that all partitions agree on them. Where keys change, and where
one side is copied to all partitions, rows are forwarded to the next level, after another shuffle of the same job; that level has
only the rows that the level before forwarded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.engine.batch_job import BatchJob
from headrace.engine.compute.columns import combine_chunks
from headrace.engine.joins.index import (
    RowIndexes,
    RowPairs,
    find_pairs,
    is_exact_key,
    keep_equal_keys,
    search_hashes,
)
from headrace.engine.joins.join_output import JoinOutput
from headrace.engine.joins.joined_rows import JoinedRows, JoinTable, TableSelection
from headrace.engine.joins.joiner import Joiner, leaf_of
from headrace.engine.joins.kept_pairs import BufferName, SegmentName, StepBuffers
from headrace.engine.joins.pair_keeper import JoinSide, LeafPart, PairKeeper
from headrace.engine.joins.pair_search import PairSearch, StepUser, plan_search
from headrace.engine.joins.routing import LeafAddress, StepAddress, find_partitions, select_routed, split_rows
from headrace.engine.joins.row_fetch import HomeRows, RowFetcher
from headrace.engine.joins.row_references import list_reference_types
from headrace.engine.joins.segment import RowSegment, pack_rows, view_segments
from headrace.engine.kernels import join as join_kernels
from headrace.engine.operators.query_sets import QueryBitmaps, count_words, make_bitmap, resize_bitmaps, translate_sets
from headrace.engine.stage_messages import LevelMessage
from headrace.model.expression import TRUE, Expression, split_conjuncts
from headrace.model.time import MIN_TIME
from headrace.plan.window_join import JoinKind, present_column, split_joined_name, to_joined_columns
from headrace.planner.join.window_join_plan import JoinPath, StepExchange, WindowJoinChain, WindowJoinLeaf, WindowJoinStep
from headrace.planner.query_bits import BitTranslation


@dataclass(frozen=True, slots=True)
class BufferSlice:
    """Rows of a slice of a join buffer in this partition, with the stream, keys and slot of the buffer.

    `translation` is from the bits in their query-sets to those of now, if these differ.
    """

    stream: str
    keys: tuple[Expression, ...]
    slot: int
    start: int
    name: SegmentName
    rows: RowSegment
    translation: BitTranslation | None = None

    @property
    def buffer(self) -> BufferName:
        """The name of the join buffer."""
        return self.stream, self.keys, self.slot

    def get_sets(self, width: int) -> QueryBitmaps:
        """Return the query-sets of the rows in the bits of now."""
        if self.translation is None:
            return resize_bitmaps(self.rows.sets, width)
        return translate_sets(self.rows.sets, self.translation, width)


class BufferedLeaves:
    """Collects rows from join buffers: those that lie in the window of at least one query."""

    def __init__(self, slices: Sequence[BufferSlice], joiners: Sequence[Joiner], ends: Mapping[int, int], width: int) -> None:
        """Take buffers and joiners; `ends` maps the bit of each query to the end of its window."""
        self._slices, self._joiners, self._window_ends, self._set_width = slices, joiners, ends, width
        self._rows_by_leaf: dict[WindowJoinLeaf, JoinedRows | None] = {}
        self._parts_by_leaf: dict[WindowJoinLeaf, list[LeafPart]] = {}

    def make_side(self, leaf: WindowJoinLeaf, rows: JoinedRows) -> JoinSide:
        """Return one side of a step between two buffers: some or all of the rows of a leaf."""
        stored = [buffer_slice for buffer_slice in self._slices if buffer_slice.buffer == name_buffer(leaf)]
        leaf_rows = self._rows_by_leaf[leaf]
        assert leaf_rows is not None
        return JoinSide(
            name_buffer(leaf), stored, self._parts_by_leaf[leaf], leaf_rows.row_count, rows.sets, rows.selections[0].row_ids
        )

    def get_rows(self, leaf: WindowJoinLeaf, _: StepExchange) -> JoinedRows | None:
        """Return the rows of a leaf in this partition with their query-sets; None if there are none."""
        if leaf not in self._rows_by_leaf:
            self._rows_by_leaf[leaf] = self._collect_rows(leaf)
        return self._rows_by_leaf[leaf]

    def _collect_rows(self, leaf: WindowJoinLeaf) -> JoinedRows | None:
        joiners = [joiner for joiner in self._joiners if leaf in map(leaf_of, joiner.path)]
        index, present = leaf.input_index, present_column(leaf.input_index).name
        users = [(joiner.bit, self._window_ends[joiner.bit], joiner.plan.inputs[index].window.size) for joiner in joiners]
        columns = {name: kind for joiner in joiners for name, kind in joiner.column_types.items()}
        types = {name: kind for name, kind in columns.items() if split_joined_name(name)[0] == index and name != present}
        stored_names = {name: split_joined_name(name)[1] for name in types}
        reference_types = list_reference_types(index) if any(index in joiner.fetched_inputs for joiner in joiners) else {}
        reference_names = {name: split_joined_name(name)[1] for name in reference_types}
        selected: list[RowSegment] = []
        parts = self._parts_by_leaf[leaf] = []
        first = 0
        for buffer_slice in self._slices:
            if buffer_slice.buffer != name_buffer(leaf):
                continue
            bits = [bit for bit, end, size in users if end - size <= buffer_slice.start < end]
            if not bits:
                continue
            stored = buffer_slice.rows
            sets = buffer_slice.get_sets(self._set_width) & make_bitmap(bits, self._set_width)
            row_ids = None if join_kernels.are_rows_live(sets) else join_kernels.find_live_rows(sets)
            if stored.row_count and (row_ids is None or row_ids.size):
                # A later epoch may have added columns, for queries without a window over this slice: they are NULL.
                leaf_columns = {
                    name: stored.columns[stored_name]
                    for name, stored_name in {**stored_names, **reference_names}.items()
                    if stored_name in stored.columns
                }
                rows = RowSegment({**leaf_columns, present: pa.repeat(pa.scalar(True), stored.row_count)}, sets)
                selected.append(rows if row_ids is None else rows.take(row_ids))
                parts.append(LeafPart(buffer_slice, row_ids, first))
                first += selected[-1].row_count
        if reference_types:  # columns that no row has here are not NULL but fetched later
            found = {name for rows in selected for name in rows.columns}
            types = {name: kind for name, kind in {**types, **reference_types}.items() if name in found}
        return view_segments(selected, self._set_width, {**types, present: pa.bool_()}) if selected else None


Conditions = Mapping[Expression, QueryBitmaps]
LeafLookup = Callable[[WindowJoinLeaf, StepExchange], JoinedRows | None]
ForwardedRows = Mapping[StepAddress, Sequence[RowSegment]]


class JoinRound:
    """One round of one level: rows are pushed along the paths of all queries, common prefixes once."""

    def __init__(
        self,
        number: int,
        window_ends: Mapping[Joiner, int],
        width: int,
        get_leaf_rows: LeafLookup,
        output: JoinOutput,
        fetcher: RowFetcher,
        keeper: PairKeeper,
        leaves: BufferedLeaves | None = None,
    ) -> None:
        """Take the joiners with a window in the round, with its end; `width` is that of query-sets, in words.

        With `leaves`, which have the rows of all leaves, the keeper may keep the pairs of first steps.
        """
        self._fetcher, self._keeper, self._leaves = fetcher, keeper, leaves
        self._round_number, self._joiners, self._set_width = number, list(window_ends), width
        self._window_ends = {joiner.bit: end for joiner, end in window_ends.items()}
        self._get_leaf_rows, self._output = get_leaf_rows, output
        self._matched_sets: dict[JoinPath, QueryBitmaps] = {}
        self._indexes: dict[tuple[WindowJoinLeaf, StepExchange], RowIndexes] = {}
        self.row_counts: dict[tuple[int, int], int] = {}
        """Rows that reached the end of a path, by the first query on it and its length."""
        self._level = 0

    def run(self, level: int, forwarded: ForwardedRows) -> None:
        """Push the rows of first leaves (level 0) or the forwarded rows, then the unmatched rows of build sides."""
        self._level = level
        if level == 0:
            for leaf in dict.fromkeys(joiner.chain.first_leaf for joiner in self._joiners):
                rows = self._get_leaf_rows(leaf, StepExchange.KEYS)
                if rows is not None:
                    self._push_rows((leaf,), rows)
        by_path: dict[JoinPath, list[RowSegment]] = defaultdict(list)
        for address, segments in forwarded.items():
            joiner = next(joiner for joiner in self._joiners if joiner.live.id == address.query_id)
            by_path[joiner.path[: address.depth + 1]] += segments
        for path, segments in by_path.items():
            step = path[-1]
            assert isinstance(step, WindowJoinStep)
            self._join_step(path[:-1], step, view_segments(segments, self._set_width))
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
            self._fetcher.finish_rows(ending, rows, self._round_number, self._window_ends)
        for step in dict.fromkeys(joiner.path[len(path)] for joiner in users if len(joiner.path) > len(path)):
            assert isinstance(step, WindowJoinStep)
            following = [joiner for joiner in users if joiner.path[len(path) : len(path) + 1] == (step,)]
            restricted = rows
            if len(following) < len(self._joiners):
                restricted = rows.restrict_sets(rows.sets & make_bitmap([joiner.bit for joiner in following], self._set_width))
            if not restricted.row_count:
                continue
            if step.repartitions:
                self._forward_rows(following, len(path), step, restricted)
            else:
                self._join_step(path, step, restricted)

    def _forward_rows(self, joiners: Sequence[Joiner], depth: int, step: WindowJoinStep, rows: JoinedRows) -> None:
        """Send joined rows to the partitions of the next step."""
        names = sorted(frozenset().union(*(joiner.list_columns(joiner.path[:depth]) for joiner in joiners)))
        address, outbox = StepAddress(joiners[0].live.id, depth, self._round_number), self._output.outbox
        if step.exchange is StepExchange.COPY_LEAF:
            outbox.send_rows(outbox.sender, address, pack_rows(rows, names))
        elif step.exchange is StepExchange.COPY_ROWS:
            outbox.broadcast_rows(address, pack_rows(rows, names))
        else:
            targets = find_partitions(step.left_keys, rows, outbox.sender, outbox.partitions)
            for target, target_rows in split_rows(rows, targets, outbox.partitions.count):
                outbox.send_rows(target, address, pack_rows(target_rows, names))

    def _join_step(self, path: JoinPath, step: WindowJoinStep, probe: JoinedRows) -> None:
        reached = (*path, step)
        build = self._get_leaf_rows(step.leaf, _find_leaf_exchange(step))
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
        selected = rows.restrict_sets(sets)
        if selected.row_count:
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
        indexes = self._indexes.setdefault(
            (step.leaf, _find_leaf_exchange(step)), RowIndexes(build.evaluate, build.row_count, {})
        )
        joiners = self._find_users(path)
        found = self._match_keys if step.left_keys else self._search_pairs
        for pairs, conditions in found(joiners, len(path) - 2, step, probe, build, indexes):
            if conditions and probe.pair_with(pairs.probe_ids, build, pairs.build_ids, pairs.sets).clear_failing(conditions):
                alive = join_kernels.find_live_rows(pairs.sets)
                pairs = RowPairs(pairs.probe_ids[alive], pairs.build_ids[alive], pairs.sets[alive])  # noqa: PLW2901
            if pairs.pair_count:
                yield pairs

    def _match_keys(
        self,
        joiners: Sequence[Joiner],
        depth: int,
        step: WindowJoinStep,
        probe: JoinedRows,
        build: JoinedRows,
        indexes: RowIndexes,
    ) -> Iterator[tuple[RowPairs, Conditions]]:
        """Yield the pairs of a step whose keys are equal, and the conditions to evaluate on them."""
        residuals: dict[Expression, list[int]] = defaultdict(list)
        for joiner in joiners:
            residuals[joiner.residuals[depth]].append(joiner.bit)
        conditions = {residual: make_bitmap(bits, self._set_width) for residual, bits in residuals.items() if residual != TRUE}
        kept_pairs = self._find_kept_pairs(joiners, step, probe, build) if depth == 0 else None
        if kept_pairs is not None:
            for pairs in kept_pairs:
                yield pairs, conditions
            return
        build_keys = tuple(to_joined_columns(key, step.leaf.input_index) for key in step.leaf.keys)
        key_columns = [
            [combine_chunks(probe.evaluate(key)) for key in step.left_keys],
            [combine_chunks(build.evaluate(key)) for key in build_keys],
        ]
        candidates = search_hashes(indexes.get_hash_index(build_keys), key_columns[0], probe.row_count)
        self._keeper.count_search(probe.row_count, candidates.pair_count)
        self._output.meter.add_pairs((joiner.live.id for joiner in joiners), candidates.pair_count)
        users = make_bitmap([joiner.bit for joiner in joiners], self._set_width)
        for pairs in find_pairs(candidates, probe.sets & users, build.sets):
            yield pairs if is_exact_key(build_keys) else keep_equal_keys(pairs, *key_columns), conditions

    def _find_kept_pairs(
        self, joiners: Sequence[Joiner], step: WindowJoinStep, probe: JoinedRows, build: JoinedRows
    ) -> Iterator[RowPairs] | None:
        """Return the pairs of a first step from those kept; None if they are to be found."""
        if self._leaves is None:
            return None
        leaves = (joiners[0].chain.first_leaf, step.leaf)
        return self._keeper.find_pairs(
            self._leaves.make_side(leaves[0], probe),
            self._leaves.make_side(leaves[1], build),
            max(joiner.count_overlaps(leaves) for joiner in joiners),
            len(joiners),
            lambda pairs: self._output.meter.add_pairs((joiner.live.id for joiner in joiners), pairs),
        )

    def _search_pairs(
        self,
        joiners: Sequence[Joiner],
        depth: int,
        step: WindowJoinStep,
        probe: JoinedRows,
        build: JoinedRows,
        indexes: RowIndexes,
    ) -> Iterator[tuple[RowPairs, Conditions]]:
        """Yield the pairs that queries compare at a step without equalities, and the conditions to evaluate on them."""
        users = [StepUser(joiner.live.id, joiner.bit, tuple(split_conjuncts(joiner.residuals[depth]))) for joiner in joiners]
        plan = plan_search(users, lambda name: split_joined_name(name)[0] == step.leaf.input_index, self._set_width)
        search = PairSearch(plan, probe, self._output.meter)
        for pairs in search.find_pairs(indexes, build.sets):
            yield pairs, search.checks

    def _push_unmatched(self) -> None:
        """Push build-side rows without a match to the queries of RIGHT and FULL joins, steps in order."""
        paths = {joiner.path[:depth] for joiner in self._joiners for depth in range(2, len(joiner.path) + 1)}
        for path in sorted(paths, key=len):
            step = path[-1]
            assert isinstance(step, WindowJoinStep)
            build = self._get_leaf_rows(step.leaf, _find_leaf_exchange(step))
            if not step.kind.keeps_right or build is None or self._get_level(path) != self._level:
                continue
            user_set = make_bitmap([joiner.bit for joiner in self._find_users(path)], self._set_width)
            sets = build.sets & user_set & ~self._matched_sets.get(path, np.zeros_like(build.sets))
            self._push_masked(path, build, sets, [leaf_of(node) for node in path[:-1]])


class WindowJoinLevel:
    """The window joins of one partition at one level of a micro-batch."""

    def __init__(
        self,
        joiners: Sequence[Joiner],
        closing_ends: Mapping[int, tuple[int, int]],
        output: JoinOutput,
        home_rows: HomeRows,
        keeper: PairKeeper,
    ) -> None:
        """Take the joiners; `closing_ends` maps each join whose windows may close to (watermark before, last end)."""
        self._keeper = keeper
        self._joiners = [joiner for joiner in joiners if joiner.live.id in closing_ends]
        self._closing_ends, self._output = closing_ends, output
        self._set_width = count_words([joiner.bit for joiner in self._joiners])
        self._fetcher = RowFetcher(output, home_rows, self._set_width)
        self.row_counts: dict[tuple[int, int], tuple[int, int]] = {}
        """Joined rows and rounds, by query and path length."""

    def join_buffers(self, slices: Sequence[BufferSlice]) -> None:
        """Join the buffers of this partition."""
        for number in self._find_rounds(slices):
            active = self._find_active(number)
            ends = {joiner.bit: end for joiner, end in active.items()}
            leaves = BufferedLeaves(slices, list(active), ends, self._set_width)
            self._run_round(0, number, active, leaves.get_rows, {}, leaves)
        self._output.send_groups()

    def join_forwarded(self, level: int, messages: Sequence[LevelMessage]) -> None:
        """Continue with the rows that the level before forwarded; `level` counts from the level of the buffers."""
        by_query = {joiner.live.id: joiner for joiner in self._joiners}
        groups = [(query, runs) for message in messages for query, runs in message.groups if query in by_query]
        outputs = {query: by_query[query].finished.output for query, _ in groups}
        self._output.keep_groups(entry for entry in groups if level < outputs[entry[0]].group_level)
        self._output.finalize_groups((outputs[q], runs) for q, runs in groups if level >= outputs[q].group_level)
        routed_rows = [routed for message in messages for routed in message.join_rows]
        joined: dict[int, dict[StepAddress, list[RowSegment]]] = defaultdict(lambda: defaultdict(list))
        for step_address, rows in select_routed(routed_rows, StepAddress):
            if step_address.query_id in by_query:
                joined[step_address.round_number][step_address].append(rows)
        leaves: dict[int, dict[LeafAddress, list[RowSegment]]] = defaultdict(lambda: defaultdict(list))
        for leaf_address, rows in select_routed(routed_rows, LeafAddress):
            if leaf_address.query_id in by_query:
                leaves[leaf_address.round_number][leaf_address].append(rows)
        for number in sorted({*joined, *leaves}, reverse=True):
            active = self._find_active(number)
            chains = {joiner.live.id: joiner.chain for joiner in active}  # of the join order version of this round's window
            leaf_rows = {
                _find_arrival(chains[address.query_id], address.depth, level): view_segments(segments, self._set_width)
                for address, segments in leaves[number].items()
            }
            self._run_round(level, number, active, lambda *place, found=leaf_rows: found.get(place), joined[number])
        self._fetcher.finish_arrived(messages, self._find_active)
        self._output.send_groups()

    def _run_round(
        self,
        level: int,
        number: int,
        active: Mapping[Joiner, int],
        get_leaf_rows: LeafLookup,
        forwarded: ForwardedRows,
        leaves: BufferedLeaves | None = None,
    ) -> None:
        join_round = JoinRound(number, active, self._set_width, get_leaf_rows, self._output, self._fetcher, self._keeper, leaves)
        join_round.run(level, forwarded)
        for count_key, count in join_round.row_counts.items():
            before, rounds = self.row_counts.get(count_key, (0, 0))
            self.row_counts[count_key] = (before + count, rounds + 1)
        forwarded_leaves: set[tuple[WindowJoinLeaf, StepExchange]] = set()
        for joiner in active:
            for depth, step_level in enumerate(joiner.chain.step_levels):
                place = _find_arrival(joiner.chain, depth, level + 1)
                if step_level > level and place not in forwarded_leaves:
                    forwarded_leaves.add(place)
                    leaf, exchange = place
                    self._forward_leaf(
                        LeafAddress(joiner.live.id, depth, number), exchange, get_leaf_rows(leaf, StepExchange.KEYS)
                    )

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
            starts[buffer_slice.stream, buffer_slice.keys, buffer_slice.slot].add(buffer_slice.start)
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

    def _forward_leaf(self, address: LeafAddress, exchange: StepExchange, rows: JoinedRows | None) -> None:
        """Forward the rows of a leaf to the next level: of this partition, or of those where a step needs them."""
        if rows is None or not rows.row_count:
            return
        outbox = self._output.outbox
        packed = pack_rows(rows, [name for selection in rows.selections for name in selection.table.columns])
        if exchange is StepExchange.COPY_LEAF:
            outbox.broadcast_rows(address, packed)
        elif exchange is StepExchange.GATHER:
            outbox.send_rows(int(find_partitions((), packed, outbox.sender, outbox.partitions)[0]), address, packed)
        else:
            outbox.send_rows(outbox.sender, address, packed)


def name_buffer(leaf: WindowJoinLeaf) -> BufferName:
    """Return the name of the join buffer of a leaf."""
    return leaf.stream, leaf.keys, leaf.slot


def list_first_steps(joiners: Iterable[Joiner]) -> set[StepBuffers]:
    """Return the buffers of the first step of each joiner."""
    return {(name_buffer(joiner.chain.first_leaf), name_buffer(joiner.chain.steps[0].leaf)) for joiner in joiners}


def _find_leaf_exchange(step: WindowJoinStep) -> StepExchange:
    """Return how the rows of the leaf of a step come to their partition; by keys, if they are still where they were stored."""
    return step.exchange if step.exchange.moves_leaf else StepExchange.KEYS


def _find_arrival(chain: WindowJoinChain, depth: int, level: int) -> tuple[WindowJoinLeaf, StepExchange]:
    """Return the leaf of a step, and how its rows come to a level: they only move to the level of the step."""
    step = chain.steps[depth]
    return step.leaf, _find_leaf_exchange(step) if chain.step_levels[depth] == level else StepExchange.KEYS


def find_closing_joins(
    job: BatchJob, joiners: Sequence[Joiner], max_event_times: Mapping[str, int], reached_times: Mapping[str, int]
) -> dict[int, tuple[int, int]]:
    """Return (watermark before the batch, end of the last window) for each join with windows that may close."""
    closing_ends = {}
    for joiner in joiners:
        streams = joiner.plan.streams
        before = job.watermark_of(streams, job.get_reached_times())
        after = job.next_watermark_of(streams, reached_times)
        newest_time = max(max_event_times[name] for name in (*streams, *job.declared_streams_of(streams)))
        last_end = None if MIN_TIME in (newest_time, after) else joiner.find_last_end(before, after, newest_time)
        if last_end is not None:
            closing_ends[joiner.live.id] = (before, last_end)
    return closing_ends
