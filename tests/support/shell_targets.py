"""Targets for tests of the shell: a session in this process, and a session behind HTTP."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from headrace.cli.shell import embedded, remote
from headrace.cli.shell.embedded import EmbeddedTarget
from headrace.cli.shell.remote import open_remote
from headrace.cli.shell.target import ShellTarget
from headrace.connectors import MemorySource
from headrace.service.auth import TokenRegistry
from headrace.session import Session
from support.in_process_service import Service, shorten_pauses

Append = Callable[..., None]


def declare_stream(session: Session) -> Append:
    """Declare a stream t; return a function that appends rows (key, value, second) to it."""
    source = MemorySource("k INT, v BIGINT, time TIMESTAMP")
    session.create_stream("t", source, time="time", watermark="1 second")

    def append(*values: tuple[int, int, int]) -> None:
        source.append([{"k": k, "v": v, "time": f"2026-01-01T00:{at // 60:02}:{at % 60:02}Z"} for k, v, at in values])

    return append


@contextlib.contextmanager
def shorten_ticks() -> Iterator[None]:
    """Let a followed query without new rows yield an empty table every 20 ms instead of every 250 ms."""
    with mock.patch.object(embedded, "TICK_SECONDS", 0.02), mock.patch.object(remote, "TICK_SECONDS", 0.02):
        yield


@contextlib.contextmanager
def embedded_target() -> Iterator[tuple[ShellTarget, Append]]:
    session = Session(backend="local", partitions=2)
    shorten_pauses(session)
    append = declare_stream(session)
    with shorten_ticks(), contextlib.closing(EmbeddedTarget(session)) as target:
        yield target, append


@contextlib.contextmanager
def serve_session(tokens: TokenRegistry | None = None) -> Iterator[tuple[str, Append]]:
    """Serve a session in a thread; yield its address and the function that appends rows."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(Service(Path(folder) / "checkpoint", tokens=tokens)) as service,
    ):
        yield service.url, declare_stream(service.session)


@contextlib.contextmanager
def remote_target() -> Iterator[tuple[ShellTarget, Append]]:
    with shorten_ticks(), serve_session() as (url, append), contextlib.closing(open_remote(url, None)) as target:
        yield target, append


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.002)
