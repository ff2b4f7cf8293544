"""The Delta Lake sink: one commit for each batch, with the mark of the writer as the version of an application transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from headrace.connectors.sinks.destination import PublishedSink, check_has_columns, parse_names, to_text_options
from headrace.errors import SinkError
from headrace.storage.locations import parse_location


@dataclass(frozen=True, slots=True)
class DeltaSink(PublishedSink):
    """Appends rows to the Delta table in the folder or at the URL `path`, exactly once; the first batch creates it.

    `partition_by` names columns. `storage_options` are those of deltalake; secrets belong in the environment. Several queries may
    write to one table.
    """

    kind: ClassVar[str] = "delta"
    extra: ClassVar[str] = "delta"
    destination_class: ClassVar[tuple[str, str]] = ("headrace.connectors.sinks.delta_destination", "DeltaDestination")
    path: str
    partition_by: tuple[str, ...] = ()
    storage_options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the options; raises SinkError."""
        object.__setattr__(self, "path", parse_location(self.path, SinkError, "sink"))
        object.__setattr__(self, "partition_by", parse_names(self.partition_by, "partition_by"))
        object.__setattr__(self, "storage_options", to_text_options(self.storage_options, "storage_options"))
        secret = next((name for name in self.storage_options if "secret" in name.lower() or "key" in name.lower()), None)
        if secret is not None:
            raise SinkError(
                f"option '{secret}' of the delta sink is a secret",
                hint="set it in the environment, such as AWS_SECRET_ACCESS_KEY",
            )

    def check_columns(self, schema: pa.Schema) -> None:
        """See `Sink`."""
        check_has_columns(self, "partition_by", self.partition_by, schema)
        PublishedSink.check_columns(self, schema)

    def describe(self) -> str:
        """See `Sink`."""
        return f"delta:{self.path}"

    def list_paths(self) -> list[str]:
        """See `PublishedSink`."""
        return [self.path]
