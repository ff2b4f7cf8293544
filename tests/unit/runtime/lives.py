"""A session that a test can kill and reopen, as if its process had crashed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.storage.fault_points import install_fault_hook
from headrace.storage.posix import PosixStore

DAY = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = "k INT, n BIGINT, time TIMESTAMP"


class Killed(BaseException):
    """Raised by a fault; no code of the engine may catch it."""


class Fault:
    """A fault hook of a session: raises once, at the n-th step of the given name."""

    def __init__(self) -> None:
        self.step, self.left = "", 0

    def at(self, step: str, nth: int = 1) -> None:
        self.step, self.left = step, nth

    def __call__(self, step: str) -> None:
        if step == self.step:
            self.left -= 1
            if self.left == 0:
                self.step = ""
                raise Killed(step)


class SessionHarness:
    """A checkpoint with a stream `s` (columns k, n, time; no watermark delay) and successive sessions on it."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory, self.options, self.fault = directory, {"backend": "local", **options}, Fault()
        self.open_session()

    def open_session(self, **options: Any) -> hr.Session:
        install_fault_hook(self.directory, self.fault)
        self.session = hr.Session(self.directory, **{**self.options, **options})
        self.source = hr.MemorySource(SCHEMA)
        self.session.create_stream("s", self.source, time="time")
        return self.session

    def kill(self) -> None:
        """Release the lock of the checkpoint without closing the session."""
        self.session._checkpoint.close()

    def restart(self, **options: Any) -> hr.Session:
        self.kill()
        return self.open_session(**options)

    def kill_during(self, action: Callable[[], object], step: str, nth: int = 1) -> None:
        """Run an action, raise `Killed` at its n-th `step`, and release the lock of the checkpoint."""
        self.fault.at(step, nth)
        try:
            action()
        except Killed:
            self.kill()
            return
        raise AssertionError(f"step '{step}' did not occur")

    def append_rows(self, *seconds: float, k: int = 1, n: int = 1) -> None:
        """Append rows at these seconds."""
        self.source.append(make_rows(*seconds, k=k, n=n))

    def tick(self, *seconds: float, k: int = 1, n: int = 1) -> None:
        """Append rows and run a micro-batch."""
        self.append_rows(*seconds, k=k, n=n)
        self.session.advance()

    def list_files(self, folder: str) -> list[str]:
        return [Path(key).name for key in PosixStore(self.directory).list(folder)]


def make_rows(*seconds: float, k: int = 1, n: int = 1) -> list[dict[str, Any]]:
    return [{"k": k, "n": n, "time": DAY + timedelta(seconds=second)} for second in seconds]


def read_columns(query: hr.Query, *names: str) -> list[Any]:
    """Return the values of a query's results, sorted; tuples for several columns."""
    results = query.results().to_pylist()
    return sorted(row[names[0]] if len(names) == 1 else tuple(row[name] for name in names) for row in results)
