"""Writes the results of a worker: to sinks, to files that the driver delivers, or back into streams that queries read.

Rows are flushed in parts of bounded size, so that a join whose results exceed memory streams them out. Files are named after
batch, partition, level, part and attempt: the manifest names those of the attempt that counts, in sinks, too.
"""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa

from headrace.connectors import MemorySink, NoopSink, PendingFile
from headrace.engine.batch_job import BatchJob
from headrace.engine.budgets import BudgetMeter
from headrace.engine.failures import QueryFailures
from headrace.errors import HeadraceError, SinkError, describe_exception
from headrace.planner.shared_plan import LiveQuery
from headrace.storage.result_files import BatchResults
from headrace.storage.result_log import ResultFile, write_result_file

FLUSH_BYTES = 64 << 20
_PARTS_PER_LEVEL = 10_000  # numbers of the parts of a partition at one level, in the names of sink files


def write_results(job: BatchJob, name: str, results: BatchResults) -> tuple[list[ResultFile], list[ResultFile]]:
    """Write results to files: those that the session keeps for readers, and those that the driver is about to deliver."""
    kept = [query for query in results.index if isinstance(job.load_query(query).sink, MemorySink)]
    delivered = [query for query in results.index if query not in set(kept)]
    return (
        [write_result_file(job.store, name, results.select_queries(kept).to_rows(job.batch))] if kept else [],
        [write_result_file(job.store, name, results.select_queries(delivered).to_rows(job.batch), folder="deliveries")]
        if delivered
        else [],
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
        """Write results to the sinks that workers write to, and those that the driver delivers to a file."""
        results = self._results
        for query, rows, size in results.measure_queries():
            self._meter.add_output(query, rows, size)
        results.drop_queries(self._failures.messages)
        written = self._take_stream_results()
        for query in [query for query in results.index if query not in written]:
            count = results.count_rows(query)
            try:
                if self._write_to_sink(query):
                    written.append(query)
                self.emitted_rows[query] = self.emitted_rows.get(query, 0) + count
            except HeadraceError as error:
                self._failures.add(query, str(error))
            except Exception as problem:  # noqa: BLE001  whatever a sink raises fails the query that writes to it
                self._failures.add(query, f"writing to the sink failed: {describe_exception(problem)}")
        for query in self._failures.messages:
            self.emitted_rows.pop(query, None)
        results.drop_queries([*written, *self._failures.messages])
        name = f"{self._job.batch:010d}-{self._partition:05d}-{self._level}-{self._flush_number:05d}"
        kept, delivered = write_results(self._job, name, results)
        self.result_files += kept
        self.delivery_files += delivered
        results.clear()
        self._flush_number += 1

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

    def _write_to_sink(self, query: int) -> bool:
        """Write a query's rows to its sink and return True, unless the driver delivers them."""
        loaded = self._job.load_query(query)
        if isinstance(loaded.sink, NoopSink) or (self._job.trial and loaded.sink is not None and loaded.sink.written_by_workers):
            return True
        if loaded.sink is None or not loaded.sink.written_by_workers:
            return False
        table = pa.Table.from_batches(self._results.get_rows(query), loaded.plan.schema.to_arrow())
        if self._flush_number >= _PARTS_PER_LEVEL:
            raise SinkError(f"query has more than {_PARTS_PER_LEVEL:,} sink files in one partition of a batch")
        part = self._level * _PARTS_PER_LEVEL + self._flush_number  # a query may have rows at several levels
        file = loaded.sink.write(table, self._job.place_output(self._partition, part))
        if file is not None:
            self.sink_files.setdefault(query, []).append(file)
        return True
