"""The error policy of text files: lines that do not fit are skipped, counted, sampled and kept as dead letters; no other is."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

import headrace as hr
from headrace.connectors import Range, read_range, read_with_policy
from headrace.errors import SchemaError, SourceError
from headrace.model.types import Schema
from headrace.storage.fault_points import install_fault_hook

COLUMNS = "k INT, n BIGINT, name STRING, time TIMESTAMP"
SCHEMA = Schema.parse(COLUMNS)
BACKENDS = pytest.mark.parametrize("backend", ["local", "reference"])


def csv_line(k: int, n: object = 1, name: str = "a") -> str:
    return f"{k},{n},{name},2024-01-01T00:00:{k % 60:02d}Z"


def json_line(k: int, n: object = 1) -> str:
    return json.dumps({"k": k, "n": n, "name": "a", "time": f"2024-01-01T00:00:{k % 60:02d}Z"})


def read(path: Path, policy: str = "skip_row", columns: tuple[str, ...] = ("k",), **options: Any) -> Any:
    reader = "csv" if ".csv" in path.name else "json"
    return read_with_policy(Range("s", reader, str(path), 0, 1, 1, {"on_error": policy, **options}), SCHEMA, columns)


def write(path: Path, *lines: str, header: str = "k,n,name,time") -> Path:
    path.write_text("\n".join([header, *lines] if path.suffix == ".csv" else lines) + "\n")
    return path


BAD_CSV = {
    "a value that is no number": "7,x,a,2024-01-01T00:00:07Z",
    "a value out of range": "99999999999,1,a,2024-01-01T00:00:07Z",
    "a time that is none": "7,1,a,yesterday",
    "too few values": "7,1",
    "too many values": "7,1,a,2024-01-01T00:00:07Z,more",
    "an open quote": '7,1,"a,2024-01-01T00:00:07Z',
    "a quoted value of two lines": '7,x,"a\nb",2024-01-01T00:00:07Z',
}
BAD_JSON = {
    "no JSON": "{k: 7}",
    "a cut line": '{"k": 7, "n": ',
    "another type": '{"k": "seven", "n": 1, "time": null}',
    "a time that is none": '{"k": 7, "n": 1, "time": "yesterday"}',
    "no object": "7",
}


@pytest.mark.parametrize("bad", BAD_CSV.values(), ids=BAD_CSV.keys())
@pytest.mark.parametrize("place", [0, 3, 9])
def test_a_bad_csv_line_is_skipped_alone(tmp_path: Path, bad: str, place: int):
    lines = [csv_line(k) for k in range(10) if k != 7]
    outcome = read(write(tmp_path / "f.csv", *lines[:place], bad, *lines[place:]))
    assert outcome.table["k"].to_pylist() == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    (skipped,) = outcome.skipped_rows
    assert (skipped.file, skipped.line, skipped.text) == (str(tmp_path / "f.csv"), place + 2, bad)
    assert skipped.reason


@pytest.mark.parametrize("bad", BAD_JSON.values(), ids=BAD_JSON.keys())
@pytest.mark.parametrize("place", [0, 3, 9])
def test_a_bad_json_line_is_skipped_alone(tmp_path: Path, bad: str, place: int):
    lines = [json_line(k) for k in range(10) if k != 7]
    outcome = read(write(tmp_path / "f.json", *lines[:place], bad, *lines[place:]))
    assert outcome.table["k"].to_pylist() == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert [(row.line, row.text) for row in outcome.skipped_rows] == [(place + 1, bad)]


def test_good_rows_are_those_of_a_file_without_the_bad_lines(tmp_path: Path):
    random = Random(3)
    names = ['"a, b"', '"two\nlines"', '"a ""quote"""', "", "ü", '""', " x "]
    good = [csv_line(k, random.randrange(100), random.choice(names)) for k in range(300)]
    mixed = list(good)
    for place in sorted(random.sample(range(300), 40), reverse=True):
        mixed.insert(place, random.choice(["x,1,a,", "1,2", "1,1,a,never", '1,"",a,']))
    outcome = read(write(tmp_path / "mixed.csv", *mixed), columns=tuple(SCHEMA.names))
    clean = Range("s", "csv", str(write(tmp_path / "clean.csv", *good)), 0, 1, 1)
    assert outcome.table.equals(read_range(clean, SCHEMA, SCHEMA.names))
    assert len(outcome.skipped_rows) == 40


