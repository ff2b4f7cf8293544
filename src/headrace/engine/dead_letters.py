"""Skipped rows of a task: counts and a bounded sample for the report, and all of them for the dead letters of sources."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from headrace.connectors import JsonLinesSink, PendingFile, Range, SkippedRow
from headrace.connectors.letter_topic import write_letters
from headrace.connectors.skipped_rows import ReadOutcome, is_letter_topic
from headrace.engine.batch_job import SAMPLED_ROWS, BatchJob, MapReport
from headrace.errors import SinkError, SourceError, StorageError

_COLUMNS = pa.schema([("file", pa.string()), ("line", pa.int64()), ("reason", pa.string()), ("text", pa.string())])


@dataclass(slots=True)
class _DeadLetters:
    """Dead letters for one folder or topic, and the first range that has some."""

    split: Range
    tables: list[pa.Table] = field(default_factory=list)


class SkippedRowLog:
    """Collects what the reads of one task skip."""

    def __init__(self, report: MapReport) -> None:
        """Count and sample in the report of the task."""
        self._report = report
        self._dead_letters: dict[tuple[str, str], _DeadLetters] = {}

    def add(self, stream: str, split: Range, outcome: ReadOutcome) -> None:
        """Record the outcome of reading a range."""
        report, rows = self._report, outcome.skipped_rows
        if outcome.messages:
            report.message_counts[stream] = report.message_counts.get(stream, 0) + outcome.messages
            report.message_bytes[stream] = report.message_bytes.get(stream, 0) + outcome.bytes
        if outcome.skipped_file:
            report.skipped_files.setdefault(stream, {})[split.path] = outcome.skipped_file
        if rows:
            report.skipped_rows[stream] = report.skipped_rows.get(stream, 0) + len(rows)
            sample = report.skipped_samples.setdefault(stream, [])
            sample += [row.cut_text() for row in rows[: SAMPLED_ROWS - len(sample)]]
        target = str(split.options.get("dead_letter", ""))
        if target and rows:
            key = (target, stream if is_letter_topic(target) else "")  # streams may share a folder
            table = _make_table(rows) if outcome.dead_letters is None else outcome.dead_letters
            self._dead_letters.setdefault(key, _DeadLetters(split)).tables.append(table)

    def write_dead_letters(self, job: BatchJob, task: int) -> None:
        """Write one file for each folder or topic, named after batch and task, and report it; a trial writes nothing.

        Raises SourceError if a file cannot be written: without it, its stream must not move on.
        """
        if job.trial:
            return
        for (target, _), letters in self._dead_letters.items():
            stream = letters.split.stream
            try:
                file = _write_file(job, task, target, letters)
            except (SinkError, StorageError, OSError) as error:
                message = f"dead letters of stream '{stream}' cannot be written"
                detail = f"{error.message}: {error.detail}" if isinstance(error, SinkError | StorageError) else str(error)
                raise SourceError(message, stream=stream, detail=detail) from error
            if file is not None:
                self._report.dead_letters.setdefault(stream, []).append(file)


def _make_table(rows: tuple[SkippedRow, ...]) -> pa.Table:
    columns = zip(*((row.file, row.line, row.reason, row.text) for row in rows), strict=True)
    return pa.table([pa.array(column) for column in columns], schema=_COLUMNS)


def _write_file(job: BatchJob, task: int, target: str, letters: _DeadLetters) -> PendingFile | None:
    table, place = pa.concat_tables(letters.tables, promote_options="default"), job.place_output(task)
    if is_letter_topic(target):
        return write_letters(job.directory, letters.split, place, table)
    return JsonLinesSink(target).write(table, place)
