from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lives import SessionHarness


@pytest.fixture
def open_harness(tmp_path: Path) -> Iterator[Callable[..., SessionHarness]]:
    """Return a function that opens a session on a named checkpoint; the fixture closes the last session of each checkpoint."""
    harnesses: list[SessionHarness] = []

    def open_harness(name: str = "checkpoint", **options: Any) -> SessionHarness:
        harnesses.append(SessionHarness(tmp_path / name, **options))
        return harnesses[-1]

    yield open_harness
    for harness in harnesses:
        harness.session.close()


@pytest.fixture
def harness(open_harness: Callable[..., SessionHarness]) -> SessionHarness:
    return open_harness()