def test_which_lines_are_bad_does_not_depend_on_the_columns_that_are_read(tmp_path: Path):
    path = write(tmp_path / "f.csv", csv_line(1), csv_line(2, n="x"), csv_line(3))
    for columns in (("k",), ("n",), ("time", "k"), ()):
        outcome = read(path, columns=columns)
        assert (outcome.table.num_rows, outcome.table.column_names) == (2, list(columns))
    assert read(path, "skip_file").table.num_rows == 0
    assert read(path, "fail").table.num_rows == 3  # as before: only the columns that queries read are converted


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_line_ends_a_byte_order_mark_and_empty_lines(tmp_path: Path, ending: str):
    lines = ["\ufeffk,n,name,time", "", csv_line(1), "", csv_line(2, n="x"), csv_line(3)]
    path = tmp_path / "f.csv"
    path.write_bytes(ending.join(lines).encode())
    outcome = read(path)
    assert outcome.table["k"].to_pylist() == [1, 3]
    assert [row.line for row in outcome.skipped_rows] == [5]


def test_compressed_files_and_files_without_header_or_with_another_delimiter(tmp_path: Path):
    path = tmp_path / "f.csv.gz"
    path.write_bytes(gzip.compress("\n".join([csv_line(1), csv_line(2, n="x"), csv_line(3)]).replace(",", ";").encode()))
    outcome = read(path, header=False, delimiter=";")
    assert outcome.table["k"].to_pylist() == [1, 3]
    assert [row.line for row in outcome.skipped_rows] == [2]


@pytest.mark.parametrize("content", [b"k,n\n1,2\n", b"\x1f\x8b broken", b"k,n,name,time\n1,x,a,never\n"])
def test_a_file_that_fails_as_a_whole_is_not_skipped_line_by_line(tmp_path: Path, content: bytes):
    path = tmp_path / ("f.csv.gz" if content.startswith(b"\x1f") else "f.csv")
    path.write_bytes(content)
    if content.endswith(b"never\n"):
        assert len(read(path).skipped_rows) == 1
        return
    with pytest.raises(SourceError):
        read(path)


def test_a_json_array_is_not_skipped_line_by_line(tmp_path: Path):
    (tmp_path / "f.json").write_text('[{"k": 1},\n{"k": 2}]\n')
    with pytest.raises(SourceError, match="cannot be read"):
        read(tmp_path / "f.json")


@pytest.mark.parametrize(
    "options", [{"on_error": "ignore"}, {"dead_letter": "jsonl:x"}, {"on_error": "skip_row", "dead_letter": "csv:x"}]
)
def test_invalid_policies_are_refused(tmp_path: Path, options: dict[str, str]):
    with pytest.raises(SchemaError):
        hr.FileSource(tmp_path, **options)


# In a session


def open_session(tmp_path: Path, backend: str = "local", **options: Any) -> hr.Session:
    session = hr.Session(tmp_path / "checkpoint", backend=backend)
    session.create_stream("f", hr.FileSource(tmp_path / "in", schema=COLUMNS, **options), time="time")
    return session


def read_letters(folder: Path) -> list[tuple[str, int]]:
    rows = [json.loads(line) for path in sorted(folder.glob("part-*.jsonl")) for line in path.read_text().splitlines()]
    assert all(list(row) == ["file", "line", "reason", "text"] for row in rows)
    return sorted((Path(row["file"]).name, row["line"]) for row in rows)


@BACKENDS
def test_one_bad_line_of_many_costs_one_row(tmp_path: Path, backend: str):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "1.csv", *(csv_line(k, n="x" if k == 1234 else 1) for k in range(2000)))
    write(tmp_path / "in" / "2.json", *(json_line(k) for k in range(3)), "x" * 5000)
    with open_session(tmp_path, backend, on_error="skip_row", dead_letter=f"jsonl:{tmp_path / 'dead'}") as session:
        query = session.add("SELECT COUNT(*) AS c FROM TUMBLE(f, '1 minute')")
        session.drain()
        assert query.results()["c"].to_pylist() == [2002]
        stream = session.streams()["f"]
    assert (stream["status"], stream["rows"], stream["skipped_rows"], stream["skipped"]) == ("ok", 2002, 2, {})
    first, second = stream["skipped_samples"]
    assert (first["line"], first["text"]) == (1236, csv_line(1234, n="x"))
    assert "invalid value 'x'" in first["reason"]
    assert (second["line"], second["text"]) == (4, "x" * 200 + "…")
    assert read_letters(tmp_path / "dead") == [("1.csv", 1236), ("2.json", 4)]
    with open_session(tmp_path, backend, on_error="skip_row") as session:
        assert session.streams()["f"]["skipped_rows"] == 2


