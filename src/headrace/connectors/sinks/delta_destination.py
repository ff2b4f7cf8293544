"""The connection of a Delta sink. A commit carries the rows and the mark, and is tried for one version of the table only.

A commit of an earlier connection takes that version, or comes after it and is refused in the same way: there is nothing to stop.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaProtocolError, SchemaMismatchError, TableNotFoundError

from headrace.connectors.sinks.delta import DeltaSink
from headrace.errors import SinkError

_ATTEMPTS = 10  # commits that other writers of the table win


class DeltaDestination:
    """See `Destination`."""

    def __init__(self, sink: DeltaSink, writer: str) -> None:
        """Take the sink; the table is opened later."""
        self._sink, self._writer = sink, f"headrace-{writer}"
        self._table: DeltaTable | None = None

    def check_columns(self, schema: pa.Schema) -> None:
        """See `Destination`; every type has a form."""

    def read_mark(self) -> int | None:
        """See `Destination`."""
        self._table = self._open_table()
        return None if self._table is None else self._table.transaction_version(self._writer)

    def _open_table(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._sink.path, storage_options=dict(self._sink.storage_options))
        except TableNotFoundError:
            return None

    def publish(self, batch: int, rows: pa.Table) -> None:
        """See `Destination`."""
        for attempt in range(_ATTEMPTS):
            mark = self.read_mark() if attempt or self._table is None else None
            if mark is not None and mark >= batch:
                return
            try:
                self._commit(batch, rows)
            except CommitFailedError:
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def _commit(self, batch: int, rows: pa.Table) -> None:
        properties = CommitProperties(
            custom_metadata={"headrace.batch": batch, "headrace.writer": self._writer},
            max_commit_retries=0,
            app_transactions=[Transaction(self._writer, batch)],
        )
        if self._table is None and "://" not in self._sink.path:
            Path(self._sink.path).mkdir(parents=True, exist_ok=True)
        try:
            write_deltalake(
                self._table or self._sink.path,
                rows,
                mode="append" if self._table else "error",
                partition_by=list(self._sink.partition_by) or None,
                storage_options=dict(self._sink.storage_options),
                commit_properties=properties,
            )
        except (SchemaMismatchError, DeltaProtocolError, pa.ArrowException) as error:
            raise SinkError(f"Delta table '{self._sink.path}' refuses the rows", detail=str(error)) from error

    def close(self) -> None:
        """See `Destination`."""
        self._table = None
