"""Where results go: values that say where, and functions that put them there.

Two families. Sinks *written by workers* get each partition's rows before the batch is committed, as one file named
after batch and partition: a replayed batch overwrites its own files, so nothing ever doubles. Sinks *delivered by the
driver* get all rows of a batch after its commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa
import pyarrow.parquet

from headrace.connectors.durable import write_whole
from headrace.connectors.text import aligned, json_line_writer
from headrace.errors import SinkError


@dataclass(frozen=True, slots=True)
class Sink:
    """Does nothing; each kind overrides the calls that mean something to it."""

    kind: ClassVar[str]
    written_by_workers: ClassVar[bool] = False

    def write(self, table: pa.Table, batch: int, partition: int, part: int = 0) -> str | None:
        """Write one partition of one batch, or a part of it, in a worker; return the file, if any. Raises SinkError."""
        del table, batch, partition, part
        return None

    def discard(self, batch: int) -> None:
        """Remove what `write` left for one batch: the query failed in it."""

    def deliver(self, query: str, table: pa.Table) -> None:
        """Hand over the rows of one committed batch, in the driver; whatever this raises is the caller's to handle."""

    def to_json(self) -> dict[str, Any]:
        """Return a value that `sink_from_json` reads back."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True, slots=True)
class MemorySink(Sink):
    """Results stay with the session, for `results()` and `stream()`; it keeps them itself."""

    kind: ClassVar[str] = "memory"


@dataclass(frozen=True, slots=True)
class NoopSink(Sink):
    """Results are computed and dropped, in the workers."""

    kind: ClassVar[str] = "noop"
    written_by_workers: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class ConsoleSink(Sink):
    """Results are printed to standard output, at most `max_rows` a batch."""

    kind: ClassVar[str] = "console"
    max_rows: int = 20

    def deliver(self, query: str, table: pa.Table) -> None:
        """Print an aligned table under the name of the query; nothing for no rows."""
        if table.num_rows:
            print(f"{query}: {table.num_rows} row{'s' * (table.num_rows != 1)}")
            print(aligned(table, self.max_rows), flush=True)


@dataclass(frozen=True, slots=True)
class CallbackSink(Sink):
    """Results are passed to a function as a table, in the driver."""

    kind: ClassVar[str] = "callback"
    function: Callable[[pa.Table], object]

    def deliver(self, query: str, table: pa.Table) -> None:
        """Call the function, with rows only."""
        del query
        if table.num_rows:
            self.function(table)

    def to_json(self) -> dict[str, Any]:
        """Refuse: a function does not outlive its process."""
        raise SinkError("a callback sink cannot be saved", hint="give the function again after a restart")


@dataclass(frozen=True, slots=True)
class FileSink(Sink):
    """One file for each batch and partition, in a directory that no other query writes to."""

    written_by_workers: ClassVar[bool] = True
    suffix: ClassVar[str]
    path: str

    def __post_init__(self) -> None:
        """Make the path absolute: workers need not run where the driver does."""
        object.__setattr__(self, "path", str(Path(self.path).expanduser().absolute()))

    def write(self, table: pa.Table, batch: int, partition: int, part: int = 0) -> str | None:
        """See `Sink`; the file is complete before it gets its name. No rows, no file – also not one of an earlier try."""
        target = Path(self.path) / f"part-{batch:010d}-{partition:05d}{f'-{part:05d}' if part else ''}{self.suffix}"
        try:
            if table.num_rows == 0:
                target.unlink(missing_ok=True)
                return None
            target.parent.mkdir(parents=True, exist_ok=True)
            write_whole(target, lambda hidden: self._fill(hidden, table))
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            raise SinkError(f"sink file '{target}' cannot be written", detail=str(error) or type(error).__name__) from error
        return str(target)

    def discard(self, batch: int) -> None:
        """See `Sink`; unfinished files of the batch go too."""
        try:
            for pattern in (f"part-{batch:010d}-*{self.suffix}", f".part-{batch:010d}-*{self.suffix}.*.tmp"):
                for path in Path(self.path).glob(pattern):
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise SinkError(f"files of batch {batch} in '{self.path}' cannot be removed", detail=str(error)) from error

    def _fill(self, path: Path, table: pa.Table) -> None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ParquetSink(FileSink):
    """A directory of Parquet files."""

    kind: ClassVar[str] = "parquet"
    suffix: ClassVar[str] = ".parquet"

    def _fill(self, path: Path, table: pa.Table) -> None:
        pa.parquet.write_table(table, path)


@dataclass(frozen=True, slots=True)
class JsonLinesSink(FileSink):
    """A directory of files with one JSON object a line.

    Times are ISO-8601 with Z, dates ISO-8601, decimals and numbers JSON has no spelling for (NaN, ±Infinity) are text.
    """

    kind: ClassVar[str] = "jsonl"
    suffix: ClassVar[str] = ".jsonl"

    def _fill(self, path: Path, table: pa.Table) -> None:
        with path.open("w", encoding="utf-8", newline="\n") as file:
            json_line_writer(file, table)


SinkSpec: TypeAlias = str | Mapping[str, Any] | Sink | Callable[[pa.Table], object] | None

_PLAIN: Mapping[str, Callable[[], Sink]] = {"memory": MemorySink, "noop": NoopSink, "console": ConsoleSink}
_FILES: Mapping[str, Callable[[str], Sink]] = {"parquet": ParquetSink, "jsonl": JsonLinesSink}


def sink_from_json(value: Mapping[str, Any]) -> Sink:
    """Rebuild what `Sink.to_json` described."""
    kinds: Mapping[str, Callable[..., Sink]] = {**_PLAIN, **_FILES}
    if value.get("kind") not in kinds:
        raise _unknown(value)
    return kinds[value["kind"]](**{name: part for name, part in value.items() if name != "kind"})


def parse_sink(spec: SinkSpec) -> Sink:
    """Return the sink that a user means.

    None or 'memory', 'noop', 'console'; {'parquet': DIR}, 'parquet:DIR' or a name ending in '.parquet'; the same with
    jsonl; a function of a table; or a sink. Raises SinkError for anything else.
    """
    if spec is None:
        return MemorySink()
    if isinstance(spec, Sink):
        return spec
    if isinstance(spec, str):
        return _from_text(spec)
    if isinstance(spec, Mapping):
        return _from_mapping(spec)
    if callable(spec):
        return CallbackSink(spec)
    raise _unknown(spec)


def _from_text(spec: str) -> Sink:
    if spec in _PLAIN:
        return _PLAIN[spec]()
    for kind, make in _FILES.items():
        path = spec.removeprefix(f"{kind}:")
        if path and (path != spec or spec.endswith(f".{kind}")):
            return make(path)
    raise _unknown(spec)


def _from_mapping(spec: Mapping[str, Any]) -> Sink:
    if "kind" in spec:
        return sink_from_json(spec)
    if len(spec) == 1:
        kind, path = next(iter(spec.items()))
        if kind in _FILES and isinstance(path, str | Path) and str(path):
            return _FILES[kind](str(path))
    raise _unknown(spec)


def _unknown(spec: object) -> SinkError:
    return SinkError(
        f"sink {spec!r} is not understood",
        detail="known: memory, noop, console, parquet:DIR, jsonl:DIR, {'parquet': DIR}, {'jsonl': DIR}, a function",
    )
