"""Run a system under test as a process: JSON lines in, JSON lines out; the process ends when its input ends.

    runner                                              python -m headrace.bench.systems.NAME
    SutProcess ── configuration, limit, add, … stop ──> serve ── start, limit_nodes, change, check, close ──> SutAdapter
               <── ready, limited, live, removed, refused, failed ──

Output of the adapter and its libraries goes to standard error. The child leads its own process session, so that the runner can
kill it with all its children; when the runner ends, the input of the child ends, and the child kills its own children.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import psutil

from headrace.bench.queries.query import BenchQuery
from headrace.bench.systems.adapter import SutAdapter, SutConfig
from headrace.errors import HeadraceError

_CHECK_INTERVAL_S = 0.5  # seconds between health checks of the system
_SHUTDOWN_GRACE_S = 15.0  # seconds for an orderly shutdown
_LIMIT_TIMEOUT_S = 30.0
_TAIL_BYTES = 3000  # end of standard error that a failure quotes


@dataclass(frozen=True, slots=True)
class SutEvent:
    """A line from a system: `event` is ready, limited, components, live, removed, refused or failed; `at` is in microseconds."""

    event: str
    query: str = ""
    at: int = 0
    reason: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form without empty fields."""
        fields = {name: getattr(self, name) for name in ("query", "at", "reason", "versions", "settings")}
        required = {"versions", "settings"} if self.event == "ready" else set()
        return {"event": self.event, **{name: value for name, value in fields.items() if value or name in required}}


class SutEventWriter:
    """Writes events as JSON lines and timestamps query events; thread-safe."""

    def __init__(self, out: IO[str], clock: Callable[[], float] = time.time) -> None:
        """Write to `out`; `clock` returns seconds since 1970."""
        self._out, self._clock, self._lock = out, clock, threading.Lock()

    def write_event(self, event: SutEvent) -> None:
        """Write an event as a line."""
        with self._lock, contextlib.suppress(BrokenPipeError):  # the runner has ended: the input ends soon, too
            print(json.dumps(event.to_json()), file=self._out, flush=True)

    def report_live(self, query: str) -> None:
        """See `QueryStatusReporter`."""
        self.write_event(SutEvent("live", query, self._now_us()))

    def report_removed(self, query: str) -> None:
        """See `QueryStatusReporter`."""
        self.write_event(SutEvent("removed", query, self._now_us()))

    def report_refused(self, query: str, reason: str) -> None:
        """See `QueryStatusReporter`."""
        self.write_event(SutEvent("refused", query, self._now_us(), reason))

    def _now_us(self) -> int:
        return int(self._clock() * 1e6)


