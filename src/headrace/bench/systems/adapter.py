"""Define the interface of a system under test: its configuration, its operations and the events it reports.

An adapter runs in its own process (`process.serve`), pulls rows from the driver and sends results to the collector. It does not
measure itself: throughput is measured at the queues of the driver, latency at the collector. `PartitionPuller` pulls a partition
for systems that run as a loop in this process; `ResultSender` sends result counts by query and window end.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.bench.cluster import BenchCluster
from headrace.bench.driver.streams import StreamSpec
from headrace.bench.driver.topic import TopicAddress
from headrace.bench.queries.query import BenchQuery
from headrace.connectors.tcp import TcpConnection, parse_address
from headrace.errors import HeadraceError
from headrace.model.types import Schema


@dataclass(frozen=True, slots=True)
class SutStream:
    """A stream of the driver; `line_ports` has a port for each partition."""

    spec: StreamSpec
    line_ports: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The name of the stream at the driver, and of its table."""
        return self.spec.name

    @property
    def schema(self) -> Schema:
        """The columns, event time last."""
        return self.spec.schema

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `from_json` reads."""
        return {**self.spec.to_json(), "schema": self.schema.to_ddl(), "line_ports": list(self.line_ports)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> SutStream:
        """Return the stream from its JSON form; the schema follows from the other fields."""
        spec_fields = {name: field_value for name, field_value in value.items() if name not in {"schema", "line_ports"}}
        return SutStream(StreamSpec.from_json(spec_fields), tuple(value.get("line_ports", ())))


@dataclass(frozen=True, slots=True)
class SutConfig:
    """The first line that an adapter reads: addresses of driver and collector, streams, initial queries, and the cluster.

    Without a cluster, the system runs on this machine. With a topic, the only stream is that topic, and there is no driver.
    """

    driver: str
    collector: str
    scratch: Path
    streams: tuple[SutStream, ...]
    queries: tuple[BenchQuery, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    cluster: BenchCluster | None = None
    topic: TopicAddress | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `from_json` reads."""
        return {
            "driver": self.driver,
            "collector": self.collector,
            "scratch": str(self.scratch),
            "streams": [stream.to_json() for stream in self.streams],
            "queries": [query.to_json() for query in self.queries],
            "options": dict(self.options),
            "cluster": None if self.cluster is None else self.cluster.to_json(),
            "topic": None if self.topic is None else self.topic.to_json(),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> SutConfig:
        """Return the configuration from its JSON form."""
        return SutConfig(
            value["driver"],
            value["collector"],
            Path(value["scratch"]),
            tuple(SutStream.from_json(stream) for stream in value["streams"]),
            tuple(BenchQuery.from_json(query) for query in value.get("queries", ())),
            dict(value.get("options", {})),
            BenchCluster.from_json(value.get("cluster")),
            TopicAddress(**value["topic"]) if value.get("topic") else None,
        )

    def get_stream(self, name: str) -> SutStream:
        """Return a stream by name; raise HeadraceError if it does not exist."""
        for stream in self.streams:
            if stream.name == name:
                return stream
        raise HeadraceError(f"unknown stream '{name}'", detail=f"streams: {', '.join(s.name for s in self.streams)}")


class QueryStatusReporter(Protocol):
    """Receives status changes of queries from an adapter; thread-safe."""

    def report_live(self, query: str) -> None:
        """Report that the query is live: its results count from now on."""

    def report_removed(self, query: str) -> None:
        """Report that the query is removed."""

    def report_refused(self, query: str, reason: str) -> None:
        """Report that this system cannot run the query, and why."""


@dataclass(frozen=True, slots=True)
class SutDescription:
    """The system as the result document describes it: versions, and all settings that differ from the system's defaults."""

    versions: Mapping[str, str]
    settings: Mapping[str, Any]


class SutAdapter(Protocol):
    """A system under test; called by a single thread."""

    def start(self, config: SutConfig, reporter: QueryStatusReporter) -> SutDescription:
        """Start the system and return when all accepted queries of `config` are live; raise HeadraceError if it cannot start.

        Report refused queries only: all other initial queries are live when the call returns.
        """

    def limit_nodes(self) -> None:
        """Limit the processors of the nodes of the cluster from now on; called once it is warm, if it has nodes."""

    def change(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        """Add and remove the queries requested since the last change; report each one when it is done."""

    def read_component_seconds(self) -> Mapping[str, float]:
        """Return the seconds of work so far by component, as the system measures them itself; empty if it does not."""

    def check(self) -> None:
        """Raise if the system no longer runs; called periodically."""

    def close(self) -> None:
        """Stop the system; also called after a failed start."""


NO_DIALECT_TEXT = "the query has no SQL text for this engine"


class ResultSender:
    """A connection to the collector; thread-safe."""

    def __init__(self, address: str) -> None:
        """Connect to the collector."""
        self._socket = socket.create_connection(parse_address(address))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lock = threading.Lock()

    def send(self, query: str, counts: Iterable[tuple[int, int]]) -> None:
        """Send (window end in microseconds, number of rows) pairs of a query."""
        lines = "".join(f"{query}\t{end}\t{rows}\n" for end, rows in counts).encode()
        if lines:
            with self._lock:
                self._socket.sendall(lines)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def count_by_window(ends: pa.ChunkedArray) -> list[tuple[int, int]]:
    """Return the number of rows of each window end (timestamps in microseconds, no NULLs).

    Called for every query and micro-batch. The rows of a window are mostly adjacent, so the function counts runs.
    """
    counts: dict[int, int] = {}
    for chunk in ends.chunks:
        values = chunk.view(pa.int64()).to_numpy()
        stops = [*np.flatnonzero(values[1:] != values[:-1]).tolist(), len(values) - 1]
        start = -1
        for stop in stops if len(values) else ():
            end = int(values[stop])
            counts[end] = counts.get(end, 0) + stop - start
            start = stop
    return list(counts.items())


class PartitionPuller:
    """Reads a partition from its current end on; each read commits the rows of earlier reads. Not thread-safe."""

    def __init__(self, address: str, stream: str, partition: int, group: str, columns: Sequence[str]) -> None:
        """Register the consumer group at the driver, which retains rows for it from now on."""
        self._connection, self._columns = TcpConnection(address), list(columns)
        self._stream, self._partition, self._group = stream, partition, group
        self._read_offset = self._committed_offset = self._produced_offset = self._fetch_status()["committed"][partition]

    def read(self, max_rows: int) -> pa.Table | None:
        """Return at most `max_rows` next rows; None if there are none yet."""
        if self._produced_offset < self._read_offset + max_rows:
            status = self._fetch_status()
            self._produced_offset = status["produced"][self._partition]
            self._commit_offset(len(status["produced"]))
        start, self._read_offset = self._read_offset, min(self._produced_offset, self._read_offset + max_rows)
        if start == self._read_offset:
            return None
        return self._connection.read(self._stream, self._partition, self._group, start, self._read_offset, self._columns)

    def _commit_offset(self, partitions: int) -> None:
        """Commit the rows read; position 0 leaves the other partitions, which other readers commit, unchanged."""
        if self._committed_offset < self._read_offset:
            positions = [self._read_offset if number == self._partition else 0 for number in range(partitions)]
            self._connection.send_request("commit", stream=self._stream, group=self._group, positions=positions)
            self._committed_offset = self._read_offset

    def _fetch_status(self) -> dict[str, Any]:
        return self._connection.send_request("status", stream=self._stream, group=self._group, **{"from": "now"})

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


IDLE_SECONDS = 1.0  # seconds without rows after which a partition is idle


class EventTimeClock:
    """The latest event time of each source, in microseconds; one thread updates each source, any thread can read.

    A source is idle after `IDLE_SECONDS` without rows while others have some: before the first row of all, none is idle, because
    the rows of one source would otherwise close windows before the first rows of the others are read.
    """

    def __init__(self, sources: Collection[Hashable], clock: Callable[[], float] = time.monotonic) -> None:
        """Start with all sources empty."""
        self._clock = clock
        self._latest: dict[Hashable, int] = {}
        self._empty_since: dict[Hashable, float | None] = dict.fromkeys(sources, clock())
        self._first_row_at: float | None = None

    def advance(self, source: Hashable, latest: int) -> None:
        """Record the latest event time of new rows of a source."""
        if self._first_row_at is None:
            self._first_row_at = self._clock()
        self._empty_since[source] = None
        self._latest[source] = max(latest, self._latest.get(source, latest))

    def mark_empty(self, source: Hashable) -> None:
        """Record that a source currently has no more rows."""
        if self._empty_since[source] is None:
            self._empty_since[source] = self._clock()

    def get_event_time(self, sources: Collection[Hashable] | None = None) -> int | None:
        """Return the event time that all given sources (default: all) have reached; None while it is unknown."""
        active = [source for source in sources or self._empty_since if not self._is_idle(source)]
        if any(source not in self._latest for source in active):
            return None
        return min((self._latest[source] for source in active), default=None)

    def _is_idle(self, source: Hashable) -> bool:
        empty_since, first_row_at = self._empty_since[source], self._first_row_at
        if empty_since is None or first_row_at is None:
            return False
        return self._clock() - max(empty_since, first_row_at) > IDLE_SECONDS


@dataclass(frozen=True, slots=True)
class AlignedWindows:
    """All windows [end − size, end) whose start is a multiple of the slide."""

    size: int
    slide: int

    @property
    def slice_length(self) -> int:
        """The length of a slice; every window consists of whole slices."""
        return math.gcd(self.size, self.slide)

    def ends_between(self, after: int, until: int) -> range:
        """Return the ends of windows in (after, until]."""
        first = after - (after - self.size) % self.slide + self.slide
        return range(first, until + 1, self.slide)

    def slices_of(self, end: int) -> range:
        """Return the numbers of the slices of a window."""
        return range((end - self.size) // self.slice_length, end // self.slice_length)
