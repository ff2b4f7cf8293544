"""What goes from one level to the next, through an exchange: rows of joins, and of the results of queries."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.execution.job import Parcel
from headrace.execution.joined_rows import Table
from headrace.execution.multiway.operator import Traffic
from headrace.execution.sessions import Runs
from headrace.kernels.sets import Sets


@dataclass(frozen=True, slots=True)
class Moved:
    """Rows that go on, of one round: those of the path of a query up to a depth, or of the leaf of its step `depth`."""

    query: int
    depth: int
    round: int
    table: Table
    sets: Sets


@dataclass(slots=True)
class Onward:
    """What one partition of a level sends to one of the next: joined rows, rows of leaves, groups by a query of their kind.

    `results` is what became of results that other queries read, as of rows in stage one; `guests` is what arrived here, is
    kept here, and is needed later by queries that wait for results. `multiway` are rows of multi-way joins.
    """

    sender: int
    rows: list[Moved] = field(default_factory=list)
    leaves: list[Moved] = field(default_factory=list)
    groups: list[tuple[int, Runs]] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    results: Parcel | None = None
    guests: Parcel | None = None
    multiway: Traffic | None = None

    def weight(self) -> int:
        """Return about how many bytes of arrays it holds."""
        moved = sum(m.sets.nbytes + sum(c.whole().nbytes for c in m.table.columns.values()) for m in (*self.rows, *self.leaves))
        groups = sum(r.firsts.nbytes * (4 + len(r.dense)) for _, r in self.groups)
        parcels = sum(parcel.weight() for parcel in (self.results, self.guests) if parcel is not None)
        return int(moved + groups) + parcels + (0 if self.multiway is None else self.multiway.bytes)
