"""The Postgres sink: one database transaction for each batch, with the rows and the mark of the writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa

from headrace.connectors.sinks.destination import PublishedSink, check_has_columns, parse_names
from headrace.errors import SinkError

MARKS_TABLE = "headrace_marks"


@dataclass(frozen=True, slots=True)
class PostgresSink(PublishedSink):
    """Writes rows to a table of a Postgres database, exactly once; the first batch creates the table if it does not exist.

    - `url`: "postgresql://user@host:5432/database", without the password.
    - `table`: a name, or schema.name.
    - `key`: columns that identify a row: a later row replaces the earlier one. Without a key all rows are appended.
    - `password`: a reference, `env:NAME` or `file:PATH`; without one, libpq looks for ~/.pgpass.
    """

    kind: ClassVar[str] = "postgres"
    extra: ClassVar[str] = "postgres"
    destination_class: ClassVar[tuple[str, str]] = ("headrace.connectors.sinks.postgres_destination", "PostgresDestination")
    secret_options: ClassVar[frozenset[str]] = frozenset({"password"})
    url: str
    table: str
    key: tuple[str, ...] = ()
    password: str = ""

    def __post_init__(self) -> None:
        """Check the options; raises SinkError."""
        object.__setattr__(self, "key", parse_names(self.key, "key"))
        PublishedSink.__post_init__(self)
        url = urlsplit(self.url)
        if url.scheme not in {"postgresql", "postgres"}:
            raise SinkError(
                "option 'url' of the postgres sink is not that of a Postgres server", hint="postgresql://host/database"
            )
        if url.password or "password" in parse_qs(url.query):
            raise SinkError("option 'url' of the postgres sink has a password", hint="write password = 'env:NAME'")
        if not self.table or not all(self.table.split(".")):
            raise SinkError(f"option 'table' of the postgres sink is '{self.table}'")
        if self.table.rpartition(".")[2] == MARKS_TABLE:
            raise SinkError(f"table '{MARKS_TABLE}' has the marks of sinks", hint="name another table")

    def check_columns(self, schema: pa.Schema) -> None:
        """See `Sink`."""
        check_has_columns(self, "key", self.key, schema)
        PublishedSink.check_columns(self, schema)

    def describe(self) -> str:
        """See `Sink`."""
        return f"postgres:{self.table}"

    def list_hosts(self) -> list[str]:
        """See `PublishedSink`."""
        url = urlsplit(self.url)
        more = parse_qs(url.query)
        return [url.netloc.rpartition("@")[2], *more.get("host", ()), *more.get("hostaddr", ())]
