"""The limits of a service: sizes, rates and counts above which it rejects requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from headrace.errors import HeadraceError

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Limits that `headrace serve --limit` can set. Above them the service answers 429 if waiting helps, else 413 or 422."""

    body_bytes: int = 8 * _MIB
    """Size of a request body with rows."""
    small_body_bytes: int = _MIB // 4
    """Size of any other request body; a query of `sql_characters` fits even if every character is escaped."""
    bodies_bytes: int = 64 * _MIB
    """Total size of the bodies with rows that are being received, and as much again for all other bodies."""
    patience_s: float = 10
    """Idle timeout while a request body is being received; the whole body must arrive within six times that."""
    sql_characters: int = 20_000
    queries: int = 5_000
    queries_per_user: int = 1_000
    waiting: int = 500
    """Queries that are accepted but not live yet."""
    latency_s: float | None = None
    """Latency bound: admission control rejects a query that would make micro-batches longer than this."""
    connections: int = 1_500
    """Open connections of every kind, live readers included."""
    readers: int = 1_000
    page_rows: int = 10_000
    results_bytes: int = 4096 * _MIB
    """Retention of results, in bytes; the oldest are deleted first."""
    event_rows: int = 1_000
    """Rows in one event sent to a live reader."""
    report_bytes: int = 64 * _MIB
    """Size of a benchmark report; larger ones are not listed."""

    def with_overrides(self, settings: Iterable[str]) -> Self:
        """Return a copy with some limits replaced; a setting looks like 'readers=200'."""
        types = {field.name: int if field.type == "int" else float for field in fields(self)}
        values: dict[str, Any] = {}
        for setting in settings:
            name, _, value = setting.partition("=")
            if name not in types:
                raise HeadraceError(f"unknown limit '{name}'", detail=f"limits: {', '.join(types)}", hint="write NAME=NUMBER")
            try:
                values[name] = types[name](value)
            except ValueError:
                raise HeadraceError(f"invalid value '{value}' for limit '{name}'", hint=f"write {name}=NUMBER") from None
            if not 0 < values[name] < float("inf"):
                raise HeadraceError(f"invalid value '{value}' for limit '{name}'", hint="give a number above 0")
        return replace(self, **values)
