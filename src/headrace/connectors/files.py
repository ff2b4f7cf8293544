"""Files in a directory, or that match a pattern, as a stream: each new file is more rows.

Files must appear whole (write elsewhere, then rename into place) and never change. The order in which files were
discovered, with the rows of their units, is kept in `files.jsonl` in the stream's own directory: positions are indices
into that list, so they mean the same after a restart, whatever the directory looks like by then.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.connectors.durable import append_line, complete_lines, replace_file
from headrace.connectors.formats import FORMATS, format_of, glob_like, infer_schema, unit_rows
from headrace.connectors.source import Option, Position, Range, attached, pieces, take
from headrace.errors import SchemaError, SourceError
from headrace.model.schema import Schema


@dataclass(frozen=True, slots=True)
class _Found:
    """A discovered file; `skipped` tells why it is left out (then it has no units)."""

    path: str
    reader: str
    size: int
    units: list[int]
    skipped: str = ""


class FileSource:
    """Reads `.parquet .arrow .arrows .feather .ipc .csv .json .jsonl .ndjson`, the text formats also with `.gz`.

    A directory stands for its files with known suffixes (of any suffix if `format` is given), not those below it; names
    that start with '.' or '_' or end in '.tmp' are ignored. JSON is one object a line; `header`,
    `delimiter` and `timestamp_format` (strptime; default ISO-8601) matter for text only. Files that cannot be opened
    stop the stream (`on_error='fail'`) or are listed in `skipped` and left out for good (`'skip'`).
    """

    def __init__(
        self,
        path: str | Path,
        format: str | None = None,  # noqa: A002 - the word everyone expects
        schema: Schema | str | None = None,
        *,
        on_error: str = "fail",
        header: bool = True,
        delimiter: str = ",",
        timestamp_format: str = "",
    ) -> None:
        """Check the arguments; files are looked at when the schema is asked for, or on `attach`."""
        _one_of("format", format, (None, *FORMATS))
        _one_of("on_error", on_error, ("fail", "skip"))
        if len(delimiter) != 1:
            raise SchemaError(f"delimiter '{delimiter}' is not one character")
        self._path, self._format = os.path.abspath(Path(path).expanduser()), format  # noqa: PTH100 - patterns are no paths
        self._declared = Schema.parse(schema) if isinstance(schema, str) else schema
        self._schema = self._declared
        self._options: dict[str, Option] = {
            "on_error": on_error,
            "header": header,
            "delimiter": delimiter,
            "timestamp_format": timestamp_format,
        }
        self._stream, self._directory = "", None  # type: tuple[str, Path | None]
        self._found: list[_Found] = []
        self._known: set[str] = set()

    @property
    def schema(self) -> Schema:
        """The declared columns, or those of the first file there is. Raises SourceError while there is none."""
        if self._schema is None:
            self._schema = self._inferred()
        return self._schema

    @property
    def skipped(self) -> dict[str, str]:
        """The files that were left out, each with the reason."""
        return {file.path: file.skipped for file in self._found if file.skipped}

    def attach(self, stream: str, directory: Path) -> None:
        """See `Source`; an inferred schema is kept, so that it stays when the first file goes."""
        self._stream, self._directory = stream, Path(directory)
        self._found = [_Found(**json.loads(line)) for line in complete_lines(self._log)]
        self._known = {file.path for file in self._found}
        kept = self._directory / "schema.json"
        if self._declared is None and kept.exists():
            self._schema = Schema.parse(json.loads(kept.read_text())["schema"])
        elif self._declared is None:
            replace_file(kept, json.dumps({"schema": self.schema.to_ddl()}).encode())
        if not glob_like(self._path) and not Path(self._path).exists():
            raise SourceError(f"path '{self._path}' of stream '{stream}' does not exist", hint="create the directory first")

    def plan(self, position: Position, limit_rows: int) -> tuple[list[Range], Position]:
        """See `Source`; the position is {"file": index in order of discovery, "unit": index in that file}."""
        self._discover()
        at, unit = _place(position)
        self._look_again(at + (unit > 0))
        if at >= len(self._found):
            return [], position
        ranges: list[Range] = []
        rows = 0
        while at < len(self._found):
            file = self._found[at]
            if rows and unit < len(file.units) and rows + file.units[unit] > limit_rows:
                break
            stop = take(file.units, unit, limit_rows - rows)
            rows += sum(file.units[unit:stop])
            ranges += [self._range(file, *piece) for piece in pieces(file.units, unit, stop)]
            if stop < len(file.units):
                return ranges, {"file": at, "unit": stop}
            at, unit = at + 1, 0
        return ranges, {"file": at, "unit": 0}

    def pending(self, position: Position) -> bool:
        """See `Source`."""
        at, unit = _place(position)
        rest = self._found[at:]
        return any(any(f.units[unit if f is rest[0] else 0 :]) for f in rest) or any(p not in self._known for p in self._listed())

    def definition(self) -> dict[str, Any]:
        """See `Source`; an inferred schema is not part of it, nor what to do about files that cannot be read."""
        declared = None if self._declared is None else self._declared.to_ddl()
        lasting = {name: value for name, value in self._options.items() if name != "on_error"}
        return {"kind": "files", "path": self._path, "format": self._format, "schema": declared, **lasting}

    @property
    def _log(self) -> Path:
        return attached(self._stream, self._directory) / "files.jsonl"

    def _range(self, file: _Found, start: int, stop: int, rows: int) -> Range:
        return Range(self._stream, file.reader, file.path, start, stop, rows, {**self._options, "size": file.size})

    def _listed(self) -> Iterator[str]:
        """Yield the paths that count, in no order."""
        if glob_like(self._path):
            names = [path for path in glob.glob(self._path, recursive=True) if Path(path).is_file()]  # noqa: PTH207
        elif Path(self._path).is_dir():
            with os.scandir(self._path) as entries:
                names = [entry.path for entry in entries if (self._format or format_of(entry.name)) and entry.is_file()]
        else:
            names = [self._path] if Path(self._path).exists() else []
        for path in names:
            name = os.path.basename(path)  # noqa: PTH119 - once for each name of each listing
            if not name.startswith((".", "_")) and not name.endswith(".tmp"):
                yield path

    def _new(self) -> list[str]:
        """Return the files not discovered yet: older first, then by name."""
        fresh = []
        for path in self._listed():
            if path not in self._known:
                try:
                    fresh.append((os.stat(path).st_mtime_ns, path))  # noqa: PTH116
                except FileNotFoundError:
                    continue  # gone between listing and looking: it was never there
        return [path for _, path in sorted(fresh)]

    def _discover(self) -> None:
        for path in self._new():
            file = self._examined(path)
            append_line(self._log, json.dumps(asdict(file)).encode())
            self._found.append(file)
            self._known.add(path)

    def _look_again(self, first: int) -> None:
        """Take files that no batch has read yet as they are now: repaired, or gone, after a batch that failed over them."""
        changed = False
        for index in range(first, len(self._found)):
            file = self._found[index]
            if file.skipped:
                continue
            try:
                now = file if os.stat(file.path).st_size == file.size else self._examined(file.path)  # noqa: PTH116
            except FileNotFoundError:
                now = _Found(file.path, file.reader, 0, [], "it vanished before it was read")
            changed = changed or now is not file
            self._found[index] = now
        if changed:
            replace_file(self._log, b"".join(json.dumps(asdict(file)).encode() + b"\n" for file in self._found))

    def _examined(self, path: str) -> _Found:
        reader = self._reader(path)
        try:
            return _Found(path, reader, os.stat(path).st_size, unit_rows(path, reader))  # noqa: PTH116
        except (pa.ArrowException, OSError) as error:
            if self._options["on_error"] == "skip":
                return _Found(path, reader, 0, [], str(error) or type(error).__name__)
            raise self._refused(path, error) from error

    def _refused(self, path: str, error: Exception) -> SourceError:
        owner = f" of stream '{self._stream}'" if self._stream else ""
        return SourceError(
            f"file '{path}'{owner} cannot be opened",
            detail=str(error),
            hint="repair or remove it, or create the source with on_error='skip' to leave such files out",
        )

    def _reader(self, path: str) -> str:
        reader = self._format or format_of(path)
        if reader is None:
            raise SourceError(f"the format of file '{path}' is not known", hint=f"give format=…, one of {', '.join(FORMATS)}")
        return reader

    def _inferred(self) -> Schema:
        for path in self._new():
            reader = self._reader(path)
            try:
                if os.stat(path).st_size:  # noqa: PTH116
                    return infer_schema(path, reader, self._options)
            except (pa.ArrowException, OSError) as error:
                if self._options["on_error"] == "fail":
                    raise self._refused(path, error) from error
        raise SourceError(f"no file to take the columns from at '{self._path}'", hint="give the source a schema=…")


def _place(position: Position) -> tuple[int, int]:
    return (0, 0) if position is None else (int(position["file"]), int(position["unit"]))


def _one_of(what: str, value: str | None, allowed: tuple[str | None, ...]) -> None:
    if value not in allowed:
        raise SchemaError(f"unknown {what} '{value}'", detail=f"one of: {', '.join(str(a) for a in allowed if a)}")
