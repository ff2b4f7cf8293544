"""The backfill of one input of a new query from the state of another query."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backfill:
    """Rows of a relation stored for query `query_id` under its bit, from `first_batch` on, with event times from `since` on."""

    relation: str
    query_id: int
    bit: int
    first_batch: int
    since: int
