"""Published sinks: rows wait in the checkpoint, and the driver publishes them to a destination, batch by batch, after the commit.

Each sink of each query has a writer name that no other sink has. The destination stores, in the transaction that makes the rows
of a batch visible, the *mark* of the writer: the number of the newest batch that is published. Whoever connects first stops every
earlier connection of the same writer, then reads the mark, and publishes only batches after it. So a batch is published once,
whatever was interrupted, and a driver that was replaced, or a request that was delayed, cannot publish one again.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from headrace.connectors.secrets import check_reference
from headrace.connectors.sinks.base import Sink
from headrace.errors import DestinationUnavailableError, SinkError


class Destination(Protocol):
    """A connection of one writer to its destination. One thread at a time uses it; after an error it is closed.

    Every method raises SinkError for what no repetition can change, which fails the query. DestinationUnavailableError, and the
    exceptions of a library, mean that the destination is not available: the caller connects again, later. A programming error,
    such as a TypeError, is a bug, and fails the query.
    """

    def check_columns(self, schema: pa.Schema) -> None:
        """Raise SinkError for columns that the destination cannot take, as far as that is known without a connection."""

    def read_mark(self) -> int | None:
        """Stop earlier connections of the writer; return the newest batch that is published, or None if there is none."""

    def publish(self, batch: int, rows: pa.Table) -> None:
        """Publish the rows of a batch and its mark: all, or nothing. After an exception either is possible."""

    def close(self) -> None:
        """Close the connection, without waiting long; never raises."""


@dataclass(frozen=True, slots=True)
class PublishedSink(Sink):
    """Base class of sinks that publish batches to a destination."""

    destination_class: ClassVar[tuple[str, str]]  # module and name; the module imports the library of the destination
    extra: ClassVar[str]  # the extra of headrace that installs the library, if it is one
    secret_options: ClassVar[frozenset[str]] = frozenset()
    is_exactly_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check that secrets are references."""
        for field in fields(self):
            if field.name in self.secret_options:
                check_reference(field.name, getattr(self, field.name), SinkError)

    def connect(self, writer: str) -> Destination:
        """Return a new connection; `writer` is the name of this sink of this query. Raises as `Destination` does."""
        module, name = self.destination_class
        try:
            loaded = importlib.import_module(module)
        except ImportError as error:
            raise DestinationUnavailableError(
                f"a {self.kind} sink needs a library that is not installed",
                detail=str(error),
                hint=f"pip install 'headrace[{self.extra}]'" if self.extra else "",
            ) from error
        destination: Destination = getattr(loaded, name)(self, writer)
        return destination

    def check_columns(self, schema: pa.Schema) -> None:
        """See `Sink`; the library of the destination checks its options, and connects nowhere."""
        destination = self.connect("check")
        try:
            destination.check_columns(schema)
        finally:
            destination.close()

    def list_hosts(self) -> list[str]:
        """Return the hosts that the sink connects to, each as host:port or host; for the limits of a service."""
        return []

    def list_paths(self) -> list[str]:
        """Return the folders and URLs of stores that the sink writes to; for the limits of a service."""
        return []

    def to_json(self) -> dict[str, Any]:
        """See `Sink`."""
        return {"kind": self.kind, **json.loads(json.dumps(asdict(self)))}


def parse_names(value: object, option: str) -> tuple[str, ...]:
    """Return names of columns, which are given as one text with commas or as a list; raises SinkError for other values."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise SinkError(
            f"option '{option}' of the sink is {value!r}", hint="name one column, or several with commas between them"
        )
    return tuple(name.strip() for name in names if name.strip())


def check_has_columns(sink: Sink, option: str, names: tuple[str, ...], schema: pa.Schema) -> None:
    """Raise SinkError if a column that an option names is not among those of the query."""
    missing = next((name for name in names if name not in schema.names), None)
    if missing is not None:
        raise SinkError(
            f"option '{option}' of the {sink.kind} sink names column '{missing}', which the query does not have",
            detail=f"its columns: {', '.join(schema.names)}",
        )


def to_text_options(value: object, option: str) -> Mapping[str, str]:
    """Return a mapping of texts; numbers and booleans are written out. Raises SinkError for other values."""
    if not isinstance(value, Mapping):
        raise SinkError(f"option '{option}' of the sink is {value!r}, which is not a table of options")
    return {str(name): str(item).lower() if isinstance(item, bool) else str(item) for name, item in value.items()}
