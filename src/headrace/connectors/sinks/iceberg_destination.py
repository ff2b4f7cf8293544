"""The connection of an Iceberg sink. A commit carries the rows and the mark, and is tried for one snapshot of the table only.

A commit of an earlier connection replaces that snapshot, or comes later and is refused in the same way: there is nothing to stop.
"""

from __future__ import annotations

import contextlib

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException
from pyiceberg.table import Table, Transaction

from headrace.connectors.secrets import resolve_reference
from headrace.connectors.sinks.iceberg import IcebergSink
from headrace.errors import DestinationUnavailableError, SinkError

_ATTEMPTS = 10  # commits that other writers of the table win
_REFUSALS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, UnsupportedPyArrowTypeException)
_NO_RETRIES = {"commit.retry.num-retries": "0"}  # a repetition by the library would not look at the mark


class IcebergDestination:
    """See `Destination`."""

    def __init__(self, sink: IcebergSink, writer: str) -> None:
        """Take the sink; the catalog is opened later."""
        self._sink, self._mark_property = sink, f"headrace.mark.{writer}"
        self._catalog: Catalog | None = None
        self._table: Table | None = None

    def check_columns(self, schema: pa.Schema) -> None:
        """See `Destination`; every type has a form."""

    def read_mark(self) -> int | None:
        """See `Destination`."""
        try:
            self._table = self._open_catalog().load_table(self._sink.table)
        except NoSuchTableError:
            self._table = None
            return None
        mark = self._table.metadata.properties.get(self._mark_property)
        return None if mark is None else int(mark)

    def _open_catalog(self) -> Catalog:
        if self._catalog is None:
            options = {
                name: value if name == "warehouse" else resolve_reference(name, value, DestinationUnavailableError)
                for name, value in self._sink.catalog.items()
            }
            self._catalog = load_catalog(options.pop("name", "default"), **options)
        return self._catalog

    def publish(self, batch: int, rows: pa.Table) -> None:
        """See `Destination`."""
        for attempt in range(_ATTEMPTS):
            mark = self.read_mark() if attempt or self._table is None else None
            if mark is not None and mark >= batch:
                return
            try:
                self._commit(batch, rows)
            except CommitFailedException:
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def _commit(self, batch: int, rows: pa.Table) -> None:
        table = self._table or self._create_table(rows.schema)
        retried = table.metadata.properties
        table.metadata = table.metadata.model_copy(update={"properties": {**retried, **_NO_RETRIES}})
        with table.transaction() as transaction:
            self._append(transaction, rows, {"headrace.batch": str(batch), "headrace.mark": self._mark_property})
            transaction.set_properties({self._mark_property: str(batch)})
        self._table = self._open_catalog().load_table(self._sink.table)

    def _append(self, transaction: Transaction, rows: pa.Table, properties: dict[str, str]) -> None:
        """Write files with the rows; a plain ValueError says that they do not fit, its subclasses are of JSON and pydantic."""
        try:
            transaction.append(rows, snapshot_properties=properties)
        except _REFUSALS as error:
            raise self._make_refusal(error) from error
        except ValueError as error:
            if type(error) is not ValueError:
                raise
            raise self._make_refusal(error) from error

    def _make_refusal(self, error: Exception) -> SinkError:
        return SinkError(f"Iceberg table '{self._sink.table}' refuses the rows", detail=str(error))

    def _create_table(self, schema: pa.Schema) -> Table:
        catalog = self._open_catalog()
        with contextlib.suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(self._sink.table.rpartition(".")[0])
        try:
            return catalog.create_table(self._sink.table, schema)
        except TableAlreadyExistsError:
            return catalog.load_table(self._sink.table)
        except _REFUSALS as error:
            raise self._make_refusal(error) from error

    def close(self) -> None:
        """See `Destination`."""
        engine = getattr(self._catalog, "engine", None)
        if engine is not None:
            engine.dispose()
        self._catalog = self._table = None
