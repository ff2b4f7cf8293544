"""A checkpoint that is in use, foreign, of another format or damaged is refused, with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lives import Life, columns

import headrace as hr
from headrace.errors import CheckpointError

TOTAL = "SELECT window_start, SUM(n) AS total FROM TUMBLE(s, '5 seconds')"


def refused(directory: Path, *parts: str) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        hr.Session(directory, backend="local")
    for part in parts:
        assert part in str(caught.value)
    assert caught.value.hint, "it does not say what to do"
    return caught.value


def newest(life: Life, folder: str) -> Path:
    return life.directory / folder / life.files(folder)[-1]


@pytest.fixture
def ended(life: Life) -> Life:
    """A checkpoint with an open window, whose session is gone."""
    life.session.add(TOTAL, name="total")
    life.tick(1, 2)
    life.session.close()
    return life


def test_a_second_session_is_refused(life: Life):
    refused(life.directory, "in use by another session", "close that session")
    life.session.close()
    hr.Session(life.directory, backend="local").close()


@pytest.mark.parametrize("version", [5, 99])  # 5: written before the classes in its pickles were renamed
def test_another_format_is_refused_and_the_lock_released(ended: Life, version: int):
    marker = ended.directory / "HEADRACE"
    content = json.loads(marker.read_text())
    marker.write_text(json.dumps({**content, "format": version}))
    refused(ended.directory, f"has format {version}; this headrace reads format 6", "use the version of headrace that wrote it")
    marker.write_text(json.dumps(content))
    hr.Session(ended.directory, backend="local").close()


def test_a_damaged_marker_is_refused(ended: Life):
    (ended.directory / "HEADRACE").write_text("{")
    refused(ended.directory, "is damaged")


def test_a_directory_of_something_else_is_refused_and_left_alone(tmp_path: Path):
    (tmp_path / "holiday.jpg").write_bytes(b"jpg")
    refused(tmp_path, "is not a headrace checkpoint")
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_a_file_is_no_checkpoint(tmp_path: Path):
    (tmp_path / "file").write_text("not a directory")
    refused(tmp_path / "file", "is not a")


def test_an_empty_directory_will_do(tmp_path: Path):
    hr.Session(tmp_path, backend="local").close()


@pytest.mark.parametrize("where", [0, 4, 9, 40, -1])
def test_a_flipped_bit_in_a_manifest_is_refused(ended: Life, where: int):
    path = newest(ended, "manifest")
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)
    refused(ended.directory, str(path), "damaged", "from a copy")


@pytest.mark.parametrize("size", [0, 5, 9, 60])
def test_a_manifest_cut_short_is_refused(ended: Life, size: int):
    path = newest(ended, "manifest")
    path.write_bytes(path.read_bytes()[:size])
    refused(ended.directory, str(path), "damaged")


def test_a_damaged_log_entry_of_a_batch_to_run_again_is_refused(life: Life):
    life.session.add(TOTAL, name="total")
    life.give(1)
    life.killed_in(life.session.advance, "logged")
    path = newest(life, "log")
    path.write_bytes(path.read_bytes()[:-3])
    refused(life.directory, str(path), "damaged")


@pytest.mark.parametrize("keep", [0, 7, 19, 25, 200])
def test_a_state_file_cut_short_is_an_error_that_names_it(ended: Life, keep: int):
    path = newest(ended, "state")
    path.write_bytes(path.read_bytes()[:keep])
    ended.begin()
    ended.give(9)
    with pytest.raises(CheckpointError, match=r"cannot read state file .*\.part'"):
        ended.session.advance()


def test_a_damaged_head_of_a_state_file_is_an_error_that_names_it(ended: Life):
    path = newest(ended, "state")
    content = bytearray(path.read_bytes())
    content[30] ^= 255
    path.write_bytes(content)
    ended.begin()
    ended.give(9)
    with pytest.raises(CheckpointError, match=r"cannot read state file .*\.part'"):
        ended.session.advance()


def test_a_missing_state_file_is_an_error_that_names_it(ended: Life):
    path = newest(ended, "state")
    path.unlink()
    ended.begin()
    ended.give(9)
    with pytest.raises(CheckpointError, match=path.name):
        ended.session.advance()


def test_damage_that_is_repaired_costs_nothing(ended: Life):
    path = newest(ended, "state")
    content = path.read_bytes()
    path.write_bytes(content[:30])
    ended.begin()
    ended.give(9)
    with pytest.raises(CheckpointError):
        ended.session.advance()
    path.write_bytes(content)
    ended.again()
    ended.session.advance()
    assert columns(ended.session.query("total"), "total") == [2]


def test_a_stream_declared_otherwise_is_refused(ended: Life):
    ended.kill()
    session = hr.Session(ended.directory, backend="local")
    try:
        with pytest.raises(CheckpointError, match="declared differently"):
            session.create_stream("s", hr.MemorySource("k STRING, time TIMESTAMP"), time="time")
        with pytest.raises(CheckpointError, match="declared differently"):
            session.create_stream("s", hr.MemorySource("k INT, n BIGINT, time TIMESTAMP"), time="time", watermark="1 second")
    finally:
        session.close()
    ended.begin()


def test_the_reference_says_that_it_cannot_go_on(ended: Life):
    ended.begin(backend="reference")
    ended.give(9)
    with pytest.raises(CheckpointError, match="cannot continue after a restart"):
        ended.session.advance()


def test_a_checkpoint_deleted_and_made_again_at_the_same_path_starts_anew(begin, tmp_path: Path):
    """Nothing that workers cache by path may survive the directory."""
    for totals in ([3], [12], [48]):
        life = begin("again")
        query = life.session.add(TOTAL if totals != [12] else TOTAL.replace("SUM(n)", "MAX(n) * 3"), name="total")
        life.tick(1, n=totals[0] // 3)
        life.tick(2, n=totals[0] // 3)
        life.tick(3, n=totals[0] // 3)
        life.tick(9)
        assert columns(query, "total") == totals
        life.session.close()
        (tmp_path / "again").rename(tmp_path / f"old-{totals[0]}")
