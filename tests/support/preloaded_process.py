"""Processes that start within milliseconds: a parent that has imported the libraries forks a child for each command.

`PreloadedPopen` is a `subprocess.Popen` whose commands `python -c CODE …` and `python -m MODULE …` run in such a child, with
their own arguments, environment, folder and standard streams; other commands start as usual. The fixture `preloaded` of
`tests/conftest.py` uses it for a test. A child shares with the others what the parent has done: imports, and the seed of `hash`.
The parent runs nothing else and has no threads but that of pyarrow's allocator, which supports forks. It starts on first use,
and ends with the process that started it.

    test ── request, three file descriptors ──> parent ── fork ──> child: the command
         <── process id, then wait status ──────
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

MODULES = (
    "headrace.cli.serve",
    "headrace.cli.run",
    "headrace.cli.sql",
    "headrace.cli.shell.embedded",
    "headrace.backends.local",
    "headrace.bench.systems.process",
    "headrace.bench.driver.serving",
    "anyio._backends._asyncio",
    "pandas",
    "pyarrow.pandas_compat",
    "uvicorn.lifespan.on",
    "uvicorn.loops.asyncio",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
)
_MAX_REQUEST_BYTES = 1 << 20
_UNKNOWN_STATUS = 255 << 8  # the parent has ended


class PreloadedPopen(subprocess.Popen):
    """Overrides how `Popen` starts a process and learns its exit status; ignores `preexec_fn` and the options of users."""

    _connection: socket.socket | None = None

    def _execute_child(self, args: Any, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest: Any) -> None:
        if sys.platform != "linux" or isinstance(args, str) or args[0] != sys.executable or args[1] not in {"-c", "-m"}:
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)
            return
        stdin, _, _, stdout, _, stderr = rest[3:9]
        request = {
            "words": list(map(str, args[1:])),
            "environment": dict(os.environ if env is None else env),
            "folder": os.fspath(cwd or Path.cwd()),
            "new_session": rest[-2],
        }
        streams = [number if fd == -1 else fd for number, fd in enumerate((stdin, stdout, stderr))]
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(start_parent())
        socket.send_fds(self._connection, [json.dumps(request).encode()], streams)
        self.pid = int(self._connection.recv(32))
        self._child_created = True
        self._close_pipe_fds(*rest[3:9])

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._connection is None:
            return super()._try_wait(wait_flags)
        if wait_flags == os.WNOHANG and not select.select([self._connection], [], [], 0)[0]:
            return 0, 0
        with self._connection:
            return self.pid, int(self._connection.recv(32) or _UNKNOWN_STATUS)

    def _internal_poll(self, *args: Any, **options: Any) -> int | None:
        if self._connection is None:
            return super()._internal_poll(*args, **options)
        with self._waitpid_lock:
            pid, status = (0, 0) if self.returncode is not None else self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)
        return self.returncode


@functools.cache
def start_parent() -> bytes:
    """Start the parent of this process, once; return the address of its socket."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("")  # Linux chooses an address without a file
    listener.listen()
    address: bytes = listener.getsockname()
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # no threads beside the one that forks
    command = [sys.executable, __file__, str(listener.fileno())]
    parent = _POPEN(command, stdin=subprocess.PIPE, env=environment, pass_fds=[listener.fileno()])
    listener.close()
    atexit.register(parent.communicate)
    return address


_POPEN = subprocess.Popen


def serve_requests(listener: socket.socket) -> list[str] | None:
    """Fork a child for each request, until the input ends; return its words in a child, and None in the parent."""
    waiting: dict[int, tuple[int, socket.socket]] = {}  # by file descriptor of the process
    while True:
        for ready in select.select([0, listener.fileno(), *waiting], [], [])[0]:
            if ready == 0:
                return None
            if ready in waiting:
                pid, connection = waiting.pop(ready)
                os.close(ready)
                with connection, contextlib.suppress(OSError):
                    connection.send(str(os.waitpid(pid, 0)[1]).encode())
                continue
            connection, _ = listener.accept()
            message, streams, _, _ = socket.recv_fds(connection, _MAX_REQUEST_BYTES, 3)
            pid = os.fork()
            if pid == 0:
                for inherited in (connection, listener, *(other for _, other in waiting.values())):
                    inherited.close()
                for process in waiting:
                    os.close(process)
                return become(json.loads(message), streams)
            for stream in streams:
                os.close(stream)
            connection.send(str(pid).encode())
            waiting[os.pidfd_open(pid)] = pid, connection


def become(request: dict[str, Any], streams: list[int]) -> list[str]:
    """Take over standard streams, environment and folder of a request; return its words."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if request["new_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[0:1] = ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    words: list[str] = request["words"]
    return words


def run_python(option: str, program: str, *arguments: str) -> None:
    """Do what `python -c` and `python -m` do."""
    sys.argv = [option, *arguments]
    if option == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is for the process that started it
    from numba.core import registry

    for module in MODULES:
        importlib.import_module(module)
    atexit.register(gc.freeze)  # children, too, end without a search for garbage in all libraries
    registry.cpu_target.typing_context.refresh()  # what numba does before the first compiled function runs
    registry.cpu_target.target_context.refresh()
    if words := serve_requests(socket.socket(fileno=int(sys.argv[1]))):
        run_python(*words)
