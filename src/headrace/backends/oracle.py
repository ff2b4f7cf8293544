"""The reference as back-end of a session: each query alone, row by row. Slow, obvious, and right by definition.

It lives in the driver and keeps its queries in memory, so it cannot go on after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.backends.reference import ReferenceQuery, with_time, with_unfolded
from headrace.connectors import Range, read_range
from headrace.errors import CheckpointError, EvaluationError, HeadraceError, SourceError
from headrace.execution.job import Header, Job, LoadedQuery, Outcome
from headrace.execution.result import Results
from headrace.kernels import pack
from headrace.model.event_time import microseconds
from headrace.plan.multiway import MultiwayQuery
from headrace.sharing.multiway.asked import relation_names
from headrace.sharing.slicing import FOREVER, NEVER


class OracleBackend:
    """Runs the oracle; one task, one partition."""

    parallelism = 1

    def __init__(self) -> None:
        """Start with no queries."""
        self._queries: dict[int, ReferenceQuery] = {}
        self._next = 0
        self._fed: dict[str, int] = {}  # of whom results of this batch are, by stream: since when it sees rows

    def run(self, job: Job, tasks: Sequence[Sequence[Range]]) -> list[Outcome]:
        """Give every live query the rows of the batch."""
        if (
            job.batch > 0
            and not self._queries
            and job.queries
            and self._next == 0
            and any(s.seen != NEVER for s in job.streams.values())
        ):
            raise CheckpointError(
                "the reference back-end cannot go on after a restart", hint="use a new checkpoint, or another back-end"
            )
        self._next = job.batch + 1
        job.load_functions()
        header = Header()
        rows = self._rows(job, [one for task in tasks for one in task], header)
        seen = job.before() | {n: max(t, job.before()[n]) for n, t in header.seen.items()}
        outcome = Outcome(0, [], [], [], {}, {}, [header])
        results = Results()
        self._fed = {}
        for number in job.queries:
            if number not in self._queries:  # all of them before anybody sees rows of this batch: what is lent is from before
                self._new(job, job.query(number))
        for number in sorted(job.queries, key=lambda query: job.level(job.query(query).plan)):
            self._query(job, number, rows, seen, outcome, header, results)
        if results.index:
            outcome.results = [f"results/{job.batch:010d}-00000.rows"]
            pack.write(Path(job.directory) / outcome.results[0], (results.tables, results.index))
        return [outcome]

    def _rows(self, job: Job, ranges: Sequence[Range], header: Header) -> dict[str, list[dict[str, Any]]]:
        rows: dict[str, list[dict[str, Any]]] = {}
        for one in ranges:
            stream = job.streams[one.stream].stream
            try:
                found = read_range(one, stream.schema, stream.schema.names).to_pylist()
            except SourceError as error:
                if one.options.get("on_error") != "skip":
                    raise
                header.skipped.setdefault(stream.name, {})[one.path] = str(error)
                found = []
            timed = [row for row in found if row[stream.time] is not None]
            header.rows[stream.name] = header.rows.get(stream.name, 0) + len(found)
            header.untimed[stream.name] = header.untimed.get(stream.name, 0) + len(found) - len(timed)
            for row in timed:
                header.seen[stream.name] = max(header.seen.get(stream.name, NEVER), microseconds(row[stream.time]))
            rows.setdefault(stream.name, []).extend(timed)
        return rows

    def _query(
        self,
        job: Job,
        number: int,
        rows: dict[str, list[dict[str, Any]]],
        seen: dict[str, int],
        outcome: Outcome,
        header: Header,
        results: Results,
    ) -> None:
        loaded = job.query(number)
        query = self._queries[number]
        before, after = job.watermark(loaded.plan.streams, job.before()), job.watermark(loaded.plan.streams, seen)
        late = dict(query.late)
        try:
            given = with_unfolded(dict(rows), loaded.live.unfolded)
            emitted = query.batch(given, _bound(before), _bound(FOREVER if job.final else after))
        except EvaluationError as error:
            outcome.failures[number] = str(error)
            return
        for name, count in query.late.items():
            if count > late.get(name, 0):
                at = number, (job.streams[name].base or (name,))[0]
                header.late[at] = header.late.get(at, 0) + count - late.get(name, 0)
        if loaded.live.feeds:
            if loaded.live.since <= self._fed.get(loaded.live.feeds, FOREVER):
                self._fed[loaded.live.feeds] = loaded.live.since
                rows[loaded.live.feeds] = with_time(emitted)
        elif emitted:
            self._give_out(job, loaded, emitted, outcome, results)

    def _give_out(self, job: Job, query: LoadedQuery, emitted: list[dict[str, Any]], outcome: Outcome, results: Results) -> None:
        number = query.live.id
        table = pa.Table.from_pylist(emitted, query.plan.schema.to_arrow())
        outcome.emitted[number] = table.num_rows
        if query.sink is None or not query.sink.written_by_workers:
            for batch in table.combine_chunks().to_batches():
                results.tables.append(batch)
                results.index.setdefault(number, []).append((len(results.tables) - 1, 0, batch.num_rows))
            return
        try:
            query.sink.write(table, job.batch, 0)
        except HeadraceError as error:
            outcome.failures[number] = str(error)
            outcome.emitted.pop(number)

    def _new(self, job: Job, loaded: LoadedQuery) -> None:
        times = {name: stream.stream.time for name, stream in job.streams.items()}
        since = loaded.live.since
        query = ReferenceQuery(loaded.plan, None if since == NEVER else since, times)
        for index, loan in enumerate(loaded.live.lent):  # one for each input, in order
            lender = self._queries[loan.query]
            assert isinstance(lender.plan, MultiwayQuery)
            query.borrow(index, lender, relation_names(lender.plan).index(loan.relation))
        self._queries[loaded.live.id] = query

    def close(self) -> None:
        """Nothing is held."""


def _bound(watermark: int) -> float | int | None:
    if watermark == NEVER:
        return None
    return float("inf") if watermark == FOREVER else watermark


def create(**_: object) -> OracleBackend:
    """Make the back-end; there is nothing to configure."""
    return OracleBackend()
