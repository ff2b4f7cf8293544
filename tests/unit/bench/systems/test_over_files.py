"""Memory measurement of the Spark driver while processes end."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from headrace.bench.systems.over_files import measure_driver_mib


def test_a_process_that_ends_during_the_measurement_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_no_such_process() -> str:
        raise psutil.NoSuchProcess(1)

    def make_process(name: str) -> SimpleNamespace:
        return SimpleNamespace(name=lambda: name, memory_info=lambda: SimpleNamespace(rss=512 * 2**20))

    baseline = measure_driver_mib()
    monkeypatch.setattr(
        psutil.Process,
        "children",
        lambda *_, **__: [SimpleNamespace(name=raise_no_such_process), make_process("java"), make_process("python")],
    )
    assert measure_driver_mib() == pytest.approx(baseline + 512, abs=50)
