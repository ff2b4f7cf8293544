"""What a service takes on, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from headrace.errors import HeadraceError

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """All of them can be set by whoever starts the service; 429 is the answer where waiting helps, 413 or 422 where not."""

    body_bytes: int = 8 * _MIB
    """Of a request with rows."""
    small_body_bytes: int = _MIB // 4
    """Of any other request: even a query that is all escapes has less."""
    bodies_bytes: int = 64 * _MIB
    """Of all requests with rows that are on their way in, and as much of all others."""
    patience_s: float = 10
    """How long a request may be silent before all of it is there; in six times that it must be."""
    sql_characters: int = 20_000
    queries: int = 5_000
    queries_per_user: int = 1_000
    waiting: int = 500
    """Queries that were accepted and are not live yet."""
    latency_s: float | None = None
    """What is promised for results: a query that would make micro-batches longer than this is refused."""
    connections: int = 1_500
    """Of whatever kind; a reader is one."""
    readers: int = 1_000
    page_rows: int = 10_000
    results_bytes: int = 4096 * _MIB
    """Of results that are kept to be read; the oldest go first."""
    event_rows: int = 1_000
    """Rows of one event of a live reader at most."""
    report_bytes: int = 64 * _MIB
    """Of one report of a benchmark; larger ones are not listed."""

    def with_given(self, words: Iterable[str]) -> Self:
        """Return the limits with some of them set, each by a word as 'readers=200'."""
        kinds = {field.name: int if field.type == "int" else float for field in fields(self)}
        found: dict[str, Any] = {}
        for word in words:
            name, _, value = word.partition("=")
            if name not in kinds:
                raise HeadraceError(
                    f"limit '{name}' is not there", detail=f"limits: {', '.join(kinds)}", hint="write NAME=NUMBER"
                )
            try:
                found[name] = kinds[name](value)
            except ValueError:
                raise HeadraceError(f"limit '{name}' cannot be '{value}'", hint=f"write {name}=NUMBER") from None
            if not 0 < found[name] < float("inf"):
                raise HeadraceError(f"limit '{name}' cannot be '{value}'", hint="give a number above 0")
        return replace(self, **found)
