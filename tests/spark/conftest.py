"""One Spark session for all tests: starting Spark takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.backends.spark import backend
from headrace.backends.spark.environment import start_spark


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    session = start_spark("local[2]")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _every_batch_has_all_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run map and reduce tasks with a shuffle between them, although the batches of tests are small."""
    monkeypatch.setattr(backend, "SMALL_BATCH_ROWS", -1)
