"""A system under test as a process: JSON lines in, JSON lines out, and everything ends when the input does.

    runner                                              python -m headrace.bench.sut.NAME
    SutProcess ── configuration, add, remove, stop ──> serve ── start, change, check, close ──> Adapter
               <── ready, live, removed, refused, failed ──

What the adapter and its libraries print goes to standard error. The child leads a session of its own, so that the runner can
end it with all its children; a child whose runner is gone sees its input end, and ends its children itself.
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

from headrace.bench.query import BenchQuery
from headrace.bench.sut.adapter import Adapter, SutConfig
from headrace.errors import HeadraceError

_LOOK = 0.5  # seconds between looks at the health of the system
_GRACE = 15.0  # seconds to end in good order
_TAIL = 3000  # characters of standard error that a failure quotes


@dataclass(frozen=True, slots=True)
class SutEvent:
    """One line of a system: `event` is ready, live, removed, refused or failed; `at` is in microseconds."""

    event: str
    query: str = ""
    at: int = 0
    reason: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the parts that are there."""
        parts = {name: getattr(self, name) for name in ("query", "at", "reason", "versions", "settings")}
        kept = {"versions", "settings"} if self.event == "ready" else set()
        return {"event": self.event, **{name: part for name, part in parts.items() if part or name in kept}}


class Voice:
    """Writes events, from any thread; stamps those about a query."""

    def __init__(self, out: IO[str], clock: Callable[[], float] = time.time) -> None:
        """`clock` gives seconds since 1970."""
        self._out, self._clock, self._lock = out, clock, threading.Lock()

    def say(self, event: SutEvent) -> None:
        """Write a line."""
        with self._lock, contextlib.suppress(BrokenPipeError):  # nobody listens any more: the input ends soon, too
            print(json.dumps(event.to_json()), file=self._out, flush=True)

    def live(self, query: str) -> None:
        """See `Teller`."""
        self.say(SutEvent("live", query, self._now()))

    def removed(self, query: str) -> None:
        """See `Teller`."""
        self.say(SutEvent("removed", query, self._now()))

    def refused(self, query: str, reason: str) -> None:
        """See `Teller`."""
        self.say(SutEvent("refused", query, self._now(), reason))

    def _now(self) -> int:
        return int(self._clock() * 1e6)


def serve(adapter: Adapter) -> None:
    """Be the process of a system under test; does not return."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever prints, libraries and JVMs too, must not disturb the conversation
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    code = converse(adapter, lines, Voice(out))
    _end_children()
    sys.stderr.flush()
    os._exit(code)  # threads of libraries may not want to end


def _read(lines: queue.Queue[str | None]) -> None:
    """Pass lines on; when there are no more, the process has a little time left."""
    for line in sys.stdin:
        lines.put(line)
    lines.put(None)
    time.sleep(_GRACE)
    _end_children()
    os._exit(1)


def converse(adapter: Adapter, lines: queue.Queue[str | None], voice: Voice) -> int:
    """Drive an adapter by the lines of a queue (None is the end) until told to stop; return the exit code."""
    try:
        first = lines.get()
        if first is not None:
            started = adapter.start(SutConfig.from_json(json.loads(first)), voice)
            voice.say(SutEvent("ready", versions=started.versions, settings=started.settings))
            _obey(adapter, lines)
    except Exception as error:  # noqa: BLE001  whatever it is, it is the reason
        traceback.print_exc()
        voice.say(SutEvent("failed", reason=str(error) if isinstance(error, HeadraceError) else repr(error)))
        return 1
    finally:
        with contextlib.suppress(Exception):
            adapter.close()
    return 0


def _obey(adapter: Adapter, lines: queue.Queue[str | None]) -> None:
    while True:
        commands = _waiting(lines)
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
            else:
                raise HeadraceError(f"unknown command '{command['command']}'", detail="commands: add, remove, stop")
        early = [name for name in removed if name in added]  # asked for and given up before it was looked at
        if commands:
            adapter.change([q for name, q in added.items() if name not in early], [n for n in removed if n not in early])
        adapter.check()


def _waiting(lines: queue.Queue[str | None]) -> list[Any]:
    """Return all commands that are there; wait a little for the first."""
    found: list[str | None] = []
    with contextlib.suppress(queue.Empty):
        found.append(lines.get(timeout=_LOOK))
        while True:
            found.append(lines.get_nowait())
    return [None if line is None else json.loads(line) for line in found]


def _end_children() -> None:
    for child in _tree(os.getpid())[1:]:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


class SutProcess:
    """The runner's side; a context manager, at whose end no process of the system is left."""

    def __init__(self, system: str, config: SutConfig) -> None:
        """`system` is the name of a module of this package, or dotted for one that lives elsewhere."""
        self.system, self._config = system, config
        self._module = system if "." in system else f"headrace.bench.sut.{system}"
        self._events: queue.SimpleQueue[SutEvent] = queue.SimpleQueue()
        self._early: list[SutEvent] = []

    @property
    def state(self) -> Path:
        """Where the system keeps its state, if it keeps it in files."""
        return self._config.scratch / "checkpoint" / "state"

    def __enter__(self) -> Self:
        """Start it; `wait_ready` tells when it can be measured."""
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self._process = subprocess.Popen(  # noqa: S603  our own module
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        with contextlib.suppress(HeadraceError):  # it ended already: `wait_ready` tells why
            self._send(self._config.to_json())
        return self

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(SutEvent(**json.loads(line)))

    def wait_ready(self, timeout: float) -> SutEvent:
        """Return the ready event; refusals that came before it are in `events`. Raises HeadraceError with the reason."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            alive = self.alive
            for event in self._drain():
                if event.event == "ready":
                    return event
                if event.event == "failed":
                    raise HeadraceError(f"{self.system} cannot run", detail=event.reason)
                self._early.append(event)
            if not alive:
                raise HeadraceError(f"{self.system} ended with code {self._process.returncode}", detail=self.tail())
            time.sleep(0.02)
        raise HeadraceError(f"{self.system} is not ready after {timeout:g} s", detail=self.tail())

    def add(self, query: BenchQuery) -> None:
        """Ask for a query; it is told of as live, or refused, later."""
        self._send({"command": "add", "query": query.to_json()})

    def remove(self, name: str) -> None:
        """Ask for the removal of a query."""
        self._send({"command": "remove", "name": name})

    def events(self) -> list[SutEvent]:
        """Return what came since the last time, without waiting."""
        early, self._early = self._early, []
        return [*early, *self._drain()]

    def _drain(self) -> Iterator[SutEvent]:
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._events.get_nowait()

    @property
    def alive(self) -> bool:
        """Whether the process is still there; what it said before its end can be drained after this was False."""
        if self._process.poll() is None:
            return True
        self._listener.join(1.0)
        return False

    def pids(self) -> list[int]:
        """Return the process and all its descendants, as they are now."""
        return [process.pid for process in _tree(self._process.pid)]

    def tail(self) -> str:
        """Return the end of what it wrote to standard error."""
        self._errors.flush()
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), _TAIL, max(0, size - _TAIL)).decode(errors="replace").strip()

    def _send(self, value: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise HeadraceError(f"{self.system} no longer takes commands", detail=self.tail()) from error

    def stop(self, timeout: float = 2 * _GRACE) -> None:
        """End it in good order, and by force if that does not help."""
        with contextlib.suppress(HeadraceError):
            self._send({"command": "stop"})
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """End it and everything it has started, now."""
        tree = _tree(self._process.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End it, gently if nothing went wrong."""
        if error is None:
            self.stop()
        else:
            self.kill()
        self._errors.close()
