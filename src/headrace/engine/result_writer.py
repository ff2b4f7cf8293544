"""Writes the results of a worker: to sinks, to files that the driver delivers, or back into streams that queries read.

Rows are flushed in parts of bounded size, so that a join whose results exceed memory streams them out. Files are named after
batch, partition, level, part and attempt: the manifest names those of the attempt that counts, in sinks, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from headrace.connectors import MemorySink, NoopSink, PendingFile, QuerySink
from headrace.connectors.sinks import FileSink
from headrace.engine.batch_job import BatchJob
from headrace.engine.budgets import BudgetMeter
from headrace.engine.failures import QueryFailures
from headrace.errors import HeadraceError, SinkError, describe_exception
from headrace.planner.shared_plan import LiveQuery
from headrace.storage.locations import is_url
from headrace.storage.requests import run_requests
from headrace.storage.result_files import BatchResults, StoredRows
from headrace.storage.result_log import ResultFile, write_result_file

FLUSH_BYTES = 64 << 20
_PARTS_PER_LEVEL = 10_000  # numbers of the parts of a partition at one level, in the names of sink files


class TaskRows(NamedTuple):
    """Rows to write: those that the session keeps for readers, and those that the driver is about to deliver; None without."""

    results: StoredRows | None
    deliveries: StoredRows | None


def split_rows(job: BatchJob, results: BatchResults) -> TaskRows:
    """Return results by where they are read."""
    sinks = {query: job.get_sinks(query) for query in results.index}
    kept = [query for query, items in sinks.items() if any(isinstance(item.sink, MemorySink) for item in items)]
    delivered = [query for query, items in sinks.items() if any(item.is_delivered for item in items)]
    return TaskRows(*(results.select_queries(queries).to_rows(job.batch) if queries else None for queries in (kept, delivered)))


def write_rows(job: BatchJob, name: str, rows: TaskRows) -> tuple[list[ResultFile], list[ResultFile]]:
    """Write rows to files of their own."""
    return (
        [] if rows.results is None else [write_result_file(job.store, name, rows.results)],
        [] if rows.deliveries is None else [write_result_file(job.store, name, rows.deliveries, folder="deliveries")],
    )


class ResultWriter:
    """Writes the results of one partition at one level."""

    def __init__(
        self, job: BatchJob, partition: int, level: int, results: BatchResults, failures: QueryFailures, meter: BudgetMeter
    ) -> None:
        """Flush `results` on demand; queries that failed, or are over their budget, get no further rows."""
        self._job, self._partition, self._level, self._meter = job, partition, level, meter
        self._results, self._failures = results, failures
        self._flush_number = 0
        self.emitted_rows: dict[int, int] = {}
        self.result_files: list[ResultFile] = []
        self.delivery_files: list[ResultFile] = []
        self.sink_files: dict[int, list[PendingFile]] = {}
        self.stream_results: dict[str, list[pa.RecordBatch]] = {}
        """Results that are rows of a stream, by stream name."""

    def flush_if_full(self) -> None:
        """Flush above 64 MiB."""
        if self._results.bytes > FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write results to the sinks that workers write to, and the others to files."""
        self.write_rows(self.take_rows())

    def take_rows(self) -> TaskRows:
        """Write results to the sinks that workers write to, and return the others, which are to be written."""
        results = self._results
        for query, rows, size in results.measure_queries():
            self._meter.add_output(query, rows, size)
        results.drop_queries(self._failures.messages)
        written = self._take_stream_results()
        queries = [query for query in results.index if query not in written]
        for query, outcome in zip(queries, self._write_to_sinks(queries), strict=True):
            if outcome.failure:
                self._failures.add(query, outcome.failure)
                continue
            self.emitted_rows[query] = self.emitted_rows.get(query, 0) + results.count_rows(query)
            if outcome.is_written:
                written.append(query)
            if outcome.files:
                self.sink_files.setdefault(query, []).extend(outcome.files)
        for query in self._failures.messages:
            self.emitted_rows.pop(query, None)
        results.drop_queries([*written, *self._failures.messages])
        unwritten = split_rows(self._job, results)
        results.clear()
        return unwritten

    def write_rows(self, rows: TaskRows) -> None:
        """Write rows to files of their own."""
        name = f"{self._job.batch:010d}-{self._partition:05d}-{self._level}-{self._flush_number:05d}"
        kept, delivered = write_rows(self._job, name, rows)
        self.result_files += kept
        self.delivery_files += delivered
        self._flush_number += 1

    def add_state_file(self, file: str, rows: TaskRows) -> None:
        """Record that the state file of the task has rows, too."""
        for stored, files in zip(rows, (self.result_files, self.delivery_files), strict=True):
            if stored is not None:
                files.append(ResultFile(file, self._job.batch, self._job.batch, stored.bytes))

    def _take_stream_results(self) -> list[int]:
        """Take results that are rows of a stream; of equal queries, the oldest one's, which include those of the others."""
        producers: dict[str, list[LiveQuery]] = defaultdict(list)
        for query in self._results.index:
            live = self._job.load_query(query).live
            if live.output_stream:
                producers[live.output_stream].append(live)
        for stream, queries in producers.items():
            oldest = min(queries, key=lambda query: (query.since, query.id))
            self.stream_results.setdefault(stream, []).extend(self._results.get_rows(oldest.id))
        return [query.id for queries in producers.values() for query in queries]

    def _write_to_sinks(self, queries: Sequence[int]) -> list[_SinkOutcome]:
        """Write the rows of queries to their sinks; requests to object stores run at the same time."""
        remote = [query for query in queries if _is_remote(self._job.get_sinks(query))]
        outcomes = dict(zip(remote, run_requests(self._try_to_write, remote), strict=True))
        return [outcomes[query] if query in outcomes else self._try_to_write(query) for query in queries]

    def _try_to_write(self, query: int) -> _SinkOutcome:
        try:
            return self._write_to_sink(query)
        except HeadraceError as error:
            return _SinkOutcome(failure=str(error))
        except Exception as problem:  # noqa: BLE001  whatever a sink raises fails the query that writes to it
            return _SinkOutcome(failure=f"writing to the sink failed: {describe_exception(problem)}")

    def _write_to_sink(self, query: int) -> _SinkOutcome:
        """Write a query's rows to those of its sinks that workers write to."""
        items = self._job.get_sinks(query)
        written = [item.sink for item in items if item.sink.written_by_workers]
        is_written = len(written) == len(items)
        sinks = [] if self._job.trial else [sink for sink in written if not isinstance(sink, NoopSink)]
        if not sinks:
            return _SinkOutcome(is_written)
        table = pa.Table.from_batches(self._results.get_rows(query), self._job.load_query(query).plan.schema.to_arrow())
        if self._flush_number >= _PARTS_PER_LEVEL:
            raise SinkError(f"query has more than {_PARTS_PER_LEVEL:,} sink files in one partition of a batch")
        part = self._level * _PARTS_PER_LEVEL + self._flush_number  # a query may have rows at several levels
        files = [sink.write(table, self._job.place_output(self._partition, part)) for sink in sinks]
        return _SinkOutcome(is_written, tuple(file for file in files if file is not None))


class _SinkOutcome(NamedTuple):
    """What became of the rows of a query: whether no other sink waits for them, the files that workers wrote, or why none."""

    is_written: bool = False
    files: tuple[PendingFile, ...] = ()
    failure: str = ""


def _is_remote(items: Sequence[QuerySink]) -> bool:
    return any(isinstance(item.sink, FileSink) and is_url(item.sink.path) for item in items)
