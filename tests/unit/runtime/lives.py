"""A session that can be killed and opened again, as a process would be."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import headrace as hr

DAY = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = "k INT, n BIGINT, time TIMESTAMP"


class Killed(BaseException):
    """What a fault raises: nothing in the engine may catch it."""


class Fault:
    """Raises at the n-th step of a name, once."""

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
    """One checkpoint, one stream `s` with columns k, n, time and no watermark delay, and one session after the other."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory, self.options, self.fault = directory, {"backend": "local", **options}, Fault()
        self.begin()

    def begin(self, **options: Any) -> hr.Session:
        self.session = hr.Session(self.directory, fault=self.fault, **{**self.options, **options})
        self.source = hr.MemorySource(SCHEMA)
        self.session.create_stream("s", self.source, time="time")
        return self.session

    def kill(self) -> None:
        """Let go of everything without any farewell."""
        self.session._checkpoint.close()

    def again(self, **options: Any) -> hr.Session:
        self.kill()
        return self.begin(**options)

    def killed_in(self, action: Callable[[], object], step: str, nth: int = 1) -> None:
        """Run an action until it is killed at a step."""
        self.fault.at(step, nth)
        try:
            action()
        except Killed:
            self.kill()
            return
        raise AssertionError(f"there was no step '{step}'")

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
    """Return the values of a query's results, sorted; tuples when several columns are asked for."""
    found = query.results().to_pylist()
    return sorted(row[names[0]] if len(names) == 1 else tuple(row[name] for name in names) for row in found)
