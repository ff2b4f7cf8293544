"""`scripts/torture-cluster`: what counts as a failure, and that it ends. The cluster itself is not started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from support.script_modules import load_script

GOOD = {"differing": {}, "ended by themselves": [], "left in _pending": 0, "objects at most": 72}


@pytest.fixture(scope="module")
def script() -> Any:
    return load_script("torture-cluster")


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({}, False),
        ({"differing": {"q": [1, 2]}}, True),
        ({"ended by themselves": ["driver ended with 3"]}, True),
        ({"left in _pending": 1}, True),
        ({"objects at most": 401}, True),
    ],
)
def test_every_fault_counts_in_the_exit_code(script: Any, changes: dict[str, Any], failed: bool):
    assert script.has_failed(GOOD | changes) is failed


def make_torture(script: Any, tmp_path: Any, returncodes: list[int]) -> Any:
    """Return a torture whose drivers end at once, with these codes and then always with the last one."""
    torture = object.__new__(script.Torture)
    torture.failures, torture.driver_log = [], tmp_path / "driver.log"

    def start_driver() -> Any:
        code = returncodes.pop(0) if len(returncodes) > 1 else returncodes[0]
        return SimpleNamespace(returncode=code, poll=lambda: code)

    torture.start_driver = start_driver
    torture.driver = start_driver()
    return torture


def test_a_driver_that_always_fails_ends_the_test(script: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(script.time, "sleep", lambda seconds: None)
    torture = make_torture(script, tmp_path, [3])
    with pytest.raises(SystemExit, match="10 drivers ended by themselves"):
        torture.wait_for_end()


def test_a_driver_that_recovers_ends_well_and_is_counted(script: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(script.time, "sleep", lambda seconds: None)
    torture = make_torture(script, tmp_path, [3, 0])
    torture.wait_for_end()
    assert torture.failures == ["driver ended with 3, see driver.log"]


def test_the_circumstances_have_commit_store_and_load(script: Any):
    found = script.describe_circumstances("MinIO", [9.0, 1.5, 4.0])
    assert (found["store"], found["load"]) == ("MinIO", {"samples": [9.0, 1.5, 4.0], "median": 4.0, "most": 9.0})
    assert found["commit"]
