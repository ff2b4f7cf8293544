"""The checker: whether a history keeps every promise. It knows the reference, and nothing of the engine that it judges.

- An acknowledged row is read by exactly one batch; a row of a call that failed by at most one, together with its call.
- Every query emits in every batch what the reference emits, over the rows of the batches in which it was live.
- A callback gets every batch at least once, in order; a file sink has the rows of every batch once.
- Counts of rows and of late rows are those of the reference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from headrace.backends.reference import ReferenceEngine
from headrace.model.stream import Stream
from headrace.plan.derived import AnyQuery
from headrace.sql import Catalog, bind_query
from simulation.history import BatchInput, History, QueryHistory, Rows, ViolationError
from simulation.workload import DROPPED_STREAM
from support.compare import iter_differences


@lru_cache(maxsize=4096)
def _bind(sql: str, streams: tuple[Stream, ...]) -> AnyQuery:
    """Bind a query; streams are passed without their delay, which does not affect binding."""
    return bind_query(sql, Catalog.of(streams))


def check_history(history: History) -> None:
    """Raise ViolationError for the first broken promise."""
    _check_rows(history)
    _check_ticks(history)
    expected, oracle = _run_oracle(history)
    for query in history.queries:
        _check_query(history, query, expected[query.name, query.id], oracle)
    _check_replacements(history)
    _check_counts(history)


def _check_rows(history: History) -> None:
    places: dict[int, list[int]] = {}
    for number, batch in enumerate(history.batches):
        for ids in batch.ids.values():
            for row in ids:
                places.setdefault(row, []).append(number)
    newest: dict[str, int] = {}
    for append in history.appends:
        ids = [row["id"] for row in append.rows]
        found = {row: places.get(row, []) for row in ids}
        read = {tuple(batches) for batches in found.values()}
        if any(len(batches) > 1 for batches in found.values()):
            raise ViolationError("doubled rows", f"rows of '{append.stream}' by batches that read them: {found}")
        if append.acknowledged and not append.dropped and () in read:
            raise ViolationError("lost rows", f"rows of '{append.stream}' by batches that read them: {found}")
        if len(read) > 1:
            raise ViolationError("torn append", f"rows of one append to '{append.stream}' by batch: {found}")
        for (batch,) in read - {()}:
            if batch < newest.get(append.stream, -1):
                raise ViolationError("reordered appends", f"'{append.stream}': rows {ids} in batch {batch}")
            newest[append.stream] = batch


def _check_ticks(history: History) -> None:
    last = 0
    for number, batch in enumerate(history.batches):
        for start, stop in batch.ticks:
            if start != last:
                raise ViolationError("lost ticks" if start > last else "doubled ticks", f"batch {number}: {start} after {last}")
            last = stop


def _run_oracle(history: History) -> tuple[dict[tuple[str, int], dict[int, Rows]], ReferenceEngine]:
    """Return the rows that each query must emit, by batch."""
    engine, declared = ReferenceEngine(), tuple(replace(stream, delay=0) for stream in history.streams)
    for stream in history.streams:
        engine.add_stream(stream)
    rows = {row["id"]: row for append in history.appends for row in append.rows}
    expected: dict[tuple[str, int], dict[int, Rows]] = {(query.name, query.id): {} for query in history.queries}
    for number, batch in enumerate(history.batches):
        if number in history.declared_at:
            _forget_stream(engine, history)
        for query in history.queries:
            if query.end == number and query.first_batch < number and query.status != "failed":
                engine.remove(_oracle_name(query))
            if query.first_batch == number and query.end > number:
                engine.add(_oracle_name(query), _bind(query.sql, declared))
        emitted = _run_batch(engine, history, batch, rows)
        for query in history.queries:
            if found := emitted.get(_oracle_name(query)):
                expected[query.name, query.id][number] = found
    return expected, engine


def _forget_stream(engine: ReferenceEngine, history: History) -> None:
    """Declare the dropped stream again, as one that had no rows."""
    del engine._streams[DROPPED_STREAM]
    engine.add_stream(next(stream for stream in history.streams if stream.name == DROPPED_STREAM))


def _run_batch(engine: ReferenceEngine, history: History, batch: BatchInput, rows: dict[int, Any]) -> dict[str, Rows]:
    by_stream = {name: [rows[row] for row in ids] for name, ids in batch.ids.items()}
    by_stream["ticks"] = [row for start, stop in batch.ticks for row in history.ticks[start:stop]]
    emitted = engine.advance({name: found for name, found in by_stream.items() if found})
    if batch.final:
        closed = engine.drain()
        emitted = {name: [*emitted.get(name, ()), *closed.get(name, ())] for name in {*emitted, *closed}}
    return emitted


def _oracle_name(query: QueryHistory) -> str:
    return f"{query.name}/{query.id}"


def _check_query(history: History, query: QueryHistory, expected: dict[int, Rows], oracle: ReferenceEngine) -> None:
    label = f"query {query.name}/{query.id} [{query.first_batch}, {query.end}) {query.status}: {query.sql}"
    error = oracle.errors.get(_oracle_name(query))
    is_outside = query.error is not None and ("sink" in query.error or f"query {query.id} is broken" in query.error)
    if (query.status == "failed") != (error is not None) and not is_outside and query.end > query.first_batch:
        raise ViolationError("failure", f"{label}\nthe session says {query.error}, the reference {error}")
    until = min(query.end, len(history.batches)) - 1
    if query.sink == "memory":
        _check_emitted(label, history.results.get((query.name, query.id), {}), expected, until)
    elif query.sink == "jsonl":
        _check_emitted(label, history.sink_files.get(query.name, {}), expected, until)
    elif query.sink in {"callback", "raising"}:
        _check_deliveries(label, query, history, expected, until)
    if query.status != "failed":
        late = (
            {name: count for name, count in oracle.get_late_counts(_oracle_name(query)).items() if count}
            if until >= query.first_batch
            else {}
        )
        if query.late != late:
            raise ViolationError("late rows", f"{label}\n{query.late}, expected {late}")
        total = sum(len(rows) for batch, rows in expected.items() if batch <= until)
        if query.emitted != total:
            raise ViolationError("emitted count", f"{label}\n{query.emitted}, expected {total}")


def _check_emitted(label: str, actual: dict[int, Rows], expected: dict[int, Rows], until: int) -> None:
    for batch in sorted({*actual, *expected}):
        wanted = expected.get(batch, []) if batch <= until else []
        differences = list(iter_differences(actual.get(batch, []), wanted))
        if differences:
            raise ViolationError("results", "\n".join([f"{label}\nbatch {batch}", *differences]))


def _check_deliveries(label: str, query: QueryHistory, history: History, expected: dict[int, Rows], until: int) -> None:
    """Check by the unique ids of the rows: each is delivered at least once, and in order between two crashes.

    A batch is delivered again only if the process died, or could not record the delivery on a full disk.
    """
    batch_of = {row["id"]: batch for batch, rows in expected.items() for row in rows}
    content = {row["id"]: row for rows in expected.values() for row in rows}
    delivered: dict[int, int] = {}  # the last life in which a row was delivered
    life, newest = -1, -1
    for delivery in history.deliveries.get(query.name, []):
        if delivery.life != life:
            life, newest = delivery.life, -1
        for row in delivery.rows:
            if row["id"] not in batch_of or list(iter_differences([row], [content[row["id"]]])):
                raise ViolationError("unexpected delivery", f"{label}\n{row}")
            batch = batch_of[row["id"]]
            skipped = [row_id for row_id, other in batch_of.items() if other < batch and row_id not in delivered]
            if batch < newest or skipped:
                raise ViolationError("delivery order", f"{label}\nbatch {batch} after {newest}; before it, not yet: {skipped}")
            if delivered.get(row["id"]) == life and not history.had_full_disk:
                raise ViolationError("doubled delivery", f"{label}\n{row}, batch {batch}")
            newest = batch
        delivered.update((row["id"], life) for row in delivery.rows)
    missing = [row_id for row_id, batch in batch_of.items() if batch <= until and row_id not in delivered]
    if missing and query.status != "failed":
        raise ViolationError("lost delivery", f"{label}\nrows {missing}")


def _check_replacements(history: History) -> None:
    queries = {(query.name, query.id): query for query in history.queries}
    for query in history.queries:
        old = queries.get(query.replaced) if query.replaced else None
        if old is not None and old.status == "removed" and old.end != query.first_batch:
            raise ViolationError(
                "replacement", f"{old.name}: the old query ends at {old.end}, the new begins {query.first_batch}"
            )


def _check_counts(history: History) -> None:
    for name, counts in history.stream_counts.items():
        expected = Counter(dict(_count_rows(history, name)))
        if any(counts[key] != expected[key] for key in ("rows", "untimed")):
            raise ViolationError("counts of a stream", f"'{name}': {counts}, expected {dict(expected)}")


def _count_rows(history: History, stream: str) -> Iterator[tuple[str, int]]:
    if stream == "ticks":
        yield "rows", sum(stop - start for batch in history.batches for start, stop in batch.ticks)
        return
    untimed = {row["id"] for append in history.appends for row in append.rows if row["time"] is None}
    dropped = {row["id"] for append in history.appends if append.dropped for row in append.rows}
    ids = [row for batch in history.batches for row in batch.ids.get(stream, ()) if row not in dropped]
    yield "rows", len(ids)
    yield "untimed", len([row for row in ids if row in untimed])
