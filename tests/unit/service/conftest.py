from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from support.in_process_service import Service


@pytest.fixture(autouse=True)
def prompt_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve live readers after every micro-batch, whatever CPU time it takes."""
    monkeypatch.setattr("headrace.service.notifier._READER_CPU_SHARE", 1e9)


@pytest.fixture(autouse=True)
def no_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send no heartbeats to live readers: a test that waits for a row in vain ends with the timeout of its connection."""
    monkeypatch.setattr("headrace.service.subscriptions._HEARTBEAT_SECONDS", 3600.0)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Return a function that starts a service; all services are closed after the test."""
    started: list[Service] = []

    def serve(**options: Any) -> Service:
        started.append(Service(tmp_path / f"checkpoint-{len(started)}", **options))
        return started[-1]

    yield serve
    for service in started:
        service.close()


@pytest.fixture(scope="module")
def unchanged_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with the stream purchases, for the tests of a module that add and change nothing."""
    with closing(Service(tmp_path_factory.mktemp("service") / "checkpoint")) as started:
        started.declare()
        yield started


@pytest.fixture
def service(serve: Callable[..., Service]) -> Service:
    started = serve()
    started.declare()
    return started
