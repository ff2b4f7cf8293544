from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lives import Life


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Life]]:
    """Return a function that opens a session on a checkpoint (`Life`); the last session of each is closed after the test."""
    lives: list[Life] = []

    def begin(name: str = "checkpoint", **options: Any) -> Life:
        lives.append(Life(tmp_path / name, **options))
        return lives[-1]

    yield begin
    for life in lives:
        life.session.close()


@pytest.fixture
def life(begin: Callable[..., Life]) -> Life:
    return begin()
