"""The way out of a worker: results to the sinks that workers write to, to files for those the driver serves, or back in.

Rows leave in parts of bounded size, so that a join with more results than memory can hold streams them out. Everything is
named after batch, partition, level and part: a replay writes the same files again.
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
    """Gives out the results of one partition at one level."""

    def __init__(self, job: Job, partition: int, level: int, results: Results, failures: Failures) -> None:
        """Take `results` from time to time; queries that have failed get nothing more."""
        self._job, self._partition, self._level = job, partition, level
        self._results, self._failures = results, failures
        self._part = 0
        self.emitted: dict[int, int] = {}
        self.files: list[str] = []
        self.fed: dict[str, list[pa.RecordBatch]] = {}
        """Results that are rows of a stream, by its name."""

    def relieve(self) -> None:
        """Give out what there is if it is much."""
        if self._results.bytes > MANY_BYTES:
            self.give_out()

    def give_out(self) -> None:
        """Write to the sinks that workers write to; what the driver delivers goes into a file."""
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
            name = [f"{self._job.batch:010d}", f"{self._partition:05d}", *([str(self._level)] if self._level else [])]
            file = f"results/{'-'.join([*name, *([f'{self._part:05d}'] if self._part else [])])}.rows"
            pack.write(Path(self._job.directory) / file, (results.tables, results.index))
            self.files.append(file)
        results.clear()
        self._part += 1

    def _feed(self) -> list[int]:
        """Take results that are rows of a stream; of equal queries those of the first, which has all that the others have."""
        makers: dict[str, list[LiveQuery]] = defaultdict(list)
        for query in self._results.index:
            live = self._job.query(query).live
            if live.feeds:
                makers[live.feeds].append(live)
        for stream, found in makers.items():
            oldest = min(found, key=lambda one: (one.since, one.id))
            self.fed.setdefault(stream, []).extend(self._results.of(oldest.id))
        return [one.id for found in makers.values() for one in found]

    def _write(self, query: int) -> bool:
        """Give a query's rows to its sink if that is done here."""
        loaded = self._job.query(query)
        if isinstance(loaded.sink, NoopSink):
            return True
        if loaded.sink is None or not loaded.sink.written_by_workers:
            return False
        table = pa.Table.from_batches(self._results.of(query), loaded.plan.schema.to_arrow())
        loaded.sink.write(table, self._job.batch, self._partition, self._part)
        return True
