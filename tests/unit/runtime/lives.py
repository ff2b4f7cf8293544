"""A session that a test can kill and open again, as if its process had crashed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import headrace as hr

DAY = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = "k INT, n BIGINT, time TIMESTAMP"


class Killed(BaseException):
    """Raised by a fault; no code of the engine may catch it."""


class Fault:
    """A fault hook of a session: raises once, at the n-th step of a name."""

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


class Life:
    """A checkpoint with a stream `s` (columns k, n, time; no watermark delay) and successive sessions on it."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory, self.options, self.fault = directory, {"backend": "local", **options}, Fault()
        self.begin()

    def begin(self, **options: Any) -> hr.Session:
        self.session = hr.Session(self.directory, fault=self.fault, **{**self.options, **options})
        self.source = hr.MemorySource(SCHEMA)
        self.session.create_stream("s", self.source, time="time")
        return self.session

    def kill(self) -> None:
        """Release the lock of the checkpoint without closing the session."""
        self.session._checkpoint.close()

    def again(self, **options: Any) -> hr.Session:
        self.kill()
        return self.begin(**options)

    def killed_in(self, action: Callable[[], object], step: str, nth: int = 1) -> None:
        """Run an action that is killed at a step."""
        self.fault.at(step, nth)
        try:
            action()
        except Killed:
            self.kill()
            return
        raise AssertionError(f"step '{step}' did not occur")

    def give(self, *seconds: float, k: int = 1, n: int = 1) -> None:
        """Append rows at these seconds."""
        self.source.append(rows(*seconds, k=k, n=n))

    def tick(self, *seconds: float, k: int = 1, n: int = 1) -> None:
        """Append rows and run a micro-batch."""
        self.give(*seconds, k=k, n=n)
        self.session.advance()

    def files(self, folder: str) -> list[str]:
        return sorted(path.name for path in (self.directory / folder).iterdir())


def rows(*seconds: float, k: int = 1, n: int = 1) -> list[dict[str, Any]]:
    return [{"k": k, "n": n, "time": DAY + timedelta(seconds=second)} for second in seconds]


def columns(query: hr.Query, *names: str) -> list[Any]:
    """Return the values of a query's results, sorted; tuples for several columns."""
    found = query.results().to_pylist()
    return sorted(row[names[0]] if len(names) == 1 else tuple(row[name] for name in names) for row in found)
