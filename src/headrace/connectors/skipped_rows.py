"""Reading with an error policy: what `on_error` of a source says about files and rows that cannot be read.

    fail        raise SourceError: the stream is degraded until the file is repaired or removed
    skip_row    leave out the lines of CSV and JSON files, the records of Avro and the messages of Protobuf files that do not fit
                the declared columns, and damaged blocks; any other failure is as with fail
    skip_file   leave out the file

A format of messages decides about each of them. A CSV file is first parsed as a whole. Only if that fails, the lines at fault are
searched by halves, with the same parser, so that the rows beside them are those of a file without them. Which lines are at fault
depends on all declared columns, not on those that queries read: otherwise a query would get other rows because of another query.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.connectors import kafka
from headrace.connectors.formats import CONVERSION_ERRORS, read_content
from headrace.connectors.message_files import MESSAGE_FILES
from headrace.connectors.read import get_version, parse_csv, read_csv_header, read_messages, read_range
from headrace.connectors.source import Range
from headrace.errors import SchemaError, SourceError
from headrace.model.record import record
from headrace.model.types import Schema
from headrace.storage.locations import parse_location

ERROR_POLICIES = ("fail", "skip_row", "skip_file", "skip")  # skip is another name of skip_file
SAMPLE_TEXT_LENGTH = 200
_FEW_RECORDS = 16  # of which each is parsed alone if one of them is bad


@record("skipped-row")
@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A line of a file that is not a row of its stream: its number, counted from 1, the reason, and the text.

    In Avro and Protobuf files it is the number of the record or message; damage that has no text is behind that number.
    """

    file: str
    line: int
    reason: str
    text: str

    def cut_text(self) -> SkippedRow:
        """Return the row with the beginning of its text, for a sample."""
        return self if len(self.text) <= SAMPLE_TEXT_LENGTH else replace(self, text=f"{self.text[:SAMPLE_TEXT_LENGTH]}…")


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """The rows of a range, the lines that were skipped, and why the whole file was skipped, if it was.

    `dead_letters`, if given, are the skipped lines in the form in which dead letters keep them. `messages` and `bytes` are the
    size of a range of messages.
    """

    table: pa.Table
    skipped_rows: tuple[SkippedRow, ...] = ()
    skipped_file: str = ""
    dead_letters: pa.Table | None = None
    messages: int = 0
    bytes: int = 0


def normalize_policy(policy: str) -> str:
    """Return the name of an error policy; `skip` is that of earlier versions."""
    return "skip_file" if policy == "skip" else policy


def is_letter_topic(dead_letter: str) -> bool:
    """Return whether dead letters go to a topic of Kafka, not to a folder: the option of a range is then kafka:TOPIC."""
    return dead_letter.startswith("kafka:")


def parse_dead_letter(target: str | None, on_error: str) -> str:
    """Return the absolute path of the folder of dead letters; an empty text without one."""
    if target is None:
        return ""
    kind, _, folder = target.partition(":")
    if kind != "jsonl" or not folder:
        raise SchemaError(f"invalid dead_letter '{target}'", hint="write jsonl:DIR, or kafka:TOPIC for a stream of Kafka")
    if on_error != "skip_row":
        raise SchemaError(f"dead_letter needs on_error='skip_row', but on_error is '{on_error}'")
    return parse_location(folder, SchemaError, "dead_letter")


def read_with_policy(wanted: Range, schema: Schema, columns: Sequence[str]) -> ReadOutcome:
    """Return the given columns of a range as `read_range` does, without the rows or the file that its policy skips.

    Raises SourceError if the policy is to fail.
    """
    policy = normalize_policy(str(wanted.options.get("on_error", "fail")))
    if wanted.reader == "kafka":
        return _read_kafka(wanted, schema, columns)
    if policy == "skip_row" and wanted.reader in MESSAGE_FILES:
        table, rejected = read_messages(wanted, schema, columns)
        return ReadOutcome(table, tuple(SkippedRow(wanted.path, *rejection) for rejection in rejected))
    checks_all = policy != "fail" and wanted.reader == "csv"
    try:
        table = read_range(wanted, schema, schema.names if checks_all else columns)
    except SourceError as error:
        if policy == "skip_file":
            fields = [(name, field.type) for name in columns if (field := schema.find(name)) is not None]
            return ReadOutcome(pa.schema(fields).empty_table(), skipped_file=str(error))
        if policy == "fail" or wanted.reader != "csv":
            raise
        table, skipped = _read_good_rows(wanted, schema, error)
        return ReadOutcome(table.select(list(columns)), skipped)
    return ReadOutcome(table.select(list(columns)) if checks_all else table)


