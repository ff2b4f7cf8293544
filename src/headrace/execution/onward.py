"""Messages between the levels of the reduce stage: rows of joins, and results that other queries read."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.execution.job import Parcel
from headrace.execution.joined_rows import Table
from headrace.execution.multiway.operator import Traffic
from headrace.execution.sessions import Runs
from headrace.kernels.sets import QueryBitmaps


@dataclass(frozen=True, slots=True)
class Moved:
    """Rows of one round: of the path of a query up to `depth`, or of the leaf of its step `depth`."""

    query: int
    depth: int
    round: int
    table: Table
    sets: QueryBitmaps


@dataclass(slots=True)
class Onward:
    """The message of one partition of a level to one of the next level.

    It holds joined rows, rows of leaves, and groups, each with the id of a query that represents its kind. `result_block` holds
    query results that other queries read, processed as rows of the map stage are. `deferred_inputs` are inputs that this
    partition received and stores, and that queries of later levels still need. `sliding_join` are rows of sliding joins.
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
        """Return the approximate size of its arrays in bytes."""
        row_bytes = sum(
            forwarded.sets.nbytes + sum(c.whole().nbytes for c in forwarded.table.columns.values())
            for forwarded in (*self.rows, *self.leaves)
        )
        group_bytes = sum(runs.firsts.nbytes * (4 + len(runs.dense)) for _, runs in self.groups)
        block_bytes = sum(block.weight() for block in (self.results, self.guests) if block is not None)
        return int(row_bytes + group_bytes) + block_bytes + (0 if self.multiway is None else self.multiway.bytes)
