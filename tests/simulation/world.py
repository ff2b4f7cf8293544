"""The world: a session and everything around it, in one process; plays a schedule and records its history."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.ipc

import headrace as hr
from headrace.connectors import Range
from headrace.connectors.rate import generate
from headrace.engine import failures, map_stage, reduce_stage, worker_cache
from headrace.engine.batch_job import BatchJob
from headrace.errors import CheckpointError, HeadraceError, SourceError, StorageError
from headrace.planner.changelog import root_query_id
from headrace.storage import posix
from headrace.storage.fault_points import install_fault_hook
from properties.harness import RandomReplanner
from simulation import schedule as s
from simulation.clients import Clients
from simulation.clock import VirtualClock
from simulation.damage import damage_file
from simulation.disk import Crashed, SimulatedDisk
from simulation.durable_files import check_bounds, check_files, check_sinks, list_sink_batches
from simulation.history import BatchInput, History, Rows, ViolationError
from simulation.stand_ins import QuietProbeOrders, StandIns
from simulation.workers import SimulatedWorkers
from simulation.workload import BASE, DROPPED_STREAM, MEMORY_STREAMS, SCHEMA, STREAMS, TICKS_PER_SECOND, declare_streams

_MAX_RECOVERIES = 40
_MAX_IDLE_STEPS = 300
_MAX_TICKS = 1_000
SECONDS_PER_STEP = 0.5
_TICKS = {"rows_per_second": TICKS_PER_SECOND, "keys": 3, "field_max": 10}


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
        self.life = 0
        self._power = ("nothing", 0)
        self.failing_sources: dict[tuple[str, str], int] = {}
        self.broken_queries: dict[int, tuple[str, ...]] = {}  # the operators that fail, by query
        self._observed: dict[int, BatchInput] = {}
        self._session: hr.Session | None = None
        self._stand_ins = StandIns()
        self.clients = Clients(self)
        self.workers = SimulatedWorkers(schedule.settings.parallelism, self.disk.reach, self._find_failing)
        self.workers.observe = self.observe
        clients = self.clients
        self._handlers: dict[type, Callable[[Any], None]] = {
            s.Append: clients.append_rows,
            s.WriteFile: clients.write_file,
            s.AddQuery: clients.add_query,
            s.RemoveQuery: clients.remove_query,
            s.ReplaceQuery: clients.replace_query,
            s.ReadResults: clients.read_results,
            s.DropStream: clients.drop_stream,
            s.DeclareStream: clients.declare_again,
            s.Advance: self._advance,
            s.Rescale: self._rescale,
            s.Wait: self._wait,
            s.Reopen: self._reopen,
            s.OpenTwice: self._open_twice,
            s.Crash: self._arm_crash,
            s.FillDisk: self._fill_disk,
            s.FailSource: self._arm_source,
            s.WakeZombie: self._wake_zombie,
            s.FailOperator: self._break_operator,
            s.DamageFile: partial(damage_file, self),
        }

    # --- running ----------------------------------------------------------------------------------------------------------

    @property
    def session(self) -> hr.Session:
        assert self._session is not None
        return self._session

    def play(self) -> History:
        """Play all steps, then let everything come to rest; return the history."""
        self._install()
        try:
            self.survive(self.open)
            for number, step in enumerate(self.schedule.steps):
                self.note(f"{number:3} {s.format_value(step)}")
                self.clock.wait(SECONDS_PER_STEP)
                self._play_step(step)
            self._finish()
        finally:
            self._uninstall()
        return self.history

    def note(self, text: str) -> None:
        self.trace.append(text.replace(str(self.folder), ""))

    def _play_step(self, step: s.Step) -> None:
        try:
            self._handlers[type(step)](step)
        except Crashed as crash:
            self.note(f"    crash at {crash}")
            self.survive(self._restart)
        except StorageError as error:
            self._expect_full(error)

    def _expect_full(self, error: StorageError) -> None:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.ENOSPC:
            raise ViolationError("unexpected error", repr(error)) from error
        self.note("    disk full")

    def survive(self, action: Callable[[], None]) -> None:
        """Run an action, and recover as often as it takes if the process dies or the disk is full meanwhile."""
        for _ in range(_MAX_RECOVERIES):
            try:
                action()
            except Crashed as crash:
                self.note(f"    crash at {crash} while recovering")
                action = self._restart
            except StorageError as error:
                self._expect_full(error)
                self.release()
                action = self.open
            else:
                return
        raise ViolationError("recovery", "the session cannot be opened")

    def _install(self) -> None:
        self.disk.install()
        self._stand_ins.install(self.schedule.seed + 7, self.clock)
        for module in (map_stage, reduce_stage):
            self._stand_ins.replace(module, "blame", self._blame)
        install_fault_hook(self.path, self._reach_fault_point)

    def _uninstall(self) -> None:
        install_fault_hook(self.path, None)
        self.release()
        self._stand_ins.remove()
        self.disk.uninstall()
        worker_cache._CACHES.clear()

    def _reach_fault_point(self, step: str) -> None:
        if step == "log" and self._session is not None:
            self._observed.pop(self.session.last_batch + 1, None)
        self.disk.reach(step)

    # --- life of the process ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the session as a new process does: attach sources and callbacks, repeat what was not acknowledged."""
        self._session = self.open_session()
        self.settle_batches()
        self.clients.repeat_drop()
        self.clients.reconcile()

    def open_session(self) -> hr.Session:
        settings = self.schedule.settings
        options: dict[str, Any] = {"rows_per_batch": settings.rows_per_batch}
        if not self.path.exists():
            options["partitions"] = settings.partitions
        session = hr.Session(self.path, backend="local", **options)
        try:
            session._coordinator.optimizers.sliding_joins.close()
            session._coordinator.optimizers.sliding_joins = QuietProbeOrders(settings.replan_seed)
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
            if name != DROPPED_STREAM or self.clients.has_dropped_stream:
                self.declare_stream(session, name, sources[name])
        return sources

    def declare_stream(self, session: hr.Session, name: str, source: Any) -> None:
        source.plan = partial(self._plan_source, name, source.plan)
        delay = self.schedule.settings.delays.get(name, 0)
        session.create_stream(name, source, time="time", watermark=f"{delay} seconds")

    def release(self) -> None:
        """Let go of the session as the end of a process does."""
        if self._session is not None:
            self._session._checkpoint.close()
            self._session = None

    def _restart(self) -> None:
        """Start a new process after a crash."""
        self.release()
        kind, seed = self._power
        if kind != "nothing":
            self.disk._random = Random(seed)
            self.disk.lose_unsynced(everything=kind == "all")
        self.disk.revive()
        worker_cache._CACHES.clear()
        posix.sync_name_once.cache_clear()
        self._power = ("nothing", 0)
        self.life += 1
        self.open()

    def settle_batches(self) -> None:
        """Add the input of the batches that were committed since the last call."""
        last = self.session.last_batch
        if last + 1 < len(self.history.batches):
            raise ViolationError("lost batches", f"batch {len(self.history.batches) - 1} was committed; now the last is {last}")
        self._check_visible_files(last)
        for batch in range(len(self.history.batches), last + 1):
            self.history.batches.append(self._observed.pop(batch, BatchInput()))
            self.note(f"    batch {batch}: {self.history.batches[-1]}")

    def _check_visible_files(self, last_batch: int) -> None:
        """At no time has a file sink rows of a batch that is not committed."""
        for query in (query for query in self.clients.queries if query.sink == "jsonl"):
            for batch in list_sink_batches(self.disk.root / query.name):
                if batch > last_batch:
                    raise ViolationError("uncommitted rows", f"{query.key}: batch {batch} after {last_batch}")

    # --- what workers and sources do --------------------------------------------------------------------------------------

    def observe(self, job: BatchJob, tasks: Sequence[Sequence[Range]]) -> None:
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
        left = self.failing_sources.get((stream, at), 0)
        self.failing_sources[stream, at] = max(0, left - 1)
        return left > 0

    @contextmanager
    def _blame(self, operator: str, queries: Iterable[int], found: failures.QueryFailures | None = None) -> Iterator[None]:
        """Let an operator fail, after its work, if a broken query uses it; see `headrace.engine.failures.blame`."""
        users = list(queries)
        with failures.blame(operator, users, found):
            yield
            for query in sorted(set(map(root_query_id, users))):
                if operator in self.broken_queries.get(query, ()):
                    raise RuntimeError(f"query {query} is broken, by the schedule")

    def suspend_failures(self) -> tuple[dict[tuple[str, str], int], dict[int, tuple[str, ...]]]:
        """Stop the failures of sources and operators; return them, to be set again."""
        suspended = self.failing_sources, self.broken_queries
        self.failing_sources, self.broken_queries = {}, {}
        return suspended

    # --- steps of the process, and faults ---------------------------------------------------------------------------------

    def _advance(self, step: s.Advance) -> None:
        self.workers.random = Random(step.workers) if step.workers else None
        unread, batches = self.clients.find_unread(), len(self.history.batches)
        try:
            self.session.advance(retry_degraded=step.retry)
        except StorageError:
            raise
        except HeadraceError as error:
            raise ViolationError("unexpected error", f"{type(error).__name__}: {error}") from error
        else:
            self.clients.acknowledge_changes()
            check_bounds(self.path)
            self.clients.repeat_drop()
        finally:
            if not self.disk.is_dead:
                self.settle_batches()
        self._check_progress(unread, {name for batch in self.history.batches[batches:] for name in batch.ids})

    def _check_progress(self, unread: set[str], read: set[str]) -> None:
        """After a batch, every stream with rows has gone on, except those that are degraded."""
        streams = self.session.streams()
        for stream in unread - read:
            if streams[stream]["status"] == "ok":
                raise ViolationError("stalled stream", f"'{stream}' has rows and is not degraded, and none of them was read")

    def _rescale(self, step: s.Rescale) -> None:
        self.session.rescale(step.partitions)

    def _wait(self, step: s.Wait) -> None:
        self.clock.wait(step.seconds)

    def _reopen(self, step: s.Reopen) -> None:
        self.session.close()
        self._session = None
        self.survive(self.open)

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
        self.failing_sources[step.stream, step.at] = step.count

    def _wake_zombie(self, step: s.WakeZombie) -> None:
        self.note(f"    zombie of {self.workers.wake_zombie(step.pick, Random(step.seed))}")

    def _break_operator(self, step: s.FailOperator) -> None:
        """Break the operators of a query; all others, which use the same operators, must stay exact."""
        live = [query for query in self.clients.list_wanted() if query.was_live and not query.was_gone]
        if live:
            self.broken_queries[live[step.pick % len(live)].id] = step.operators

    # --- the end ----------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Stop all faults; everything comes to rest, and stays as it is when the session is opened again."""
        self.disk.disarm()
        self.suspend_failures()
        self.clients.repeat_drop()
        for _ in range(_MAX_IDLE_STEPS):
            self._advance(s.Advance())
            if not self.session.has_work() and not self.session._command_queue:
                break
        else:
            raise ViolationError("liveness", f"the session still has work after {_MAX_IDLE_STEPS} batches")
        if self.schedule.settings.drain:
            self.session.drain()
            self.settle_batches()
        self.clients.read_all()
        self._reopen(s.Reopen())
        self.clients.read_all()
        self.history.had_full_disk = self.disk.errors > 0
        self.history.stream_counts = {name: dict(counts) for name, counts in self.session.streams().items()}
        self.clients.describe_queries()
        check_files(self.path, self.session)
        check_sinks(self.disk.root)
        self.session.close()
        self._session = None


@lru_cache
def generate_ticks() -> Rows:
    """Return the rows of the rate stream, as many as a run can reach."""
    start_time = int(BASE.timestamp() * 1_000_000)
    return generate("fields", 0, 0, _MAX_TICKS, start_time=start_time, **_TICKS).to_pylist()
