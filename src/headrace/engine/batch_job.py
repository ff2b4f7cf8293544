"""Messages between the driver and the workers of one micro-batch: the job, the map reports and the reduce reports.

The job and the reports of reduce tasks travel by pickle, between processes of one version; shuffle blocks are containers, because
a large one with rows of joins may become a state file. A job loads the files that it names through the cache of its worker
(`worker_cache`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa

from headrace.connectors import OutputPlace, PendingFile, QuerySink, SinkSet, SkippedRow
from headrace.engine.compute.accumulators import PartialAggregate
from headrace.engine.joins.index import IndexCache
from headrace.engine.joins.joiner import Joiner
from headrace.engine.joins.kept_pairs import PairCounts
from headrace.engine.joins.pair_keeper import PairKeeper
from headrace.engine.joins.probe_plan import LoadedSlidingJoinPlan
from headrace.engine.joins.routing import RoutedRows
from headrace.engine.joins.sampling import RelationSample
from headrace.engine.joins.segment import RowSegment
from headrace.engine.operators.query_sets import QueryBitmaps
from headrace.engine.operators.sessions import SessionRuns
from headrace.engine.repartition import StateOrigin, find_origin
from headrace.engine.worker_cache import LoadedPlan, LoadedQuery, WorkerCache, get_worker_cache
from headrace.model.budget import DEFAULT_BUDGET, DEFAULT_TEXT_BYTES, QueryBudget
from headrace.model.join_slices import DEFAULT_JOIN_SLICES, JoinSliceOptions
from headrace.model.partition_map import PartitionMap
from headrace.model.record import record
from headrace.model.stream import Stream
from headrace.model.time import MAX_TIME, MIN_TIME
from headrace.model.watermark import compute_reached_time
from headrace.plan.derived import RowStream
from headrace.plan.logical import LogicalQuery
from headrace.planner.changelog import compute_query_level
from headrace.planner.join.window_join_plan import JoinOrderVersion
from headrace.planner.plan_change import PlanBase, find_source
from headrace.storage import container, documents
from headrace.storage.locations import StorageOptions, open_store
from headrace.storage.provider_environment import apply_provider_environment, read_provider_environment
from headrace.storage.requests import run_requests
from headrace.storage.result_files import StoredRows
from headrace.storage.result_log import ResultFile
from headrace.storage.store import Store
from headrace.storage.udf_store import load_udfs

SAMPLED_ROWS = 20  # skipped rows of a stream that are kept for users
_INDEXES = "#indexes"  # after the name of a file, for the cache of the worker


@record("epoch")
@dataclass(frozen=True, slots=True)
class Epoch:
    """A plan and the event time from which it applies: rows from `start` up to the next epoch are aggregated under `plan`."""

    number: int
    start: int
    plan: str


@dataclass(frozen=True, slots=True)
class StreamJob:
    """A stream in this batch: its current plan, the epochs that still accept rows, the greatest event time before the batch.

    `reached_time` is the event time before the batch that counts for watermarks. With a watermark by partition, it is that of the
    partition that is furthest behind, and `partition_times` has the greatest event time of each before the batch.

    `base_streams` names the declared streams that a stream of query results derives from; it is empty for a declared stream.
    """

    stream: Stream
    plan: str
    epochs: tuple[Epoch, ...]
    max_event_time: int = MIN_TIME
    base_streams: tuple[str, ...] = ()
    reached_time: int = MIN_TIME
    partition_times: Mapping[int, int] = field(default_factory=dict)
    idle_partitions: frozenset[int] = frozenset()


@record("state-ref")
@dataclass(frozen=True, slots=True)
class StateRef:
    """The place of a partial aggregate, or of buffered join rows: the entry `index` of a state file.

    `operator` is the index of the operator in the plan of the epoch.
    """

    file: str
    index: int
    partition: int
    stream: str
    epoch: int
    operator: int
    slice_start: int
    bytes: int = 0  # about
    rows: int = 0  # groups of a partial aggregate, or rows of a join

    @property
    def slice_key(self) -> tuple[str, int, int, int]:
        """The slice that the entry belongs to: stream, epoch, operator, start."""
        return self.stream, self.epoch, self.operator, self.slice_start


@record("session-ref")
@dataclass(frozen=True, slots=True)
class SessionRef:
    """The state file that holds the open sessions of a query in a partition."""

    file: str
    partition: int
    query_id: int
    bytes: int = 0  # about
    rows: int = 0  # open sessions


@record("segment-ref")
@dataclass(frozen=True, slots=True)
class SegmentRef:
    """The place of a segment of sliding-join state: the entry `index` of a state file.

    Its rows were inserted in batches `oldest_batch` … `newest_batch`. `spans` holds (relation, first event time, last event
    time) for each relation in the rows.
    """

    file: str
    index: int
    partition: int
    store: int
    oldest_batch: int
    newest_batch: int
    row_count: int
    spans: tuple[tuple[str, int, int], ...]
    bytes: int = 0  # about


@dataclass(frozen=True, slots=True)
class BatchJob:
    """One micro-batch. `final` closes every window; `drained` says that an earlier batch did.

    Windows over the streams `final_except` stay open, and those over `drained_except` stayed open in that earlier batch.
    `extra_shuffles` is the number of shuffles after the first one; joins and streams of query results need them.
    `stream_levels` gives the number of shuffles before the rows of each stream exist. `order_versions` holds the join order
    versions of joins that do not run in the written order, `join_bits` the bits of all window joins, and
    `fetched_inputs` the inputs whose columns they may have to fetch after the last step. `directory` is the
    location of the checkpoint, and `checkpoint_id` its unique id, so that worker caches distinguish it from a later one in the
    same place. `state_map` is the partition map that the state was written for; where it differs from `partition_map`, this
    batch repartitions it. `attempt` tells apart the runs of a batch that is run several times; a `trial` writes to no sink,
    because nothing of it will be committed.
    """

    batch: int
    partition_map: PartitionMap
    state_map: PartitionMap
    directory: str
    streams: Mapping[str, StreamJob]
    queries: tuple[int, ...]
    aggregation_refs: tuple[StateRef, ...] = ()
    session_refs: tuple[SessionRef, ...] = ()
    join_buffer_refs: tuple[StateRef, ...] = ()
    extra_shuffles: int = 0
    stream_levels: Mapping[str, int] = field(default_factory=dict)
    order_versions: Mapping[int, tuple[JoinOrderVersion, ...]] = field(default_factory=dict)
    join_bits: Mapping[int, int] = field(default_factory=dict)
    fetched_inputs: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    final: bool = False
    final_except: frozenset[str] = frozenset()
    drained: bool = False
    drained_except: frozenset[str] = frozenset()
    checkpoint_id: str = ""
    sliding_join_plan_file: str = ""  # file of the sliding-join plan; empty without any
    segment_refs: tuple[SegmentRef, ...] = ()
    first_batches: Mapping[int, int] = field(default_factory=dict)  # first batch of each sliding join, by query
    udf_tags: tuple[str, ...] = ()  # tags of the UDFs that expressions may call
    unnested_streams: tuple[RowStream, ...] = ()  # UNNEST streams, each after the stream it reads
    attempt: str = ""
    trial: bool = False
    budget: QueryBudget = DEFAULT_BUDGET
    budgets: Mapping[int, QueryBudget] = field(default_factory=dict)  # of queries with a budget of their own
    max_text_bytes: int = DEFAULT_TEXT_BYTES
    max_seconds: float = 0.0  # of the whole batch; 0 is unlimited
    join_slices: JoinSliceOptions = DEFAULT_JOIN_SLICES
    clock: int = 0  # when the batch was planned, in microseconds since 1970
    worker_memory: int = 0  # bytes of each worker process; 0 is unlimited
    sink_sets: Mapping[int, SinkSet] = field(default_factory=dict)  # of queries with several sinks, or whose sinks have changed
    storage_options: StorageOptions = field(default_factory=dict)  # of object stores
    samples_load: bool = False  # whether reduce tasks find out where to divide their load
    storage_environment: Mapping[str, str] = field(default_factory=read_provider_environment, repr=False)  # of the driver
    plan_bases: Mapping[str, PlanBase] = field(default_factory=dict)  # by plan: what it is stored as the difference to
    exchange: str = "files"  # how large shuffle blocks travel: as files of the checkpoint, or through Spark's shuffle

    @property
    def partitions(self) -> int:
        """The number of key partitions."""
        return self.partition_map.count

    def find_state_origin(self, partition: int) -> StateOrigin:
        """Return where the stored state of a partition is."""
        return find_origin(self.state_map, self.partition_map, partition)

    @property
    def store(self) -> Store:
        """The store of the checkpoint."""
        self.prepare_environment()
        return open_store(self.directory, self.checkpoint_id, self.storage_options)

    def prepare_environment(self) -> None:
        """Let object stores that are opened in this process find the credentials of the driver."""
        apply_provider_environment(self.storage_environment)

    def load_udfs(self) -> None:
        """Load the UDFs; must be called before any expression is evaluated."""
        load_udfs(self.store, self.udf_tags)

    def place_output(self, partition: int, part: int = 0) -> OutputPlace:
        """Return the place of rows for a sink: a partition, or a map task, and a part of its rows."""
        return OutputPlace(self.batch, partition, part, self.checkpoint_id)

    def find_time_limit(self, stream: Stream) -> int | None:
        """Return the greatest event time that rows of a stream may have in this batch; None if there is no limit."""
        return None if stream.max_ahead is None else self.clock + stream.max_ahead

    def watermark_of(self, streams: Sequence[str], reached: Mapping[str, int]) -> int:
        """Return the watermark of a query over these streams, given the event time that each stream has reached."""
        names = self.declared_streams_of(streams)
        if self.drained and self.drained_except.isdisjoint(names):
            return MAX_TIME
        if any(reached.get(name, MIN_TIME) == MIN_TIME for name in names):
            return MIN_TIME
        return min(
            reached[name] - self.streams[name].stream.delay - self.streams[stream].stream.lag
            for stream in streams
            for name in self.declared_streams_of([stream])
        )

    def next_watermark_of(self, streams: Sequence[str], reached: Mapping[str, int]) -> int:
        """Return the watermark of a query over these streams after this batch."""
        is_closed = self.final and self.final_except.isdisjoint(self.declared_streams_of(streams))
        return MAX_TIME if is_closed else self.watermark_of(streams, reached)

    def declared_streams_of(self, streams: Sequence[str]) -> tuple[str, ...]:
        """Return the declared streams among these and those that the others derive from."""
        return tuple(dict.fromkeys(name for stream in streams for name in self.streams[stream].base_streams or (stream,)))

    def get_level(self, plan: LogicalQuery) -> int:
        """Return the level at which the windows of a query are evaluated: the number of shuffles before it."""
        return compute_query_level(plan, self.stream_levels)

    def load_plan(self, path: str) -> LoadedPlan:
        """Return a stream plan of this checkpoint."""
        source, changes = find_source(path, self.plan_bases, self._cache.has)
        if not changes:
            return self._load_full_plan(path, source)
        start = self._load_full_plan(source, source)
        plan: LoadedPlan = self._cache.load(path, lambda _: start.change(run_requests(self._read_record, changes)))
        return plan

    def _load_full_plan(self, path: str, file: str) -> LoadedPlan:
        """Return a plan that is loaded, or is in a file."""
        plan: LoadedPlan = self._cache.load(path, lambda _: self._read_record(file), LoadedPlan)
        return plan

    def load_query(self, number: int) -> LoadedQuery:
        """Return a query of this checkpoint."""
        return self._cache.load_query(number, self._read_query)

    def load_queries(self) -> dict[int, LoadedQuery]:
        """Return all queries of the batch, by number."""
        cache, read = self._cache, self._read_query
        return {number: cache.load_query(number, read) for number in self.queries}

    def _read_query(self, number: int) -> LoadedQuery:
        return LoadedQuery.from_content(self._read_record(query_file_name(number)))

    def get_sinks(self, number: int) -> tuple[QuerySink, ...]:
        """Return the sinks that receive the rows of a query in this batch."""
        sinks = self.sink_sets.get(number)
        return (self.load_query(number).sinks if sinks is None else sinks).select_batch(self.batch)

    def load_state(self, file: str) -> PartitionState:
        """Return the content of a state file, memory-mapped."""
        content: PartitionState = self._cache.load(file, self._read_container)
        return content

    def fetch_state(self, partition: int) -> None:
        """Load the state of a partition, if each file that this worker does not have is a request: all at the same time.

        A partition may run on any executor, and one that has not run it for some batches lacks a file of each of them.
        """
        if self.store.is_remote:
            groups = (self.aggregation_refs, self.session_refs, self.join_buffer_refs, self.segment_refs)
            refs: Iterable[StateRef | SessionRef | SegmentRef] = chain.from_iterable(groups)
            origin = self.find_state_origin(partition)
            files = {ref.file for ref in refs if origin.has(ref)}
            run_requests(self.load_state, [file for file in sorted(files) if not self._cache.has(file)])

    def prepare_cache(self) -> None:
        """Evict cached files that this batch does not refer to, and those of another attempt at it."""
        self._cache.begin_attempt(self.batch, self.attempt)
        referenced: set[str | int] = {
            ref.file
            for refs in (self.aggregation_refs, self.join_buffer_refs, self.session_refs, self.segment_refs)
            for ref in refs
        }
        plans = {path for stream in self.streams.values() for path in (stream.plan, *(epoch.plan for epoch in stream.epochs))}
        referenced |= plans | {find_source(path, self.plan_bases, self._cache.has)[0] for path in plans}
        referenced |= {self.sliding_join_plan_file, *self.queries}
        referenced |= {f"{ref.file}{_INDEXES}" for ref in self.segment_refs}
        self._cache.evict_except(referenced)

    @property
    def _cache(self) -> WorkerCache:
        return get_worker_cache(self.directory, self.checkpoint_id)

    def _read_record(self, file: str) -> Any:
        return documents.get_record(self.store, file)

    def _read_container(self, file: str) -> Any:
        return container.read(self.store, file)

    def load_buffered_rows(self, ref: StateRef) -> RowSegment:
        """Return rows of a join buffer from a state file, or from a shuffle block that was promoted to state."""
        content: PartitionState | ShuffleBlock = self._cache.load(ref.file, self._read_container)
        return content.join_rows[ref.index].rows if isinstance(content, ShuffleBlock) else content.join_buffers[ref.index]

    def make_pair_keeper(self, partition: int, level: int) -> PairKeeper:
        """Return what keeps the pairs of window joins of a partition at a level in this worker."""
        return PairKeeper(self._cache.kept_pairs, self.join_slices, partition, level, self.batch)

    def load_sliding_join_plan(self) -> LoadedSlidingJoinPlan:
        """Return the plan of the sliding joins; the job must have one."""
        plan: LoadedSlidingJoinPlan = self._cache.load(self.sliding_join_plan_file, self._read_record, LoadedSlidingJoinPlan)
        return plan

    def load_segment(self, ref: SegmentRef) -> tuple[RowSegment, IndexCache]:
        """Return a stored segment of sliding-join state, and its indexes: those stored, and those that this worker has built."""
        content: PartitionState | list[RowSegment] = self._cache.load(ref.file, self._read_container)
        segments = content if isinstance(content, list) else content.segments  # earlier versions wrote files of segments alone
        caches: list[IndexCache] = self._cache.load(f"{ref.file}{_INDEXES}", lambda _: [dict(s.indexes) for s in segments])
        return segments[ref.index], caches[ref.index]

    def list_joiners(self) -> list[Joiner]:
        """Return the joiners of all live window joins."""
        return [
            joiner
            for number in self.queries
            if number in self.join_bits
            for joiner in self.load_query(number).get_joiners(
                self.join_bits[number], self.order_versions.get(number, ()), self.fetched_inputs.get(number, ())
            )
        ]

    def get_previous_times(self) -> dict[str, int]:
        """Return the greatest event time of each stream before this batch."""
        return {name: job.max_event_time for name, job in self.streams.items()}

    def get_reached_times(self) -> dict[str, int]:
        """Return the event time that each stream had reached before this batch."""
        return {name: job.reached_time for name, job in self.streams.items()}

    def reach_times(self, max_event_times: Mapping[str, int], reports: Iterable[MapReport]) -> dict[str, int]:
        """Return the event time that each stream has reached, given the greatest ones and the reports of this batch."""
        reached = dict(max_event_times)
        by_partition = {n: job for n, job in self.streams.items() if job.stream.watermark_by == "partition"}
        times = {name: dict(job.partition_times) for name, job in by_partition.items()}
        for report in reports if times else ():
            merge_partition_times(times, report)
        for name, job in by_partition.items():
            reached[name] = compute_reached_time(job.reached_time, times[name], job.idle_partitions)
        return reached


@record("partition-state")
@dataclass(frozen=True, slots=True)
class PartitionState:
    """The content of the file that a reduce task writes: what open windows of its key partition still need, and small results.

    Sessions are by query; `segments` are those of sliding joins. `results` are for readers, `deliveries` for callbacks: where
    every file is a request, small ones have none of their own.
    """

    partials: list[PartialAggregate]
    sessions: dict[int, SessionRuns]
    join_buffers: list[RowSegment]
    segments: list[RowSegment] = field(default_factory=list)
    results: StoredRows | None = None
    deliveries: StoredRows | None = None


@record("map-report")
@dataclass(slots=True)
class MapReport:
    """The report of a map task; every reduce task receives it.

    `set_samples` holds query-sets of sampled rows, by stream and slot; the first set of each sample contains all queries whose
    predicates were evaluated. `relation_samples` holds samples of the rows that sliding joins read, by relation.
    """

    max_event_times: dict[str, int] = field(default_factory=dict)
    row_counts: dict[str, int] = field(default_factory=dict)
    untimed_rows: dict[str, int] = field(default_factory=dict)
    ahead_rows: dict[str, int] = field(default_factory=dict)
    partition_times: dict[str, dict[int, int]] = field(default_factory=dict)
    late_rows: dict[tuple[int, str], int] = field(default_factory=dict)
    skipped_files: dict[str, dict[str, str]] = field(default_factory=dict)
    skipped_rows: dict[str, int] = field(default_factory=dict)
    skipped_samples: dict[str, list[SkippedRow]] = field(default_factory=dict)
    dead_letters: dict[str, list[PendingFile]] = field(default_factory=dict)
    message_counts: dict[str, int] = field(default_factory=dict)
    message_bytes: dict[str, int] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    key_counts: dict[str, dict[str, int]] = field(default_factory=dict)
    set_samples: dict[tuple[str, int], list[QueryBitmaps]] = field(default_factory=dict)
    relation_samples: dict[str, list[RelationSample]] = field(default_factory=dict)
    seconds: float = 0.0
    component_seconds: dict[str, float] = field(default_factory=dict)


@record("shuffle-block")
@dataclass(slots=True)
class ShuffleBlock:
    """The output of one map task for one partition; `file` is its path in the checkpoint, if it was written there."""

    task: int
    report: MapReport
    partials: list[tuple[str, int, int, PartialAggregate]] = field(default_factory=list)
    session_runs: list[tuple[int, SessionRuns]] = field(default_factory=list)
    stateless_rows: list[tuple[int, int, list[pa.Array]]] = field(default_factory=list)
    join_rows: list[RoutedRows] = field(default_factory=list)
    file: str = ""

    def count_rows(self) -> dict[str, int]:
        """Return the number of rows for each kind of operator, without kinds that have none."""
        counts = {
            "aggregation": sum(partial.key_count for *_, partial in self.partials),
            "sessions": sum(len(runs.firsts) for _, runs in self.session_runs),
            "stateless": sum(len(columns[0]) for *_, columns in self.stateless_rows if columns),
            "join": sum(routed.rows.row_count for routed in self.join_rows),
        }
        return {kind: rows for kind, rows in counts.items() if rows}

    def estimate_bytes(self) -> int:
        """Return the approximate size of its arrays in bytes."""
        row_bytes: int = sum(column.nbytes for *_, columns in self.stateless_rows for column in columns)
        join_bytes: int = sum(routed.rows.bytes for routed in self.join_rows)
        state_bytes: int = sum(entry.bytes for entries in (self.partials, self.session_runs) for *_, entry in entries)
        return row_bytes + join_bytes + state_bytes


@dataclass(slots=True)
class StoreCounts:
    """The work at a state store of sliding joins in a partition.

    - `rows_in`: rows inserted, `probes`: rows that looked for partners, `matches`: joined rows.
    - `pairs`: pairs of rows that look-ups yielded, of which windows and conditions were checked.
    - `delayed`: rows that waited for a later level, because the store was not complete yet.
    """

    rows_in: int = 0
    probes: int = 0
    pairs: int = 0
    matches: int = 0
    delayed: int = 0

    def add(self, other: StoreCounts) -> None:
        """Add the counts of another level, micro-batch or partition."""
        self.rows_in += other.rows_in
        self.probes += other.probes
        self.pairs += other.pairs
        self.matches += other.matches
        self.delayed += other.delayed


@dataclass(slots=True)
class ReduceReport:
    """The report of a reduce task: its state after the batch, emitted rows, failures; partition 0 adds the map reports.

    `join_counts` holds (rows, rounds) of joins, by query and path length; `probe_counts` (input rows, output rows) by probe.
    `pair_counts` is the work of window joins by keys.
    `sink_files` holds the files that were written to sinks, by query; `result_files` and `delivery_files` are in the checkpoint.
    `input_rows` counts the rows of shuffle blocks, and of results that are rows of a stream, by kind of operator.
    `split_hash` is the hash that divides the load of the partition best; None if all of it has one hash.
    """

    partition: int
    aggregation_refs: list[StateRef]
    session_refs: list[SessionRef]
    join_buffer_refs: list[StateRef]
    emitted_rows: dict[int, int]
    failures: dict[int, str]
    map_reports: list[MapReport]
    result_files: list[ResultFile] = field(default_factory=list)
    delivery_files: list[ResultFile] = field(default_factory=list)
    join_counts: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    segment_refs: list[SegmentRef] = field(default_factory=list)
    probe_counts: dict[int, tuple[int, int]] = field(default_factory=dict)
    store_counts: dict[int, StoreCounts] = field(default_factory=dict)
    pair_counts: PairCounts = field(default_factory=PairCounts)
    sink_files: dict[int, list[PendingFile]] = field(default_factory=dict)
    input_rows: dict[str, int] = field(default_factory=dict)
    split_hash: int | None = None
    seconds: float = 0.0
    component_seconds: dict[str, float] = field(default_factory=dict)


def merge_partition_times(times: Mapping[str, dict[int, int]], report: MapReport) -> None:
    """Raise the greatest event times of partitions, by stream, to those of a report."""
    for name in report.partition_times.keys() & times.keys():
        for partition, time in report.partition_times[name].items():
            times[name][partition] = max(times[name].get(partition, MIN_TIME), time)


def query_file_name(number: int) -> str:
    """Return the path of a query file in the checkpoint."""
    return f"queries/{number:08d}.query"
