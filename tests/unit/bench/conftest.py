"""Fixtures of the tests of the benchmark."""

from __future__ import annotations

import pytest

import headrace.bench.systems.headrace as module


@pytest.fixture
def small_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let headrace warm up as always, with few rows: no test measures it."""
    for name, rows in {"_WARM_UP_ROWS": 5_000, "_JOIN_WARM_UP_ROWS": 500, "_THETA_WARM_UP_ROWS": 100}.items():
        monkeypatch.setattr(module, name, rows)
    monkeypatch.setattr(module, "_WARM_UP_BATCHES", 2)
