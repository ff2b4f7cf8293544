"""Messages between the levels of the reduce stage: rows of joins, and results that other queries read."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.engine.batch_job import ShuffleBlock
from headrace.engine.joins.joined_rows import JoinTable
from headrace.engine.joins.sliding_join import SlidingJoinMessage
from headrace.engine.operators.query_sets import QueryBitmaps
from headrace.engine.operators.sessions import SessionRuns
from headrace.model.record import record


@record("forwarded-rows")
@dataclass(frozen=True, slots=True)
class ForwardedRows:
    """Rows of one round: of the path of a query up to `depth`, or of the leaf of its step `depth`."""

    query_id: int
    depth: int
    round_number: int
    table: JoinTable
    sets: QueryBitmaps


@record("level-message")
@dataclass(slots=True)
class LevelMessage:
    """The message of one partition of a level to one of the next level.

    It holds joined rows, rows of leaves, and groups, each with the id of a query that represents its kind. `result_block` holds
    query results that other queries read, processed as rows of the map stage are. `deferred_inputs` are inputs that this
    partition received and stores, and that queries of later levels still need. `sliding_join` are rows of sliding joins.
    """

    sender: int
    joined_rows: list[ForwardedRows] = field(default_factory=list)
    leaf_rows: list[ForwardedRows] = field(default_factory=list)
    groups: list[tuple[int, SessionRuns]] = field(default_factory=list)
    max_event_times: dict[str, int] = field(default_factory=dict)
    result_block: ShuffleBlock | None = None
    deferred_inputs: ShuffleBlock | None = None
    sliding_join: SlidingJoinMessage | None = None

    def estimate_bytes(self) -> int:
        """Return the approximate size of its arrays in bytes."""
        row_bytes = sum(
            forwarded.sets.nbytes + sum(c.combine_chunks().nbytes for c in forwarded.table.columns.values())
            for forwarded in (*self.joined_rows, *self.leaf_rows)
        )
        group_bytes = sum(runs.firsts.nbytes * (4 + len(runs.dense)) for _, runs in self.groups)
        block_bytes = sum(block.estimate_bytes() for block in (self.result_block, self.deferred_inputs) if block is not None)
        return int(row_bytes + group_bytes) + block_bytes + (0 if self.sliding_join is None else self.sliding_join.bytes)
