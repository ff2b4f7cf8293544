"""The runner's handle on the driver process: start it, set its rate, poll its status, stop it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from headrace.bench.driver.hub import DriverLog
from headrace.bench.driver.rates import RateScript
from headrace.bench.driver.streams import StreamSpec
from headrace.connectors.tcp import TcpConnection
from headrace.errors import HeadraceError, SourceError

_EXIT_TIMEOUT_SECONDS = 10.0  # before the process is killed


@dataclass(frozen=True, slots=True)
class DriverStatus:
    """Row counts over all streams at time `now` (microseconds); with several groups on a stream, the slowest counts."""

    now: int
    produced: int
    read: int
    committed: int
    overflowed: bool
    dropped: int
    served_bytes: int

    @property
    def backlog(self) -> int:
        """Rows produced but not read."""
        return self.produced - self.read


class DriverProcess:
    """A context manager around the driver process. Every request to a dead process raises HeadraceError."""

    address: str
    line_ports: Mapping[str, Sequence[int]]

    def __init__(
        self, streams: Sequence[StreamSpec], capacity_rows: int, *, cores: Sequence[int] | None = None, host: str = "127.0.0.1"
    ) -> None:
        """`capacity_rows` bounds the queue of each partition; `cores` is the CPU affinity (default: all cores)."""
        specs, self._host = [spec.to_json() for spec in streams], host
        self._config = {"host": host, "streams": specs, "capacity_rows": capacity_rows, "cores": list(cores or ())}

    def __enter__(self) -> Self:
        """Start the process; return when it serves."""
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        command = [sys.executable, "-m", "headrace.bench.driver.server"]
        self._process = subprocess.Popen(  # noqa: S603  our own module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, text=True
        )
        try:
            self._handshake()
        except BaseException:
            self.close()
            raise
        return self

    def _handshake(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(self._config) + "\n")
            self._process.stdin.flush()
        first_line = self._process.stdout.readline()
        if not first_line:
            raise self._exit_error()
        answer = json.loads(first_line)
        self.address, self.line_ports = f"{self._host}:{answer['port']}", answer["line_ports"]
        self._connection = TcpConnection(self.address)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def start(self, script: RateScript | None) -> int:
        """Produce rows by this script (rows/s over all streams) from now on, or none; return that time in microseconds."""
        return int(self._request("start", rate=None if script is None else script.to_json())["now"])

    def status(self) -> DriverStatus:
        """Return the current counters; cheap enough to poll every 100 ms."""
        return DriverStatus(**self._request("totals"))

    def log(self) -> DriverLog:
        """Return the log of the run; meant for the end of a run."""
        return DriverLog.from_json(self._request("log"))

    def _request(self, request: str, **arguments: Any) -> dict[str, Any]:
        try:
            return self._connection.send_request(request, **arguments)
        except SourceError as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
                raise self._exit_error() from error
            raise

    def _exit_error(self) -> HeadraceError:
        code = self._process.wait()
        self._stderr.seek(0)
        return HeadraceError(f"the driver process ended with code {code}", detail=self._stderr.read()[-2000:].strip())

    def close(self) -> None:
        """End the process by closing its input; kill it after a timeout."""
        if hasattr(self, "_connection"):
            self._connection.close()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        try:
            self._process.wait(_EXIT_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the process."""
        self.close()
