from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.in_process_service import Service


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


@pytest.fixture
def service(serve: Callable[..., Service]) -> Service:
    started = serve()
    started.declare()
    return started
