"""Streams declared over HTTP, persisted in the checkpoint so that a restart declares them again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from headrace.connectors import MemorySource, RateSource, Source, TcpSource
from headrace.errors import HeadraceError
from headrace.service.allowed_roots import AllowedRoots, ConfinedFileSource
from headrace.service.problems import RequestBody
from headrace.session import Session
from headrace.storage.documents import damaged_error, get_document, put_document
from headrace.storage.store import Store

STREAMS_FILE = "service-streams.json"
StreamName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class _BaseDeclaration(RequestBody):
    name: StreamName
    time: str = Field(min_length=1, description="The event-time column.")
    watermark: str = Field(default="0 seconds", description="Delay of the watermark: how far rows may be out of order.")


class MemoryStream(_BaseDeclaration):
    """A stream whose rows are sent by requests."""

    source: Literal["memory"] = "memory"
    columns: str = Field(min_length=1, max_length=20_000, description="Such as 'user_id INT, price DOUBLE, time TIMESTAMP'.")

    def open(self) -> Source:
        """Return the source."""
        return MemorySource(self.columns)


class FileStream(_BaseDeclaration):
    """A stream of files that the service can read."""

    source: Literal["files"]
    path: str = Field(min_length=1, description="A file, a directory or a glob pattern on the machine of the service.")
    columns: str | None = Field(default=None, max_length=20_000, description="Required unless the files contain a schema.")
    format: Literal["arrow", "parquet", "csv", "json"] | None = None
    on_error: Literal["fail", "skip"] = "fail"

    def open_within(self, roots: AllowedRoots) -> Source:
        """Return the source; raises ForbiddenPathError if its path is not below an allowed root."""
        return ConfinedFileSource(roots, self.path, schema=self.columns, format=self.format, on_error=self.on_error)


class RateStream(_BaseDeclaration):
    """A stream of generated rows."""

    source: Literal["rate"]
    rows_per_second: float = Field(gt=0, le=1e8)
    generator: Literal["purchases", "ads", "fields"] = "purchases"
    seed: int = Field(default=0, ge=0)
    rows: int | None = Field(default=None, ge=1)
    start_time: datetime = Field(default_factory=lambda: datetime.now(UTC), description="The first event time; now by default.")

    def open(self) -> Source:
        """Return the source."""
        options: dict[str, Any] = {"seed": self.seed, "rows": self.rows, "start_time": self.start_time}
        return RateSource(self.rows_per_second, self.generator, **options)


class TcpStream(_BaseDeclaration):
    """A stream of a server that speaks headrace's TCP protocol."""

    source: Literal["tcp"]
    address: str = Field(min_length=3, description="HOST:PORT")
    stream: str = Field(min_length=1, description="Name of the stream on that server.")
    group: str = Field(default="headrace", min_length=1)

    def open(self) -> Source:
        """Return the source."""
        return TcpSource(self.address, self.stream, group=self.group)


StreamDeclaration = Annotated[MemoryStream | FileStream | RateStream | TcpStream, Field(discriminator="source")]
_DECLARATION_ADAPTER: TypeAdapter[Any] = TypeAdapter(StreamDeclaration)


class DeclaredStreams:
    """The streams declared by requests; a file in the checkpoint holds them."""

    def __init__(self, session: Session, store: Store, roots: AllowedRoots, *, was_served: bool) -> None:
        """Declare the streams of the file; streams over files must be below `roots`.

        Raises CheckpointError if the file is damaged, or if it is missing from a checkpoint that a service has used before.
        """
        self._session, self._store, self._roots, self._add_lock = session, store, roots, threading.Lock()
        self._streams: dict[str, Any] = {}
        for stream in _read_declarations(store, was_served=was_served):
            try:
                self._declare(stream, self._open_source(stream))
            except HeadraceError as error:
                message = f"cannot open stream '{stream.name}', which was declared by a request: {error.message}"
                hint = error.hint or f"make its source available again; its declaration is in '{store.name_of(STREAMS_FILE)}'"
                raise type(error)(message, detail=error.detail, hint=hint) from error

    def add(self, stream: Any) -> None:
        """Declare a stream. The file is written before a micro-batch can use the stream, so that a restart finds its source."""
        source = self._open_source(stream)
        with self._add_lock:
            if stream.name not in self._streams:  # otherwise `create_stream` rejects it
                self._write_file([*self._streams.values(), stream])
            try:
                self._declare(stream, source)
            except HeadraceError:
                self._write_file(list(self._streams.values()))
                raise

    def _open_source(self, stream: Any) -> Source:
        source: Source = stream.open_within(self._roots) if isinstance(stream, FileStream) else stream.open()
        return source

    def _write_file(self, streams: Sequence[Any]) -> None:
        put_document(self._store, STREAMS_FILE, [stream.model_dump(mode="json") for stream in streams])

    def _declare(self, stream: Any, source: Source) -> None:
        self._session.create_stream(stream.name, source, time=stream.time, watermark=stream.watermark)
        self._streams[stream.name] = stream


def _read_declarations(store: Store, *, was_served: bool) -> list[Any]:
    """Return the declarations of the file; create it if the checkpoint was not served before."""
    if store.find_size(STREAMS_FILE) is None and not was_served:
        put_document(store, STREAMS_FILE, [])
    try:
        return [_DECLARATION_ADAPTER.validate_python(declaration) for declaration in get_document(store, STREAMS_FILE)]
    except (OSError, ValueError) as error:
        raise damaged_error(store, STREAMS_FILE, error) from error
