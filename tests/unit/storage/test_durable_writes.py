"""Durable writes are synced to disk, unless HEADRACE_FSYNC=off says that the files need not survive a loss of power."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.storage import container, posix
from headrace.storage.posix import PosixStore

WRITES: dict[str, tuple[Callable[[Path], None], int]] = {
    "replace": (lambda path: posix.replace_file(path, b"x"), 2),  # the file, and its directory for the new name
    "append": (lambda path: PosixStore(path.parent).append_line(path.name, b"x"), 2),
    "container": (lambda path: container.write(PosixStore(path.parent), path.name, [1]), 2),
    "if absent": (lambda path: PosixStore(path.parent).put(path.name, [b"x"], if_absent=True), 2),
}


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    descriptors: list[int] = []
    monkeypatch.setattr(os, "fsync", descriptors.append)
    return descriptors


@pytest.mark.parametrize("name", WRITES)
def test_writes_are_synced_by_default(name: str, tmp_path: Path, synced: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_FSYNC")
    write, times = WRITES[name]
    write(tmp_path / "file")
    assert len(synced) == times


@pytest.mark.parametrize("name", WRITES)
def test_tests_do_not_sync(name: str, tmp_path: Path, synced: list[int]) -> None:
    write, _ = WRITES[name]
    write(tmp_path / "file")
    assert (tmp_path / "file").exists()
    assert not synced
