"""The state after a committed micro-batch: the content of a manifest, as plain records that can be copied.

It includes the UDFs of the session. The tag of a replaced or dropped UDF is retained: plans of earlier epochs that still have
open windows may call it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from headrace.engine.batch_job import Epoch, SegmentRef, SessionRef, StateRef, query_file_name
from headrace.model.function import UserFunction
from headrace.model.stream import Stream
from headrace.model.time import MAX_TIME, MIN_TIME
from headrace.model.types import Schema
from headrace.planner.changelog import root_query_id
from headrace.planner.shared_plan import StreamPlan
from headrace.sql import Catalog


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

    def to_json(self) -> dict[str, Any]:
        """Return a value that `from_json` reads back."""
        return {"offered": [udf.to_json() for udf in self.active.values()], "tags": list(self.all_tags)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> UdfSet:
        """Read a value of `to_json`; an empty value (a checkpoint without UDFs) gives an empty set."""
        offered = (UserFunction.from_json(udf) for udf in value.get("offered", ()))
        return UdfSet({udf.name: udf for udf in offered}, tuple(value.get("tags", ())))


_PLAIN_STREAM_FIELDS = (
    "number",
    "position",
    "seen",
    "plan",
    "rows",
    "untimed",
    "skipped",
    "rate",
    "keys",
)  # stored unchanged in JSON


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

    def describe(self) -> dict[str, Any]:
        """Return the declaration and the counts, for users."""
        counted = {"rows": self.rows, "untimed": self.untimed, "skipped": self.skipped, "max_event_time": self.seen}
        return {**stream_to_json(self.stream, self.source), **counted}


@dataclass(slots=True)
class QueryState:
    """An accepted query, or a part of one; `live` from its first batch until it is removed or fails."""

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
    join_order_versions: list[list[Any]] = field(default_factory=list)  # versions of a window join: [order, group, since]
    backfills: list[list[Any]] = field(default_factory=list)  # backfills, as lists of their fields
    owner: str = ""


@dataclass(slots=True)
class EngineState:
    """Everything that recovery needs; written as the manifest of a batch."""

    batch: int = -1
    partitions: int = 1
    streams: dict[str, StreamState] = field(default_factory=dict)
    queries: dict[int, QueryState] = field(default_factory=dict)
    aggregation_refs: tuple[StateRef, ...] = ()
    session_refs: tuple[SessionRef, ...] = ()
    next_epoch: int = 0
    drained: bool = False
    join_buffer_refs: tuple[StateRef, ...] = ()
    state_partitions: int = 1  # the partition count of the stored state
    store_refs: tuple[SegmentRef, ...] = ()
    sliding_join_plan_file: str = ""  # the file of the sliding-join plan; the next field is the partition count of that plan
    sliding_join_plan_partitions: int = 1
    udfs: UdfSet = field(default_factory=UdfSet)
    plans: dict[str, StreamPlan] = field(default_factory=dict, compare=False)
    """The plans of all streams and epochs, by file name. Not in the manifest: each plan has its own file."""

    def declared_streams(self) -> dict[str, StreamState]:
        """Return the declared streams, without derived ones."""
        return {name: stream for name, stream in self.streams.items() if not stream.base}

    def build_catalog(self) -> Catalog:
        """Return the catalog of declared streams and registered UDFs."""
        return Catalog.of((stream.stream for stream in self.declared_streams().values()), self.udfs.active.values())

    def next_stream_number(self) -> int:
        """Return an unused stream number."""
        return 1 + max((stream.number for stream in self.streams.values()), default=-1)

    def watermark_of(self, streams: Sequence[str]) -> int:
        """Return the watermark of a query over these streams, after the last batch."""
        if self.drained:
            return MAX_TIME
        inputs = self._base_streams(streams)
        return MIN_TIME if any(s.seen == MIN_TIME for s in inputs) else min(s.seen - s.stream.delay for s in inputs)

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

    def live_queries(self) -> list[QueryState]:
        """Return the live queries and query parts, in order of addition."""
        return [query for query in self.queries.values() if query.live]

    def drop_ended_queries(self, keep: int) -> None:
        """Drop all but the newest `keep` ended queries, to bound the size of the manifest."""
        ended = [number for number, query in self.queries.items() if not query.live]
        for number in ended[: max(0, len(ended) - keep)]:
            del self.queries[number]

    def snapshot(self) -> EngineState:
        """Return an independent copy for a running batch to modify; it is discarded if the batch fails."""
        return EngineState(
            self.batch,
            self.partitions,
            {name: StreamState(*_field_values(s)) for name, s in self.streams.items()},
            {number: QueryState(*_field_values(q)) for number, q in self.queries.items()},
            self.aggregation_refs,
            self.session_refs,
            self.next_epoch,
            self.drained,
            self.join_buffer_refs,
            self.state_partitions,
            self.store_refs,
            self.sliding_join_plan_file,
            self.sliding_join_plan_partitions,
            self.udfs,
            dict(self.plans),
        )

    def plan_files(self) -> set[str]:
        """Return the file names of the current plans and of the plans of epochs with open windows."""
        return {name for s in self.streams.values() for name in (s.plan, *(epoch.plan for epoch in s.epochs)) if name}

    def current_plans(self) -> list[StreamPlan]:
        """Return the current plan of every stream."""
        return [self.plans[stream.plan] for stream in list(self.streams.values())]

    def referenced_files(self) -> set[str]:
        """Return all referenced state, plan and query files, relative to the checkpoint."""
        paths = {ref.file for ref in self.aggregation_refs} | {session.file for session in self.session_refs}
        paths |= {ref.file for ref in self.join_buffer_refs} | {ref.file for ref in self.store_refs}
        paths |= {self.sliding_join_plan_file} if self.sliding_join_plan_file else set()
        return paths | self.plan_files() | {query_file_name(query.id) for query in self.live_queries()}

    def to_json(self) -> dict[str, Any]:
        """Return the manifest."""
        return {
            "batch": self.batch,
            "partitions": self.partitions,
            "streams": {name: _stream_state_to_json(s) for name, s in self.streams.items()},
            "queries": [_field_values(q) for q in self.queries.values()],
            "parts": [_field_values(ref) for ref in self.aggregation_refs],
            "sessions": [_field_values(ref) for ref in self.session_refs],
            "buckets": [_field_values(ref) for ref in self.join_buffer_refs],
            "next_epoch": self.next_epoch,
            "drained": self.drained,
            "dealt": self.state_partitions,
            "stores": [_field_values(ref) for ref in self.store_refs],
            "probing": [self.sliding_join_plan_file, self.sliding_join_plan_partitions],
            "functions": self.udfs.to_json(),
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> EngineState:
        """Read a manifest."""
        queries = [QueryState(*q) for q in value["queries"]]
        return EngineState(
            value["batch"],
            value["partitions"],
            {name: _stream_state_from_json(s) for name, s in value["streams"].items()},
            {q.id: q for q in queries},
            tuple(StateRef(*ref) for ref in value["parts"]),
            tuple(SessionRef(*ref) for ref in value["sessions"]),
            value["next_epoch"],
            value["drained"],
            tuple(StateRef(*ref) for ref in value["buckets"]),
            value["dealt"],
            tuple(_read_store_ref(ref) for ref in value["stores"]),
            value["probing"][0],
            value["probing"][1],
            UdfSet.from_json(value.get("functions", {})),
        )


def _read_store_ref(fields: list[Any]) -> SegmentRef:
    ref = SegmentRef(*fields)
    return replace(ref, spans=tuple((name, first, last) for name, first, last in ref.spans))


_FIELD_GETTERS: dict[type, Callable[[object], tuple[Any, ...]]] = {
    kind: attrgetter(*kind.__slots__) for kind in (StateRef, SessionRef, SegmentRef, Epoch, QueryState, StreamState)
}


def _field_values(value: StateRef | SessionRef | SegmentRef | Epoch | QueryState | StreamState) -> tuple[Any, ...]:
    return _FIELD_GETTERS[type(value)](value)


def stream_to_json(stream: Stream, source: dict[str, Any]) -> dict[str, Any]:
    """Return a stream's declaration as a JSON value."""
    return {"name": stream.name, "schema": stream.schema.to_ddl(), "time": stream.time, "delay": stream.delay, "source": source}


def stream_from_json(value: dict[str, Any]) -> Stream:
    """Read a stream's declaration from its JSON value."""
    return Stream(value["name"], Schema.parse(value["schema"]), value["time"], value["delay"])


def _stream_state_to_json(state: StreamState) -> dict[str, Any]:
    rest = {name: getattr(state, name) for name in (*_PLAIN_STREAM_FIELDS, "planned", "base")}
    return {**stream_to_json(state.stream, state.source), **rest, "epochs": [_field_values(e) for e in state.epochs]}


def _stream_state_from_json(value: dict[str, Any]) -> StreamState:
    rest = {name: value[name] for name in (*_PLAIN_STREAM_FIELDS, "source")}
    epochs = tuple(Epoch(*e) for e in value["epochs"])
    return StreamState(stream_from_json(value), **rest, planned=tuple(value["planned"]), epochs=epochs, base=tuple(value["base"]))
