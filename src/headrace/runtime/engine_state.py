"""The state after a committed micro-batch: the content of a manifest, as plain records that can be copied.

It includes the UDFs of the session. The tag of a replaced or dropped UDF is retained: plans of earlier epochs that still have
open windows may call it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.connectors import PendingFile, SkippedRow
from headrace.engine.batch_job import Epoch, SegmentRef, SessionRef, StateRef, StreamJob, query_file_name
from headrace.model.budget import QueryBudget
from headrace.model.function import UserFunction
from headrace.model.partition_map import PartitionMap
from headrace.model.record import copy_record, record
from headrace.model.stream import Stream
from headrace.model.time import MAX_TIME, MIN_TIME
from headrace.model.types import Schema
from headrace.planner.changelog import root_query_id
from headrace.planner.join.window_join_plan import JoinOrderVersion
from headrace.planner.plan_change import PlanBase, list_plan_files
from headrace.planner.query_bits import FormerBit
from headrace.planner.shared_plan import Backfill, StreamPlan
from headrace.sql import Catalog
from headrace.storage.result_log import ResultFile, ResultLog
from headrace.storage.udf_store import get_udf_key


@record("udf-set")
@dataclass(frozen=True, slots=True)
class UdfSet:
    """The UDFs of a session: those that queries may call, by lower-case name, and the tags of all ever registered."""

    active: Mapping[str, UserFunction] = field(default_factory=dict)
    all_tags: tuple[str, ...] = ()

    def with_udf(self, function: UserFunction) -> UdfSet:
        """Return the set with a UDF added; it replaces a UDF of the same name."""
        return UdfSet({**self.active, function.name: function}, tuple(dict.fromkeys((*self.all_tags, function.tag))))

    def without_udf(self, name: str) -> UdfSet:
        """Return the set without the UDF of that name; its tag is retained."""
        return UdfSet({known: udf for known, udf in self.active.items() if known != name}, self.all_tags)


@record("stream-state")
@dataclass(slots=True)
class StreamState:
    """A stream: its declaration, read position, epochs and counts."""

    stream: Stream
    number: int
    source: dict[str, Any]
    position: Any = None
    seen: int = MIN_TIME
    plan: str = ""
    epochs: tuple[Epoch, ...] = ()
    planned: tuple[str, ...] = ()  # signatures of the queries in the current plan, with their join orders
    rows: int = 0
    untimed: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    rate: float = 0.0  # recent rows a second of event time; 0 before the first measurement
    keys: dict[str, int] = field(default_factory=dict)  # distinct keys in the last batch, by key expressions
    base: tuple[str, ...] = ()  # for a derived stream: the declared streams it is computed from
    source_files: tuple[str, ...] = ()  # bookkeeping of the source
    skipped_rows: int = 0
    skipped_samples: tuple[SkippedRow, ...] = ()  # the newest of them
    ahead: int = 0  # rows that were too far in the future
    reached: int = MIN_TIME  # with a watermark by partition: the event time that it follows
    partition_times: dict[int, int] = field(default_factory=dict)  # the greatest event time of each partition
    idle_partitions: frozenset[int] = frozenset()

    @property
    def reached_time(self) -> int:
        """The event time that the watermark follows: the greatest one, or that of the partition that is furthest behind."""
        return self.reached if self.stream.watermark_by == "partition" else self.seen

    def set_partitions(self, idle_by_partition: Mapping[int, bool]) -> None:
        """Record which partitions the stream has, and which of them are idle."""
        self.partition_times = {p: self.partition_times.get(p, MIN_TIME) for p in idle_by_partition}
        self.idle_partitions = frozenset(p for p, is_idle in idle_by_partition.items() if is_idle)

    def make_job(self) -> StreamJob:
        """Return the stream as workers see it in a batch."""
        return StreamJob(
            self.stream,
            self.plan,
            self.epochs,
            self.seen,
            self.base,
            self.reached_time,
            self.partition_times,
            self.idle_partitions,
        )

    def describe(self) -> dict[str, Any]:
        """Return the declaration and the counts, for users."""
        counted = {
            "rows": self.rows,
            "untimed": self.untimed,
            "ahead": self.ahead,
            "skipped": self.skipped,
            "max_event_time": self.seen,
            "reached_time": self.reached_time,
        }
        skipped = {"skipped_rows": self.skipped_rows, "skipped_samples": [asdict(row) for row in self.skipped_samples]}
        return {**describe_stream(self.stream, self.source), **counted, **skipped}


@record("query-state")
@dataclass(slots=True)
class QueryState:
    """An accepted query, or a part of one; `live` from its first batch until it is removed or fails.

    `sink` is the JSON form of its sinks (`connectors.SinkSet`).
    """

    id: int
    name: str
    sql: str
    sink: dict[str, Any] | None
    since: int = MIN_TIME
    bit: int = 0
    live: bool = False
    first_batch: int = -1
    last_batch: int | None = None
    error: str | None = None
    emitted: int = 0
    late_rows: dict[str, int] = field(default_factory=dict)
    join_order_versions: tuple[JoinOrderVersion, ...] = ()  # of a window join
    backfills: tuple[Backfill, ...] = ()  # of a sliding join
    note: str = ""  # for the user: what a backfill has covered, or why there is none
    owner: str = ""
    budget: QueryBudget | None = None  # by default that of the session
    schema: Schema | None = None  # the columns, of an ended query: its streams may be dropped, or declared differently
    former_bits: tuple[FormerBit, ...] = ()  # of a sliding join


@record("engine-state")
@dataclass(slots=True)
class EngineState:
    """Everything that recovery needs; written as the manifest of a batch."""

    batch: int = -1
    partition_map: PartitionMap = field(default_factory=lambda: PartitionMap(1))
    streams: dict[str, StreamState] = field(default_factory=dict)
    queries: dict[int, QueryState] = field(default_factory=dict)
    aggregation_refs: tuple[StateRef, ...] = ()
    session_refs: tuple[SessionRef, ...] = ()
    next_epoch: int = 0
    drained: bool = False  # whether a final batch has closed every window, except those over the streams `left_open`
    join_buffer_refs: tuple[StateRef, ...] = ()
    state_map: PartitionMap = field(default_factory=lambda: PartitionMap(1))  # of the stored state
    store_refs: tuple[SegmentRef, ...] = ()
    sliding_join_plan_file: str = ""  # the file of the sliding-join plan; the next field is the partition count of that plan
    sliding_join_plan_partitions: int = 1
    udfs: UdfSet = field(default_factory=UdfSet)
    results: ResultLog = field(default_factory=ResultLog)
    deliveries: tuple[ResultFile, ...] = ()  # rows that are not known to be delivered to callbacks and consoles
    left_open: frozenset[str] = frozenset()
    unpublished: dict[int | str, tuple[PendingFile, ...]] = field(default_factory=dict)
    """Files of sinks that are not known to be published: those of the batch, and those that the disk refused to publish.

    They belong to a query, by number, or to a stream as its dead letters, by name.
    """
    writer: str = ""  # the session that committed the manifest
    plan_bases: dict[str, PlanBase] = field(default_factory=dict)  # of the plans that are stored as differences, by file
    plans: dict[str, StreamPlan] = field(default_factory=dict, init=False, compare=False)
    """The plans of all streams and epochs, by file name. Not in the manifest: each plan has its own file."""

    @property
    def partitions(self) -> int:
        """The number of key partitions."""
        return self.partition_map.count

    def declared_streams(self) -> dict[str, StreamState]:
        """Return the declared streams, without derived ones."""
        return {name: stream for name, stream in self.streams.items() if not stream.base}

    def build_catalog(self, hidden: Container[str] = ()) -> Catalog:
        """Return the catalog of declared streams, except hidden ones, and of registered UDFs."""
        shown = (stream.stream for name, stream in self.declared_streams().items() if name not in hidden)
        return Catalog.of(shown, self.udfs.active.values())

    def next_stream_number(self) -> int:
        """Return an unused stream number."""
        return 1 + max((stream.number for stream in self.streams.values()), default=-1)

    def watermark_of(self, streams: Sequence[str]) -> int:
        """Return the watermark of a query over these streams, after the last batch."""
        inputs = self._base_streams(streams)
        if self.drained and not any(stream.stream.name in self.left_open for stream in inputs):
            return MAX_TIME
        if any(stream.reached_time == MIN_TIME for stream in inputs):
            return MIN_TIME
        return min(
            base.reached_time - base.stream.delay - self.streams[name].stream.lag
            for name in streams
            for base in self._base_streams([name])
        )

    def newest_common_time(self, streams: Sequence[str]) -> int:
        """Return the event time that rows of every one of these streams have reached."""
        return min(stream.seen for stream in self._base_streams(streams))

    def _base_streams(self, streams: Sequence[str]) -> list[StreamState]:
        return [self.streams[name] for stream in streams for name in self.streams[stream].base or (stream,)]

    def drop_ended_parts(self, live: Container[int], produced: Container[str]) -> None:
        """Drop the parts of ended queries, and the derived streams that no live query produces, with their state."""
        for number in [number for number in self.queries if root_query_id(number) != number and number not in live]:
            del self.queries[number]
        for name in [name for name, stream in self.streams.items() if stream.base and name not in produced]:
            del self.streams[name]
        self.aggregation_refs = tuple(ref for ref in self.aggregation_refs if ref.stream in self.streams)
        self.join_buffer_refs = tuple(ref for ref in self.join_buffer_refs if ref.stream in self.streams)

    def drop_stream(self, name: str) -> None:
        """Drop a declared stream with its position, epochs and counts; `drop_ended_parts` drops its stored state."""
        self.streams.pop(name, None)
        self.left_open -= {name}

    def live_queries(self) -> list[QueryState]:
        """Return the live queries and query parts, in order of addition."""
        return [query for query in self.queries.values() if query.live]

    def drop_ended_queries(self, keep: int, waiting: Container[int] = ()) -> None:
        """Drop all but the newest `keep` ended queries, to bound the size of the manifest, and those with `waiting` results."""
        ended = [number for number, query in self.queries.items() if not query.live and number not in waiting]
        for number in ended[: max(0, len(ended) - keep)]:
            del self.queries[number]

    def snapshot(self) -> EngineState:
        """Return an independent copy for a running batch to modify; it is discarded if the batch fails."""
        copy: EngineState = copy_record(self)
        copy.streams = {name: copy_record(stream) for name, stream in self.streams.items()}
        copy.queries = {number: copy_record(query) for number, query in self.queries.items()}
        copy.plans = dict(self.plans)
        return copy

    def plan_files(self) -> set[str]:
        """Return the file names of the current plans and of the plans of epochs with open windows."""
        return {name for s in self.streams.values() for name in (s.plan, *(epoch.plan for epoch in s.epochs)) if name}

    def drop_unused_plans(self) -> None:
        """Drop the plans of epochs that have ended, and the bases that no other plan needs."""
        needed = self._stored_plan_files()
        self.plans = {name: self.plans[name] for name in self.plan_files()}
        self.plan_bases = {name: base for name, base in self.plan_bases.items() if name in needed}

    def _stored_plan_files(self) -> set[str]:
        """Return the files of the plans in use, with those that they are stored as differences to."""
        return {file for plan in self.plan_files() for file in list_plan_files(plan, self.plan_bases)}

    def current_plans(self) -> list[StreamPlan]:
        """Return the current plan of every stream."""
        return [self.plans[stream.plan] for stream in list(self.streams.values())]

    def begin_batch(self, partition_map: PartitionMap, declared: Mapping[str, tuple[Stream, dict[str, Any]]]) -> None:
        """Turn the state after a batch into the initial state of the next one, with the streams that are declared by then."""
        self.batch += 1
        self.partition_map = partition_map
        for name, (stream, source) in declared.items():
            if name not in self.streams:  # declared and logged, but the first commit never happened
                self.streams[name] = StreamState(stream, self.next_stream_number(), source)

    def query_files(self) -> set[str]:
        """Return the files of live queries, which recovery writes again."""
        return {query_file_name(query.id) for query in self.live_queries()}

    def is_known_query_file(self, file: str) -> bool:
        """Return whether a query file is not newer than the queries that this manifest, or one before it, has named."""
        newest = max(map(root_query_id, self.queries), default=-1)
        return root_query_id(int(file.rpartition("/")[2].partition(".")[0])) <= newest

    def referenced_files(self) -> set[str]:
        """Return all referenced state, plan, query and function files, relative to the checkpoint."""
        paths = {ref.file for ref in self.aggregation_refs} | {session.file for session in self.session_refs}
        paths |= {ref.file for ref in self.join_buffer_refs} | {ref.file for ref in self.store_refs}
        paths |= {self.sliding_join_plan_file} if self.sliding_join_plan_file else set()
        paths |= {file.key for file in (*self.results.files, *self.deliveries)}
        paths |= {file for stream in self.streams.values() for file in stream.source_files}
        return paths | self._stored_plan_files() | self.query_files() | {get_udf_key(tag) for tag in self.udfs.all_tags}


def describe_stream(stream: Stream, source: dict[str, Any]) -> dict[str, Any]:
    """Return a stream's declaration as a JSON value, for users."""
    times = {"time": stream.time, "delay": stream.delay, "max_ahead": stream.max_ahead}
    partitions = {"watermark_by": stream.watermark_by, "idle": stream.idle}
    return {"name": stream.name, "schema": stream.schema.to_ddl(), **times, **partitions, "source": source}
