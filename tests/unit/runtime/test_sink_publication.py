"""Sink files are visible when, and only when, their batch is committed; what the driver does not see fails its query.

workers write _pending/… ─ driver checks ─ commit ─ publish ─ sweep
                                                  └─ crash ─ recovery publishes first
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from lives import DAY, Killed, SessionHarness, make_rows, read_columns

import headrace as hr
from headrace.connectors import OutputPlace, PendingFile, pending_files
from headrace.connectors.sinks import files as file_sinks
from headrace.runtime import sink_publication
from headrace.storage import posix
from headrace.storage.fault_points import install_fault_hook
from support.faulty_disk import FaultyDisk
from support.forgetful_disk import ForgetfulDisk, PowerCut

SELECT = "SELECT n FROM s"
WriteFunction = Callable[..., PendingFile]


def read_rows(folder: Path) -> list[int]:
    """Return the visible rows of a sink, sorted."""
    return sorted(json.loads(line)["n"] for path in folder.glob("part-*.jsonl") for line in path.read_text().splitlines())


def list_pending(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "_pending").glob("*"))


def add_sink(harness: SessionHarness, folder: Path, name: str = "q") -> hr.Query:
    return harness.session.add(SELECT, name=name, sink=f"jsonl:{folder}")


def patch_writes(monkeypatch: pytest.MonkeyPatch, change: Callable[[WriteFunction, str, OutputPlace, Any], PendingFile]) -> None:
    """Let `change` write the files of sinks, with the true function."""
    write = pending_files.write_pending_file
    monkeypatch.setattr(file_sinks, "write_pending_file", lambda folder, place, *more: change(write, folder, place, more))


def hide_folders(monkeypatch: pytest.MonkeyPatch, *hidden: Path) -> None:
    """Let workers write these folders to a disk that the driver does not see."""

    def write_elsewhere(write: WriteFunction, folder: str, place: OutputPlace, more: Any) -> PendingFile:
        if Path(folder) not in hidden:
            return write(folder, place, *more)
        return replace(write(f"{folder}-of-the-worker", place, *more), folder=folder)

    patch_writes(monkeypatch, write_elsewhere)


# --- after the commit, whatever happens ------------------------------------------------------------------------------


def test_files_are_not_visible_before_the_commit(harness: SessionHarness, tmp_path: Path):
    add_sink(harness, tmp_path / "out")
    harness.append_rows(1, n=1)
    seen: dict[str, list[int]] = {}
    install_fault_hook(harness.directory, lambda step: seen.update({step: read_rows(tmp_path / "out")}))
    harness.session.advance()
    assert (seen["commit"], seen["committed"], seen["published"]) == ([], [], [1])
    assert list_pending(tmp_path / "out") == []


def test_recovery_publishes_first_and_again_if_it_dies_there(harness: SessionHarness, tmp_path: Path, monkeypatch):
    add_sink(harness, tmp_path / "out")
    for second in (1, 2):
        harness.append_rows(second, n=second)
        harness.kill_during(harness.session.advance, "committed")
        assert read_rows(tmp_path / "out") == list(range(1, second))
        with monkeypatch.context() as context:
            context.setattr(posix.PosixStore, "rename", lambda *_: (_ for _ in ()).throw(Killed("publication")))
            with pytest.raises(Killed):
                hr.Session(harness.directory, backend="local")
        session = hr.Session(harness.directory, backend="local")  # sources are not attached, and no batch runs
        assert read_rows(tmp_path / "out") == list(range(1, second + 1))
        session._checkpoint.close()
        harness.open_session()
    assert harness.session.query("q").status == "live"
    assert list_pending(tmp_path / "out") == []


def test_a_crash_in_the_middle_of_publication(open_harness, tmp_path: Path, monkeypatch):
    """Of the files of several partitions, some are linked, some are not; one is linked and still pending."""
    harness = open_harness(partitions=4)
    harness.session.add(
        "SELECT k, SUM(n) AS n FROM TUMBLE(s, '5 seconds') GROUP BY k", name="q", sink=f"jsonl:{tmp_path / 'out'}"
    )
    harness.source.append([row for k in range(40) for row in make_rows(1, k=k, n=k)])
    harness.session.advance()
    links: list[Path] = []

    class DyingDisk(posix.FileOperations):
        def link(self, path: Path, target: Path) -> None:
            if target.parent == tmp_path / "out":
                links.append(target)
                if len(links) == 3:
                    raise Killed("link")
            super().link(path, target)

    harness.append_rows(6)
    with monkeypatch.context() as context:
        context.setattr(posix, "_files", DyingDisk())
        with pytest.raises(Killed):
            harness.session.advance()
    assert len(list((tmp_path / "out").glob("part-*"))) == 2
    assert len(list_pending(tmp_path / "out")) == 4
    harness.restart()
    assert read_rows(tmp_path / "out") == list(range(40))
    assert list_pending(tmp_path / "out") == []


def test_a_loss_of_power_at_any_sync_loses_and_doubles_no_row(tmp_path: Path, monkeypatch):
    disk = ForgetfulDisk(tmp_path / "disk", monkeypatch)

    def run(cut_at: int) -> int:
        """Run three batches, and lose the power at a sync; return the number of syncs of the batches."""
        shutil.rmtree(disk.root, ignore_errors=True)
        disk.root.mkdir()
        disk.forget_all()
        posix.sync_name_once.cache_clear()
        harness = SessionHarness(disk.root / "checkpoint", partitions=1)
        add_sink(harness, disk.root / "out")
        started_at, is_cut = disk.syncs, False
        for second in (1, 2, 3):
            disk.cut_at = -1
            harness.append_rows(second, n=second)
            disk.cut_at = -1 if is_cut else started_at + cut_at
            try:
                harness.session.advance()
            except PowerCut:
                is_cut = True
                harness.kill()
                disk.cut_power()
                posix.sync_name_once.cache_clear()
                harness.open_session()
                add_sink(harness, disk.root / "out")
                harness.session.advance()
        assert read_rows(disk.root / "out") == [1, 2, 3], f"power lost at sync {cut_at}"
        assert harness.session.query("q").status == "live"
        harness.session.close()
        install_fault_hook(harness.directory, None)
        return disk.syncs - started_at

    for moment in range(1, run(1_000_000) + 1):
        run(moment)


def test_a_query_that_ends_with_its_last_batch_gets_its_files(harness: SessionHarness, tmp_path: Path):
    add_sink(harness, tmp_path / "out")
    harness.append_rows(1, n=1)
    harness.kill_during(harness.session.advance, "committed")
    harness.open_session()
    harness.session.remove("q")
    harness.tick(2, n=2)
    assert read_rows(tmp_path / "out") == [1]


def test_published_files_may_be_moved_away_by_their_reader(harness: SessionHarness, tmp_path: Path):
    add_sink(harness, tmp_path / "out")
    harness.tick(1, n=1)
    for path in (tmp_path / "out").glob("part-*"):
        path.unlink()
    harness.restart()
    harness.tick(2, n=2)
    assert harness.session.query("q").status == "live"
    assert read_rows(tmp_path / "out") == [2]


def test_a_driver_that_does_not_see_the_folder_after_a_restart_fails_the_query(harness: SessionHarness, tmp_path: Path):
    """The batch is committed, the driver dies before it publishes, and its successor runs on another machine."""
    add_sink(harness, tmp_path / "out")
    other = harness.session.add(SELECT, name="other")
    harness.append_rows(1, n=1)
    harness.kill_during(harness.session.advance, "committed")
    shutil.rmtree(tmp_path / "out")
    harness.open_session()
    harness.tick(2, n=2)
    query, other = harness.session.query("q"), harness.session.query("other")
    assert query.status == "failed"
    assert f"sink file '{tmp_path / 'out' / 'part-0000000000-0000'}" in query.error
    assert "is committed, but it is gone" in query.error
    assert (other.status, read_columns(other, "n")) == ("live", [1, 2])


# --- what the driver does not see ------------------------------------------------------------------------------------


def test_a_folder_that_the_driver_does_not_see_fails_its_query_before_the_commit(
    harness: SessionHarness, tmp_path: Path, monkeypatch
):
    hide_folders(monkeypatch, tmp_path / "hidden")
    hidden, shared = add_sink(harness, tmp_path / "hidden", "hidden"), add_sink(harness, tmp_path / "shared", "shared")
    memory = harness.session.add(SELECT, name="memory")
    for second in (1, 2):
        harness.tick(second, n=second)
    assert (hidden.status, hidden.emitted, shared.status) == ("failed", 0, "live")
    assert f"a worker wrote sink file '{tmp_path / 'hidden' / '_pending'}" in hidden.error
    assert "but the driver does not see it" in hidden.error
    assert "there is no such file here" in hidden.error
    assert "must be shared by all workers and the driver" in hidden.error
    assert read_rows(tmp_path / "shared") == read_columns(memory, "n") == [1, 2]
    assert not (tmp_path / "hidden").exists()


def test_a_file_of_another_size_is_not_taken_for_that_of_the_worker(harness: SessionHarness, tmp_path: Path, monkeypatch):
    def cut(write: WriteFunction, folder: str, place: OutputPlace, more: Any) -> PendingFile:
        file = write(folder, place, *more)
        os.truncate(Path(folder) / file.key, 3)
        return file

    patch_writes(monkeypatch, cut)
    query = add_sink(harness, tmp_path / "out")
    harness.tick(1, n=1)
    assert query.status == "failed"
    assert "the worker wrote 9 bytes; the file has 3 bytes here" in query.error
    assert (read_rows(tmp_path / "out"), list_pending(tmp_path / "out")) == ([], [])


def test_dead_letters_that_the_driver_does_not_see_degrade_the_stream(tmp_path: Path, monkeypatch):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"n": 1, "time": "2024-01-01T00:00:00Z"}\nnonsense\n')
    with hr.Session(tmp_path / "checkpoint", backend="local") as session, monkeypatch.context() as context:
        options = {"on_error": "skip_row", "dead_letter": f"jsonl:{tmp_path / 'dead'}"}
        source = hr.FileSource(tmp_path / "in", schema="n INT, time TIMESTAMP", **options)
        session.create_stream("s", source, time="time")
        query = session.add(SELECT)
        hide_folders(context, tmp_path / "dead")
        session.advance()
        stream = session.streams()["s"]
        assert (stream["status"], stream["rows"], query.emitted) == ("degraded", 0, 0)
        assert "the driver does not see it" in stream["error"]
        context.undo()
        session.advance()
        assert (session.streams()["s"]["status"], query.emitted) == ("ok", 1)
    assert [json.loads(p.read_text())["text"] for p in (tmp_path / "dead").glob("part-*.jsonl")] == ["nonsense"]
    assert list_pending(tmp_path / "dead") == []


# --- a disk that refuses ---------------------------------------------------------------------------------------------


def test_a_publication_that_is_refused_once_is_repeated(harness: SessionHarness, tmp_path: Path, monkeypatch, caplog):
    disk = FaultyDisk(tmp_path / "out", monkeypatch)
    query = add_sink(harness, tmp_path / "out")
    disk.fail_on("link part-", "broken")
    harness.tick(1, n=1)
    assert (disk.refused, read_rows(tmp_path / "out"), len(list_pending(tmp_path / "out"))) == (1, [], 1)
    assert "sink files are not published yet" in caplog.text
    harness.session.advance()  # without rows, and without a batch
    assert (query.status, harness.session.last_batch, read_rows(tmp_path / "out")) == ("live", 0, [1])


def test_a_publication_that_stays_refused_fails_its_query_and_is_made_up_for(harness: SessionHarness, tmp_path: Path):
    query, other = add_sink(harness, tmp_path / "out"), add_sink(harness, tmp_path / "other", "other")
    for partition in range(harness.session.partitioning.partitions):
        (tmp_path / "out" / f"part-0000000000-{partition:05d}.jsonl").mkdir(parents=True)
    for second in (1, 2, 3):
        harness.tick(second, n=second)
    assert (query.status, other.status) == ("failed", "live")
    assert f"sink files in '{tmp_path / 'out'}' cannot be published" in query.error
    assert read_rows(tmp_path / "other") == [1, 2, 3]
    assert len(list_pending(tmp_path / "out")) == 1, "the batch that was committed before the query failed"
    harness.restart()
    for path in (tmp_path / "out").glob("part-*"):
        path.rmdir()
    harness.session.advance()
    assert read_rows(tmp_path / "out") == [1]
    assert list_pending(tmp_path / "out") == []


def test_any_step_of_the_disk_may_be_refused(tmp_path: Path, monkeypatch):
    """The query fails, or has every row of the batches in which it was live once; the other query is exact."""
    disk = FaultyDisk(tmp_path / "disk", monkeypatch)
    step = 0
    while True:
        step += 1
        shutil.rmtree(disk.root, ignore_errors=True)
        disk.root.mkdir()
        disk.repair()
        posix.sync_name_once.cache_clear()
        harness = SessionHarness(tmp_path / f"checkpoint-{step}", partitions=1)
        query, other = add_sink(harness, disk.root / "out"), harness.session.add(SELECT, name="other")
        disk.fail(step, "full", after=bool(step % 2))
        for second in (1, 2, 3):
            harness.tick(second, n=second)
        refused = disk.refused
        disk.repair()
        harness.session.advance()
        expected = [1, 2, 3][: query.last_batch + 1] if query.status == "live" else [1, 2, 3][: query._record.last_batch]
        assert read_rows(disk.root / "out") == expected, f"step {step}: {query.error}"
        assert read_columns(other, "n") == [1, 2, 3]
        harness.session.close()
        install_fault_hook(harness.directory, None)
        if not refused:
            break
    assert step > 15


# --- losers ----------------------------------------------------------------------------------------------------------


def test_late_files_are_swept_in_turn_and_by_the_next_session(harness: SessionHarness, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(sink_publication, "SWEEP_INTERVAL", 4)
    add_sink(harness, tmp_path / "out")

    def write_late() -> None:
        place = OutputPlace(0, 0, 0, harness.session._checkpoint.identity)
        hr.JsonLinesSink(str(tmp_path / "out")).write(pa.table({"n": [99]}), place)

    for second in (1, 2):
        harness.tick(second, n=second)
    write_late()
    assert len(list_pending(tmp_path / "out")) == 1
    for second in (3, 4, 5, 6):
        harness.tick(second, n=second)
    assert list_pending(tmp_path / "out") == []
    write_late()
    harness.restart()
    assert list_pending(tmp_path / "out") == []
    assert read_rows(tmp_path / "out") == [1, 2, 3, 4, 5, 6]


def test_files_of_abandoned_attempts_are_swept(harness: SessionHarness, tmp_path: Path):
    add_sink(harness, tmp_path / "out")
    harness.tick(1, n=1)
    harness.append_rows(2, n=2)
    for _ in range(2):
        harness.fault.at("commit")
        with pytest.raises(Killed):
            harness.session.advance()
    assert (len(list_pending(tmp_path / "out")), read_rows(tmp_path / "out")) == (2, [1])
    harness.session.advance()
    assert (list_pending(tmp_path / "out"), read_rows(tmp_path / "out")) == ([], [1, 2])


# --- many files ------------------------------------------------------------------------------------------------------


def test_many_sinks_are_published_and_no_visible_folder_is_listed(harness: SessionHarness, tmp_path: Path, monkeypatch):
    folders = [tmp_path / f"out{number}" for number in range(40)]
    for folder in folders:
        add_sink(harness, folder, folder.name)
    harness.tick(1, n=1)
    listed: set[str] = set()
    list_folder, scan_folder = os.listdir, os.scandir
    monkeypatch.setattr(os, "listdir", lambda path=".": (listed.add(str(path)), list_folder(path))[1])
    monkeypatch.setattr(os, "scandir", lambda path=".": (listed.add(str(path)), scan_folder(path))[1])
    harness.tick(2, n=2)
    harness.fault.at("commit")
    with pytest.raises(Killed):
        harness.tick(3, n=3)
    harness.session.advance()
    assert not listed & {str(folder) for folder in folders}
    assert str(folders[0] / "_pending") in listed
    assert [read_rows(folder) for folder in folders] == [[1, 2, 3]] * 40


def test_rows_that_a_join_emits_at_several_levels_have_files_of_their_own(tmp_path: Path):
    sql = (
        "SELECT x.a AS i, y.a AS j, z.b AS n FROM SLIDING(x, '10 seconds') x "
        "JOIN SLIDING(y, '10 seconds') y ON x.a = y.a JOIN SLIDING(z, '10 seconds') z ON y.b = z.b"
    )
    sources = {name: hr.MemorySource("a INT, b INT, time TIMESTAMP") for name in "xyz"}
    random = Random(1)
    with hr.Session(tmp_path / "checkpoint", backend="local", partitions=2) as session:
        for name, source in sources.items():
            session.create_stream(name, source, time="time")
        memory, _ = session.add(sql, name="memory"), session.add(sql, name="files", sink=f"jsonl:{tmp_path / 'out'}")
        for _ in range(3):
            for source in sources.values():
                source.append([{"a": random.randrange(4), "b": random.randrange(4), "time": DAY} for _ in range(6)])
            session.advance()
        assert session.query("files").emitted == len(read_rows(tmp_path / "out"))
        assert read_rows(tmp_path / "out") == read_columns(memory, "n")
