"""A session refuses checkpoints that are in use, damaged or of another format, and other directories; each error has a hint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lives import SessionHarness, read_columns

import headrace as hr
from headrace.errors import CheckpointError
from headrace.storage.checkpoint import CHECKPOINT_FORMAT
from headrace.storage.checksum import compute_checksum
from headrace.storage.documents import put_document
from headrace.storage.posix import PosixStore

TOTAL = "SELECT window_start, SUM(n) AS total FROM TUMBLE(s, '5 seconds')"


def assert_refused(directory: Path, *parts: str) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        hr.Session(directory, backend="local")
    for part in parts:
        assert part in str(caught.value)
    assert caught.value.hint, "the error has no hint"
    return caught.value


def newest_file(harness: SessionHarness, folder: str) -> Path:
    return harness.directory / folder / harness.list_files(folder)[-1]


@pytest.fixture
def closed(harness: SessionHarness) -> SessionHarness:
    """A checkpoint with an open window; its session is closed."""
    harness.session.add(TOTAL, name="total")
    harness.tick(1, 2)
    harness.session.close()
    return harness


def test_a_second_session_on_a_checkpoint_is_refused(harness: SessionHarness):
    assert_refused(harness.directory, "in use by another session", "close that session")
    harness.session.close()
    hr.Session(harness.directory, backend="local").close()


@pytest.mark.parametrize("version", [5, 6, 7, 99])
def test_another_format_version_is_refused_and_the_lock_is_released(closed: SessionHarness, version: int):
    store, marker = PosixStore(closed.directory), closed.directory / "HEADRACE"
    content, body = marker.read_bytes(), json.dumps({"format": version, "identity": "x"})
    if version < CHECKPOINT_FORMAT:  # as those versions wrote it
        marker.write_text(body if version < 7 else f"{compute_checksum(body.encode())}\n{body}")
    else:
        put_document(store, "HEADRACE", {"format": version, "identity": "x"})
    assert_refused(
        closed.directory,
        f"has format {version}; this headrace reads format {CHECKPOINT_FORMAT}",
        "use the version of headrace that wrote it",
    )
    marker.write_bytes(content)
    hr.Session(closed.directory, backend="local").close()


def test_a_lost_marker_is_not_replaced_by_a_new_one(closed: SessionHarness):
    marker = (closed.directory / "HEADRACE").rename(closed.directory.with_name("marker"))
    assert_refused(closed.directory, "HEADRACE' of the checkpoint is missing")
    assert not (closed.directory / "HEADRACE").exists()
    marker.rename(closed.directory / "HEADRACE")
    hr.Session(closed.directory, backend="local").close()


def test_a_damaged_marker_is_refused(closed: SessionHarness):
    (closed.directory / "HEADRACE").write_text("{")
    assert_refused(closed.directory, "is damaged")


def test_sweeping_while_a_session_runs_leaves_what_other_threads_write(harness: SessionHarness):
    """Packed files are named after their first batch, which may be the last one of the session if it has many partitions."""
    harness.session.add("SELECT n FROM s")
    harness.tick(1)
    scratch = f"{'0' * 32}.tmp"
    names = {
        "results": ["0000000000-0000000000-packed-01234567.rows", f".0000000000-0000000000-packed-01234567.rows.{scratch}"],
        "sources/s": [f".rows.jsonl.{scratch}"],
        ".": [f".delivered.json.{scratch}"],
    }
    others = {"state": ["0000000000-00000-0-01234567.part"], "plans": [f".x.plan.{scratch}"], "log": [f".x.json.{scratch}"]}
    for folder, files in (names | others).items():
        for name in files:
            (harness.directory / folder).mkdir(exist_ok=True)
            (harness.directory / folder / name).write_bytes(b"x")
    state, checkpoint = harness.session._coordinator.state, harness.session._checkpoint
    checkpoint.sweep(state.batch, state.referenced_files(), is_running=True)
    left = {folder: [name for name in files if (harness.directory / folder / name).exists()] for folder, files in names.items()}
    assert left == names
    assert not any((harness.directory / folder / name).exists() for folder, files in others.items() for name in files)
    checkpoint.sweep(state.batch, state.referenced_files())
    assert not any((harness.directory / folder / name).exists() for folder, files in names.items() for name in files)


def test_a_directory_with_other_files_is_refused_and_not_changed(tmp_path: Path):
    (tmp_path / "holiday.jpg").write_bytes(b"jpg")
    assert_refused(tmp_path, "is not a headrace checkpoint")
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_a_file_as_checkpoint_path_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("not a directory")
    assert_refused(tmp_path / "file", "is not a")


def test_an_empty_directory_is_accepted(tmp_path: Path):
    hr.Session(tmp_path, backend="local").close()


@pytest.mark.parametrize("where", [0, 4, 9, 40, -1])
def test_a_flipped_bit_in_a_manifest_is_refused(closed: SessionHarness, where: int):
    path = newest_file(closed, "manifest")
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)
    assert_refused(closed.directory, str(path), "damaged", "from a copy")


@pytest.mark.parametrize("size", [0, 5, 9, 60])
def test_a_truncated_manifest_is_refused(closed: SessionHarness, size: int):
    path = newest_file(closed, "manifest")
    path.write_bytes(path.read_bytes()[:size])
    assert_refused(closed.directory, str(path), "damaged")


def test_a_damaged_log_entry_of_an_uncommitted_batch_is_refused(harness: SessionHarness):
    harness.session.add(TOTAL, name="total")
    harness.append_rows(1)
    harness.kill_during(harness.session.advance, "logged")
    path = newest_file(harness, "log")
    path.write_bytes(path.read_bytes()[:-3])
    assert_refused(harness.directory, str(path), "damaged")


@pytest.mark.parametrize("keep", [0, 7, 19, 25, 200])
def test_a_truncated_state_file_raises_an_error_with_its_path(closed: SessionHarness, keep: int):
    path = newest_file(closed, "state")
    path.write_bytes(path.read_bytes()[:keep])
    closed.open_session()
    closed.append_rows(9)
    with pytest.raises(CheckpointError, match=r"file .*/state/.*' of the checkpoint is damaged"):
        closed.session.advance()


def test_a_damaged_header_of_a_state_file_raises_an_error_with_its_path(closed: SessionHarness):
    path = newest_file(closed, "state")
    content = bytearray(path.read_bytes())
    content[30] ^= 255
    path.write_bytes(content)
    closed.open_session()
    closed.append_rows(9)
    with pytest.raises(CheckpointError, match=r"file .*/state/.*' of the checkpoint is damaged"):
        closed.session.advance()


def test_a_missing_state_file_is_refused_by_name(closed: SessionHarness):
    path = newest_file(closed, "state")
    path.unlink()
    assert_refused(closed.directory, f"file '{path}' of the checkpoint is missing")


def test_results_are_complete_after_a_damaged_state_file_is_restored(closed: SessionHarness):
    path = newest_file(closed, "state")
    content = path.read_bytes()
    path.write_bytes(content[:30])
    closed.open_session()
    closed.append_rows(9)
    with pytest.raises(CheckpointError):
        closed.session.advance()
    path.write_bytes(content)
    closed.restart()
    closed.session.advance()
    assert read_columns(closed.session.query("total"), "total") == [2]


def test_a_stream_with_another_declaration_is_refused(closed: SessionHarness):
    closed.kill()
    session = hr.Session(closed.directory, backend="local")
    try:
        with pytest.raises(CheckpointError, match="declared differently"):
            session.create_stream("s", hr.MemorySource("k STRING, time TIMESTAMP"), time="time")
        with pytest.raises(CheckpointError, match="declared differently"):
            session.create_stream("s", hr.MemorySource("k INT, n BIGINT, time TIMESTAMP"), time="time", watermark="1 second")
    finally:
        session.close()
    closed.open_session()


def test_the_reference_backend_refuses_to_continue_a_checkpoint(closed: SessionHarness):
    closed.open_session(backend="reference")
    closed.append_rows(9)
    with pytest.raises(CheckpointError, match="cannot continue after a restart"):
        closed.session.advance()


def test_a_new_checkpoint_at_the_path_of_an_old_one_starts_empty(open_harness, tmp_path: Path):
    """Workers must not reuse cache entries of the old directory."""
    for totals in ([3], [12], [48]):
        harness = open_harness("again")
        query = harness.session.add(TOTAL if totals != [12] else TOTAL.replace("SUM(n)", "MAX(n) * 3"), name="total")
        harness.tick(1, n=totals[0] // 3)
        harness.tick(2, n=totals[0] // 3)
        harness.tick(3, n=totals[0] // 3)
        harness.tick(9)
        assert read_columns(query, "total") == totals
        harness.session.close()
        (tmp_path / "again").rename(tmp_path / f"old-{totals[0]}")
