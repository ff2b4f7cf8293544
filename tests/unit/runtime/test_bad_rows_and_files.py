"""Rows without event time and files that cannot be read: named, counted, and nothing else is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from lives import Life, columns, rows

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


def opened(tmp_path: Path, folder: Path, backend: str = "local", **options: str) -> hr.Session:
    session = hr.Session(tmp_path / "checkpoint", backend=backend)
    session.create_stream("f", hr.FileSource(folder, schema=SCHEMA, **options), time="time")
    return session


@pytest.mark.parametrize("backend", ["local", "reference"])
def test_rows_without_event_time_are_counted_and_dropped(begin, backend: str):
    life = begin(backend=backend)
    total = life.session.add("SELECT SUM(n) AS total FROM TUMBLE(s, '5 seconds')")
    every = life.session.add("SELECT n FROM s")
    life.source.append([{"k": 1, "n": 100, "time": None}, {"k": 1, "n": 200}, *rows(1, 2)])
    life.session.advance()
    life.source.append([{"k": 1, "n": 400, "time": None}])
    life.session.advance()
    life.session.drain()
    assert columns(total, "total") == [2]
    assert columns(every, "n") == [1, 1]
    counted = life.session.streams()["s"]
    assert (counted["rows"], counted["untimed"]) == (5, 3)
    assert total.late == {}


def test_rows_without_event_time_stay_counted_after_a_restart(life: Life):
    life.source.append([{"k": 1, "n": 1, "time": None}])
    life.session.add("SELECT n FROM s", name="q")
    life.session.advance()
    assert life.again().streams()["s"]["untimed"] == 1


def test_rows_that_do_not_fit_are_refused_as_a_whole(life: Life):
    query = life.session.add("SELECT n FROM s")
    with pytest.raises(SchemaError, match="row 1 does not fit BIGINT"):
        life.source.append([*rows(1), {"k": 1, "n": "x", "time": None}])
    life.session.advance()
    assert columns(query, "n") == []


@pytest.mark.parametrize("backend", ["local", "reference"])
def test_a_malformed_file_is_skipped_and_counted_by_option(tmp_path: Path, folder: Path, backend: str):
    (folder / "2.csv").write_text(BAD)
    (folder / "3.csv").write_text("k,n,time\n1,4,2024-01-01T00:00:04Z\n")
    with opened(tmp_path, folder, backend, on_error="skip") as session:
        query = session.add("SELECT SUM(n) AS total FROM TUMBLE(f, '5 seconds')")
        session.drain()
        assert columns(query, "total") == [7]
        skipped = session.streams()["f"]["skipped"]
        assert list(skipped) == [str(folder / "2.csv")]
        assert "cannot be read" in skipped[str(folder / "2.csv")]


def test_an_unreadable_file_is_skipped_and_counted_by_option(tmp_path: Path, folder: Path):
    (folder / "2.parquet").write_bytes(b"PAR1 no, not really")
    with opened(tmp_path, folder, on_error="skip") as session:
        query = session.add("SELECT n FROM f")
        session.drain()
        assert columns(query, "n") == [1, 2]
        assert list(session.streams()["f"]["skipped"]) == [str(folder / "2.parquet")]


def test_skipped_files_stay_counted_after_a_restart(tmp_path: Path, folder: Path):
    (folder / "2.csv").write_text(BAD)
    with opened(tmp_path, folder, on_error="skip") as session:
        session.add("SELECT n FROM f")
        session.drain()
    with opened(tmp_path, folder, on_error="skip") as session:
        assert list(session.streams()["f"]["skipped"]) == [str(folder / "2.csv")]


@pytest.mark.parametrize("name", ["2.csv", "2.parquet"])
def test_a_malformed_file_that_is_repaired_costs_nothing(tmp_path: Path, folder: Path, name: str):
    """A query added in the very batch that failed is live afterwards; the one that was there has lost nothing."""
    session = opened(tmp_path, folder)
    with session:
        before = session.add("SELECT n FROM f", name="before")
        session.advance()
        (folder / name).write_text(BAD)
        added = session.add("SELECT COUNT(*) AS n FROM TUMBLE(f, '1 second')", name="added")
        for _ in range(2):
            with pytest.raises(SourceError, match=name.replace(".", r"\.")) as caught:
                session.advance()
            assert "repair or remove it" in caught.value.hint
        assert before.status == "live"
        assert added.status == "accepted"
        _repair(folder / name)
        session.advance()
        assert added.status == "live"
        session.drain()
        assert columns(before, "n") == [1, 2, 8]
        assert columns(added, "n") == [1]


def test_a_malformed_file_that_is_removed_costs_nothing(tmp_path: Path, folder: Path):
    """The hint says: repair or remove it."""
    with opened(tmp_path, folder) as session:
        before = session.add("SELECT n FROM f", name="before")
        session.advance()
        (folder / "2.csv").write_text(BAD)
        added = session.add("SELECT n + 1 AS n FROM f", name="added")
        with pytest.raises(SourceError, match=r"2\.csv"):
            session.advance()
        (folder / "2.csv").unlink()
        (folder / "3.csv").write_text("k,n,time\n1,4,2024-01-01T00:00:04Z\n")
        session.drain()
        assert columns(before, "n") == [1, 2, 4]
        assert columns(added, "n") == [5]


@pytest.mark.parametrize("batches_before", [0, 1])
def test_a_malformed_file_can_be_left_out_after_a_restart(tmp_path: Path, folder: Path, batches_before: int):
    """The hint says: create the source with on_error='skip'. It is no part of what is read, so it may change."""
    with opened(tmp_path, folder) as session:
        session.add("SELECT n FROM f", name="q")
        for _ in range(batches_before):
            session.advance()
        (folder / "2.csv").write_text(BAD)
        with pytest.raises(SourceError):
            session.advance()
    with opened(tmp_path, folder, on_error="skip") as session:
        session.drain()
        assert columns(session.query("q"), "n") == [1, 2]
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
