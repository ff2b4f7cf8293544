"""Where window joins store rows: once, in the home buffer, if a stream is joined by several attributes.

    clicks by user       all columns, row id                 ← home: the attribute that most queries use
    clicks by campaign   campaign, query-set, reference ──┐
    clicks by page       page, query-set, reference ──────┴→ row id and hash of the home key

A buffer of another attribute has the columns that its join steps read, and a reference: the id of the row, and the hash of its
home key, which tells the partition of the row whatever the partition map is then. Joined rows that lack columns are sent to that
partition after the last step, and completed there: one more shuffle for each such input of a query. The home buffer has the
queries of all these buffers as subscribers, so that it keeps a row as long as any window needs it.

A plan decides about the rows of its epoch. Windows over several epochs join rows of both kinds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.model.expression import Column, Expression, walk_expression
from headrace.model.late_materialization import LateMaterialization
from headrace.model.window import HopWindow
from headrace.plan.window_join import WindowJoinQuery, split_joined_name
from headrace.planner.join.window_join_cost import JoinStatistics
from headrace.planner.join.window_join_plan import WindowJoinChain, build_chains, iter_conditions
from headrace.planner.shared_plan import JoinBuffer, LiveQuery, StreamPlan
from headrace.planner.slicing import derive_progressions

RECONSIDER_INTERVAL = 8  # batches after which stored rows and joined rows are compared with the estimates
_SET_BYTES, _ID_BYTES, _HASH_BYTES = 8, 8, 4
_TEXT_BYTES = 24  # of a text, before any is stored
# Nanoseconds, measured (docs/performance.md)
_STORE_NS_PER_BYTE = 3.0  # divided by partition, packed, and written
_FETCH_NS = 250.0  # of a joined row: one more exchange, and the search for the row
_FETCH_NS_PER_BYTE = 1.0
_MIN_GAIN = 1.25  # references must cost so much less than rows in full, unless they are in use: the estimates are rough
_MICROS_PER_SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class RowStoragePlanner:
    """Decides which join buffers store rows in full: by setting, or by estimated cost.

    `nested_streams` are results of windows: their rows exist only after a shuffle, when the home buffers have been read.
    """

    setting: LateMaterialization = LateMaterialization.AUTO
    collect_statistics: Callable[[], JoinStatistics] = JoinStatistics
    nested_streams: Collection[str] = ()

    def list_signatures(self) -> tuple[str, ...]:
        """Return what a plan depends on beside its queries: a setting that is not the default."""
        return () if self.setting is LateMaterialization.AUTO else (f"late_materialization={self.setting}",)

    def plan_storage(self, plan: StreamPlan, live: Iterable[LiveQuery], current: StreamPlan | None = None) -> StreamPlan:
        """Return the plan of a stream with a home buffer wherever other buffers should refer to its rows.

        `current` is the plan of the stream so far: what it has in use stays unless it costs more.
        """
        if self.setting is LateMaterialization.NEVER or len(plan.join_buffers) < 2 or plan.stream in self.nested_streams:
            return plan
        buffers = list(plan.join_buffers)
        choices = self.list_choices(plan, live)
        statistics = self.collect_statistics() if choices else JoinStatistics()
        in_use = {buffer.slot for buffer in current.join_buffers if buffer.has_row_ids} if current is not None else set()
        for sharing in choices:
            gain = 1.0 if sharing.slot in in_use else _MIN_GAIN
            full, shared = sharing.estimate_costs(statistics)
            if self.setting is LateMaterialization.ALWAYS or shared.nanoseconds * gain < full.nanoseconds:
                for index, buffer in sharing.share_rows().items():
                    buffers[index] = buffer
        return replace(plan, join_buffers=tuple(buffers))

    def is_open(self, plan: StreamPlan, batch: int) -> bool:
        """Return whether statistics may change the decision for the current plan of a stream before this batch."""
        return self.setting is LateMaterialization.AUTO and len(plan.join_buffers) > 1 and batch % RECONSIDER_INTERVAL == 0

    def list_choices(self, plan: StreamPlan, live: Iterable[LiveQuery]) -> list[SlotStorage]:
        """Return, for a plan with rows in full, the buffers of each slot that can refer to the rows of another."""
        queries = {query.id: query for query in live}
        by_slot: dict[int, list[int]] = defaultdict(list)
        for index, buffer in enumerate(plan.join_buffers):
            by_slot[buffer.slot].append(index)
        choices = []
        for indexes in by_slot.values():
            keyed = [index for index in indexes if plan.join_buffers[index].keys]
            if keyed:
                home = max(keyed, key=lambda index: (len(plan.join_buffers[index].subscribers), -index))
                references = self._list_references(plan.join_buffers, indexes, home, queries)
                choices += [SlotStorage(plan, queries, home, references)] if references else []
        return choices

    def _list_references(
        self, buffers: Sequence[JoinBuffer], indexes: Sequence[int], home: int, queries: Mapping[int, LiveQuery]
    ) -> dict[int, tuple[str, ...]]:
        """Return the buffers that can refer to the rows of another, each with the columns that it keeps."""
        references = {}
        for index in indexes:
            subscribers = buffers[index].subscribers
            users = [queries[subscriber.query_id] for subscriber in subscribers]
            is_nested = any(user.output_stream or not set(user.plan.streams).isdisjoint(self.nested_streams) for user in users)
            if index == home or is_nested:
                continue
            kept = frozenset().union(*(find_step_columns(queries[s.query_id], s.branch) for s in subscribers))
            if kept < frozenset(buffers[index].columns):
                references[index] = tuple(sorted(kept))
        return references


@dataclass(frozen=True, slots=True)
class StorageCost:
    """Estimated cost of some join buffers in nanoseconds per row of the stream, and the bytes that a row occupies in them."""

    nanoseconds: float
    bytes: float


@dataclass(frozen=True, slots=True)
class SlotStorage:
    """Buffers of one stream and slot of which some refer to the rows of the home buffer: these, with the columns they keep."""

    plan: StreamPlan
    queries: Mapping[int, LiveQuery]
    home: int
    references: Mapping[int, tuple[str, ...]]

    @property
    def slot(self) -> int:
        """The slot of the buffers."""
        return self.plan.join_buffers[self.home].slot

    def share_rows(self) -> dict[int, JoinBuffer]:
        """Return the home buffer and the buffers that refer to its rows, by index."""
        buffers = self.plan.join_buffers
        home = buffers[self.home]
        shared = {index: replace(buffers[index], columns=kept, home=self.home) for index, kept in self.references.items()}
        members = dict(zip(home.subscribers, home.query_bits, strict=True))
        known = {subscriber.query_id for subscriber in home.subscribers}
        for index in self.references:
            for subscriber, bit in zip(buffers[index].subscribers, buffers[index].query_bits, strict=True):
                if subscriber.query_id not in known:
                    known.add(subscriber.query_id)
                    members[replace(subscriber, keys=home.keys, is_counted_elsewhere=True)] = bit
        windows = {member.window for member in members if isinstance(member.window, HopWindow)}
        shared[self.home] = replace(
            home,
            subscribers=tuple(members),
            query_bits=tuple(members.values()),
            columns=self._union_columns(),
            slice_progressions=derive_progressions(windows),
            retention=max(window.size for window in windows),
            has_row_ids=True,
        )
        return shared

    def _union_columns(self) -> tuple[str, ...]:
        buffers = self.plan.join_buffers
        return tuple(sorted({name for index in (self.home, *self.references) for name in buffers[index].columns}))

    def estimate_costs(self, statistics: JoinStatistics) -> tuple[StorageCost, StorageCost]:
        """Return the cost of the buffers if all of them have rows in full, and if some have references."""
        buffers = self.plan.join_buffers
        types = {
            split_joined_name(column.name)[1]: column.type
            for index in (self.home, *self.references)
            for subscriber in buffers[index].subscribers
            for column in _get_join(self.queries[subscriber.query_id]).joined_columns
            if split_joined_name(column.name)[0] == subscriber.branch
        }

        text_bytes = statistics.text_bytes.get(self.plan.stream, _TEXT_BYTES)

        def width(names: Iterable[str]) -> float:
            return _SET_BYTES + sum(estimate_column_bytes(types[name], text_bytes) for name in names)

        def share(indexes: Iterable[int]) -> float:
            bits = frozenset(bit for index in indexes for bit in buffers[index].query_bits)
            return statistics.estimate_share(self.plan.stream, self.slot, bits)

        full_bytes = sum(share([index]) * width(buffers[index].columns) for index in (self.home, *self.references))
        shared_bytes = share([self.home, *self.references]) * (width(self._union_columns()) + _ID_BYTES)
        fetch_ns = 0.0
        for index, kept in self.references.items():
            shared_bytes += share([index]) * (width(kept) + _ID_BYTES + _HASH_BYTES)
            fetch_ns += self._count_fetches(index, share([index]), statistics) * (
                _FETCH_NS + _FETCH_NS_PER_BYTE * width(buffers[index].columns)
            )
        return (
            StorageCost(full_bytes * _STORE_NS_PER_BYTE, full_bytes),
            StorageCost(shared_bytes * _STORE_NS_PER_BYTE + fetch_ns, shared_bytes),
        )

    def _count_fetches(self, index: int, selected: float, statistics: JoinStatistics) -> float:
        """Return how many joined rows are completed for each row of the stream: measured, or one for each join and stored row."""
        buffer = self.plan.join_buffers[index]
        kept = frozenset(self.references[index])
        counts: dict[WindowJoinChain, float | None] = {}
        rate = statistics.rates.get(self.plan.stream, 0.0)
        for subscriber in buffer.subscribers:
            query = self.queries[subscriber.query_id]
            join = _get_join(query)
            if find_output_columns(join, subscriber.branch) <= kept:
                continue
            chain = build_chains(join, query.order_versions)[-1][2]
            counts.setdefault(chain, None)
            joined = statistics.measured_rows.get((query.id, 1 + len(chain.steps)))
            if joined is not None and rate:
                counts[chain] = max(counts[chain] or 0.0, joined * _MICROS_PER_SECOND / join.ends.step / rate)
        return sum(selected if count is None else count for count in counts.values())


def _get_join(query: LiveQuery) -> WindowJoinQuery:
    assert isinstance(query.plan, WindowJoinQuery)
    return query.plan


def estimate_column_bytes(kind: pa.DataType, text_bytes: float = 0.0) -> float:
    """Return the bytes of a value in a column with this type, given the mean length of texts."""
    return 4 + text_bytes if pa.types.is_string(kind) else kind.bit_width / 8


def measure_text_bytes(columns: Sequence[pa.DataType], row_count: int, byte_count: int) -> float | None:
    """Return the mean length of the texts among stored columns; None without texts."""
    text_count = sum(pa.types.is_string(kind) for kind in columns)
    fixed_bytes = _SET_BYTES + sum(map(estimate_column_bytes, columns))
    return max(0.0, byte_count / row_count - fixed_bytes) / text_count if text_count and row_count else None


def find_step_columns(query: LiveQuery, index: int) -> frozenset[str]:
    """Return the columns of an input that the steps of a window join read: those of its conditions."""
    return _select_input(iter_conditions(_get_join(query)), index)


def find_output_columns(join: WindowJoinQuery, index: int) -> frozenset[str]:
    """Return the columns of an input that are read when the rows of a window join are complete."""
    expressions = [join.predicate, *join.output]
    if join.grouping is not None:
        expressions += [*join.grouping.keys, *(arg for call in join.grouping.aggregates for arg in call.args)]
    return _select_input(expressions, index)


def _select_input(expressions: Iterable[Expression], index: int) -> frozenset[str]:
    names = {part.name for expression in expressions for part in walk_expression(expression) if isinstance(part, Column)}
    owners = (split_joined_name(name) for name in names if name[:1].isdigit())
    return frozenset(name for number, name in owners if number == index and name)


def find_fetched_inputs(live: Iterable[LiveQuery], plans: Mapping[str, Iterable[StreamPlan]]) -> dict[int, tuple[int, ...]]:
    """Return the inputs whose columns a window join may have to fetch after its last step, by query, for all that have some.

    `plans` has the plans of all epochs of each stream: a window may contain rows of each of them.
    """
    queries = {query.id: query for query in live if isinstance(query.plan, WindowJoinQuery)}
    fetched: dict[int, set[int]] = defaultdict(set)
    for stream_plans in plans.values():
        for buffer in (buffer for plan in stream_plans for buffer in plan.join_buffers if buffer.home is not None):
            for subscriber in buffer.subscribers:
                query = queries.get(subscriber.query_id)
                if query is not None and not find_output_columns(_get_join(query), subscriber.branch) <= set(buffer.columns):
                    fetched[query.id].add(subscriber.branch)
    return {query: tuple(sorted(inputs)) for query, inputs in fetched.items()}
