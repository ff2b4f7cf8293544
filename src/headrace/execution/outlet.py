"""Writes the results of a worker: to sinks, to files that the driver delivers, or back into streams that queries read.

Rows are flushed in parts of bounded size, so that a join whose results exceed memory streams them out. Files are named after
batch, partition, level and part: a replay writes the same files again.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pyarrow as pa

from headrace.connectors import NoopSink
from headrace.errors import HeadraceError
from headrace.execution.job import Job
from headrace.execution.result import Failures, Results
from headrace.kernels import pack
from headrace.sharing.shared_plan import LiveQuery

MANY_BYTES = 64 << 20


class Outlet:
    """Writes the results of one partition at one level."""

    def __init__(self, job: Job, partition: int, level: int, results: Results, failures: Failures) -> None:
        """Flush `results` on demand; queries that failed get no further rows."""
        self._job, self._partition, self._level = job, partition, level
        self._results, self._failures = results, failures
        self._part = 0
        self.emitted: dict[int, int] = {}
        self.files: list[str] = []
        self.fed: dict[str, list[pa.RecordBatch]] = {}
        """Results that are rows of a stream, by stream name."""

    def relieve(self) -> None:
        """Flush above 64 MiB."""
        if self._results.bytes > MANY_BYTES:
            self.give_out()

    def give_out(self) -> None:
        """Write results to the sinks that workers write to, and those that the driver delivers to a file."""
        results = self._results
        results.drop(self._failures.messages)
        written = self._feed()
        for query in [query for query in results.index if query not in written]:
            count = results.count(query)
            try:
                if self._write(query):
                    written.append(query)
                self.emitted[query] = self.emitted.get(query, 0) + count
            except HeadraceError as error:
                self._failures.add(query, str(error))
        for query in self._failures.messages:
            self.emitted.pop(query, None)
        results.drop([*written, *self._failures.messages])
        if results.index:
            name_parts = [f"{self._job.batch:010d}", f"{self._partition:05d}", *([str(self._level)] if self._level else [])]
            file = f"results/{'-'.join([*name_parts, *([f'{self._part:05d}'] if self._part else [])])}.rows"
            pack.write(Path(self._job.directory) / file, (results.tables, results.index))
            self.files.append(file)
        results.clear()
        self._part += 1

    def _feed(self) -> list[int]:
        """Take results that are rows of a stream; of equal queries, the oldest one's, which include those of the others."""
        producers: dict[str, list[LiveQuery]] = defaultdict(list)
        for query in self._results.index:
            live = self._job.query(query).live
            if live.output_stream:
                producers[live.output_stream].append(live)
        for stream, queries in producers.items():
            oldest = min(queries, key=lambda query: (query.since, query.id))
            self.fed.setdefault(stream, []).extend(self._results.of(oldest.id))
        return [query.id for queries in producers.values() for query in queries]

    def _write(self, query: int) -> bool:
        """Write a query's rows to its sink and return True, unless the driver delivers them."""
        loaded = self._job.query(query)
        if isinstance(loaded.sink, NoopSink):
            return True
        if loaded.sink is None or not loaded.sink.written_by_workers:
            return False
        table = pa.Table.from_batches(self._results.of(query), loaded.plan.schema.to_arrow())
        loaded.sink.write(table, self._job.batch, self._partition, self._part)
        return True
