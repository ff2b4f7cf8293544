"""Messages between the levels of the reduce stage: rows of joins, and results that other queries read."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.engine.batch_job import SegmentRef, ShuffleBlock, StateRef
from headrace.engine.joins.routing import Address, RoutedRows
from headrace.engine.joins.segment import RowSegment
from headrace.engine.operators.sessions import SessionRuns
from headrace.model.partition_map import PartitionMap
from headrace.model.record import record


@record("level-message")
@dataclass(slots=True)
class LevelMessage:
    """The message of one partition of a level to one of the next level.

    It holds rows of joins, and groups of joined rows, each with the id of a query that represents its kind. `segment_refs` are
    segments of sliding-join state that this partition wrote in this batch. `result_block` holds query results that other queries
    read, processed as rows of the map stage are. `deferred_inputs` are inputs that this partition received and stores, and that
    queries of later levels still need. `home_refs` are stored rows that joined rows may refer to at later levels of the same
    partition, each with the slot of its home buffer.
    """

    sender: int
    join_rows: list[RoutedRows] = field(default_factory=list)
    groups: list[tuple[int, SessionRuns]] = field(default_factory=list)
    segment_refs: list[SegmentRef] = field(default_factory=list)
    max_event_times: dict[str, int] = field(default_factory=dict)
    reached_times: dict[str, int] = field(default_factory=dict)
    result_block: ShuffleBlock | None = None
    deferred_inputs: ShuffleBlock | None = None
    home_refs: list[tuple[int, StateRef]] = field(default_factory=list)

    def estimate_bytes(self) -> int:
        """Return the approximate size of its arrays in bytes."""
        row_bytes = sum(routed.rows.bytes for routed in self.join_rows)
        group_bytes = sum(runs.firsts.nbytes * (4 + len(runs.dense)) for _, runs in self.groups)
        block_bytes = sum(block.estimate_bytes() for block in (self.result_block, self.deferred_inputs) if block is not None)
        return row_bytes + int(group_bytes) + block_bytes


@dataclass(slots=True)
class Outbox:
    """The messages of one partition (`sender`) to the partitions of the next level."""

    sender: int
    partitions: PartitionMap
    messages: dict[int, LevelMessage] = field(default_factory=dict)

    def get_message(self, partition: int) -> LevelMessage:
        """Return the message to a partition."""
        return self.messages.setdefault(partition, LevelMessage(self.sender))

    def send_rows(self, partition: int, address: Address, rows: RowSegment) -> None:
        """Send rows to an operator of a partition."""
        self.get_message(partition).join_rows.append(RoutedRows(address, rows))

    def broadcast_rows(self, address: Address, rows: RowSegment) -> None:
        """Send a copy of rows to an operator of every partition."""
        for partition in range(self.partitions.count):
            self.send_rows(partition, address, rows)
