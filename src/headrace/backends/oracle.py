"""The reference back-end: runs each query separately and row by row, as the oracle of tests. Slow, simple, correct by definition.

It runs in the driver and keeps its queries in memory, so it cannot continue after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.backends.reference import ReferenceQuery, add_event_time, unnest_rows
from headrace.connectors import Range, read_with_policy
from headrace.engine.batch_job import BatchJob, MapReport, ReduceReport
from headrace.engine.dead_letters import SkippedRowLog
from headrace.engine.result_writer import split_rows, write_rows
from headrace.engine.worker_cache import LoadedQuery
from headrace.errors import CheckpointError, EvaluationError, describe_exception
from headrace.model.time import MAX_TIME, MIN_TIME, to_microseconds
from headrace.plan.sliding_join import SlidingJoinQuery
from headrace.planner.join.normalized_join import name_relations
from headrace.storage.result_files import BatchResults


class OracleBackend:
    """Runs the oracle with one task and one partition."""

    parallelism = 1

    def __init__(self) -> None:
        """Create a back-end without queries."""
        self._queries: dict[int, ReferenceQuery] = {}
        self._next_batch = 0
        self._result_start_times: dict[str, int] = {}  # start time of the query that fed a derived stream in this batch

    def run(self, job: BatchJob, tasks: Sequence[Sequence[Range]]) -> list[ReduceReport]:
        """Run every live query on the rows of the batch; return one report."""
        if (
            job.batch > 0
            and not self._queries
            and job.queries
            and self._next_batch == 0
            and any(s.max_event_time != MIN_TIME for s in job.streams.values())
        ):
            raise CheckpointError(
                "the reference back-end cannot continue after a restart", hint="use a new checkpoint, or another back-end"
            )
        self._next_batch = job.batch + 1
        job.load_udfs()
        header = MapReport()
        rows = self._read_rows(job, [item for task in tasks for item in task], header)
        seen = job.get_previous_times() | {n: max(t, job.get_previous_times()[n]) for n, t in header.max_event_times.items()}
        reached = job.reach_times(seen, [header])
        report = ReduceReport(0, [], [], [], {}, {}, [header])
        results = BatchResults()
        self._result_start_times = {}
        for number in job.queries:
            if number not in self._queries:  # before any query sees rows of this batch: backfills come from earlier batches
                self._create_query(job, job.load_query(number))
        for number in sorted(job.queries, key=lambda query: job.get_level(job.load_query(query).plan)):
            self._run_query(job, number, rows, reached, report, header, results)
        if results.index:
            report.result_files, report.delivery_files = write_rows(job, f"{job.batch:010d}-00000", split_rows(job, results))
        return [report]

    def _read_rows(self, job: BatchJob, ranges: Sequence[Range], header: MapReport) -> dict[str, list[dict[str, Any]]]:
        rows: dict[str, list[dict[str, Any]]] = {}
        skipped = SkippedRowLog(header)
        for item in ranges:
            stream = job.streams[item.stream].stream
            outcome = read_with_policy(item, stream.schema, stream.schema.names)
            skipped.add(stream.name, item, outcome)
            read = outcome.table.to_pylist()
            timed = [row for row in read if row[stream.time] is not None]
            header.row_counts[stream.name] = header.row_counts.get(stream.name, 0) + len(read)
            header.untimed_rows[stream.name] = header.untimed_rows.get(stream.name, 0) + len(read) - len(timed)
            limit = job.find_time_limit(stream)
            in_time = [row for row in timed if limit is None or to_microseconds(row[stream.time]) <= limit]
            header.ahead_rows[stream.name] = header.ahead_rows.get(stream.name, 0) + len(timed) - len(in_time)
            timed = in_time
            for row in timed:
                latest = to_microseconds(row[stream.time])
                header.max_event_times[stream.name] = max(header.max_event_times.get(stream.name, MIN_TIME), latest)
                by_partition = header.partition_times.setdefault(stream.name, {})
                by_partition[item.partition] = max(by_partition.get(item.partition, MIN_TIME), latest)
            rows.setdefault(stream.name, []).extend(timed)
        skipped.write_dead_letters(job, 0)
        return rows

    def _run_query(
        self,
        job: BatchJob,
        number: int,
        rows: dict[str, list[dict[str, Any]]],
        reached: dict[str, int],
        report: ReduceReport,
        header: MapReport,
        results: BatchResults,
    ) -> None:
        loaded = job.load_query(number)
        query = self._queries[number]
        before, after = (
            job.watermark_of(loaded.plan.streams, job.get_reached_times()),
            job.next_watermark_of(loaded.plan.streams, reached),
        )
        late = dict(query.late_rows)
        try:
            inputs = unnest_rows(dict(rows), loaded.live.unnested)
            emitted = query.run_batch(inputs, _to_bound(before), _to_bound(after))
        except EvaluationError as error:
            report.failures[number] = str(error)
            return
        except Exception as problem:  # noqa: BLE001  a query runs alone here: whatever it raises is its own failure
            report.failures[number] = f"query failed: {describe_exception(problem)}"
            return
        for name, count in query.late_rows.items():
            if count > late.get(name, 0):
                counter = number, (job.streams[name].base_streams or (name,))[0]
                header.late_rows[counter] = header.late_rows.get(counter, 0) + count - late.get(name, 0)
        if loaded.live.output_stream:
            if loaded.live.since <= self._result_start_times.get(loaded.live.output_stream, MAX_TIME):
                self._result_start_times[loaded.live.output_stream] = loaded.live.since
                rows[loaded.live.output_stream] = add_event_time(emitted)
        elif emitted:
            self._emit_rows(job, loaded, emitted, report, results)

    def _emit_rows(
        self, job: BatchJob, query: LoadedQuery, emitted: list[dict[str, Any]], report: ReduceReport, results: BatchResults
    ) -> None:
        number = query.live.id
        table = pa.Table.from_pylist(emitted, query.plan.schema.to_arrow())
        report.emitted_rows[number] = table.num_rows
        items = job.get_sinks(number)
        if any(not item.sink.written_by_workers for item in items):
            for batch in table.combine_chunks().to_batches():
                results.tables.append(batch)
                results.index.setdefault(number, []).append((len(results.tables) - 1, 0, batch.num_rows))
        try:
            files = [item.sink.write(table, job.place_output(0)) for item in items if item.sink.written_by_workers]
            report.sink_files[number] = [file for file in files if file is not None]
        except Exception as error:  # noqa: BLE001  whatever a sink raises fails the query that writes to it
            report.failures[number] = str(error)
            report.emitted_rows.pop(number)

    def _create_query(self, job: BatchJob, loaded: LoadedQuery) -> None:
        times = {name: stream.stream.time for name, stream in job.streams.items()}
        since = loaded.live.since
        query = ReferenceQuery(loaded.plan, None if since == MIN_TIME else since, times)
        for backfill in loaded.live.backfills:
            donor = self._queries[backfill.query_id]
            assert isinstance(donor.plan, SlidingJoinQuery)
            assert isinstance(loaded.plan, SlidingJoinQuery)
            index = name_relations(loaded.plan).index(backfill.relation)
            query.backfill(index, donor, name_relations(donor.plan).index(backfill.relation))
        self._queries[loaded.live.id] = query

    def close(self) -> None:
        """Do nothing: the back-end holds no external resources."""


def _to_bound(watermark: int) -> float | int | None:
    if watermark == MIN_TIME:
        return None
    return float("inf") if watermark == MAX_TIME else watermark


def create(**_: object) -> OracleBackend:
    """Create the back-end; it ignores the settings of other back-ends."""
    return OracleBackend()
