"""Streams that were declared by a request: written down in the checkpoint, so that a restart declares them again."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from headrace.connectors import FileSource, MemorySource, RateSource, Source, TcpSource
from headrace.connectors.durable import replace_file
from headrace.errors import CheckpointError, HeadraceError
from headrace.service.asked import Asked
from headrace.session import Session

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class _Declared(Asked):
    name: Name
    time: str = Field(min_length=1, description="The event-time column.")
    watermark: str = Field(default="0 seconds", description="How far disorder may reach.")


class MemoryStream(_Declared):
    """Rows are sent by requests."""

    source: Literal["memory"] = "memory"
    columns: str = Field(min_length=1, max_length=20_000, description="Such as 'user_id INT, price DOUBLE, time TIMESTAMP'.")

    def open(self) -> Source:
        """Make the source."""
        return MemorySource(self.columns)


class FileStream(_Declared):
    """Files that the service can read."""

    source: Literal["files"]
    path: str = Field(min_length=1, description="A file, a directory or a pattern, where the service runs.")
    columns: str | None = Field(default=None, max_length=20_000, description="Needed unless the files tell.")
    format: Literal["arrow", "parquet", "csv", "json"] | None = None
    on_error: Literal["fail", "skip"] = "fail"

    def open(self) -> Source:
        """Make the source."""
        return FileSource(self.path, schema=self.columns, format=self.format, on_error=self.on_error)


class RateStream(_Declared):
    """Rows that are made up."""

    source: Literal["rate"]
    rows_per_second: float = Field(gt=0, le=1e8)
    generator: Literal["purchases", "ads", "fields"] = "purchases"
    seed: int = Field(default=0, ge=0)
    rows: int | None = Field(default=None, ge=1)
    start_time: datetime = Field(default_factory=lambda: datetime.now(UTC), description="The first event time; now by default.")

    def open(self) -> Source:
        """Make the source."""
        options: dict[str, Any] = {"seed": self.seed, "rows": self.rows, "start_time": self.start_time}
        return RateSource(self.rows_per_second, self.generator, **options)


class TcpStream(_Declared):
    """Rows of a server that speaks headrace's protocol."""

    source: Literal["tcp"]
    address: str = Field(min_length=3, description="HOST:PORT")
    stream: str = Field(min_length=1, description="Its name there.")
    group: str = Field(default="headrace", min_length=1)

    def open(self) -> Source:
        """Make the source."""
        return TcpSource(self.address, self.stream, group=self.group)


NewStream = Annotated[MemoryStream | FileStream | RateStream | TcpStream, Field(discriminator="source")]
_STREAM: TypeAdapter[Any] = TypeAdapter(NewStream)


class Declarations:
    """The streams of requests, in a file of the checkpoint."""

    def __init__(self, session: Session, path: Path) -> None:
        """Declare what is in the file."""
        self._session, self._path, self._adding = session, path, threading.Lock()
        self._streams: dict[str, Any] = {}
        try:
            found = json.loads(path.read_bytes()) if path.exists() else []
            streams = [_STREAM.validate_python(one) for one in found]
        except ValueError as error:
            raise CheckpointError(f"'{path}' is damaged", detail=str(error)) from error
        for stream in streams:
            try:
                self._declare(stream, stream.open())
            except HeadraceError as error:
                told = f"stream '{stream.name}', which was declared by request, cannot be opened: {error.message}"
                hint = error.hint or f"make its source available again; it is described in '{path}'"
                raise type(error)(told, detail=error.detail, hint=hint) from error

    def add(self, stream: Any) -> None:
        """Declare a stream; it is written down before a micro-batch can know of it, so that a restart finds its source."""
        source = stream.open()
        with self._adding:
            if stream.name not in self._streams:  # else it will be refused
                self._write([*self._streams.values(), stream])
            try:
                self._declare(stream, source)
            except HeadraceError:
                self._write(list(self._streams.values()))
                raise

    def _write(self, streams: Sequence[Any]) -> None:
        content = [one.model_dump(mode="json") for one in streams]
        replace_file(self._path, json.dumps(content, indent=1).encode())

    def _declare(self, stream: Any, source: Source) -> None:
        self._session.create_stream(stream.name, source, time=stream.time, watermark=stream.watermark)
        self._streams[stream.name] = stream
