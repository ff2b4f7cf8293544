"""Define the interface of a system under test: its configuration, its operations and the events it reports.

An adapter runs in its own process (`process.serve`), pulls rows from the driver and sends results to the collector. It does not
measure itself: throughput is measured at the queues of the driver, latency at the collector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from headrace.bench.query import BenchQuery
from headrace.bench.stream import StreamSpec
from headrace.errors import HeadraceError
from headrace.model.schema import Schema


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
    """The first line that an adapter reads: addresses of driver and collector, streams, and the initial queries."""

    driver: str
    collector: str
    scratch: Path
    streams: tuple[SutStream, ...]
    queries: tuple[BenchQuery, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `from_json` reads."""
        return {
            "driver": self.driver,
            "collector": self.collector,
            "scratch": str(self.scratch),
            "streams": [stream.to_json() for stream in self.streams],
            "queries": [query.to_json() for query in self.queries],
            "options": dict(self.options),
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

    def change(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        """Add and remove the queries requested since the last change; report each one when it is done."""

    def check(self) -> None:
        """Raise if the system no longer runs; called periodically."""

    def close(self) -> None:
        """Stop the system; also called after a failed start."""


NO_DIALECT_TEXT = "the query has no SQL text for this engine"
