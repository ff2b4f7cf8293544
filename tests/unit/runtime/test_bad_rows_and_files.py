"""Rows without event time and unreadable files: they are counted and reported; no other row is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from lives import SessionHarness, make_rows, read_columns

import headrace as hr
from headrace.errors import SchemaError, SourceError

GOOD = "k,n,time\n1,1,2024-01-01T00:00:01Z\n1,2,2024-01-01T00:00:02Z\n"
BAD = "k,n,time\n1,not a number,2024-01-01T00:00:03Z\n"
SCHEMA = "k INT, n BIGINT, time TIMESTAMP"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text(GOOD)
    return tmp_path / "in"


def open_session(tmp_path: Path, folder: Path, backend: str = "local", **options: str) -> hr.Session:
    session = hr.Session(tmp_path / "checkpoint", backend=backend)
    session.create_stream("f", hr.FileSource(folder, schema=SCHEMA, **options), time="time")
    return session


@pytest.mark.parametrize("backend", ["local", "reference"])
def test_rows_without_event_time_are_counted_and_dropped(open_harness, backend: str):
    harness = open_harness(backend=backend)
    total = harness.session.add("SELECT SUM(n) AS total FROM TUMBLE(s, '5 seconds')")
    all_rows = harness.session.add("SELECT n FROM s")
    harness.source.append([{"k": 1, "n": 100, "time": None}, {"k": 1, "n": 200}, *make_rows(1, 2)])
    harness.session.advance()
    harness.source.append([{"k": 1, "n": 400, "time": None}])
    harness.session.advance()
    harness.session.drain()
    assert read_columns(total, "total") == [2]
    assert read_columns(all_rows, "n") == [1, 1]
    stream = harness.session.streams()["s"]
    assert (stream["rows"], stream["untimed"]) == (5, 3)
    assert total.late == {}


def test_rows_without_event_time_stay_counted_after_a_restart(harness: SessionHarness):
    harness.source.append([{"k": 1, "n": 1, "time": None}])
    harness.session.add("SELECT n FROM s", name="q")
    harness.session.advance()
    assert harness.restart().streams()["s"]["untimed"] == 1


def test_append_refuses_all_rows_if_a_value_has_the_wrong_type(harness: SessionHarness):
    query = harness.session.add("SELECT n FROM s")
    with pytest.raises(SchemaError, match="row 1 does not fit BIGINT"):
        harness.source.append([*make_rows(1), {"k": 1, "n": "x", "time": None}])
    harness.session.advance()
    assert read_columns(query, "n") == []


@pytest.mark.parametrize("backend", ["local", "reference"])
def test_on_error_skip_skips_and_lists_a_malformed_file(tmp_path: Path, folder: Path, backend: str):
    (folder / "2.csv").write_text(BAD)
    (folder / "3.csv").write_text("k,n,time\n1,4,2024-01-01T00:00:04Z\n")
    with open_session(tmp_path, folder, backend, on_error="skip") as session:
        query = session.add("SELECT SUM(n) AS total FROM TUMBLE(f, '5 seconds')")
        session.drain()
        assert read_columns(query, "total") == [7]
        skipped = session.streams()["f"]["skipped"]
        assert list(skipped) == [str(folder / "2.csv")]
        assert "cannot be read" in skipped[str(folder / "2.csv")]


def test_on_error_skip_skips_and_lists_an_unreadable_file(tmp_path: Path, folder: Path):
    (folder / "2.parquet").write_bytes(b"PAR1 no, not really")
    with open_session(tmp_path, folder, on_error="skip") as session:
        query = session.add("SELECT n FROM f")
        session.drain()
        assert read_columns(query, "n") == [1, 2]
        assert list(session.streams()["f"]["skipped"]) == [str(folder / "2.parquet")]


def test_skipped_files_are_still_listed_after_a_restart(tmp_path: Path, folder: Path):
    (folder / "2.csv").write_text(BAD)
    with open_session(tmp_path, folder, on_error="skip") as session:
        session.add("SELECT n FROM f")
        session.drain()
    with open_session(tmp_path, folder, on_error="skip") as session:
        assert list(session.streams()["f"]["skipped"]) == [str(folder / "2.csv")]


@pytest.mark.parametrize("name", ["2.csv", "2.parquet"])
def test_queries_lose_no_rows_after_a_malformed_file_is_repaired(tmp_path: Path, folder: Path, name: str):
    """A query added while the stream is degraded goes live; neither it nor the query that was live before loses rows."""
    session = open_session(tmp_path, folder)
    with session:
        before = session.add("SELECT n FROM f", name="before")
        session.advance()
        (folder / name).write_text(BAD)
        added = session.add("SELECT COUNT(*) AS n FROM TUMBLE(f, '1 second')", name="added")
        for _ in range(2):
            session.advance()
            stream = session.streams()["f"]
            assert (stream["status"], stream["rows"]) == ("degraded", 2)
            assert name in stream["error"]
            assert "repair or remove it" in stream["error"]
        assert (before.status, added.status) == ("live", "live")
        _repair(folder / name)
        session.advance()
        assert (session.streams()["f"]["status"], session.streams()["f"]["error"]) == ("ok", None)
        session.drain()
        assert read_columns(before, "n") == [1, 2, 8]
        assert read_columns(added, "n") == [1]


def test_queries_lose_no_rows_after_a_malformed_file_is_removed(tmp_path: Path, folder: Path):
    """The hint of the error suggests to repair or remove the file."""
    with open_session(tmp_path, folder) as session:
        before = session.add("SELECT n FROM f", name="before")
        session.advance()
        (folder / "2.csv").write_text(BAD)
        added = session.add("SELECT n + 1 AS n FROM f", name="added")
        with pytest.raises(SourceError, match=r"2\.csv"):
            session.drain()
        (folder / "2.csv").unlink()
        (folder / "3.csv").write_text("k,n,time\n1,4,2024-01-01T00:00:04Z\n")
        session.drain()
        assert read_columns(before, "n") == [1, 2, 4]
        assert read_columns(added, "n") == [5]


@pytest.mark.parametrize("batches_before", [0, 1])
def test_a_malformed_file_can_be_skipped_after_a_restart(tmp_path: Path, folder: Path, batches_before: int):
    """The hint of the error suggests on_error='skip'; a restart may change this option of the source."""
    with open_session(tmp_path, folder) as session:
        session.add("SELECT n FROM f", name="q")
        for _ in range(batches_before):
            session.advance()
        (folder / "2.csv").write_text(BAD)
        session.advance()
        assert session.streams()["f"]["status"] == "degraded"
    with open_session(tmp_path, folder, on_error="skip") as session:
        session.drain()
        assert read_columns(session.query("q"), "n") == [1, 2]
        assert list(session.streams()["f"]["skipped"]) == [str(folder / "2.csv")]


def _repair(path: Path) -> None:
    text = "k,n,time\n1,8,2024-01-01T00:00:03Z\n"
    if path.suffix == ".csv":
        path.write_text(text)
    else:
        import pyarrow.csv
        import pyarrow.parquet

        path.with_suffix(".tmp").write_text(text)
        pyarrow.parquet.write_table(pyarrow.csv.read_csv(path.with_suffix(".tmp")), path)
