"""The memory of the driver, when processes end while it is being measured."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from headrace.bench.systems.over_files_headrace import measure_driver_mib


def test_a_process_that_ends_meanwhile_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> str:
        raise psutil.NoSuchProcess(1)

    def child(name: str) -> SimpleNamespace:
        return SimpleNamespace(name=lambda: name, memory_info=lambda: SimpleNamespace(rss=512 * 2**20))

    alone = measure_driver_mib()
    monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: [SimpleNamespace(name=gone), child("java"), child("python")])
    assert measure_driver_mib() == pytest.approx(alone + 512, abs=50)
