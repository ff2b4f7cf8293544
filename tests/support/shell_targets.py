"""Targets for tests of the shell: a session in this process, and the same behind HTTP."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.cli.shell.embedded import EmbeddedTarget
from headrace.cli.shell.remote import open_remote
from headrace.cli.shell.target import ShellTarget
from headrace.connectors import MemorySource
from headrace.service.auth import TokenRegistry
from headrace.session import Session
from support.serving import Service

Append = Callable[..., None]


def declare(session: Session) -> Append:
    """Declare a stream t and return what adds rows (key, value, second) to it."""
    source = MemorySource("k INT, v BIGINT, time TIMESTAMP")
    session.create_stream("t", source, time="time", watermark="1 second")

    def append(*values: tuple[int, int, int]) -> None:
        source.append([{"k": k, "v": v, "time": f"2026-01-01T00:{at // 60:02}:{at % 60:02}Z"} for k, v, at in values])

    return append


@contextlib.contextmanager
def embedded() -> Iterator[tuple[ShellTarget, Append]]:
    session = Session(backend="local", partitions=2)
    append = declare(session)
    with contextlib.closing(EmbeddedTarget(session)) as target:
        yield target, append


@contextlib.contextmanager
def served(tokens: TokenRegistry | None = None) -> Iterator[tuple[str, Append]]:
    """Serve a session in a thread; yield its address."""
    with (
        tempfile.TemporaryDirectory() as place,
        contextlib.closing(Service(Path(place) / "checkpoint", tokens=tokens)) as service,
    ):
        yield service.url, declare(service.session)


@contextlib.contextmanager
def remote() -> Iterator[tuple[ShellTarget, Append]]:
    with served() as (url, append), contextlib.closing(open_remote(url, None)) as target:
        yield target, append


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.005)