def test_the_sample_is_bounded_and_has_the_newest_rows(tmp_path: Path):
    (tmp_path / "in").mkdir()
    with open_session(tmp_path, on_error="skip_row") as session:
        session.add("SELECT n FROM f")
        for number in range(3):
            write(tmp_path / "in" / f"{number}.csv", *(csv_line(k, n="x") for k in range(15)))
            session.advance()
        stream = session.streams()["f"]
    assert (stream["skipped_rows"], len(stream["skipped_samples"])) == (45, 20)
    assert stream["skipped_samples"][-1]["file"].endswith("2.csv")


@pytest.mark.parametrize("step", ["logged", "stage one", "stage two", "commit"])
def test_dead_letters_are_written_once_after_a_crash(tmp_path: Path, step: str):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "1.csv", *(csv_line(k, n="x" if k % 10 == 0 else 1) for k in range(50)))
    crashed: list[str] = []

    def crash(reached: str) -> None:
        if reached == step and not crashed:
            crashed.append(step)
            raise KeyboardInterrupt

    options = {"on_error": "skip_row", "dead_letter": f"jsonl:{tmp_path / 'dead'}"}
    session = open_session(tmp_path, **options)
    session.add("SELECT n FROM f", name="q")
    install_fault_hook(tmp_path / "checkpoint", crash)
    with pytest.raises(KeyboardInterrupt):
        session.advance()
    session._checkpoint.close()
    with open_session(tmp_path, **options) as session:
        session.drain()
        assert session.streams()["f"]["skipped_rows"] == 5
        assert session.query("q").results().num_rows == 45
    install_fault_hook(tmp_path / "checkpoint", None)
    assert read_letters(tmp_path / "dead") == [("1.csv", k + 2) for k in range(0, 50, 10)]


def test_dead_letters_of_a_batch_that_is_planned_again_are_written_once(tmp_path: Path):
    """The first attempt fails on another stream, after the dead letters were written; the second has other tasks."""
    for name in ("in", "other"):
        (tmp_path / name).mkdir()
    write(tmp_path / "in" / "1.csv", *(csv_line(k, n="x" if k % 10 == 0 else 1) for k in range(50)))
    write(tmp_path / "other" / "0.csv", *(csv_line(k) for k in range(5000)))
    write(tmp_path / "other" / "1.csv", csv_line(1, n="x"))
    session = hr.Session(tmp_path / "checkpoint", backend="local")
    with session:
        session.create_stream("other", hr.FileSource(tmp_path / "other", schema=COLUMNS), time="time")
        options = {"on_error": "skip_row", "dead_letter": f"jsonl:{tmp_path / 'dead'}"}
        session.create_stream("f", hr.FileSource(tmp_path / "in", schema=COLUMNS, **options), time="time")
        query, _ = session.add("SELECT n FROM f"), session.add("SELECT n FROM other")
        session.advance()
        assert session.streams()["other"]["status"] == "degraded"
        assert query.results().num_rows == 45
    assert read_letters(tmp_path / "dead") == [("1.csv", k + 2) for k in range(0, 50, 10)]


@BACKENDS
def test_a_folder_of_dead_letters_that_cannot_be_written_degrades_the_stream(tmp_path: Path, backend: str):
    (tmp_path / "in").mkdir()
    (tmp_path / "dead").write_text("not a folder")
    write(tmp_path / "in" / "1.csv", csv_line(1), csv_line(2, n="x"))
    with open_session(tmp_path, backend, on_error="skip_row", dead_letter=f"jsonl:{tmp_path / 'dead'}") as session:
        query = session.add("SELECT n FROM f")
        session.advance()
        assert "dead letters of stream 'f' cannot be written" in session.streams()["f"]["error"]
        (tmp_path / "dead").unlink()
        session.advance()
        assert query.results().num_rows == 1
    assert read_letters(tmp_path / "dead") == [("1.csv", 3)]
