"""File source: the files of a directory, or those that match a pattern, as a stream; each new file adds rows.

Files must appear complete (write elsewhere, then rename into place) and never change. `files.jsonl` in the stream's own directory
lists the files in the order of their discovery, with the row counts of their units. Positions are indices into that list, so
they stay valid after a restart, whatever the directory contains by then; a position has a digest of the files before it.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.connectors import message_files
from headrace.connectors.file_access import FileStatus, get_status, is_glob, list_files, parse_file_path, path_exists
from headrace.connectors.formats import FORMATS, count_unit_rows, format_of, infer_schema
from headrace.connectors.skipped_rows import ERROR_POLICIES, normalize_policy, parse_dead_letter
from headrace.connectors.source import Option, Position, Range, require_attached, split_units, take_units
from headrace.errors import SchemaError, SourceError
from headrace.model.types import Schema
from headrace.storage.append_log import AppendLog, extend_digest
from headrace.storage.documents import damaged_error, get_document, put_document
from headrace.storage.locations import is_url
from headrace.storage.store import Store

_LISTING_SECONDS = 1.0
_LOG_FILE, _SCHEMA_FILE = "files.jsonl", "schema.json"


@dataclass(frozen=True, slots=True)
class _DiscoveredFile:
    """A discovered file; `skipped` is the reason why it is left out, and it then has no units."""

    path: str
    reader: str
    size: int
    units: list[int]
    skipped: str = ""
    version: str = ""  # that an object store gives it


class FileSource:
    """A source of files: `.parquet .arrow .arrows .feather .ipc .avro .csv .json .jsonl .ndjson`, text formats also with `.gz`.

    Files must appear complete, by a rename into place, and never change. JSON files have one object on each line, Avro files are
    object containers, and Protobuf files have the length of each message before it, as a varint.
    """

    def __init__(
        self,
        path: str | Path,
        format: str | None = None,  # noqa: A002 - the usual word
        schema: Schema | str | None = None,
        *,
        on_error: str = "fail",
        dead_letter: str | None = None,
        header: bool = True,
        delimiter: str = ",",
        timestamp_format: str = "",
        format_options: Mapping[str, Option] | None = None,
    ) -> None:
        """Create a file source; it reads no file before its schema is needed or it is attached.

        - `path`: a file, a directory, or a pattern with `*`, `?` or `[…]`. A directory stands for the files directly in it that
          have a known suffix, or any suffix if `format` is given. Names that start with '.' or '_' or end in '.tmp' are
          ignored.
        - `format`: "arrow", "parquet", "csv", "json", "avro" or "protobuf"; by default the suffix decides. Protobuf has none.
        - `schema`: the columns, such as "user_id INT, time TIMESTAMP"; by default those of the first file.
        - `on_error`: what to do with input that cannot be read. "fail" degrades the stream until the file is repaired or
          removed. "skip_row" leaves out lines of CSV and JSON files, records of Avro and messages of Protobuf files that do not
          fit the schema, and damaged blocks, and counts them; other failures are as with "fail". "skip_file" (or "skip") leaves
          the file out for good and lists it in `skipped`.
        - `dead_letter`: with "skip_row", where skipped lines are written: "jsonl:DIR", with file, line, reason and text of each.
        - `header`, `delimiter`, `timestamp_format` (strptime, default ISO-8601): options of text formats.
        - `format_options`: of JSON, Avro and Protobuf, as for messages: {"field.user_id": "payload.user.id"}. Protobuf files
          have the .proto text as "schema", and the name of their "message" if it is not the first.

        Raises SchemaError for an invalid argument.
        """
        _check_choice("format", format, (None, *FORMATS))
        _check_choice("on_error", on_error, ERROR_POLICIES)
        if len(delimiter) != 1:
            raise SchemaError(f"delimiter '{delimiter}' is not one character")
        self._path, self._format = parse_file_path(path, SchemaError, "path"), format
        self._declared_schema = Schema.parse(schema) if isinstance(schema, str) else schema
        self._schema = self._declared_schema
        self._options: dict[str, Option] = {
            "on_error": normalize_policy(on_error),
            "dead_letter": parse_dead_letter(dead_letter, on_error),
            "header": header,
            "delimiter": delimiter,
            "timestamp_format": timestamp_format,
        }
        self._format_options = dict(format_options or {})
        self._check_option_names()
        if self._format_options:
            self._options["format_options"] = json.dumps(self._format_options, sort_keys=True)
        if self._declared_schema is not None:
            self._check_format_options(self._declared_schema)
        elif format == "protobuf":
            raise SchemaError("files of format 'protobuf' do not name their columns", hint="give the source a schema=…")
        self._stream, self._store = "", None  # type: tuple[str, Store | None]
        self._listing, self._listed_at = [], -math.inf  # type: tuple[list[FileStatus], float]
        self._clock = time.monotonic
        self._log: AppendLog  # once attached
        self._is_log_outdated = False  # whether the last attempt to replace it failed
        self._files: list[_DiscoveredFile] = []
        self._known_paths: set[str] = set()
        self._digests = [""]  # of the first 0, 1, … files

    def _check_option_names(self) -> None:
        """Raise SchemaError for an option of the format that it does not have."""
        name = self._format or format_of(self._path)
        if self._format_options and name not in message_files.MESSAGE_FILES:
            problem = "format_options need a format" if name is None else f"files of format '{name}' have no format_options"
            raise SchemaError(problem, detail=f"formats with options: {', '.join(message_files.MESSAGE_FILES)}")
        for option in self._format_options:
            known = message_files.MESSAGE_FILES[str(name)]
            if option not in known and not option.startswith("field."):
                raise SchemaError(f"unknown option '{option}' of {name} files", detail=f"options: {', '.join(known)}")

    def _check_format_options(self, schema: Schema) -> None:
        """Raise SchemaError if options of the format do not fit the columns."""
        name = self._format or format_of(self._path)
        if self._format_options or name == "protobuf":
            message_files.make_format(str(name), schema, json.dumps(self._format_options, sort_keys=True))

    @property
    def schema(self) -> Schema:
        """The declared columns, or those of the first file; raises SourceError if there is no file yet."""
        if self._schema is None:
            inferred = self._infer_schema()
            self._check_format_options(inferred)
            self._schema = inferred
        return self._schema

    @property
    def path(self) -> str:
        """The absolute path, or the URL, of the file, folder or pattern."""
        return self._path

    @property
    def dead_letter(self) -> str:
        """The folder or URL of dead letters; empty without one."""
        return str(self._options["dead_letter"])

    @property
    def skipped(self) -> dict[str, str]:
        """The files that were left out, each with the reason, by path."""
        return {file.path: file.skipped for file in self._files if file.skipped}

    def attach(self, stream: str, store: Store) -> None:
        """See `Source`; stores an inferred schema, so that it does not depend on the first file any more."""
        self._stream, self._store = stream, store
        self._log = AppendLog(store, _LOG_FILE)
        self._files = [_DiscoveredFile(**value) for value in self._log.read()]
        self._known_paths = {file.path for file in self._files}
        if self._declared_schema is None and store.find_size(_SCHEMA_FILE) is not None:
            self._schema = Schema.parse(get_document(store, _SCHEMA_FILE)["schema"])
        elif self._declared_schema is None:
            put_document(store, _SCHEMA_FILE, {"schema": self.schema.to_ddl()})
        if not is_glob(self._path) and not path_exists(self._path):
            raise SourceError(f"path '{self._path}' of stream '{stream}' does not exist", hint="create the directory first")

    def plan(self, position: Position, limit_rows: int) -> tuple[list[Range], Position]:
        """See `Source`.

        The position is {"file": index in order of discovery, "unit": index in that file, "digest": of the files before it}.
        """
        require_attached(self._stream, self._store)
        index, unit = _parse_position(position)
        listed = list(self._list_data_files())
        self._recheck_unread_files(index + (unit > 0), {status.path: status for status in listed if status.is_complete})
        self._discover_files(listed)
        if index >= len(self._files):
            return [], position
        ranges: list[Range] = []
        rows = 0
        while index < len(self._files):
            file = self._files[index]
            if rows and unit < len(file.units) and rows + file.units[unit] > limit_rows:
                break
            stop = take_units(file.units, unit, limit_rows - rows)
            rows += sum(file.units[unit:stop])
            ranges += [self._make_range(file, *piece) for piece in split_units(file.units, unit, stop)]
            if stop < len(file.units):
                return ranges, self._make_position(index, stop)
            index, unit = index + 1, 0
        return ranges, self._make_position(index, 0)

    def pending(self, position: Position) -> bool:
        """See `Source`."""
        if any(status.path not in self._known_paths for status in self._list_data_files(allow_cached=True)):
            return True
        index, unit = _parse_position(position)
        rest = self._files[index:]  # after the paths: a file that `plan` discovers meanwhile is in one of both
        return any(any(f.units[unit if f is rest[0] else 0 :]) for f in rest)

    def definition(self) -> dict[str, Any]:
        """See `Source`; an inferred schema and what happens on errors are not part of the definition."""
        declared = None if self._declared_schema is None else self._declared_schema.to_ddl()
        lasting = {name: value for name, value in self._options.items() if name not in {"on_error", "dead_letter"}}
        return {"kind": "files", "path": self._path, "format": self._format, "schema": declared, **lasting}

    def _make_position(self, index: int, unit: int) -> Position:
        return {"file": index, "unit": unit, "digest": self._get_digest(index + (unit > 0))}

    def _get_digest(self, count: int) -> str:
        """Return the digest of the first files; files before a position do not change any more."""
        while len(self._digests) <= min(count, len(self._files)):
            self._digests.append(extend_digest(self._digests[-1], asdict(self._files[len(self._digests) - 1])))
        return self._digests[count] if count < len(self._digests) else ""

    def verify(self, position: Position) -> None:
        """See `Source`."""
        index, unit = _parse_position(position)
        count = index + (unit > 0)
        if position is not None and position["digest"] != self._get_digest(count):
            reason = f"the first {count} files of stream '{self._stream}' are not those that were read"
            raise damaged_error(require_attached(self._stream, self._store), _LOG_FILE, ValueError(reason))

    def _make_range(self, file: _DiscoveredFile, start: int, stop: int, rows: int) -> Range:
        options = {**self._options, "size": file.size, "version": file.version}
        return Range(self._stream, file.reader, file.path, start, stop, rows, options)

    def _list_data_files(self, *, allow_cached: bool = False) -> Iterator[FileStatus]:
        """Yield all files of the source, in no particular order.

        With `allow_cached`, a listing of an object store may be a second old: each one is a request.
        """
        for status in self._list_files(allow_cached=allow_cached):
            name = os.path.basename(status.path)  # noqa: PTH119 - once for each name of each listing
            is_data = bool(self._format or is_glob(self._path) or status.path == self._path or format_of(name))
            if is_data and not name.startswith((".", "_")) and not name.endswith(".tmp"):
                yield status

    def _list_files(self, *, allow_cached: bool) -> Iterable[FileStatus]:
        if not is_url(self._path):
            return list_files(self._path)
        now = self._clock()
        if not allow_cached or now - self._listed_at > _LISTING_SECONDS:
            self._listing, self._listed_at = list(list_files(self._path)), now
        return self._listing

    def _select_new_files(self, listed: Iterable[FileStatus]) -> list[FileStatus]:
        """Return the undiscovered files, by modification time and name."""
        new = []
        for status in listed:
            if status.path not in self._known_paths:
                try:
                    new.append(status if status.is_complete else get_status(status.path))
                except FileNotFoundError:
                    continue  # removed between listing and stat
        return sorted(new, key=lambda status: (status.changed, status.path))

    def _discover_files(self, listed: Iterable[FileStatus]) -> None:
        discovered = [self._examine_file(status) for status in self._select_new_files(listed)]
        if discovered:
            self._log.append(*map(asdict, discovered))
            self._files += discovered
            self._known_paths.update(file.path for file in discovered)

    def _recheck_unread_files(self, first: int, listed: Mapping[str, FileStatus]) -> None:
        """Examine unread files again, in case they were repaired or removed after a batch failed on them.

        `listed` saves a request for each of them: the listing of an object store has their status.
        """
        current = [file if file.skipped else self._recheck_file(file, listed) for file in self._files[first:]]
        if current != self._files[first:] or self._is_log_outdated:
            self._is_log_outdated = True
            self._log.replace(asdict(file) for file in (*self._files[:first], *current))
            self._is_log_outdated = False
            self._files[first:] = current
            del self._digests[first + 1 :]

    def _recheck_file(self, file: _DiscoveredFile, listed: Mapping[str, FileStatus]) -> _DiscoveredFile:
        try:
            status = listed.get(file.path) or get_status(file.path)
            return file if (status.size, status.version) == (file.size, file.version) else self._examine_file(status)
        except FileNotFoundError:
            return _DiscoveredFile(file.path, file.reader, 0, [], "it was removed before it was read")

    def _examine_file(self, status: FileStatus) -> _DiscoveredFile:
        path, reader = status.path, self._reader_of(status.path)
        try:
            units = count_unit_rows(status, reader, allows_damage=self._options["on_error"] == "skip_row")
            return _DiscoveredFile(path, reader, status.size, units, version=status.version)
        except (pa.ArrowException, OSError) as error:
            if self._options["on_error"] == "skip_file":
                return _DiscoveredFile(path, reader, 0, [], str(error) or type(error).__name__)
            raise self._unreadable_error(path, error) from error

    def _unreadable_error(self, path: str, error: Exception) -> SourceError:
        owner = f" of stream '{self._stream}'" if self._stream else ""
        return SourceError(
            f"file '{path}'{owner} cannot be opened",
            detail=str(error),
            hint="repair or remove it, or leave it out: create the source with on_error='skip_file'",
        )

    def _reader_of(self, path: str) -> str:
        reader = self._format or format_of(path)
        if reader is None:
            raise SourceError(f"the format of file '{path}' is unknown", hint=f"give format=…, one of {', '.join(FORMATS)}")
        return reader

    def _infer_schema(self) -> Schema:
        for status in self._select_new_files(self._list_data_files()):
            path, reader = status.path, self._reader_of(status.path)
            try:
                if status.size:
                    return infer_schema(path, reader, self._options)
            except (pa.ArrowException, OSError) as error:
                if self._options["on_error"] != "skip_file":
                    raise self._unreadable_error(path, error) from error
        raise SourceError(f"no file to take the columns from at '{self._path}'", hint="give the source a schema=…")


def _parse_position(position: Position) -> tuple[int, int]:
    return (0, 0) if position is None else (int(position["file"]), int(position["unit"]))


def _check_choice(what: str, value: str | None, allowed: tuple[str | None, ...]) -> None:
    if value not in allowed:
        raise SchemaError(f"unknown {what} '{value}'", detail=f"one of: {', '.join(str(a) for a in allowed if a)}")
