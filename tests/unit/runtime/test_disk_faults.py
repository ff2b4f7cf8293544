"""A disk that is full, read-only or broken at any step: a clear error, nothing is lost, and the session goes on after the repair.

A step is one change of the disk: a write, an append, a sync, a rename, a link, a deletion, a new folder. Every step of a session
with all kinds of queries and sources is refused, once or until the disk is repaired, before it happens, in the middle, or after.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from lives import SessionHarness, read_columns

import headrace as hr
from headrace.errors import CheckpointError, StorageError
from headrace.storage.posix import PosixStore
from support.every_kind_session import BATCHES, EveryKindSession, write_file
from support.examples import choose_examples
from support.faulty_disk import FAULTS, FaultyDisk


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    return FaultyDisk(tmp_path / "checkpoint", monkeypatch)


@dataclass
class StubbornProgram:
    """Repairs the disk after an error and goes on: with the same call, or, if it `restarts` after a batch, in a new session."""

    folder: Path
    disk: FaultyDisk
    restarts: bool = False
    errors: list[str] = field(default_factory=list)

    def attempt(self, call: Callable[[], object]) -> None:
        try:
            call()
        except StorageError as error:
            self.errors.append(str(error))
            self.disk.repair()
            call()

    def open(self) -> EveryKindSession:
        (self.folder / "files").mkdir(exist_ok=True)
        return EveryKindSession(self.folder / "checkpoint", self.folder / "files", self.attempt)

    def run(self) -> tuple[dict[str, list[object]], list[int]]:
        """Run all batches; return the results of all queries, and what the callback received."""
        run = self.open()
        for batch in range(BATCHES):
            run.add_queries(batch)
            run.append(batch)
            run = self.advance(run, batch)
        self.attempt(run.session.drain)
        results = run.read_results()
        run.session.close()
        return results, sorted(n for table in run.received for n in table["n"].to_pylist())  # type: ignore[index]

    def advance(self, run: EveryKindSession, batch: int) -> EveryKindSession:
        committed = run.session.last_batch
        try:
            run.session.advance()
        except StorageError as error:
            self.errors.append(str(error))
            self.disk.repair()
            if self.restarts:
                run = self.restart(run, batch)
            assert run.session.last_batch >= committed
            run.session.advance()
        return run

    def restart(self, run: EveryKindSession, batch: int) -> EveryKindSession:
        run.session.close()
        again = self.open()
        again.received = run.received
        for earlier in range(batch + 1):
            again.add_queries(earlier)
        return again


def remove_all(folder: Path) -> None:
    for name in ("checkpoint", "files"):
        shutil.rmtree(folder / name, ignore_errors=True)


def list_unwanted(folder: Path) -> list[str]:
    """The scratch files, and the files that no manifest names, after the checkpoint is opened again."""
    run = EveryKindSession(folder / "checkpoint", folder / "files")
    state, store = run.session._coordinator.state, run.session._checkpoint.store
    named = state.referenced_files() | {f"manifest/{state.batch:010d}.json", f"log/{state.batch:010d}.json"}
    folders = ("state", "results", "deliveries", "plans", "queries", "shuffle", "log", "manifest")
    unwanted = [key for name in folders for key in store.list(name) if key not in named]
    run.session.close()
    return unwanted + [str(path) for path in (folder / "checkpoint").rglob(".*")]


def test_a_session_goes_on_after_any_refused_step(tmp_path: Path, disk: FaultyDisk):
    expected, received = StubbornProgram(tmp_path, disk).run()
    steps = list(disk.steps)
    assert {step.split()[0] for step in steps} == {"write", "append", "sync", "rename", "link", "unlink", "make_folder"}
    assert {step.split()[-1].partition("/")[0] for step in steps} >= {"log", "manifest", "plans", "state", "results", "sources"}
    cases = list(itertools.product(range(1, len(steps) + 1), FAULTS, (False, True), (False, True), (False, True)))
    for step, fault, lasting, after, restarts in choose_examples(cases, 8, random.Random(len(steps))):
        remove_all(tmp_path)
        program = StubbornProgram(tmp_path, disk, restarts)
        disk.fail(step, fault, lasting=lasting, after=after)
        case = f"{steps[step - 1]}: {fault}, {lasting=}, {after=}, {restarts=}"
        results, delivered = program.run()
        assert results == expected, case
        assert all("of the checkpoint cannot be" in error and "hint:" in error for error in program.errors), case
        assert sorted(set(delivered)) == sorted(set(received)) if restarts else delivered == received, case
        disk.repair()
        assert list_unwanted(tmp_path) == [], case


# One test for each place where a refused step once did harm


@pytest.fixture
def harness(tmp_path: Path, disk: FaultyDisk) -> SessionHarness:
    assert disk.root == tmp_path / "checkpoint"
    return SessionHarness(tmp_path / "checkpoint")


def refuse(disk: FaultyDisk, step: str, call: Callable[[], object], *, after: bool = False) -> None:
    """Call, with one step refused that starts like this; the call must fail."""
    disk.fail_on(step, "broken", after=after)
    with pytest.raises(StorageError, match="of the checkpoint cannot be"):
        call()
    disk.repair()


def test_a_refused_deletion_after_the_commit_does_not_repeat_the_batch(harness: SessionHarness, disk: FaultyDisk):
    query = harness.session.add("SELECT n FROM s", name="rows")
    harness.append_rows(1, 2, n=7)
    disk.fail_on("unlink manifest/-", "read-only", lasting=True)
    harness.session.advance()
    assert disk.refused
    disk.repair()
    harness.tick(3, n=8)
    assert read_columns(query, "n") == [7, 7, 8]
    assert harness.list_files("manifest") == ["0000000001.json"], "a later batch deletes what was left"


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("step", ["link manifest/", "sync manifest", "unlink manifest/."])
def test_a_commit_may_be_refused_after_it_has_happened(harness: SessionHarness, disk: FaultyDisk, step: str, restarts: bool):
    harness.session.add("SELECT n FROM s", name="rows")
    harness.tick(1, n=7)
    harness.append_rows(2, n=8)
    disk.fail_on(step, "broken", after=True)
    if step.startswith("unlink"):
        harness.session.advance()
    else:
        with pytest.raises(StorageError, match=r"manifest/0000000001\.json"):
            harness.session.advance()
    disk.repair()
    if restarts:
        harness.restart()
    harness.tick(3, n=9)
    assert read_columns(harness.session.query("rows"), "n") == [7, 8, 9]


def test_the_manifest_of_another_session_is_not_replaced(harness: SessionHarness, disk: FaultyDisk):
    harness.append_rows(1)
    refuse(disk, "link manifest/", harness.session.advance)
    other = harness.directory / "manifest" / "0000000000.json"
    other.write_text("of another session")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="committed by another session"):
            harness.session.advance()
    assert other.read_text() == "of another session"


@pytest.mark.parametrize("step", ["write log/", "rename log/", "sync log"])
@pytest.mark.parametrize("after", [False, True])
def test_query_changes_are_not_lost_with_a_refused_log_entry(harness: SessionHarness, disk: FaultyDisk, step: str, after: bool):
    query = harness.session.add("SELECT n FROM s", name="rows")
    harness.append_rows(1, n=7)
    refuse(disk, step, harness.session.advance, after=after)
    harness.session.advance()
    assert query.status == "live"
    assert read_columns(query, "n") == [7]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_rows_of_a_refused_append_are_there_once_or_not_at_all(
    harness: SessionHarness, disk: FaultyDisk, fault: str, after: bool
):
    harness.session.add("SELECT n FROM s", name="rows")
    harness.tick(1, n=1)
    disk.fail_on("append sources/", fault, after=after)
    with pytest.raises(StorageError, match=r"rows\.jsonl"):
        harness.append_rows(2, n=2)
    disk.repair()
    harness.append_rows(3, n=3)
    harness.session.close()
    harness.open_session().advance()
    assert read_columns(harness.session.query("rows"), "n") == [1, 3]


def test_a_refused_append_may_have_happened_when_nothing_follows(harness: SessionHarness, disk: FaultyDisk):
    harness.session.add("SELECT n FROM s", name="rows")
    harness.tick(1, n=1)
    refuse(disk, "append sources/", lambda: harness.append_rows(2, n=2), after=True)
    refuse(disk, "append sources/", lambda: harness.append_rows(3, n=3))
    harness.session.close()
    harness.open_session().advance()
    assert read_columns(harness.session.query("rows"), "n") == [1]


@pytest.mark.parametrize("after", [False, True])
def test_a_refused_log_of_a_file_source_agrees_with_positions(tmp_path: Path, disk: FaultyDisk, after: bool):
    """A file that changes before it is read is examined again; its new line is in the log before the source uses it."""
    write_file(tmp_path, 0)
    source = hr.FileSource(tmp_path / "*.arrow")
    (tmp_path / "checkpoint" / "f").mkdir(parents=True)
    source.attach("f", PosixStore(tmp_path / "checkpoint" / "f"))
    source.plan(None, 1)
    (tmp_path / "0.arrow").unlink()
    refuse(disk, "rename f/files.jsonl", lambda: source.plan(None, 1), after=after)
    write_file(tmp_path, 0)  # as it was: nothing has to be examined again, but the log may say otherwise
    write_file(tmp_path, 1)
    position = source.plan(None, 1_000)[1]
    again = hr.FileSource(tmp_path / "*.arrow")
    again.attach("f", PosixStore(tmp_path / "checkpoint" / "f"))
    again.verify(position)
    assert position["file"] == 2


def test_a_delivery_that_cannot_be_recorded_is_not_repeated_in_the_session(harness: SessionHarness, disk: FaultyDisk):
    received: list[int] = []
    harness.session.add("SELECT n FROM s", name="rows", sink=lambda table: received.extend(table["n"].to_pylist()))
    harness.append_rows(1, n=7)
    refuse(disk, "write .delivered.json", harness.session.advance)
    assert [batch.report.batch for batch in harness.session.done()] == [0]
    harness.tick(2, n=8)
    assert received == [7, 8]


def test_a_refused_start_releases_the_lock(tmp_path: Path, disk: FaultyDisk):
    for start in ("write .HEADRACE", "link manifest/", "rename delivered.json"):
        refuse(disk, start, lambda: hr.Session(tmp_path / "checkpoint", backend="local"), after=True)
    hr.Session(tmp_path / "checkpoint", backend="local").close()
