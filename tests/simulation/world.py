"""The world: a session and everything around it, in one process; plays a schedule and records its history.

Clients act as programs do: after a restart they look for their queries and repeat the changes that were not acknowledged. A query
is acknowledged when a client has seen it live, a row when `append` has returned.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.ipc

import headrace as hr
import headrace.query
import headrace.session
from headrace.connectors import Range
from headrace.connectors.rate import generate
from headrace.engine import failures, map_stage, reduce_stage, worker_cache
from headrace.engine.batch_job import BatchJob
from headrace.errors import CheckpointError, HeadraceError, SourceError, StorageError
from headrace.planner.changelog import root_query_id
from headrace.runtime import coordinator, delivery, sink_publication
from headrace.storage import checkpoint, posix, result_log, store
from headrace.storage.fault_points import install_fault_hook
from properties.harness import RandomProbeOrders, RandomReplanner
from simulation import schedule as s
from simulation.clock import VirtualClock
from simulation.disk import Crashed, SimulatedDisk
from simulation.history import AppendRecord, BatchInput, Delivery, History, QueryHistory, Rows, ViolationError
from simulation.workers import SimulatedWorkers
from simulation.workload import BASE, DROPPED_STREAM, MEMORY_STREAMS, SCHEMA, STREAMS, TICKS_PER_SECOND, declare_streams

_MAX_RECOVERIES = 40
_MAX_IDLE_STEPS = 300
_MAX_TICKS = 1_000
SECONDS_PER_STEP = 0.5
_PACKED_FILES = 4  # so that results are packed within a short run
_TICKS = {"rows_per_second": TICKS_PER_SECOND, "keys": 3, "field_max": 10}


@dataclass
class ClientQuery:
    """A query as its client knows it; `is_wanted` until the client removes it."""

    name: str
    sql: str
    sink: str
    id: int = -1
    is_wanted: bool = True
    was_live: bool = False
    was_gone: bool = False
    is_withdrawn: bool = False
    first_batch: int | None = None
    replaces: ClientQuery | None = None
    calls: int = 0

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.id


class _InlineExecutor:
    """Runs work at once, in the place of a thread pool."""

    def __init__(self, *_: Any) -> None:
        pass

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        result, error = None, None
        try:
            result = function(*arguments)
        except Exception as failure:  # noqa: BLE001  a future keeps any error; Crashed is not an Exception
            error = failure

        def get() -> Any:
            if error is not None:
                raise error
            return result

        return types.SimpleNamespace(done=lambda: True, result=get)

    def shutdown(self, **_: Any) -> None:
        pass


def _deliver_at_once(results: delivery.ResultDelivery) -> None:
    """Deliver in the place where a thread is started, and enforce no time limits."""
    if results._turns and results._worker is None:
        results._worker = threading.current_thread()
        results._work()


class _QuietProbeOrders(RandomProbeOrders):
    """Random probe orders, without the search of the optimizer: the solver has a time limit in real time."""

    def _find_cheaper_choice(self, *_: Any) -> None:
        return None


class World:
    """Plays one schedule in a folder of its own."""

    def __init__(self, schedule: s.Schedule, folder: Path) -> None:
        self.schedule, self.folder = schedule, folder
        self.random = Random(schedule.seed * 2 + 1)
        self.clock = VirtualClock()
        self.disk = SimulatedDisk(folder / "disk", self.random)
        self.path, self.input = self.disk.root / "checkpoint", folder / "input"
        self.input.mkdir()
        self.history = History(declare_streams(schedule.settings))
        self.history.ticks = generate_ticks()
        self.trace: list[str] = []
        self.queries: list[ClientQuery] = []
        self.cursors: dict[tuple[str, int], int] = {}
        self.life = 0
        self._power = ("nothing", 0)
        self._has_dropped_stream = True  # whether clients want the stream that they drop now and then
        self._is_dropping = False  # whether a drop was requested and not acknowledged
        self._failing_sources: dict[tuple[str, str], int] = {}
        self._broken_queries: dict[int, tuple[str, ...]] = {}  # the operators that fail, by query
        self._observed: dict[int, BatchInput] = {}
        self._session: hr.Session | None = None
        self._undo: list[tuple[Any, str, Any]] = []
        self.workers = SimulatedWorkers(schedule.settings.parallelism, self.disk.reach, self._find_failing)
        self.workers.observe = self._observe

    # --- running ------------------------------------------------------------------------------------------------------

    @property
    def session(self) -> hr.Session:
        assert self._session is not None
        return self._session

    def play(self) -> History:
        """Play all steps, then let everything come to rest; return the history."""
        self._install()
        try:
            self._survive(self._open)
            for number, step in enumerate(self.schedule.steps):
                self._note(f"{number:3} {s.format_value(step)}")
                self.clock.wait(SECONDS_PER_STEP)
                self._play_step(step)
            self._finish()
        finally:
            self._uninstall()
        return self.history

    def _note(self, text: str) -> None:
        self.trace.append(text.replace(str(self.folder), ""))

    def _play_step(self, step: s.Step) -> None:
        try:
            _HANDLERS[type(step)](self, step)
        except Crashed as crash:
            self._note(f"    crash at {crash}")
            self._survive(self._restart)
        except StorageError as error:
            self._expect_full(error)

    def _expect_full(self, error: StorageError) -> None:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.ENOSPC:
            raise ViolationError("unexpected error", repr(error)) from error
        self._note("    disk full")

    def _survive(self, action: Callable[[], None]) -> None:
        """Run an action, and recover as often as it takes if the process dies or the disk is full meanwhile."""
        for _ in range(_MAX_RECOVERIES):
            try:
                action()
            except Crashed as crash:
                self._note(f"    crash at {crash} while recovering")
                action = self._restart
            except StorageError as error:
                self._expect_full(error)
                self._release()
                action = self._open
            else:
                return
        raise ViolationError("recovery", "the session cannot be opened")

    def _install(self) -> None:
        self.disk.install()
        ids = Random(self.schedule.seed + 7)
        stable = types.SimpleNamespace(uuid4=lambda: types.SimpleNamespace(hex=f"{ids.getrandbits(128):032x}"))
        for module in (posix, checkpoint, store):
            self._patch(module, "uuid", stable)
        self._patch(coordinator, "secrets", types.SimpleNamespace(token_hex=lambda size: ids.randbytes(size).hex()))
        for module in (headrace.session, headrace.query, map_stage, reduce_stage, delivery):
            self._patch(module, "time", self.clock)
        self._patch(delivery.ResultDelivery, "_start_threads", _deliver_at_once)
        self._patch(result_log, "ThreadPoolExecutor", _InlineExecutor)
        self._patch(result_log, "PACKED_FILES", _PACKED_FILES)
        self._patch(sink_publication, "_THREADS", 1)
        for module in (map_stage, reduce_stage):
            self._patch(module, "blame", self._blame)
        install_fault_hook(self.path, self._reach_fault_point)

    def _patch(self, owner: Any, name: str, value: Any) -> None:
        self._undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def _uninstall(self) -> None:
        install_fault_hook(self.path, None)
        self._release()
        for owner, name, value in reversed(self._undo):
            setattr(owner, name, value)
        self.disk.uninstall()
        worker_cache._CACHES.clear()

    def _reach_fault_point(self, step: str) -> None:
        if step == "log" and self._session is not None:
            self._observed.pop(self.session.last_batch + 1, None)
        self.disk.reach(step)

    # --- life of the process ------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Open the session as a new process does: attach sources and callbacks, repeat what was not acknowledged."""
        self._session = self._open_session()
        self._settle_batches()
        self._repeat_drop()
        self._reconcile()

    def _repeat_drop(self) -> None:
        """Repeat a drop that was not acknowledged; one that was is final.

        The session does not list a stream that no batch has logged; the rows of its source are there, however. So a client that
        does not know whether the drop happened declares the stream first.
        """
        is_listed = DROPPED_STREAM in self.session.streams()
        if not self._has_dropped_stream and not self._is_dropping and is_listed:
            raise ViolationError("revived stream", f"'{DROPPED_STREAM}' was dropped, and the session has it")
        if self._is_dropping:
            if not is_listed:
                self._declare_dropped(hr.MemorySource(SCHEMA))
            self._request_drop()

    def _request_drop(self) -> None:
        try:
            self.session.drop_stream(DROPPED_STREAM, cascade=True)
        finally:  # the queries are removed, even if the drop cannot be logged yet
            for query in self.queries:
                handle = self.session.find(query.name, query.id)
                query.is_withdrawn |= not query.was_live and handle is not None and handle.status == "removed"
        self._is_dropping = False

    def _open_session(self) -> hr.Session:
        settings = self.schedule.settings
        options: dict[str, Any] = {"rows_per_batch": settings.rows_per_batch}
        if not self.path.exists():
            options["partitions"] = settings.partitions
        session = hr.Session(self.path, backend="local", **options)
        try:
            session._coordinator.optimizers.sliding_joins.close()
            session._coordinator.optimizers.sliding_joins = _QuietProbeOrders(settings.replan_seed)
            if settings.replan_seed:
                session._coordinator.optimizers.window_joins = RandomReplanner(settings.replan_seed + self.life)
            session._backend = session._coordinator.backend = self.workers
            session._coordinator.sources.health._clock = self.clock.monotonic
            self.sources = self._declare_streams(session)
        except BaseException:
            session._checkpoint.close()
            raise
        return session

    def _declare_streams(self, session: hr.Session) -> dict[str, Any]:
        sources: dict[str, Any] = {name: hr.MemorySource(SCHEMA) for name in MEMORY_STREAMS}
        sources["logs"] = hr.FileSource(self.input, schema=SCHEMA)
        sources["ticks"] = hr.RateSource(generator="fields", start_time=BASE, clock=self.clock.time, **_TICKS)
        for name in STREAMS:
            if name != DROPPED_STREAM or self._has_dropped_stream:
                self._declare_stream(session, name, sources[name])
        return sources

    def _declare_stream(self, session: hr.Session, name: str, source: Any) -> None:
        source.plan = partial(self._plan_source, name, source.plan)
        delay = self.schedule.settings.delays.get(name, 0)
        session.create_stream(name, source, time="time", watermark=f"{delay} seconds")

    def _release(self) -> None:
        """Let go of the session as the end of a process does."""
        if self._session is not None:
            self._session._checkpoint.close()
            self._session = None

    def _restart(self) -> None:
        """Start a new process after a crash."""
        self._release()
        kind, seed = self._power
        if kind != "nothing":
            self.disk._random = Random(seed)
            self.disk.lose_unsynced(everything=kind == "all")
        self.disk.revive()
        worker_cache._CACHES.clear()
        posix.sync_name_once.cache_clear()
        self._power = ("nothing", 0)
        self.life += 1
        self._open()

    def _settle_batches(self) -> None:
        """Add the input of the batches that were committed since the last call."""
        last = self.session.last_batch
        if last + 1 < len(self.history.batches):
            raise ViolationError("lost batches", f"batch {len(self.history.batches) - 1} was committed; now the last is {last}")
        self._check_visible_files(last)
        for batch in range(len(self.history.batches), last + 1):
            self.history.batches.append(self._observed.pop(batch, BatchInput()))
            self._note(f"    batch {batch}: {self.history.batches[-1]}")

    def _check_visible_files(self, last_batch: int) -> None:
        """At no time has a file sink rows of a batch that is not committed."""
        for query in (query for query in self.queries if query.sink == "jsonl"):
            for batch in _list_sink_batches(self.disk.root / query.name):
                if batch > last_batch:
                    raise ViolationError("uncommitted rows", f"{query.key}: batch {batch} after {last_batch}")

    def _reconcile(self) -> None:
        """Compare the queries of a new session with those that clients know, and repeat what was not acknowledged."""
        self.queries = [query for query in self.queries if not query.is_withdrawn]  # a new query may get their ids
        for query in self.queries:
            found = self.session.find(query.name, query.id)
            is_live = found is not None and found.status in {"accepted", "live"}
            if query.is_wanted and query.was_live and found is None:
                raise ViolationError("lost query", f"{query.key} was live")
            if query.was_gone and is_live:
                raise ViolationError("revived query", f"{query.key} was removed or had failed")
            if query.is_wanted and query.was_live and found is not None and found.status == "removed":
                raise ViolationError("lost query", f"{query.key} was live, and is removed now")
            if self._is_active(query) and query.sink in {"callback", "raising"}:
                self.session.add(query.sql, name=query.name, sink=self._make_sink(query))
            if query.is_wanted and not query.was_live and found is None:
                self._submit(query)
            elif not query.is_wanted and self._is_active(query) and not self._is_replaced(query):
                self.session.remove(query.name)

    def _is_replaced(self, query: ClientQuery) -> bool:
        """Return whether a later query of the client replaces this one, and is about to be submitted again."""
        return any(other.replaces is query and other.is_wanted for other in self.queries)

    def _is_active(self, query: ClientQuery) -> bool:
        """Return whether the session has the query, and its removal is not in the log."""
        return any((other.name, other.id) == query.key for other in self.session.queries())

    def _submit(self, query: ClientQuery) -> None:
        """Add a query, or replace its predecessor if that is still there."""
        if query.replaces is not None and self._is_active(query.replaces):
            handle = self.session.replace(query.name, query.sql)
        else:
            handle = self.session.add(query.sql, name=query.name, sink=self._make_sink(query))
        query.id = handle.id

    def _make_sink(self, query: ClientQuery) -> Any:
        if query.sink == "memory":
            return None
        if query.sink == "jsonl":
            return f"jsonl:{self.disk.root / query.name}"
        return partial(self._deliver, query, self.life)

    def _deliver(self, query: ClientQuery, life: int, table: pa.Table) -> None:
        self.disk.reach("callback")
        query.calls += 1
        self.history.deliveries.setdefault(query.name, []).append(Delivery(life, table.to_pylist()))
        if query.sink == "raising" and query.calls > 1:
            raise RuntimeError("the callback fails")

    # --- what workers and sources do ----------------------------------------------------------------------------------

    def _observe(self, job: BatchJob, tasks: Sequence[Sequence[Range]]) -> None:
        """Record what a batch is about to read, with a reader of its own."""
        observed = BatchInput(final=job.final)
        for item in (item for task in tasks for item in task):
            if item.reader == "rate":
                observed.ticks.append((item.start, item.stop))
            else:
                with pa.OSFile(item.path) as file, pa.ipc.open_file(file) as reader:
                    batches = [reader.get_batch(number) for number in range(item.start, item.stop)]
                    ids = [value for batch in batches for value in batch.column("id").to_pylist()]
                observed.ids.setdefault(item.stream, []).extend(ids)
        self._observed[job.batch] = observed

    def _find_failing(self, task: Sequence[Range]) -> str | None:
        return next((item.stream for item in task if self._is_failing(item.stream, "read")), None)

    def _plan_source(self, name: str, plan: Callable[..., Any], *arguments: Any) -> Any:
        if self._is_failing(name, "plan"):
            raise SourceError(f"stream '{name}' fails at plan, by the schedule")
        return plan(*arguments)

    def _is_failing(self, stream: str, at: str) -> bool:
        left = self._failing_sources.get((stream, at), 0)
        self._failing_sources[stream, at] = max(0, left - 1)
        return left > 0

    @contextmanager
    def _blame(self, operator: str, queries: Iterable[int], found: failures.QueryFailures | None = None) -> Iterator[None]:
        """Let an operator fail, after its work, if a broken query uses it; see `headrace.engine.failures.blame`."""
        users = list(queries)
        with failures.blame(operator, users, found):
            yield
            for query in sorted(set(map(root_query_id, users))):
                if operator in self._broken_queries.get(query, ()):
                    raise RuntimeError(f"query {query} is broken, by the schedule")

    # --- steps --------------------------------------------------------------------------------------------------------

    def _append(self, step: s.Append) -> None:
        if step.stream == DROPPED_STREAM and not self._has_dropped_stream:
            return
        record = AppendRecord(step.stream, step.rows)
        self.history.appends.append(record)
        self.sources[step.stream].append([dict(row) for row in step.rows])
        record.acknowledged = True

    def _write_file(self, step: s.WriteFile) -> None:
        path = self.input / f"{len(self.history.appends):05d}.arrow"
        table = pa.Table.from_pylist([dict(row) for row in step.rows], SCHEMA.to_arrow())
        with pa.OSFile(str(path.with_name(f".{path.name}")), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        os.utime(path.with_name(f".{path.name}"), (self.clock.elapsed, self.clock.elapsed))
        path.with_name(f".{path.name}").rename(path)
        self.history.appends.append(AppendRecord("logs", step.rows, acknowledged=True))

    def _drop_stream(self, step: s.DropStream) -> None:
        """Drop a stream with its queries; a client whose query must end does not want it any more."""
        if not self._has_dropped_stream:
            return
        self._has_dropped_stream = False
        for append in self.history.appends:
            append.dropped |= append.stream == DROPPED_STREAM
        for query in [query for query in self._list_wanted() if DROPPED_STREAM in query.sql]:
            query.is_wanted = False
        self._is_dropping = True
        self._request_drop()

    def _declare_again(self, step: s.DeclareStream) -> None:
        if self._has_dropped_stream or self.session._coordinator.unfinished_entry is not None:
            return
        self._repeat_drop()
        source = hr.MemorySource(SCHEMA)
        self._declare_dropped(source)
        self.sources[DROPPED_STREAM], self._has_dropped_stream = source, True
        self.history.declared_at.append(len(self.history.batches))

    def _declare_dropped(self, source: hr.MemorySource) -> None:
        """Declare the dropped stream; that commits its drop."""
        try:
            self._declare_stream(self.session, DROPPED_STREAM, source)
        finally:
            if not self.disk.is_dead:
                self._settle_batches()

    def _add(self, step: s.AddQuery) -> None:
        if DROPPED_STREAM in step.sql and not self._has_dropped_stream:
            return
        query = ClientQuery(step.name, step.sql, step.sink)
        self.queries.append(query)
        self._submit(query)

    def _list_wanted(self) -> list[ClientQuery]:
        return [query for query in self.queries if query.is_wanted]

    def _remove(self, step: s.RemoveQuery) -> None:
        wanted = self._list_wanted()
        if wanted:
            query = wanted[step.pick % len(wanted)]
            query.is_wanted = False
            handle = self.session.find(query.name, query.id)
            if handle is not None and self._is_active(query):
                handle.remove()
                query.is_withdrawn = handle.status == "removed"

    def _replace(self, step: s.ReplaceQuery) -> None:
        wanted = [query for query in self._list_wanted() if query.sink == "memory" and query.sql != step.sql]
        wanted = [query for query in wanted if self._is_active(query)]
        if wanted and (self._has_dropped_stream or DROPPED_STREAM not in step.sql):
            old = wanted[step.pick % len(wanted)]
            old.is_wanted = False
            query = ClientQuery(old.name, step.sql, "memory", replaces=old)
            self.queries.append(query)
            query.id = self.session.replace(old.name, step.sql).id
            handle = self.session.find(old.name, old.id)
            old.is_withdrawn = handle is not None and handle.status == "removed"

    def _read(self, step: s.ReadResults) -> None:
        readable = [query for query in self.queries if query.was_live and query.sink == "memory"]
        if readable:
            query = readable[step.pick % len(readable)]
            self._read_query(query, -1 if step.anew else self.cursors.get(query.key, -1))

    def _read_query(self, query: ClientQuery, after: int) -> None:
        handle = self.session.find(query.name, query.id)
        if handle is None:
            raise ViolationError("lost query", f"{query.key} was live, and has no results now")
        after = max(after, handle.first_batch - 1)
        found = _read_results(self.session, handle, after)
        self.history.record_read(query.key, after, handle.last_batch, found)
        self.cursors[query.key] = handle.last_batch

    def _advance(self, step: s.Advance) -> None:
        self.workers.random = Random(step.workers) if step.workers else None
        unread, batches = self._find_unread(), len(self.history.batches)
        try:
            self.session.advance(retry_degraded=step.retry)
        except StorageError:
            raise
        except HeadraceError as error:
            raise ViolationError("unexpected error", f"{type(error).__name__}: {error}") from error
        else:
            self._acknowledge()
            self._check_bounds()
            self._repeat_drop()
        finally:
            if not self.disk.is_dead:
                self._settle_batches()
        self._check_progress(unread, {name for batch in self.history.batches[batches:] for name in batch.ids})

    def _find_unread(self) -> set[str]:
        """Return the streams with acknowledged rows that no batch has read."""
        read = {row for batch in self.history.batches for ids in batch.ids.values() for row in ids}
        appends = [append for append in self.history.appends if append.acknowledged and not append.dropped]
        return {append.stream for append in appends if append.rows[0]["id"] not in read}

    def _check_progress(self, unread: set[str], read: set[str]) -> None:
        """After a batch, every stream with rows has gone on, except those that are degraded."""
        streams = self.session.streams()
        for stream in unread - read:
            if streams[stream]["status"] == "ok":
                raise ViolationError("stalled stream", f"'{stream}' has rows and is not degraded, and none of them was read")

    def _acknowledge(self) -> None:
        """After a batch, every change that the session accepted before is in effect, and clients see it."""
        for query in self.queries:
            handle = self.session.find(query.name, query.id)
            if query.is_withdrawn and handle is not None and handle.status == "live":
                raise ViolationError("revived query", f"{query.key} was removed before it was live")
            if query.was_gone or query.is_withdrawn:
                continue
            if handle is None or handle.status == "accepted":
                raise ViolationError("ignored query", f"{query.key} is not live after a batch")
            if query.first_batch not in {None, handle.first_batch}:
                raise ViolationError("changed query", f"{query.key}: first batch {query.first_batch}, now {handle.first_batch}")
            query.was_live, query.first_batch = True, handle.first_batch
            if not query.is_wanted and handle.status == "live":
                raise ViolationError("ignored removal", f"{query.key} is live after the batch that removes it")
            query.was_gone = handle.status in {"removed", "failed"} and not self.session._command_queue
            if query.is_wanted and handle.status == "removed":
                raise ViolationError("lost query", f"{query.key} is removed, but nobody removed it")

    def _rescale(self, step: s.Rescale) -> None:
        self.session.rescale(step.partitions)

    def _wait(self, step: s.Wait) -> None:
        self.clock.wait(step.seconds)

    def _reopen(self, step: s.Reopen) -> None:
        self.session.close()
        self._session = None
        self._survive(self._open)

    def _open_twice(self, step: s.OpenTwice) -> None:
        with suppress(CheckpointError):
            second = hr.Session(self.path, backend="local")
            second._checkpoint.close()
            raise ViolationError("two sessions", "a second session opened the checkpoint")

    def _arm_crash(self, step: s.Crash) -> None:
        self.disk.crash(step.after, step.at)
        self._power = (step.power, step.seed)

    def _fill_disk(self, step: s.FillDisk) -> None:
        self.disk.fill(step.after, step.count)

    def _arm_source(self, step: s.FailSource) -> None:
        self._failing_sources[step.stream, step.at] = step.count

    def _wake_zombie(self, step: s.WakeZombie) -> None:
        self._note(f"    zombie of {self.workers.wake_zombie(step.pick, Random(step.seed))}")

    def _break_operator(self, step: s.FailOperator) -> None:
        """Break the operators of a query; all others, which use the same operators, must stay exact."""
        live = [query for query in self._list_wanted() if query.was_live and not query.was_gone]
        if live:
            self._broken_queries[live[step.pick % len(live)].id] = step.operators

    def _damage(self, step: s.DamageFile) -> None:
        """Damage a file, let a session run with it, and restore the checkpoint: the session refuses, or is not affected.

        A session that runs on a sound copy tells what is right. A log of rows that is cut in its last line is not noticed: it
        looks like an append that was interrupted, and is left out. So is the deletion of a log entry of whose batch no worker has
        written a file: it looks like a batch that was never logged.
        """
        self._release()
        faults, attempts = self.disk.disarm(), self.workers.attempts
        failing, broken = dict(self._failing_sources), dict(self._broken_queries)
        self._failing_sources.clear()
        self._broken_queries.clear()
        self.workers.observe = lambda job, tasks: None
        backup, random = self.folder / "backup", Random(step.seed)
        shutil.copytree(self.disk.root, backup)
        try:
            expected = self._run_probe()
            self._restore(backup)
            names = sorted(str(p.relative_to(self.path)) for p in self.path.rglob("*") if p.is_file() and p.name[0] != ".")
            columnar = [name for name in names if name.startswith(("state/", "results/"))]
            names = columnar if columnar and random.random() < 0.5 else [name for name in names if name != "lock"]
            target = self.path / names[step.pick % len(names)]
            damage = _damage_file(target, random)
            self._note(f"    {damage} {target.relative_to(self.path)}")
            is_hidden = (damage == "cut" and target.suffix == ".jsonl") or (damage == "delete" and _is_lone_entry(target, names))
            found = None if is_hidden else self._run_probe()
        finally:
            self._restore(backup)
            shutil.rmtree(backup)
            self.disk.mark_durable()
            self.disk.arm(*faults)
            self._failing_sources, self._broken_queries = failing, broken
            self.workers.attempts = attempts  # a probe leaves no zombies
            self.workers.observe = self._observe
        if expected is None or found not in {None, expected}:
            raise ViolationError("unnoticed damage", f"{damage} {target.name}: {found}\nexpected {expected}")
        self.life += 1
        self._survive(self._open)

    def _restore(self, backup: Path) -> None:
        shutil.rmtree(self.disk.root)
        shutil.copytree(backup, self.disk.root)
        worker_cache._CACHES.clear()

    def _run_probe(self) -> str | None:
        """Run a session to the end of its input; return all that it has to say about its queries, or None if it refuses."""
        try:
            session = self._open_session()
        except HeadraceError as error:
            self._note(f"    refused: {error.message}")
            return None
        try:
            session.drain()
            handles = (session.find(query.name, query.id) for query in self.queries)
            return repr(
                [
                    (handle.name, handle.status, handle.emitted, handle.late, _read_results(session, handle, -1))
                    for handle in handles
                    if handle is not None
                ]
            )
        except HeadraceError as error:
            self._note(f"    refused: {error.message}")
            return None
        finally:
            session._checkpoint.close()

    # --- the end ------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Stop all faults; everything comes to rest, and stays as it is when the session is opened again."""
        self.disk.disarm()
        self._failing_sources.clear()
        self._broken_queries.clear()
        self._repeat_drop()
        for _ in range(_MAX_IDLE_STEPS):
            self._advance(s.Advance())
            if not self.session.has_work() and not self.session._command_queue:
                break
        else:
            raise ViolationError("liveness", f"the session still has work after {_MAX_IDLE_STEPS} batches")
        if self.schedule.settings.drain:
            self.session.drain()
            self._settle_batches()
        self._read_all()
        self._reopen(s.Reopen())
        self._read_all()
        self._collect()
        self._check_files()
        self._check_sinks()
        self.session.close()
        self._session = None

    def _read_all(self) -> None:
        for query in self.queries:
            if query.was_live and query.sink == "memory":
                self._read_query(query, -1)

    def _collect(self) -> None:
        """Take from the session what it says about its queries and streams."""
        self.history.had_full_disk = self.disk.errors > 0
        self.history.stream_counts = {name: dict(counts) for name, counts in self.session.streams().items()}
        for query in self.queries:
            handle = self.session.find(query.name, query.id)
            if handle is None or not query.was_live:
                continue
            old = query.replaces
            self.history.queries.append(
                QueryHistory(
                    *(query.name, query.id, query.sql, query.sink, handle.status, handle.error, handle.first_batch),
                    *(handle.last_batch + 1, handle.late, handle.emitted),
                    replaced=old.key if old is not None and old.was_live else None,
                )
            )
            if query.sink == "jsonl":
                self.history.sink_files[query.name] = _read_sink(self.disk.root / query.name)

    def _check_bounds(self) -> None:
        """After a batch, the checkpoint has the newest manifest and log entry, and at most those of the batch before."""
        for folder in ("manifest", "log"):
            names = [path.name for path in (self.path / folder).glob("[!.]*")]
            if len(names) > 2:
                raise ViolationError("unbounded files", f"{folder}: {sorted(names)}")

    def _check_files(self) -> None:
        """After a restart, the checkpoint has the files that the newest manifest names, and plans of newer streams, no others."""
        names = {str(path.relative_to(self.path)) for path in self.path.rglob("*") if path.is_file()}
        manifests = sorted(name for name in names if name.startswith("manifest/"))
        text = (self.path / manifests[-1]).read_text()
        live = {f"queries/{q.id:08d}.query" for q in self.session.queries()}
        live |= self.session._coordinator.state.plan_files()  # no manifest has a stream that was declared after the last batch
        for name in sorted(names):
            folder, _, rest = name.rpartition("/")
            is_known = (
                not rest.startswith(".")
                and (folder in {"", "log", "manifest"} or folder.startswith("sources/") or f'"{name}"' in text or name in live)
                and not (folder in {"log", "manifest"} and len([n for n in names if n.startswith(f"{folder}/")]) > 2)
            )
            if not is_known and folder != "queries":
                raise ViolationError("orphaned file", name)

    def _check_sinks(self) -> None:
        """After a restart, no sink has files that are not published."""
        for query in self.queries:
            for path in (self.disk.root / query.name / "_pending").glob("*"):
                raise ViolationError("orphaned file", str(path.relative_to(self.disk.root)))


def _read_results(session: hr.Session, handle: hr.Query, after: int) -> dict[int, Rows]:
    """Return the rows of a query by batch; its columns need not be known any more."""
    found = session.result_reader.iter_rows(handle.id, after, handle.last_batch)
    return {batch: [row for part in rows for row in part.to_pylist()] for batch, rows in found}


def _damage_file(path: Path, random: Random) -> str:
    content = path.read_bytes()
    kind = random.choice(("delete", "cut", "flip", "flip"))
    if kind == "delete" or not content:
        path.unlink()
        return "delete"
    if kind == "cut":
        path.write_bytes(content[: random.randrange(len(content))])
    else:
        place = random.randrange(len(content))
        path.write_bytes(content[:place] + bytes([content[place] ^ (1 << random.randrange(8))]) + content[place + 1 :])
    return kind


def _is_lone_entry(path: Path, names: list[str]) -> bool:
    """Return whether a file is the log entry of a batch of which no other file exists."""
    written = [f"{folder}/{path.stem}" for folder in ("state", "results", "deliveries", "manifest")]
    return path.parent.name == "log" and not any(name.startswith(tuple(written)) for name in names)


def _read_sink(folder: Path) -> dict[int, Rows]:
    found: dict[int, Rows] = {}
    for path in sorted(folder.glob("part-*.jsonl")):
        rows = [_parse_times(json.loads(line)) for line in path.read_text().splitlines()]
        found.setdefault(_find_batch(path), []).extend(rows)
    return found


def _list_sink_batches(folder: Path) -> set[int]:
    return {_find_batch(path) for path in folder.glob("part-*.jsonl")}


def _find_batch(path: Path) -> int:
    return int(path.name.split("-")[1])


def _parse_times(row: dict[str, Any]) -> dict[str, Any]:
    return {n: datetime.fromisoformat(v) if n in {"w0", "w1", "v0", "time"} and v else v for n, v in row.items()}


@lru_cache
def generate_ticks() -> Rows:
    """Return the rows of the rate stream, as many as a run can reach."""
    start_time = int(BASE.timestamp() * 1_000_000)
    return generate("fields", 0, 0, _MAX_TICKS, start_time=start_time, **_TICKS).to_pylist()


_HANDLERS: dict[type, Callable[[World, Any], None]] = {
    s.Append: World._append,
    s.WriteFile: World._write_file,
    s.AddQuery: World._add,
    s.RemoveQuery: World._remove,
    s.ReplaceQuery: World._replace,
    s.ReadResults: World._read,
    s.Advance: World._advance,
    s.DropStream: World._drop_stream,
    s.DeclareStream: World._declare_again,
    s.Rescale: World._rescale,
    s.Wait: World._wait,
    s.Reopen: World._reopen,
    s.OpenTwice: World._open_twice,
    s.Crash: World._arm_crash,
    s.FillDisk: World._fill_disk,
    s.FailSource: World._arm_source,
    s.WakeZombie: World._wake_zombie,
    s.FailOperator: World._break_operator,
    s.DamageFile: World._damage,
}
