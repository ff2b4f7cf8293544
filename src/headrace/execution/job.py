"""Messages between the driver and the workers of one micro-batch: the job, the map reports and the reduce reports.

All of them travel by pickle. Workers keep no state between batches, only a cache of checkpoint files (plans, queries and
state). These files are immutable, and a worker caches a file for as long as batches refer to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.connectors import Sink, sink_from_json
from headrace.execution.bucketing import Bucket
from headrace.execution.finish import Shape, needs_of, shape_of
from headrace.execution.functions import load_functions
from headrace.execution.joiner import Joiner, joiners_of
from headrace.execution.multiway.loaded import LoadedProbes
from headrace.execution.multiway.sampling import Sample
from headrace.execution.multiway.stored import Stored
from headrace.execution.multiway.tuples import Packed
from headrace.execution.query_sets import QuerySets
from headrace.execution.selection import SharedSelection
from headrace.execution.sessions import Runs
from headrace.kernels import pack
from headrace.kernels.partial import PartialAggregate
from headrace.kernels.sets import QueryBitmaps
from headrace.model.stream import Stream
from headrace.plan.logical import AggregateQuery, LogicalQuery
from headrace.plan.unfolded import UnnestedStream
from headrace.sharing.aggregation import Component
from headrace.sharing.arrangement import JoinOrderVersion
from headrace.sharing.parts import compute_query_level
from headrace.sharing.shared_plan import LiveQuery, StreamPlan
from headrace.sharing.slicing import MAX_TIME, MIN_TIME


@dataclass(frozen=True, slots=True)
class Epoch:
    """A plan and the event time from which it applies: rows from `start` up to the next epoch are aggregated under `plan`."""

    number: int
    start: int
    plan: str


@dataclass(frozen=True, slots=True)
class StreamJob:
    """A stream in this batch: its current plan, the epochs that still accept rows, the greatest event time before the batch.

    `base_streams` names the declared streams that a stream of query results derives from; it is empty for a declared stream.
    """

    stream: Stream
    plan: str
    epochs: tuple[Epoch, ...]
    seen: int = MIN_TIME
    base: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartRef:
    """The place of a partial aggregate, or of buffered join rows: the entry `index` of a state file.

    `operator` is the index of the operator in the plan of the epoch.
    """

    file: str
    index: int
    partition: int
    stream: str
    epoch: int
    store: int
    start: int
    bytes: int = 0  # about

    @property
    def slice(self) -> tuple[str, int, int, int]:
        """The slice that the entry belongs to: stream, epoch, operator, start."""
        return self.stream, self.epoch, self.store, self.start


@dataclass(frozen=True, slots=True)
class SessionRef:
    """The state file that holds the open sessions of a query in a partition."""

    file: str
    partition: int
    query: int
    bytes: int = 0  # about


@dataclass(frozen=True, slots=True)
class StoreRef:
    """The place of a segment of sliding-join state: the entry `index` of a state file.

    Its rows were inserted in batches `oldest_batch` … `newest_batch`. `spans` holds (relation, first event time, last event
    time) for each relation in the rows.
    """

    file: str
    index: int
    partition: int
    store: int
    oldest: int
    newest: int
    rows: int
    spans: tuple[tuple[str, int, int], ...]
    bytes: int = 0  # about


@dataclass(frozen=True, slots=True)
class Job:
    """One micro-batch. `final` closes every window; `drained` says that an earlier batch did.

    `extra_shuffles` is the number of shuffles after the first one; joins and streams of query results need them.
    `stream_levels` gives the number of shuffles before the rows of each stream exist. `order_versions` holds the join order
    versions of joins that do not run in the written order. `directory` is the checkpoint and `checkpoint_id` its unique id, so
    that worker caches distinguish a directory from a later one of the same name. `state_partitions` is the number of partitions
    that the state was written for; if it differs from `partitions`, this batch repartitions the state.
    """

    batch: int
    partitions: int
    dealt: int
    directory: str
    streams: Mapping[str, StreamJob]
    queries: tuple[int, ...]
    parts: tuple[PartRef, ...] = ()
    sessions: tuple[SessionRef, ...] = ()
    buckets: tuple[PartRef, ...] = ()
    levels: int = 0
    depths: Mapping[str, int] = field(default_factory=dict)
    arrangements: Mapping[int, tuple[JoinOrderVersion, ...]] = field(default_factory=dict)
    final: bool = False
    drained: bool = False
    identity: str = ""
    probing: str = ""  # file of the sliding-join plan; empty without any
    stores: tuple[StoreRef, ...] = ()
    born: Mapping[int, int] = field(default_factory=dict)  # first batch of each sliding join, by query
    functions: tuple[str, ...] = ()  # tags of the UDFs that expressions may call
    unfolded: tuple[UnnestedStream, ...] = ()  # UNNEST streams, each after the stream it reads

    def load_functions(self) -> None:
        """Load the UDFs; must be called before any expression is evaluated."""
        load_functions(self.directory, self.functions)

    def watermark(self, streams: Sequence[str], seen: Mapping[str, int]) -> int:
        """Return the watermark of a query over these streams, given the greatest event time of each stream."""
        if self.drained:
            return MAX_TIME
        names = self.declared(streams)
        times = [seen.get(name, MIN_TIME) for name in names]
        if any(t == MIN_TIME for t in times):
            return MIN_TIME
        return min(t - self.streams[name].stream.delay for name, t in zip(names, times, strict=True))

    def declared(self, streams: Sequence[str]) -> tuple[str, ...]:
        """Return the declared streams among these and those that the others derive from."""
        return tuple(dict.fromkeys(name for stream in streams for name in self.streams[stream].base or (stream,)))

    def level(self, plan: LogicalQuery) -> int:
        """Return the level at which the windows of a query are evaluated: the number of shuffles before it."""
        return compute_query_level(plan, self.depths)

    def plan(self, path: str) -> LoadedPlan:
        """Return a stream plan of this checkpoint."""
        plan: LoadedPlan = self._loaded(path, LoadedPlan)
        return plan

    def query(self, number: int) -> LoadedQuery:
        """Return a query of this checkpoint."""
        query: LoadedQuery = self._loaded(query_file(number), LoadedQuery.of)
        return query

    def state(self, file: str) -> dict[str, Any]:
        """Return the content of a state file, memory-mapped."""
        content: dict[str, Any] = self._loaded(file)
        return content

    def release(self) -> None:
        """Evict cached files that this batch does not refer to.

        A mapped file takes memory even after it is deleted, and plans of past epochs consist of many objects that the garbage
        collector would traverse.
        """
        cached = _LOADED.get((self.directory, self.identity), {})
        referenced = {ref.file for refs in (self.parts, self.buckets, self.sessions, self.stores) for ref in refs}
        referenced |= {
            path for stream in self.streams.values() for path in (stream.plan, *(epoch.plan for epoch in stream.epochs))
        }
        referenced |= {self.probing, *map(query_file, self.queries)}
        for file in cached.keys() - referenced:
            del cached[file]

    def _loaded(self, file: str, prepare: Callable[[Any], Any] = lambda content: content) -> Any:
        """Return the content of a checkpoint file, converted by `prepare` on first access."""
        cached = _LOADED.setdefault((self.directory, self.identity), {})
        while len(_LOADED) > _CHECKPOINTS:
            del _LOADED[next(iter(_LOADED))]  # the oldest one, of a session that has ended
        if file not in cached:
            cached[file] = prepare(pack.read(Path(self.directory) / file))
        return cached[file]

    def bucket(self, ref: PartRef) -> Bucket:
        """Return buffered join rows from a state file, or from a shuffle block that was promoted to state."""
        content = self._loaded(ref.file)
        return content.buckets[ref.index][-1] if isinstance(content, Parcel) else content["buckets"][ref.index]

    def probes(self) -> LoadedProbes:
        """Return the plan of the sliding joins; the job must have one."""
        plan: LoadedProbes = self._loaded(self.probing, LoadedProbes)
        return plan

    def stored(self, ref: StoreRef) -> Stored:
        """Return a stored segment of sliding-join state."""
        segment: Stored = self._loaded(ref.file)[ref.index]
        return segment

    def joiners(self) -> list[Joiner]:
        """Return the joiners of all live window joins."""
        return [joiner for query in self.queries for joiner in self.query(query).joiners(self.arrangements.get(query, ()))]

    def before(self) -> dict[str, int]:
        """Return the greatest event time of each stream before this batch."""
        return {name: job.seen for name, job in self.streams.items()}


@dataclass(slots=True)
class Header:
    """The report of a map task; every reduce task receives it.

    `set_samples` holds query-sets of sampled rows, by stream and slot; the first set of each sample contains all queries whose
    predicates were evaluated. `relation_samples` holds samples of the rows that sliding joins read, by relation.
    """

    seen: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    untimed: dict[str, int] = field(default_factory=dict)
    late: dict[tuple[int, str], int] = field(default_factory=dict)
    skipped: dict[str, dict[str, str]] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    keys: dict[str, dict[str, int]] = field(default_factory=dict)
    samples: dict[tuple[str, int], list[QueryBitmaps]] = field(default_factory=dict)
    shown: dict[str, list[Sample]] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(slots=True)
class Parcel:
    """The output of one map task for one partition; `file` is its path in the checkpoint, if it was written there."""

    task: int
    header: Header
    partials: list[tuple[str, int, int, PartialAggregate]] = field(default_factory=list)
    runs: list[tuple[int, Runs]] = field(default_factory=list)
    rows: list[tuple[int, int, list[pa.Array]]] = field(default_factory=list)
    buckets: list[tuple[str, int, int, Bucket]] = field(default_factory=list)
    storing: list[tuple[int, Packed]] = field(default_factory=list)
    probing: list[tuple[int, Packed]] = field(default_factory=list)
    file: str = ""

    def weight(self) -> int:
        """Return the approximate size of its arrays in bytes."""
        row_bytes: int = sum(column.nbytes for *_, columns in self.rows for column in columns)
        sliding_join_bytes: int = sum(packed.bytes for _, packed in (*self.storing, *self.probing))
        state_bytes: int = sum(entry.bytes for entries in (self.partials, self.runs, self.buckets) for *_, entry in entries)
        return row_bytes + sliding_join_bytes + state_bytes


@dataclass(slots=True)
class Outcome:
    """The report of a reduce task: its state after the batch, emitted rows, failures; partition 0 adds the map reports.

    `join_counts` holds (rows, rounds) of joins, by query and path length; `probe_counts` (input rows, output rows) by probe.
    """

    partition: int
    parts: list[PartRef]
    sessions: list[SessionRef]
    buckets: list[PartRef]
    emitted: dict[int, int]
    failures: dict[int, str]
    headers: list[Header]
    results: list[str] = field(default_factory=list)
    joined: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    stores: list[StoreRef] = field(default_factory=list)
    probed: dict[int, tuple[int, int]] = field(default_factory=dict)
    seconds: float = 0.0


class LoadedPlan:
    """A stream plan with the cell assigners and query-set assigners of its operators."""

    def __init__(self, plan: StreamPlan) -> None:
        """Take a plan; its cell assigners initialize lazily."""
        self.plan = plan
        self.selections = {id(operator): SharedSelection(operator.predicate_index) for operator in plan.operators}
        self.sets = [
            QuerySets([subscriber.predicate for subscriber in buffer.subscribers], buffer.query_bits) for buffer in plan.buckets
        ]

    def selection(self, operator: Any) -> SharedSelection:
        """Return the cell assigner of an operator of the plan."""
        return self.selections[id(operator)]


_SHAPES: dict[Shape, Shape] = {}


class LoadedQuery:
    """A live query with its sink and, for an aggregation or a join, the values derived from its plan."""

    def __init__(self, live: LiveQuery, sink: Sink | None) -> None:
        """`sink` is None where the driver delivers, because callbacks are not picklable."""
        self.live, self.sink, self.streams = live, sink, live.plan.streams
        self._joiners: tuple[tuple[JoinOrderVersion, ...], tuple[Joiner, ...]] | None = None

    @staticmethod
    def of(content: tuple[LiveQuery, dict[str, Any] | None]) -> LoadedQuery:
        """Return the query that a query file holds."""
        live, sink = content
        return LoadedQuery(live, None if sink is None else sink_from_json(sink))

    @property
    def plan(self) -> LogicalQuery:
        """The logical plan of the query."""
        return self.live.plan

    @property
    def aggregate(self) -> AggregateQuery:
        """The plan; only for a query that aggregates."""
        assert isinstance(self.live.plan, AggregateQuery)
        return self.live.plan

    def joiners(self, order_versions: tuple[JoinOrderVersion, ...]) -> tuple[Joiner, ...]:
        """Return the joiners of a window join under these join order versions; none for other queries."""
        if self._joiners is None or self._joiners[0] != order_versions:
            self._joiners = order_versions, joiners_of(replace(self.live, order_versions=order_versions))
        return self._joiners[1]

    @cached_property
    def shape(self) -> Shape:
        """Queries of one shape are finalized together; equal shapes are interned, so that they compare by identity."""
        shape = shape_of(self.aggregate)
        return _SHAPES.setdefault(shape, shape)

    @cached_property
    def needs(self) -> tuple[Component, ...]:
        """The components that the aggregates of the query are lowered from."""
        return needs_of(self.aggregate)


def query_file(number: int) -> str:
    """Return the path of a query file in the checkpoint."""
    return f"queries/{number:08d}.query"


_CHECKPOINTS = 8
_LOADED: dict[tuple[str, str], dict[str, Any]] = {}
"""Content of checkpoint files, by checkpoint and file."""
