"""The state after a committed micro-batch: the content of a manifest, as plain records that can be copied."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from headrace.execution.job import Epoch, SegmentRef, SessionRef, StateRef, query_file_name
from headrace.model.schema import Schema
from headrace.model.stream import Stream
from headrace.runtime.functions import Functions
from headrace.sharing.parts import root_query_id
from headrace.sharing.shared_plan import StreamPlan
from headrace.sharing.slicing import MAX_TIME, MIN_TIME
from headrace.sql import Catalog

_PLAIN = ("number", "position", "seen", "plan", "rows", "untimed", "skipped", "rate", "keys")  # stored unchanged in JSON


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

    def report(self) -> dict[str, Any]:
        """Return the declaration and the counts, for users."""
        counted = {"rows": self.rows, "untimed": self.untimed, "skipped": self.skipped, "max_event_time": self.seen}
        return {**declaration(self.stream, self.source), **counted}


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
    late: dict[str, int] = field(default_factory=dict)
    arrangements: list[list[Any]] = field(default_factory=list)  # versions of a window join: [order, group, since]
    lent: list[list[Any]] = field(default_factory=list)  # backfills, as lists of their fields
    owner: str = ""


@dataclass(slots=True)
class EngineState:
    """Everything that recovery needs; written as the manifest of a batch."""

    batch: int = -1
    partitions: int = 1
    streams: dict[str, StreamState] = field(default_factory=dict)
    queries: dict[int, QueryState] = field(default_factory=dict)
    parts: tuple[StateRef, ...] = ()
    sessions: tuple[SessionRef, ...] = ()
    next_epoch: int = 0
    drained: bool = False
    buckets: tuple[StateRef, ...] = ()
    dealt: int = 1  # the partition count of the stored state
    stores: tuple[SegmentRef, ...] = ()
    probing: str = ""  # the file of the sliding-join plan; the next field is the partition count of that plan
    probed_by: int = 1
    functions: Functions = field(default_factory=Functions)
    plans: dict[str, StreamPlan] = field(default_factory=dict, compare=False)
    """The plans of all streams and epochs, by file name. Not in the manifest: each plan has its own file."""

    def declared(self) -> dict[str, StreamState]:
        """Return the declared streams, without derived ones."""
        return {name: stream for name, stream in self.streams.items() if not stream.base}

    def catalog(self) -> Catalog:
        """Return the catalog of declared streams and registered UDFs."""
        return Catalog.of((stream.stream for stream in self.declared().values()), self.functions.offered.values())

    def next_number(self) -> int:
        """Return an unused stream number."""
        return 1 + max((stream.number for stream in self.streams.values()), default=-1)

    def watermark(self, streams: Sequence[str]) -> int:
        """Return the watermark of a query over these streams, after the last batch."""
        if self.drained:
            return MAX_TIME
        inputs = self._read(streams)
        return MIN_TIME if any(s.seen == MIN_TIME for s in inputs) else min(s.seen - s.stream.delay for s in inputs)

    def newest(self, streams: Sequence[str]) -> int:
        """Return the event time that rows of every one of these streams have reached."""
        return min(stream.seen for stream in self._read(streams))

    def _read(self, streams: Sequence[str]) -> list[StreamState]:
        return [self.streams[name] for stream in streams for name in self.streams[stream].base or (stream,)]

    def forget_parts(self, live: Container[int], produced: Container[str]) -> None:
        """Drop the parts of ended queries, and the derived streams that no live query produces, with their state."""
        for number in [number for number in self.queries if root_query_id(number) != number and number not in live]:
            del self.queries[number]
        for name in [name for name, stream in self.streams.items() if stream.base and name not in produced]:
            del self.streams[name]
        self.parts = tuple(ref for ref in self.parts if ref.stream in self.streams)
        self.buckets = tuple(ref for ref in self.buckets if ref.stream in self.streams)

    def live(self) -> list[QueryState]:
        """Return the live queries and query parts, in order of addition."""
        return [query for query in self.queries.values() if query.live]

    def forget(self, keep: int) -> None:
        """Drop all but the newest `keep` ended queries, to bound the size of the manifest."""
        ended = [number for number, query in self.queries.items() if not query.live]
        for number in ended[: max(0, len(ended) - keep)]:
            del self.queries[number]

    def snapshot(self) -> EngineState:
        """Return an independent copy for a running batch to modify; it is discarded if the batch fails."""
        return EngineState(
            self.batch,
            self.partitions,
            {name: StreamState(*_fields(s)) for name, s in self.streams.items()},
            {number: QueryState(*_fields(q)) for number, q in self.queries.items()},
            self.parts,
            self.sessions,
            self.next_epoch,
            self.drained,
            self.buckets,
            self.dealt,
            self.stores,
            self.probing,
            self.probed_by,
            self.functions,
            dict(self.plans),
        )

    def planned(self) -> set[str]:
        """Return the file names of the current plans and of the plans of epochs with open windows."""
        return {name for s in self.streams.values() for name in (s.plan, *(epoch.plan for epoch in s.epochs)) if name}

    def plans_now(self) -> list[StreamPlan]:
        """Return the current plan of every stream."""
        return [self.plans[stream.plan] for stream in list(self.streams.values())]

    def files(self) -> set[str]:
        """Return all referenced state, plan and query files, relative to the checkpoint."""
        paths = {ref.file for ref in self.parts} | {session.file for session in self.sessions}
        paths |= {ref.file for ref in self.buckets} | {ref.file for ref in self.stores}
        paths |= {self.probing} if self.probing else set()
        return paths | self.planned() | {query_file_name(query.id) for query in self.live()}

    def to_json(self) -> dict[str, Any]:
        """Return the manifest."""
        return {
            "batch": self.batch,
            "partitions": self.partitions,
            "streams": {name: _stream_json(s) for name, s in self.streams.items()},
            "queries": [_fields(q) for q in self.queries.values()],
            "parts": [_fields(ref) for ref in self.parts],
            "sessions": [_fields(ref) for ref in self.sessions],
            "buckets": [_fields(ref) for ref in self.buckets],
            "next_epoch": self.next_epoch,
            "drained": self.drained,
            "dealt": self.dealt,
            "stores": [_fields(ref) for ref in self.stores],
            "probing": [self.probing, self.probed_by],
            "functions": self.functions.to_json(),
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> EngineState:
        """Read a manifest."""
        queries = [QueryState(*q) for q in value["queries"]]
        return EngineState(
            value["batch"],
            value["partitions"],
            {name: _stream_from(s) for name, s in value["streams"].items()},
            {q.id: q for q in queries},
            tuple(StateRef(*ref) for ref in value["parts"]),
            tuple(SessionRef(*ref) for ref in value["sessions"]),
            value["next_epoch"],
            value["drained"],
            tuple(StateRef(*ref) for ref in value["buckets"]),
            value["dealt"],
            tuple(_store_ref(ref) for ref in value["stores"]),
            value["probing"][0],
            value["probing"][1],
            Functions.from_json(value.get("functions", {})),
        )


def _store_ref(fields: list[Any]) -> SegmentRef:
    ref = SegmentRef(*fields)
    return replace(ref, spans=tuple((name, first, last) for name, first, last in ref.spans))


_FIELDS: dict[type, Callable[[object], tuple[Any, ...]]] = {
    kind: attrgetter(*kind.__slots__) for kind in (StateRef, SessionRef, SegmentRef, Epoch, QueryState, StreamState)
}


def _fields(value: StateRef | SessionRef | SegmentRef | Epoch | QueryState | StreamState) -> tuple[Any, ...]:
    return _FIELDS[type(value)](value)


def declaration(stream: Stream, source: dict[str, Any]) -> dict[str, Any]:
    """Return a stream's declaration as a JSON value."""
    return {"name": stream.name, "schema": stream.schema.to_ddl(), "time": stream.time, "delay": stream.delay, "source": source}


def declared(value: dict[str, Any]) -> Stream:
    """Read a stream's declaration from its JSON value."""
    return Stream(value["name"], Schema.parse(value["schema"]), value["time"], value["delay"])


def _stream_json(state: StreamState) -> dict[str, Any]:
    rest = {name: getattr(state, name) for name in (*_PLAIN, "planned", "base")}
    return {**declaration(state.stream, state.source), **rest, "epochs": [_fields(e) for e in state.epochs]}


def _stream_from(value: dict[str, Any]) -> StreamState:
    rest = {name: value[name] for name in (*_PLAIN, "source")}
    epochs = tuple(Epoch(*e) for e in value["epochs"])
    return StreamState(declared(value), **rest, planned=tuple(value["planned"]), epochs=epochs, base=tuple(value["base"]))
