"""Skipped rows of a task: counts and a bounded sample for the report, and all of them for the dead-letter folders of sources."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa

from headrace.connectors import JsonLinesSink, Range, SkippedRow
from headrace.connectors.skipped_rows import ReadOutcome
from headrace.engine.batch_job import SAMPLED_ROWS, BatchJob, MapReport
from headrace.errors import SinkError, SourceError

_COLUMNS = pa.schema([("file", pa.string()), ("line", pa.int64()), ("reason", pa.string()), ("text", pa.string())])


class SkippedRowLog:
    """Collects what the reads of one task skip."""

    def __init__(self, report: MapReport) -> None:
        """Count and sample in the report of the task."""
        self._report = report
        self._dead_letters: dict[str, list[SkippedRow]] = defaultdict(list)
        self._streams: dict[str, str] = {}

    def add(self, stream: str, split: Range, outcome: ReadOutcome) -> None:
        """Record the outcome of reading a range."""
        report, rows = self._report, outcome.skipped_rows
        if outcome.skipped_file:
            report.skipped_files.setdefault(stream, {})[split.path] = outcome.skipped_file
        if rows:
            report.skipped_rows[stream] = report.skipped_rows.get(stream, 0) + len(rows)
            sample = report.skipped_samples.setdefault(stream, [])
            sample += [row.cut_text() for row in rows[: SAMPLED_ROWS - len(sample)]]
        folder = str(split.options.get("dead_letter", ""))
        if folder and rows:
            self._streams.setdefault(folder, stream)
            self._dead_letters[folder] += rows

    def write_dead_letters(self, job: BatchJob, task: int) -> None:
        """Write one file for each folder, named after batch and task, and report it; a trial writes nothing.

        Raises SourceError if a file cannot be written: without it, its stream must not move on.
        """
        if job.trial:
            return
        for folder, rows in self._dead_letters.items():
            columns = zip(*((row.file, row.line, row.reason, row.text) for row in rows), strict=True)
            table = pa.table([pa.array(column) for column in columns], schema=_COLUMNS)
            stream = self._streams[folder]
            try:
                file = JsonLinesSink(folder).write(table, job.place_output(task))
                if file is not None:
                    self._report.dead_letters.setdefault(stream, []).append(file)
            except SinkError as error:
                message = f"dead letters of stream '{stream}' cannot be written"
                raise SourceError(message, stream=stream, detail=f"{error.message}: {error.detail}") from error
