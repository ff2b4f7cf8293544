"""Streams declared over HTTP, persisted in the checkpoint so that a restart declares them again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from headrace.connectors import MemorySource, RateSource, Source, TcpSource
from headrace.errors import HeadraceError, NameTakenError, SourceError
from headrace.runtime.source_health import MAX_DELAY_SECONDS
from headrace.service.allowed_roots import AllowedRoots, ConfinedFileSource
from headrace.service.problems import RequestBody
from headrace.session import Session
from headrace.storage.documents import damaged_error, get_document, put_document
from headrace.storage.store import Store

STREAMS_FILE = "service-streams.json"
_LOG = logging.getLogger(__name__)
_FIRST_DELAY_SECONDS = 0.5  # before a detached stream is declared again

StreamName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class _BaseDeclaration(RequestBody):
    name: StreamName
    time: str = Field(min_length=1, description="The event-time column.")
    watermark: str = Field(default="0 seconds", description="Delay of the watermark: how far rows may be out of order.")
    max_ahead: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Rows further in the future than this, such as '1 hour', are dropped and counted. Without it, one day for "
        "source tcp, and no limit for others.",
    )


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
    on_error: Literal["fail", "skip_row", "skip_file", "skip"] = "fail"

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


@dataclass(frozen=True, slots=True)
class _DetachedStream:
    """A stream that has no source after a restart: why, and the function that declares it again."""

    error: SourceError
    declare: Callable[[], None]


class DeclaredStreams:
    """The streams declared by requests; a file in the checkpoint holds them.

    A stream whose source is gone after a restart does not keep the service from starting: it is detached, and a thread declares
    it again when its source is back, unless it is dropped before.
    """

    def __init__(self, session: Session, store: Store, roots: AllowedRoots, *, was_served: bool) -> None:
        """Declare the streams of the file; streams over files must be below `roots`.

        Raises CheckpointError if the file is damaged, if a stream differs, or if the file is missing from a checkpoint that a
        service has used before.
        """
        self._session, self._store, self._roots, self._lock = session, store, roots, threading.Lock()
        self._streams: dict[str, Any] = {}
        self._detached: dict[str, _DetachedStream] = {}
        self._reattaching: threading.Thread | None = None
        self._stopping = threading.Event()
        for stream in _read_declarations(store, was_served=was_served):
            self._streams[stream.name] = stream
            self._redeclare(stream)

    def add(self, stream: Any) -> None:
        """Declare a stream. The file is written before a micro-batch can use the stream, so that a restart finds its source."""
        source = self._open_source(stream)
        _ = source.schema  # connects to a server, which may take long, before the lock is taken
        with self._lock:
            if stream.name in self._detached:
                message = f"stream '{stream.name}' already exists"
                raise NameTakenError(message, detail="its source cannot be read", hint="drop it first")
            if stream.name not in self._streams:  # otherwise `create_stream` rejects it
                self._write_file([*self._streams.values(), stream])
            try:
                self._declare(stream, source)
            except HeadraceError:
                self._write_file(list(self._streams.values()))
                raise
            self._streams[stream.name] = stream

    def drop(self, name: str, *, cascade: bool) -> None:
        """Drop a stream, declared by a request or not; a restart does not declare it again. Errors are those of the session."""
        with self._lock:
            if name in self._session.streams() or name not in self._detached:
                self._session.drop_stream(name, cascade=cascade)
            self._detached.pop(name, None)
            if self._streams.pop(name, None) is not None:
                self._write_file(list(self._streams.values()))

    def get_error(self, name: str) -> str | None:
        """Return why a stream has no source after a restart; None for any other stream."""
        detached = self._detached.get(name)
        return None if detached is None else str(detached.error)

    def stop(self) -> None:
        """Declare no more streams; the end of the service."""
        self._stopping.set()

    def reattach_later(self, name: str, error: SourceError, declare: Callable[[], None]) -> None:
        """Call `declare` with a growing delay until it succeeds: the stream has no source because of `error`."""
        _LOG.warning("stream '%s' has no source: %s", name, error)
        with self._lock:
            self._detached[name] = _DetachedStream(error, declare)
            if self._reattaching is None:
                self._reattaching = threading.Thread(target=self._reattach, name="headrace-reattach", daemon=True)
                self._reattaching.start()

    def _redeclare(self, stream: Any) -> None:
        """Declare a stream of the file again; without its source it is detached."""
        try:
            self._declare(stream, self._open_source(stream))
        except SourceError as error:
            self.reattach_later(stream.name, error, lambda: self._declare(stream, self._open_source(stream)))
        except HeadraceError as error:
            message = f"cannot open stream '{stream.name}', which was declared by a request: {error.message}"
            hint = error.hint or f"its declaration is in '{self._store.name_of(STREAMS_FILE)}'"
            raise type(error)(message, detail=error.detail, hint=hint) from error

    def _reattach(self) -> None:
        """Declare detached streams again, with a growing delay between the attempts."""
        delay = _FIRST_DELAY_SECONDS
        while not self._session.is_closed and not self._stopping.wait(delay):
            delay = min(2 * delay, MAX_DELAY_SECONDS)
            for name, detached in list(self._detached.items()):
                self._try_reattach(name, detached)
            with self._lock:
                if not self._detached:
                    self._reattaching = None
                    return

    def _try_reattach(self, name: str, detached: _DetachedStream) -> None:
        try:
            detached.declare()
        except HeadraceError as error:
            _LOG.debug("stream '%s' has still no source: %s", name, error)
            return
        with self._lock:
            if self._detached.pop(name, None) is None and name in self._session.streams():  # dropped meanwhile
                self._session.drop_stream(name, cascade=True)

    def _open_source(self, stream: Any) -> Source:
        source: Source = stream.open_within(self._roots) if isinstance(stream, FileStream) else stream.open()
        return source

    def _write_file(self, streams: Sequence[Any]) -> None:
        put_document(self._store, STREAMS_FILE, [stream.model_dump(mode="json") for stream in streams])

    def _declare(self, stream: Any, source: Source) -> None:
        self._session.create_stream(stream.name, source, time=stream.time, watermark=stream.watermark, max_ahead=stream.max_ahead)


def _read_declarations(store: Store, *, was_served: bool) -> list[Any]:
    """Return the declarations of the file; create it if the checkpoint was not served before."""
    if store.find_size(STREAMS_FILE) is None and not was_served:
        put_document(store, STREAMS_FILE, [])
    try:
        return [_DECLARATION_ADAPTER.validate_python(declaration) for declaration in get_document(store, STREAMS_FILE)]
    except (OSError, ValueError) as error:
        raise damaged_error(store, STREAMS_FILE, error) from error
