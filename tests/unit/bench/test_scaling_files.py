"""Files of the scaling benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.bench import scaling


def test_a_failed_measurement_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(folder: Path, *_: object, **__: object) -> None:
        folder.mkdir()
        raise OSError("no space left on device")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(scaling, "write_workload_files", fail)
    with pytest.raises(OSError, match="no space"):
        scaling.measure_scaling([1], 10, 10, 10, lambda _: None)
    assert list(tmp_path.iterdir()) == []