def serve(adapter: SutAdapter) -> None:
    """Run an adapter as the process of a system under test; does not return."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries and JVMs must not mix with the events
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read_commands, args=(lines,), daemon=True).start()
    code = drive_adapter(adapter, lines, SutEventWriter(out))
    _kill_children()
    sys.stderr.flush()
    os._exit(code)  # library threads can block a normal exit


def _read_commands(lines: queue.Queue[str | None]) -> None:
    """Put input lines into the queue; after the end of the input, kill the process after a grace period."""
    for line in sys.stdin:
        lines.put(line)
    lines.put(None)
    time.sleep(_SHUTDOWN_GRACE_S)
    _kill_children()
    os._exit(1)


def drive_adapter(adapter: SutAdapter, lines: queue.Queue[str | None], voice: SutEventWriter) -> int:
    """Drive an adapter by the lines of a queue (None is the end) until the command stop; return the exit code."""
    try:
        first = lines.get()
        if first is not None:
            started = adapter.start(SutConfig.from_json(json.loads(first)), voice)
            voice.write_event(SutEvent("ready", versions=started.versions, settings=started.settings))
            _apply_commands(adapter, lines, voice)
    except Exception as error:  # noqa: BLE001  any error is the reason of the failure
        traceback.print_exc()
        voice.write_event(SutEvent("failed", reason=str(error) if isinstance(error, HeadraceError) else repr(error)))
        return 1
    finally:
        with contextlib.suppress(Exception):
            adapter.close()
    return 0


def _apply_commands(adapter: SutAdapter, lines: queue.Queue[str | None], voice: SutEventWriter) -> None:
    while True:
        commands = _take_commands(lines)
        added: dict[str, BenchQuery] = {}
        removed = []
        for command in commands:
            if command is None or command["command"] == "stop":
                return
            if command["command"] == "add":
                query = BenchQuery.from_json(command["query"])
                added[query.name] = query
            elif command["command"] == "remove":
                removed.append(command["name"])
            elif command["command"] == "components":
                voice.write_event(SutEvent("components", settings=adapter.read_component_seconds()))
            elif command["command"] == "limit":
                adapter.limit_nodes()
                voice.write_event(SutEvent("limited"))
            else:
                raise HeadraceError(
                    f"unknown command '{command['command']}'", detail="commands: limit, components, add, remove, stop"
                )
        cancelled = [name for name in removed if name in added]  # added and removed again before this change
        if added or removed:
            adapter.change([q for name, q in added.items() if name not in cancelled], [n for n in removed if n not in cancelled])
        adapter.check()


def _take_commands(lines: queue.Queue[str | None]) -> list[Any]:
    """Return all queued commands; wait up to one check interval for the first."""
    received: list[str | None] = []
    with contextlib.suppress(queue.Empty):
        received.append(lines.get(timeout=_CHECK_INTERVAL_S))
        while True:
            received.append(lines.get_nowait())
    return [None if line is None else json.loads(line) for line in received]


def _kill_children() -> None:
    for child in list_process_tree(os.getpid())[1:]:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def list_process_tree(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants; empty if it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


class SutProcess:
    """The runner's handle of a system; a context manager that leaves no process of the system behind."""

    def __init__(self, system: str, config: SutConfig) -> None:
        """Prepare a system; `system` is the name of a module of this package, or the dotted name of another module."""
        self.system, self._config = system, config
        self._module = system if "." in system else f"headrace.bench.systems.{system}"
        self._events: queue.SimpleQueue[SutEvent] = queue.SimpleQueue()
        self._early_events: list[SutEvent] = []

    @property
    def state(self) -> Path:
        """The folder of the system's state, if it keeps state in files."""
        return self._config.scratch / "checkpoint" / "state"

    def __enter__(self) -> Self:
        """Start the process; `wait_ready` waits until it can be measured."""
        self._stderr_file = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self._process = subprocess.Popen(  # noqa: S603  own module
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr_file,
            text=True,
            start_new_session=True,
        )
        self._event_reader = threading.Thread(target=self._read_events, daemon=True)
        self._event_reader.start()
        with contextlib.suppress(HeadraceError):  # if it has ended already, `wait_ready` raises the reason
            self._send_command(self._config.to_json())
        return self

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(SutEvent(**json.loads(line)))

    def wait_ready(self, timeout: float) -> SutEvent:
        """Return the ready event; `events` returns earlier refusals. Raise HeadraceError with the reason of a failure."""
        return self._wait_for_event("ready", timeout)

    def limit_nodes(self, timeout: float = _LIMIT_TIMEOUT_S) -> None:
        """Limit the processors of the nodes of its cluster, and return when that is done."""
        self._send_command({"command": "limit"})
        self._wait_for_event("limited", timeout)

    def read_component_seconds(self, timeout: float = _LIMIT_TIMEOUT_S) -> Mapping[str, float]:
        """Return the seconds of its work so far by component; empty if it does not measure them."""
        self._send_command({"command": "components"})
        return self._wait_for_event("components", timeout).settings

    def _wait_for_event(self, name: str, timeout: float) -> SutEvent:
        """Return the next event of this name; others are kept for `events`. Raise HeadraceError if the system fails before."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            alive = self.alive
            for event in self._drain_events():
                if event.event == name:
                    return event
                if event.event == "failed":
                    self._early_events.append(event)  # a caller may go on without this answer
                    raise HeadraceError(f"{self.system} failed{' to start' if name == 'ready' else ''}", detail=event.reason)
                self._early_events.append(event)
            if not alive:
                raise HeadraceError(f"{self.system} ended with code {self._process.returncode}", detail=self.tail())
            time.sleep(0.02)
        raise HeadraceError(f"{self.system} is not {name} after {timeout:g} s", detail=self.tail())

    def add(self, query: BenchQuery) -> None:
        """Request a query; a later event reports it as live or refused."""
        self._send_command({"command": "add", "query": query.to_json()})

    def remove(self, name: str) -> None:
        """Request the removal of a query."""
        self._send_command({"command": "remove", "name": name})

    def events(self) -> list[SutEvent]:
        """Return the events since the last call, without waiting."""
        early, self._early_events = self._early_events, []
        return [*early, *self._drain_events()]

    def _drain_events(self) -> Iterator[SutEvent]:
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._events.get_nowait()

    @property
    def alive(self) -> bool:
        """Whether the process runs; once this is False, `events` returns all its remaining events."""
        if self._process.poll() is None:
            return True
        self._event_reader.join(1.0)
        return False

    def pids(self) -> list[int]:
        """Return the ids of the process and its current descendants."""
        return [process.pid for process in list_process_tree(self._process.pid)]

    def tail(self) -> str:
        """Return the end of its standard error."""
        self._stderr_file.flush()
        size = os.fstat(self._stderr_file.fileno()).st_size
        return os.pread(self._stderr_file.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace").strip()

    def _send_command(self, value: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise HeadraceError(f"{self.system} no longer accepts commands", detail=self.tail()) from error

    def stop(self, timeout: float = 2 * _SHUTDOWN_GRACE_S) -> None:
        """Shut the system down in order; kill it after the timeout."""
        with contextlib.suppress(HeadraceError):
            self._send_command({"command": "stop"})
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """Kill the process and all its descendants."""
        tree = list_process_tree(self._process.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop the system in order, or kill it after an error."""
        if error is None:
            self.stop()
        else:
            self.kill()
        self._stderr_file.close()
