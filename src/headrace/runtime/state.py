"""What holds after a micro-batch: the content of a manifest, as plain records with a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from headrace.execution.job import Epoch, PartRef, SessionRef, StoreRef, query_file
from headrace.model.schema import Schema
from headrace.model.stream import Stream
from headrace.runtime.functions import Functions
from headrace.sharing.parts import whole
from headrace.sharing.shared_plan import StreamPlan
from headrace.sharing.slicing import FOREVER, NEVER
from headrace.sql import Catalog

_PLAIN = ("number", "position", "seen", "plan", "rows", "untimed", "skipped", "rate", "keys")  # as they are in JSON


@dataclass(slots=True)
class StreamState:
    """A stream: its declaration, how far it was read, its epochs, and what was counted."""

    stream: Stream
    number: int
    source: dict[str, Any]
    position: Any = None
    seen: int = NEVER
    plan: str = ""
    epochs: tuple[Epoch, ...] = ()
    planned: tuple[str, ...] = ()  # the queries of the plan in force, and how joins among them are arranged
    rows: int = 0
    untimed: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    rate: float = 0.0  # rows in a second of event time, lately; 0: none seen
    keys: dict[str, int] = field(default_factory=dict)  # distinct keys of the last batch, by key expressions
    base: tuple[str, ...] = ()  # of results of queries: the declared streams they are made from

    def report(self) -> dict[str, Any]:
        """Return the declaration and what was counted, for users."""
        counted = {"rows": self.rows, "untimed": self.untimed, "skipped": self.skipped, "max_event_time": self.seen}
        return {**declaration(self.stream, self.source), **counted}


@dataclass(slots=True)
class QueryState:
    """A query that was accepted; `live` from its first batch until it is removed or fails."""

    id: int
    name: str
    sql: str
    sink: dict[str, Any] | None
    since: int = NEVER
    bit: int = 0
    live: bool = False
    first_batch: int = -1
    last_batch: int | None = None
    error: str | None = None
    emitted: int = 0
    late: dict[str, int] = field(default_factory=dict)
    arrangements: list[list[Any]] = field(default_factory=list)  # of a join: [order, group, since], one after the other
    lent: list[list[Any]] = field(default_factory=list)  # what others lent it: as `Loan`s
    owner: str = ""


@dataclass(slots=True)
class EngineState:
    """Everything recovery needs."""

    batch: int = -1
    partitions: int = 1
    streams: dict[str, StreamState] = field(default_factory=dict)
    queries: dict[int, QueryState] = field(default_factory=dict)
    parts: tuple[PartRef, ...] = ()
    sessions: tuple[SessionRef, ...] = ()
    next_epoch: int = 0
    drained: bool = False
    buckets: tuple[PartRef, ...] = ()
    dealt: int = 1  # the number of partitions by which state was kept
    stores: tuple[StoreRef, ...] = ()
    probing: str = ""  # the plan of multi-way joins, and for how many partitions it was made
    probed_by: int = 1
    functions: Functions = field(default_factory=Functions)
    plans: dict[str, StreamPlan] = field(default_factory=dict, compare=False)
    """What `planned` names; not in the manifest, for each has a file of its own. Whoever holds a state has its plans."""

    def declared(self) -> dict[str, StreamState]:
        """Return the streams that were declared: not those that are results of queries."""
        return {name: stream for name, stream in self.streams.items() if not stream.base}

    def catalog(self) -> Catalog:
        """Return what queries may read and call."""
        return Catalog.of((one.stream for one in self.declared().values()), self.functions.offered.values())

    def next_number(self) -> int:
        """Return a number no stream has."""
        return 1 + max((stream.number for stream in self.streams.values()), default=-1)

    def watermark(self, streams: Sequence[str]) -> int:
        """Return the watermark of a query over these streams, after the last batch."""
        if self.drained:
            return FOREVER
        read = self._read(streams)
        return NEVER if any(one.seen == NEVER for one in read) else min(one.seen - one.stream.delay for one in read)

    def newest(self, streams: Sequence[str]) -> int:
        """Return the event time that rows of all of these streams have reached."""
        return min(one.seen for one in self._read(streams))

    def _read(self, streams: Sequence[str]) -> list[StreamState]:
        return [self.streams[name] for one in streams for name in self.streams[one].base or (one,)]

    def forget_parts(self, live: Container[int], made: Container[str]) -> None:
        """Drop the parts of queries that are over, and the streams that nobody makes any more, with what was kept of them."""
        for number in [number for number in self.queries if whole(number) != number and number not in live]:
            del self.queries[number]
        for name in [name for name, stream in self.streams.items() if stream.base and name not in made]:
            del self.streams[name]
        self.parts = tuple(ref for ref in self.parts if ref.stream in self.streams)
        self.buckets = tuple(ref for ref in self.buckets if ref.stream in self.streams)

    def live(self) -> list[QueryState]:
        """Return the queries in the pipeline, by id."""
        return [query for query in self.queries.values() if query.live]

    def forget(self, keep: int) -> None:
        """Drop the oldest queries that are over, so that a manifest does not grow with all there ever were."""
        over = [number for number, query in self.queries.items() if not query.live]
        for number in over[: max(0, len(over) - keep)]:
            del self.queries[number]

    def snapshot(self) -> EngineState:
        """Return an independent copy, to be changed while a batch runs and thrown away if it fails."""
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
        """Return the names of the plans in force, and of those that open windows began with."""
        return {name for one in self.streams.values() for name in (one.plan, *(epoch.plan for epoch in one.epochs)) if name}

    def plans_now(self) -> list[StreamPlan]:
        """Return the plan in force of every stream."""
        return [self.plans[one.plan] for one in list(self.streams.values())]

    def files(self) -> set[str]:
        """Return all state, plan and query files that are still needed, relative to the checkpoint."""
        found = {part.file for part in self.parts} | {session.file for session in self.sessions}
        found |= {bucket.file for bucket in self.buckets} | {ref.file for ref in self.stores}
        found |= {self.probing} if self.probing else set()
        return found | self.planned() | {query_file(query.id) for query in self.live()}

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
            tuple(PartRef(*ref) for ref in value["parts"]),
            tuple(SessionRef(*ref) for ref in value["sessions"]),
            value["next_epoch"],
            value["drained"],
            tuple(PartRef(*ref) for ref in value["buckets"]),
            value["dealt"],
            tuple(_store_ref(ref) for ref in value["stores"]),
            value["probing"][0],
            value["probing"][1],
            Functions.from_json(value.get("functions", {})),
        )


def _store_ref(fields: list[Any]) -> StoreRef:
    found = StoreRef(*fields)
    return replace(found, spans=tuple((name, first, last) for name, first, last in found.spans))


_FIELDS: dict[type, Callable[[object], tuple[Any, ...]]] = {
    kind: attrgetter(*kind.__slots__) for kind in (PartRef, SessionRef, StoreRef, Epoch, QueryState, StreamState)
}


def _fields(value: PartRef | SessionRef | StoreRef | Epoch | QueryState | StreamState) -> tuple[Any, ...]:
    return _FIELDS[type(value)](value)


def declaration(stream: Stream, source: dict[str, Any]) -> dict[str, Any]:
    """Return a stream's declaration as JSON."""
    return {"name": stream.name, "schema": stream.schema.to_ddl(), "time": stream.time, "delay": stream.delay, "source": source}


def declared(value: dict[str, Any]) -> Stream:
    """Read a stream's declaration."""
    return Stream(value["name"], Schema.parse(value["schema"]), value["time"], value["delay"])


def _stream_json(state: StreamState) -> dict[str, Any]:
    rest = {name: getattr(state, name) for name in (*_PLAIN, "planned", "base")}
    return {**declaration(state.stream, state.source), **rest, "epochs": [_fields(e) for e in state.epochs]}


def _stream_from(value: dict[str, Any]) -> StreamState:
    rest = {name: value[name] for name in (*_PLAIN, "source")}
    epochs = tuple(Epoch(*e) for e in value["epochs"])
    return StreamState(declared(value), **rest, planned=tuple(value["planned"]), epochs=epochs, base=tuple(value["base"]))
