from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.serving import Service


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Start a service; all are ended in the end."""
    started: list[Service] = []

    def serve(**given: Any) -> Service:
        started.append(Service(tmp_path / f"checkpoint-{len(started)}", **given))
        return started[-1]

    yield serve
    for one in started:
        one.close()


@pytest.fixture
def service(serve: Callable[..., Service]) -> Service:
    found = serve()
    found.declare()
    return found
