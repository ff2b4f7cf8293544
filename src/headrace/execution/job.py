"""What the workers are told about one micro-batch, and what they answer: plain values that travel by pickle.

A worker keeps nothing between batches but what it has read of files of the checkpoint that never change once written: plans,
queries and state, for as long as batches refer to them.
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
from headrace.kernels.partial import Partial
from headrace.kernels.sets import Sets
from headrace.model.stream import Stream
from headrace.plan.logical import AggregateQuery, LogicalQuery
from headrace.plan.unfolded import Unfolded
from headrace.sharing.aggregation import Component
from headrace.sharing.arrangement import Arrangement
from headrace.sharing.parts import level
from headrace.sharing.shared_plan import LiveQuery, StreamPlan
from headrace.sharing.slicing import FOREVER, NEVER


@dataclass(frozen=True, slots=True)
class Epoch:
    """Rows with event time from `start` on (up to the next epoch) are aggregated under this plan."""

    number: int
    start: int
    plan: str


@dataclass(frozen=True, slots=True)
class StreamJob:
    """A stream in this batch: its plan now, the epochs that can still take rows, the greatest event time seen before.

    `base` are the declared streams that results of queries are made from; none for a declared one.
    """

    stream: Stream
    plan: str
    epochs: tuple[Epoch, ...]
    seen: int = NEVER
    base: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartRef:
    """Where a partial, or a bucket, is kept: the entry `index` of a state file; `store` counts those of the epoch's plan."""

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
        """Which slice of which store it is part of."""
        return self.stream, self.epoch, self.store, self.start


@dataclass(frozen=True, slots=True)
class SessionRef:
    """Where the open sessions of a query in a partition are kept."""

    file: str
    partition: int
    query: int
    bytes: int = 0  # about


@dataclass(frozen=True, slots=True)
class StoreRef:
    """Where rows of a multi-way join are kept: the entry `index` of a state file, of batches `oldest` … `newest`.

    `spans` has, for each relation in the rows, the first and the last event time.
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
    """One micro-batch. `final` closes every window, `drained` says that an earlier one did.

    `levels` is how many exchanges there are after the first: for joins, and for streams of results, of which `depths` has how
    many lie before each. `arrangements` are those of joins that are not worked off as they were written. `directory` is the
    checkpoint and `identity` its own: caches of workers must not mistake one directory for a later one of the same name.
    `dealt` is the number of partitions that state was kept by: if it is
    not that of this batch, state is dealt anew.
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
    arrangements: Mapping[int, tuple[Arrangement, ...]] = field(default_factory=dict)
    final: bool = False
    drained: bool = False
    identity: str = ""
    probing: str = ""  # the plan of multi-way joins, if there are any
    stores: tuple[StoreRef, ...] = ()
    born: Mapping[int, int] = field(default_factory=dict)  # the first batch of each of their queries
    functions: tuple[str, ...] = ()  # tags of user functions that expressions may name
    unfolded: tuple[Unfolded, ...] = ()  # streams that are made of declared ones, those that others are made of first

    def load_functions(self) -> None:
        """Make user functions ready; called before anything is evaluated."""
        load_functions(self.directory, self.functions)

    def watermark(self, streams: Sequence[str], seen: Mapping[str, int]) -> int:
        """Return the watermark of a query over these streams, given the greatest event time of each."""
        if self.drained:
            return FOREVER
        names = self.declared(streams)
        times = [seen.get(name, NEVER) for name in names]
        if any(t == NEVER for t in times):
            return NEVER
        return min(t - self.streams[name].stream.delay for name, t in zip(names, times, strict=True))

    def declared(self, streams: Sequence[str]) -> tuple[str, ...]:
        """Return the declared streams that these are, or are made from."""
        return tuple(dict.fromkeys(name for one in streams for name in self.streams[one].base or (one,)))

    def level(self, plan: LogicalQuery) -> int:
        """Return after how many exchanges the windows of a query are evaluated."""
        return level(plan, self.depths)

    def plan(self, path: str) -> LoadedPlan:
        """Return a plan of this checkpoint."""
        found: LoadedPlan = self._loaded(path, LoadedPlan)
        return found

    def query(self, number: int) -> LoadedQuery:
        """Return a query of this checkpoint."""
        found: LoadedQuery = self._loaded(query_file(number), LoadedQuery.of)
        return found

    def state(self, file: str) -> dict[str, Any]:
        """Return the content of a state file, mapped."""
        found: dict[str, Any] = self._loaded(file)
        return found

    def release(self) -> None:
        """Let go of what earlier batches read and this one does not refer to.

        A file that is mapped takes memory, also after it was deleted; and plans of epochs that are over are many objects, through
        all of which the garbage collector goes.
        """
        known = _LOADED.get((self.directory, self.identity), {})
        used = {ref.file for refs in (self.parts, self.buckets, self.sessions, self.stores) for ref in refs}
        used |= {path for stream in self.streams.values() for path in (stream.plan, *(epoch.plan for epoch in stream.epochs))}
        used |= {self.probing, *map(query_file, self.queries)}
        for file in known.keys() - used:
            del known[file]

    def _loaded(self, file: str, ready: Callable[[Any], Any] = lambda content: content) -> Any:
        """Return what a file of the checkpoint holds, made ready when it is first asked for."""
        known = _LOADED.setdefault((self.directory, self.identity), {})
        while len(_LOADED) > _CHECKPOINTS:
            del _LOADED[next(iter(_LOADED))]  # of a session that is over
        if file not in known:
            known[file] = ready(pack.read(Path(self.directory) / file))
        return known[file]

    def bucket(self, ref: PartRef) -> Bucket:
        """Return a bucket that was kept: in a state file, or in a parcel that became one."""
        content = self._loaded(ref.file)
        return content.buckets[ref.index][-1] if isinstance(content, Parcel) else content["buckets"][ref.index]

    def probes(self) -> LoadedProbes:
        """Return the plan of multi-way joins; there must be one."""
        found: LoadedProbes = self._loaded(self.probing, LoadedProbes)
        return found

    def stored(self, ref: StoreRef) -> Stored:
        """Return rows of a multi-way join that were kept."""
        found: Stored = self._loaded(ref.file)[ref.index]
        return found

    def joiners(self) -> list[Joiner]:
        """Return how the live joins are worked off."""
        return [one for query in self.queries for one in self.query(query).joiners(self.arrangements.get(query, ()))]

    def before(self) -> dict[str, int]:
        """Return the greatest event time of each stream before this batch."""
        return {name: job.seen for name, job in self.streams.items()}


