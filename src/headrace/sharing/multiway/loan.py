"""What one query lends to another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loan:
    """Rows of a relation that were stored for a query, from its first batch on, by its bit; their times are from `since` on."""

    relation: str
    query: int
    bit: int
    first: int
    since: int
