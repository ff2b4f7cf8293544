"""The Iceberg sink: one commit for each batch, with the mark of the writer among the properties of the table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import urlsplit

from headrace.connectors.secrets import check_reference
from headrace.connectors.sinks.destination import PublishedSink, to_text_options
from headrace.errors import SinkError

_NAME = re.compile(r"[^./\\\\?#%\x00-\x1f]+(?:\.[^./\\\\?#%\x00-\x1f]+)+")  # it becomes a part of paths
_SECRET_PARTS = ("secret", "password", "token", "credential", "key")


@dataclass(frozen=True, slots=True)
class IcebergSink(PublishedSink):
    """Appends rows to an Iceberg table, exactly once; the first batch creates the table and its namespace.

    `table` is a name such as "shop.revenue". `catalog` has the `name` of the catalog (by default "default") and its properties,
    as pyiceberg names them, such as {"type": "sql", "uri": "sqlite:////data/catalog.db", "warehouse": "file:///data/warehouse"};
    secrets are references: `env:NAME` or `file:PATH`.
    """

    kind: ClassVar[str] = "iceberg"
    extra: ClassVar[str] = "iceberg"
    destination_class: ClassVar[tuple[str, str]] = ("headrace.connectors.sinks.iceberg_destination", "IcebergDestination")
    table: str
    catalog: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the options; raises SinkError."""
        object.__setattr__(self, "catalog", to_text_options(self.catalog, "catalog"))
        if not _NAME.fullmatch(self.table):
            raise SinkError(f"option 'table' of the iceberg sink is '{self.table}'", hint="write NAMESPACE.TABLE")
        for name, value in self.catalog.items():
            if any(part in name.lower() for part in _SECRET_PARTS):
                check_reference(name, value, SinkError)
            if urlsplit(value).password:
                raise SinkError(
                    f"option '{name}' of the catalog has a password", hint="write env:NAME, with the whole value there"
                )

    def describe(self) -> str:
        """See `Sink`."""
        return f"iceberg:{self.table}"

    def list_hosts(self) -> list[str]:
        """See `PublishedSink`."""
        uri = urlsplit(self.catalog.get("uri", ""))
        return [uri.netloc.rpartition("@")[2]] if uri.netloc else []

    def list_paths(self) -> list[str]:
        """See `PublishedSink`; the warehouse of a REST catalog may be a name, which its server knows."""
        uri, warehouse = self.catalog.get("uri", ""), self.catalog.get("warehouse", "")
        paths = [uri.partition(":///")[2]] if uri.startswith("sqlite") and ":///" in uri else []
        if not warehouse or (self.catalog.get("type") == "rest" and re.fullmatch(r"[\w.-]+", warehouse)):
            return paths
        parts = urlsplit(warehouse)
        is_file = parts.scheme == "file" and not (parts.netloc or parts.query or parts.fragment)
        return [*paths, parts.path if is_file else warehouse]
