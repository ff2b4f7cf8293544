"""Commands to a running session, as the batch log stores them: add or remove a query, or a sink of one; drop a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.model.budget import QueryBudget
from headrace.model.record import record


@record("add-query")
@dataclass(frozen=True, slots=True)
class AddQuery:
    """Add a query that was parsed and checked before. `sink` is the JSON form of its sinks; None stands for a callback."""

    id: int
    name: str
    sql: str
    sink: dict[str, Any] | None
    past: bool = False  # backfill the query from state that is stored for other queries
    owner: str = ""  # the principal that added the query, if known
    budget: QueryBudget | None = None  # by default that of the session


@record("remove-query")
@dataclass(frozen=True, slots=True)
class RemoveQuery:
    """Remove a query: it emits nothing from this batch on. `error` is the reason if it failed outside the pipeline."""

    id: int
    error: str | None = None


@record("add-sink")
@dataclass(frozen=True, slots=True)
class AddSink:
    """Add a sink to a live query: it receives the rows from this batch on. `sink` is None for a callback."""

    id: int
    number: int
    sink: dict[str, Any] | None


@record("remove-sink")
@dataclass(frozen=True, slots=True)
class RemoveSink:
    """Take a sink from a live query: it receives no rows from this batch on."""

    id: int
    number: int


@record("drop-stream")
@dataclass(frozen=True, slots=True)
class DropStream:
    """Drop a stream that no query reads from this batch on."""

    name: str


Command: TypeAlias = AddQuery | RemoveQuery | AddSink | RemoveSink | DropStream
