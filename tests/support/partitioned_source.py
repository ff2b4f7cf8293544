"""A source with partitions, for tests: rows are appended to a partition, and read in the order of the partitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.connectors import MemorySource, Position, Range
from headrace.connectors.row_input import RowInput
from headrace.model.types import Schema
from headrace.storage.store import Store


class PartitionedSource:
    """Memory sources side by side; each batch reads at most `appends_per_batch` appends of each partition."""

    def __init__(self, schema: str, partitions: int, appends_per_batch: int = 1_000) -> None:
        self._columns, self._appends_per_batch = schema, appends_per_batch
        self._parts = [MemorySource(schema) for _ in range(partitions)]
        self._place: tuple[str, Store] | None = None

    @property
    def schema(self) -> Schema:
        return Schema.parse(self._columns)

    def append(self, partition: int, rows: RowInput) -> None:
        self._parts[partition].append(rows)

    def add_partition(self) -> None:
        self._parts.append(MemorySource(self._columns))
        assert self._place is not None
        self._attach_part(len(self._parts) - 1)

    def attach(self, stream: str, store: Store) -> None:
        self._place = stream, store
        for number in range(len(self._parts)):
            self._attach_part(number)

    def _attach_part(self, number: int) -> None:
        assert self._place is not None
        self._parts[number].attach(self._place[0], self._place[1].scope(str(number)))

    def list_partitions(self, position: Position) -> tuple[int, ...]:
        return tuple(range(len(position or ())))

    def plan(self, position: Position, limit_rows: int) -> tuple[list[Range], Position]:
        before = list(position or ())
        ranges: list[Range] = []
        after: list[Any] = []
        for number, part in enumerate(self._parts):
            start = before[number] if number < len(before) else None
            for _ in range(self._appends_per_batch):
                planned, start = part.plan(start, 1)
                ranges += [replace(item, options={**item.options, "partition": number}) for item in planned]
            after.append(start)
        return ranges, after

    def pending(self, position: Position) -> bool:
        return bool(self.plan(position, 1)[0])

    def definition(self) -> dict[str, Any]:
        return {"kind": "partitioned", "schema": self._columns}
