"""What a killed process, a loss of power or a full disk leaves behind does not harm the next writes; found by the simulation."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
import headrace.session
from headrace.connectors import MemorySource, OutputPlace
from headrace.connectors.pending_files import publish_files
from headrace.connectors.sinks import JsonLinesSink
from headrace.errors import StorageError
from headrace.storage import posix, result_log
from headrace.storage.append_log import AppendLog
from headrace.storage.checkpoint import Checkpoint
from headrace.storage.posix import PosixStore
from headrace.storage.result_log import ResultFile, ResultLog, ResultPacker
from support.forgetful_disk import ForgetfulDisk, PowerCut

ROWS = [{"n": 1, "time": "2024-01-01T00:00:00Z"}]


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ForgetfulDisk:
    (tmp_path / "disk").mkdir()
    return ForgetfulDisk(tmp_path / "disk", monkeypatch)


def open_session(path: Path) -> tuple[hr.Session, MemorySource]:
    session, source = hr.Session(path, backend="local", partitions=1), MemorySource("n INT, time TIMESTAMP")
    session.create_stream("s", source, time="time")
    return session, source


def test_a_line_that_did_not_fit_does_not_damage_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AppendLog(PosixStore(tmp_path), "log.jsonl")
    log.replace(["first"])

    class FullDisk(posix.FileOperations):
        def append(self, path: Path, content: bytes, offset: int) -> None:
            super().append(path, content[:7], offset)
            raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as context:
        context.setattr(posix, "_files", FullDisk())
        with pytest.raises(StorageError, match="full"):
            log.append("lost")
    log.append("second")
    assert log.read() == ["first", "second"]


def test_a_line_that_was_read_survives_a_loss_of_power(disk: ForgetfulDisk) -> None:
    """kill after the write, before the sync ─ restart reads the line ─ loss of power."""
    log = AppendLog(PosixStore(disk.root), "log.jsonl")
    assert log.read() == []
    disk.cut_at = disk.syncs + 1
    with pytest.raises(PowerCut):
        log.append("value")
    assert log.read() == ["value"]
    disk.cut_power()
    assert log.read() == ["value"]


def test_a_manifest_that_was_read_survives_a_loss_of_power(disk: ForgetfulDisk) -> None:
    """kill after the manifest has its name, before the sync of its folder ─ restart ─ loss of power."""
    path = disk.root / "checkpoint"
    session, source = open_session(path)
    session.add("SELECT n FROM s", name="q")
    source.append(ROWS)
    commit = session._checkpoint.commit

    def die_at_last_sync(batch: int, manifest: object) -> None:
        disk.cut_at = disk.syncs + 2
        commit(batch, manifest)

    session._checkpoint.commit = die_at_last_sync  # type: ignore[method-assign]
    with pytest.raises(PowerCut):
        session.advance()
    session._checkpoint.close()
    for _ in range(2):
        session, _ = open_session(path)
        assert session.last_batch == 0
        assert session.query("q").results().to_pylist() == [{"n": 1}]
        session._checkpoint.close()
        disk.cut_power()


def test_the_folder_of_a_sink_survives_a_loss_of_power(disk: ForgetfulDisk) -> None:
    session, source = open_session(disk.root / "checkpoint")
    session.add("SELECT n FROM s", name="q", sink=f"jsonl:{disk.root / 'out' / 'q'}")
    source.append(ROWS)
    session.advance()
    session._checkpoint.close()
    disk.cut_power()
    assert [path.read_text() for path in (disk.root / "out" / "q").glob("*.jsonl")] == ['{"n": 1}\n']


def test_a_sink_syncs_the_name_of_a_folder_that_a_killed_process_left(disk: ForgetfulDisk) -> None:
    posix.sync_name_once.cache_clear()
    (disk.root / "out" / "_pending").mkdir(parents=True)
    file = JsonLinesSink(str(disk.root / "out")).write(pa.table({"n": [1]}), OutputPlace(0, 0))
    assert file is not None
    disk.cut_power()
    assert publish_files([file]) == []
    disk.cut_power()
    assert (disk.root / "out" / "part-0000000000-00000.jsonl").read_text() == '{"n": 1}\n'


def test_recovery_deletes_incomplete_files_and_superseded_manifests(tmp_path: Path) -> None:
    session, source = open_session(tmp_path / "checkpoint")
    source.append(ROWS)
    session.advance()
    session.close()
    leftovers = [
        *(f"{folder}/.x.{'0' * 32}.tmp" for folder in ("state", "manifest", "sources/s")),
        "manifest/-000000001.json",
        "log/-000000001.json",
    ]
    for name in leftovers:
        (tmp_path / "checkpoint" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "checkpoint" / name).write_text("")
    open_session(tmp_path / "checkpoint")[0].close()
    assert not [name for name in leftovers if (tmp_path / "checkpoint" / name).exists()]


def test_a_full_disk_stops_packing_and_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(result_log, "pack_files", fail)
    log = ResultLog(tuple(ResultFile(f"results/{n}", n, n, 1) for n in range(result_log.PACKED_FILES)))
    packer = ResultPacker(PosixStore(tmp_path))
    assert packer.update(log) == log
    packer.close()
    assert packer._pending is not None
    assert packer._pending.result() is None
    packer._pool = None
    assert packer.update(log) == log
    packer.close()


def test_a_log_entry_that_cannot_be_written_loses_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = open_session(tmp_path / "checkpoint")
    query = session.add("SELECT n FROM s")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as context:
        context.setattr(Checkpoint, "log_batch", fail)
        with pytest.raises(OSError, match="full"):
            session.advance()
    session.advance()
    assert query.status == "live"
    session.close()


def test_a_session_that_cannot_be_opened_releases_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as context:
        context.setattr(headrace.session, "ResultDelivery", fail)
        with pytest.raises(OSError, match="full"):
            open_session(tmp_path / "checkpoint")
    open_session(tmp_path / "checkpoint")[0].close()