@dataclass(slots=True)
class Header:
    """What a task of stage one saw: everybody in stage two hears of it.

    `samples` are query-sets of some rows, by stream and slot; the first of each is that of all queries that were looked at.
    `shown` are samples of rows that multi-way joins see, by relation.
    """

    seen: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    untimed: dict[str, int] = field(default_factory=dict)
    late: dict[tuple[int, str], int] = field(default_factory=dict)
    skipped: dict[str, dict[str, str]] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    keys: dict[str, dict[str, int]] = field(default_factory=dict)
    samples: dict[tuple[str, int], list[Sets]] = field(default_factory=dict)
    shown: dict[str, list[Sample]] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(slots=True)
class Parcel:
    """What one task of stage one sends to one partition; `file` is where it lies in the checkpoint, if it does."""

    task: int
    header: Header
    partials: list[tuple[str, int, int, Partial]] = field(default_factory=list)
    runs: list[tuple[int, Runs]] = field(default_factory=list)
    rows: list[tuple[int, int, list[pa.Array]]] = field(default_factory=list)
    buckets: list[tuple[str, int, int, Bucket]] = field(default_factory=list)
    storing: list[tuple[int, Packed]] = field(default_factory=list)
    probing: list[tuple[int, Packed]] = field(default_factory=list)
    file: str = ""

    def weight(self) -> int:
        """Return about how many bytes of arrays it holds."""
        rows: int = sum(column.nbytes for *_, columns in self.rows for column in columns)
        multiway: int = sum(found.bytes for _, found in (*self.storing, *self.probing))
        kept: int = sum(found.bytes for many in (self.partials, self.runs, self.buckets) for *_, found in many)
        return rows + multiway + kept


@dataclass(slots=True)
class Outcome:
    """What one partition answers: its state after the batch, rows given out, failures; the headers from partition 0.

    `joined` has (rows, rounds) of joins, by query and length of the path; `probed` (rows that came, rows made) by probe.
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
    """A stream plan with its selections made ready."""

    def __init__(self, plan: StreamPlan) -> None:
        """Take a plan; its selections prepare themselves when first used."""
        self.plan = plan
        self.selections = {id(op): SharedSelection(op.selection) for op in plan.operators}
        self.sets = [QuerySets([m.predicate for m in each.members], each.bits) for each in plan.buckets]

    def selection(self, operator: Any) -> SharedSelection:
        """Return the ready selection of one of the plan's operators."""
        return self.selections[id(operator)]


_SHAPES: dict[Shape, Shape] = {}


class LoadedQuery:
    """A live query with its sink and, for an aggregation or a join, what finishing it needs."""

    def __init__(self, live: LiveQuery, sink: Sink | None) -> None:
        """`sink` is None where the driver delivers (a callback cannot travel)."""
        self.live, self.sink, self.streams = live, sink, live.plan.streams
        self._joiners: tuple[tuple[Arrangement, ...], tuple[Joiner, ...]] | None = None

    @staticmethod
    def of(content: tuple[LiveQuery, dict[str, Any] | None]) -> LoadedQuery:
        """Return what the file of a query holds, made ready."""
        live, sink = content
        return LoadedQuery(live, None if sink is None else sink_from_json(sink))

    @property
    def plan(self) -> LogicalQuery:
        """What the query means."""
        return self.live.plan

    @property
    def aggregate(self) -> AggregateQuery:
        """The plan of a query that is known to aggregate."""
        assert isinstance(self.live.plan, AggregateQuery)
        return self.live.plan

    def joiners(self, arrangements: tuple[Arrangement, ...]) -> tuple[Joiner, ...]:
        """Return how a join is worked off under these arrangements; nothing for other queries."""
        if self._joiners is None or self._joiners[0] != arrangements:
            self._joiners = arrangements, joiners_of(replace(self.live, arrangements=arrangements))
        return self._joiners[1]

    @cached_property
    def shape(self) -> Shape:
        """Queries of one shape are finished together; equal shapes are one object, so that they compare by identity."""
        found = shape_of(self.aggregate)
        return _SHAPES.setdefault(found, found)

    @cached_property
    def needs(self) -> tuple[Component, ...]:
        """The components it is lowered from."""
        return needs_of(self.aggregate)


def query_file(number: int) -> str:
    """Return where a query is kept for workers, in the checkpoint."""
    return f"queries/{number:08d}.query"


_CHECKPOINTS = 8
_LOADED: dict[tuple[str, str], dict[str, Any]] = {}
"""What was read of files, by checkpoint and file."""
