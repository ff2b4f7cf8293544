"""Durable writes are synced to disk, unless HEADRACE_FSYNC=off says that the files need not survive a loss of power."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace as hr
from headrace.storage import container, posix
from headrace.storage.append_log import AppendLog
from headrace.storage.posix import PosixStore


def append_to_log(path: Path) -> None:
    log = AppendLog(PosixStore(path.parent), path.name)
    assert log.read() == []
    log.append("x")
    assert AppendLog(PosixStore(path.parent), path.name).read() == ["x"]


def rename_object(path: Path) -> None:
    store = PosixStore(path.parent)
    store.put("old", [b"x"])
    store.rename({"old": path.name})
    assert store.list("") == ["file"]


WRITES: dict[str, tuple[Callable[[Path], None], int]] = {
    "replace": (lambda path: posix.replace_file(path, b"x"), 2),  # the file, and its directory for the new name
    "append": (append_to_log, 5),  # the new log like any file, its line, and the log that a reader depends on
    "container": (lambda path: container.write(PosixStore(path.parent), path.name, [1]), 2),
    "rename": (rename_object, 2 + 1),  # the file like any other; then the directory for the new name
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


@pytest.mark.parametrize("name", ["a" * 300, "\U00010000" * 90, "İ" * 200, "..", "x/y", "\x00"])
def test_any_stream_name_has_a_folder(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.runtime.stream_registry.check_name", lambda *_: None)  # as in versions that accepted every name
    with hr.Session(tmp_path / "checkpoint", backend="local") as session:
        for stream in (name, name + "b"):
            source = hr.MemorySource("n INT, time TIMESTAMP")
            session.create_stream(stream, source, time="time")
            source.append([{"n": 1, "time": "2024-01-01T00:00:00Z"}])
        session.advance()
        assert len(list((tmp_path / "checkpoint" / "sources").iterdir())) == 2