def _read_kafka(wanted: Range, schema: Schema, columns: Sequence[str]) -> ReadOutcome:
    """Read messages; the format decides about each of them, so that none is read twice."""
    try:
        content = kafka.read_messages(wanted, schema, columns)
    except SourceError as error:
        error.stream = wanted.stream
        raise
    rejected, place, columns = content.rejected, f"{wanted.path}/{wanted.options['partition']}", ("offset", "reason", "value")
    skipped = tuple(
        SkippedRow(place, offset, reason, (value or b"")[: 4 * SAMPLE_TEXT_LENGTH + 4].decode("utf-8", "replace"))
        for offset, reason, value in zip(*(rejected[name].to_pylist() for name in columns), strict=True)
    )
    is_text = not is_letter_topic(str(wanted.options["dead_letter"]))
    letters = kafka.convert_to_text(rejected) if is_text and skipped else rejected
    return ReadOutcome(content.rows, skipped, dead_letters=letters, messages=content.messages, bytes=content.bytes)


@dataclass(frozen=True, slots=True)
class _TextRecords:
    """The records of a text file: record i is lines `bounds[i]` … `bounds[i + 1] - 1`, counted from 0. Some may be empty."""

    lines: Sequence[bytes]
    bounds: Sequence[int]

    def join(self, first: int, last: int) -> bytes:
        """Return the bytes of the records first … last − 1."""
        return b"".join(self.lines[self.bounds[first] : self.bounds[last]])


def _read_good_rows(wanted: Range, schema: Schema, error: SourceError) -> tuple[pa.Table, tuple[SkippedRow, ...]]:
    """Return the rows that fit the schema, and the lines that do not; raises `error` if it is not about single lines."""
    try:
        content = read_content(wanted.path, get_version(wanted)).to_pybytes()
    except (pa.ArrowException, OSError):
        raise error from None
    lines = content.splitlines(keepends=True)
    names, header_lines = read_csv_header(lines, schema, wanted)
    bounds: Sequence[int] = range(header_lines, len(lines) + 1)
    if b'"' in content:
        bounds = list(_find_csv_bounds(lines, header_lines, str(wanted.options.get("delimiter", ","))))
    tables, skipped = _separate_records(
        _TextRecords(lines, bounds), lambda text: parse_csv(text, names, schema, wanted), wanted.path
    )
    return pa.concat_tables([schema.to_arrow().empty_table(), *tables]), tuple(skipped)


def _separate_records(
    records: _TextRecords, parse: Callable[[bytes], pa.Table], path: str
) -> tuple[list[pa.Table], list[SkippedRow]]:
    """Return the tables of records that can be parsed, in order, and the others; both found by halves."""
    tables: list[pa.Table] = []
    skipped: list[SkippedRow] = []
    pending = [(0, len(records.bounds) - 1)]
    while pending:
        first, last = pending.pop()
        text = records.join(first, last)
        if not text.strip():
            continue
        try:
            tables.append(parse(text))
        except (SourceError, *CONVERSION_ERRORS) as error:
            if last - first == 1:
                reason = error.detail if isinstance(error, SourceError) else str(error)
                row = text.rstrip(b"\r\n").decode("utf-8", "replace")
                skipped.append(SkippedRow(path, records.bounds[first] + 1, reason, row))
            elif last - first <= _FEW_RECORDS:  # where lines are bad, their neighbours often are, too
                pending += [(record, record + 1) for record in reversed(range(first, last))]
            else:
                middle = (first + last) // 2
                pending += [(middle, last), (first, middle)]
    return tables, skipped


def _find_csv_bounds(lines: Sequence[bytes], first: int, delimiter: str) -> Iterator[int]:
    """Yield the first line of each record from line `first` on, and the end; a quoted value may contain line ends.

    A quote that is never closed would make one record of the rest of the file: then its first line is a record of its own.
    """
    while first < len(lines):
        reader = csv.reader((line.decode("latin-1") for line in lines[first:]), delimiter=delimiter)
        start = first
        try:
            for _ in reader:
                end = first + reader.line_num
                if end == len(lines) and end > start + 1 and b"".join(lines[start:end]).count(b'"') % 2:
                    break
                yield start
                start = end
        except csv.Error:  # a value that is longer than Python's limit
            pass
        if start < len(lines):
            yield start
        first = start + 1
    yield len(lines)
