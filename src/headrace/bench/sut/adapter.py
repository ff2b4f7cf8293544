"""What a system under test is told, and what it has to be able to do.

An adapter runs in a process of its own (`process.serve`), pulls rows from the driver and sends results to the collector. It
is never asked how fast it was: that is measured at the driver's queues and at the collector.
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
    """A stream of the driver; `line_ports` has one for each partition."""

    spec: StreamSpec
    line_ports: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """What it is called, as a table and at the driver."""
        return self.spec.name

    @property
    def schema(self) -> Schema:
        """Its columns, event time last."""
        return self.spec.schema

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` takes."""
        return {**self.spec.to_json(), "schema": self.schema.to_ddl(), "line_ports": list(self.line_ports)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> SutStream:
        """Rebuild what `to_json` described; the schema follows from the rest."""
        rest = {name: part for name, part in value.items() if name not in {"schema", "line_ports"}}
        return SutStream(StreamSpec.from_json(rest), tuple(value.get("line_ports", ())))


@dataclass(frozen=True, slots=True)
class SutConfig:
    """The first line an adapter reads: where rows come from and results go, and the queries that are there at once."""

    driver: str
    collector: str
    scratch: Path
    streams: tuple[SutStream, ...]
    queries: tuple[BenchQuery, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` takes."""
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
        """Rebuild what `to_json` described."""
        return SutConfig(
            value["driver"],
            value["collector"],
            Path(value["scratch"]),
            tuple(SutStream.from_json(stream) for stream in value["streams"]),
            tuple(BenchQuery.from_json(query) for query in value.get("queries", ())),
            dict(value.get("options", {})),
        )

    def stream(self, name: str) -> SutStream:
        """Return a stream by name."""
        for stream in self.streams:
            if stream.name == name:
                return stream
        raise HeadraceError(f"stream '{name}' is not there", detail=f"streams: {', '.join(s.name for s in self.streams)}")


class Teller(Protocol):
    """How an adapter says what became of a query; from any thread."""

    def live(self, query: str) -> None:
        """Say that from now on its results count."""

    def removed(self, query: str) -> None:
        """Say that it is gone."""

    def refused(self, query: str, reason: str) -> None:
        """Say why this system cannot run it."""


@dataclass(frozen=True, slots=True)
class Started:
    """What was measured, for the result: versions, and every setting that is not the system's default."""

    versions: Mapping[str, str]
    settings: Mapping[str, Any]


class Adapter(Protocol):
    """A system under test. One thread calls it."""

    def start(self, config: SutConfig, tell: Teller) -> Started:
        """Return when all queries of `config` that are not refused are live; raises HeadraceError with the reason if it cannot.

        Only queries that are refused are told; those that are there from the beginning are live with the return.
        """

    def change(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        """Add and remove queries: those asked for while the last change was made. Each is told when it is done."""

    def check(self) -> None:
        """Raise if the system no longer runs; called every now and then."""

    def close(self) -> None:
        """Stop everything; also after a failed start."""


NO_TEXT = "this engine has no words for it"
