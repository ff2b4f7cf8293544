"""Streams declared over HTTP, persisted in the checkpoint so that a restart declares them again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from headrace.connectors import MemorySource, RateSource, Source, TcpSource
from headrace.connectors.source_options import open_source, parse_connector
from headrace.errors import HeadraceError, NameTakenError, SchemaError, SourceError
from headrace.runtime.source_health import MAX_DELAY_SECONDS
from headrace.service.allowed_destinations import AllowedDestinations
from headrace.service.allowed_roots import ConfinedFileSource
from headrace.service.problems import RequestBody
from headrace.session import Session
from headrace.sql.ddl import CreateStream, DropStreamStatement
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
        "sources tcp and kafka, and no limit for others.",
    )
    watermark_by: Literal["stream", "partition"] | None = Field(
        default=None,
        description="Whether the watermark follows the newest row, or the partition that is furthest behind, as it does for "
        "source kafka by default.",
    )
    idle: str = Field(
        default="10 seconds",
        min_length=1,
        max_length=200,
        description="A partition without rows for this long, while others have some, does not hold back the watermark.",
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
    format: Literal["arrow", "parquet", "csv", "json", "avro", "protobuf"] | None = None
    format_options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    on_error: Literal["fail", "skip_row", "skip_file", "skip"] = "fail"

    def open_within(self, allowed: AllowedDestinations) -> Source:
        """Return the source; raises ForbiddenPathError if its path is not below an allowed root."""
        common = self.model_dump(include={"format", "format_options", "on_error"})
        return ConfinedFileSource(allowed.roots, self.path, schema=self.columns, **common)


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


class KafkaStream(_BaseDeclaration):
    """A stream of a topic of Kafka."""

    source: Literal["kafka"]
    topic: str = Field(min_length=1, max_length=249)
    brokers: str = Field(min_length=3, max_length=2_000, description="HOST:PORT of one broker or several, with commas.")
    columns: str = Field(min_length=1, max_length=20_000, description="Such as 'user_id INT, price DOUBLE, time TIMESTAMP'.")
    format: str = Field(default="json", max_length=50)
    format_options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    start: str | dict[int, int] = Field(default="earliest", description="earliest, latest, a time, or an offset by partition.")
    key: str = Field(default="_key", min_length=1, description="The column that has the key of messages, if it is declared.")
    headers: str = Field(default="_headers", min_length=1)
    timestamp: str = Field(default="_timestamp", min_length=1)
    partition: str = Field(default="_partition", min_length=1)
    offset: str = Field(default="_offset", min_length=1)
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict,
        description="Settings of librdkafka. Secrets are references: env:HEADRACE_SECRET_…, for allowed brokers.",
    )
    max_rows_per_batch: int | None = Field(default=None, ge=1)
    max_bytes_per_batch: int | None = Field(default=None, ge=1)
    stall_timeout: str = Field(default="10 seconds", min_length=1, max_length=200)
    on_error: Literal["fail", "skip_row"] = "fail"
    dead_letter: str | None = Field(
        default=None,
        max_length=2_000,
        description="With on_error=skip_row, where messages that do not fit are kept: kafka:TOPIC, if the brokers are allowed "
        "hosts, or jsonl:DIR below an allowed root.",
    )
    on_lost: Literal["fail", "skip"] = "fail"
    group: str | None = Field(default=None, min_length=1, description="Where read offsets are committed, for monitoring tools.")

    def open_within(self, allowed: AllowedDestinations) -> Source:
        """Return the source; raises ForbiddenPathError if an option names what requests may not read, or send elsewhere."""
        allowed.check_kafka_source(self.brokers, self.options, self.format_options)
        if self.dead_letter is not None:
            allowed.check_dead_letter(self.dead_letter, self.brokers)
        common = self.model_dump(include=_KAFKA_ARGUMENTS)
        return open_source("kafka", {"topic": self.topic, "schema": self.columns, **common})


_KAFKA_ARGUMENTS = {
    "brokers", "format", "format_options", "start", "key", "headers", "timestamp", "partition", "offset", "options",
    "max_rows_per_batch", "max_bytes_per_batch", "stall_timeout", "on_error", "dead_letter", "on_lost", "group",
}  # fmt: skip
StreamDeclaration = Annotated[MemoryStream | FileStream | RateStream | TcpStream | KafkaStream, Field(discriminator="source")]
_DECLARATION_ADAPTER: TypeAdapter[Any] = TypeAdapter(StreamDeclaration)


def parse_declaration(statement: CreateStream) -> Any:
    """Return the declaration of a CREATE STREAM statement; raises SchemaError if requests cannot declare it."""
    settings = parse_connector(statement.options, statement.columns)
    options = {"columns" if name == "schema" else name: value for name, value in settings.options.items()}
    times = {"time": statement.time, "watermark": statement.watermark, **settings.stream_options}
    try:
        return _DECLARATION_ADAPTER.validate_python({"source": settings.connector, "name": statement.name, **options, **times})
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, problem['loc'][1:]))}: {problem['msg']}" for problem in error.errors()[:10])
        message = f"stream '{statement.name}' cannot be declared by a request"
        raise SchemaError(message, detail=problems, hint="declare it in the session file") from error


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

    def __init__(self, session: Session, store: Store, allowed: AllowedDestinations, *, was_served: bool) -> None:
        """Declare the streams of the file; files and servers that requests have named must still be `allowed`.

        Raises CheckpointError if the file is damaged, if a stream differs, or if the file is missing from a checkpoint that a
        service has used before.
        """
        self._session, self._store, self._allowed, self._lock = session, store, allowed, threading.Lock()
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

    def run_statement(self, statement: CreateStream | DropStreamStatement) -> None:
        """Run a statement; errors are those of `add` and `drop`."""
        if isinstance(statement, CreateStream):
            self.add(parse_declaration(statement))
        else:
            self.drop(statement.name, cascade=statement.cascade)

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
        source: Source = stream.open_within(self._allowed) if isinstance(stream, FileStream | KafkaStream) else stream.open()
        return source

    def _write_file(self, streams: Sequence[Any]) -> None:
        put_document(self._store, STREAMS_FILE, [stream.model_dump(mode="json") for stream in streams])

    def _declare(self, stream: Any, source: Source) -> None:
        times = stream.model_dump(include={"time", "watermark", "max_ahead", "watermark_by", "idle"})
        self._session.create_stream(stream.name, source, **times)


def _read_declarations(store: Store, *, was_served: bool) -> list[Any]:
    """Return the declarations of the file; create it if the checkpoint was not served before."""
    if store.find_size(STREAMS_FILE) is None and not was_served:
        put_document(store, STREAMS_FILE, [])
    try:
        return [_DECLARATION_ADAPTER.validate_python(declaration) for declaration in get_document(store, STREAMS_FILE)]
    except (OSError, ValueError) as error:
        raise damaged_error(store, STREAMS_FILE, error) from error
