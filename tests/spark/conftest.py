"""One Spark session for all tests: starting Spark takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.backends.spark.environment import start_spark


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    session = start_spark("local[2]")
    yield session
    session.stop()
