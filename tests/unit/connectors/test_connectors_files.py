"""File source: discovery, order, splitting, restart, unreadable files."""

from __future__ import annotations

import gzip
import json
import os
from datetime import UTC, datetime
from unittest.mock import ANY

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.connectors import FileSource, Source, read_range
from headrace.errors import SchemaError, SourceError
from headrace.storage.posix import PosixStore


@pytest.fixture
def data_dir(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def state_dir(tmp_path):
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


def at(file: int, unit: int) -> dict[str, object]:
    """Return the position before a unit of a file, with any digest."""
    return {"file": file, "unit": unit, "digest": ANY}


def write_ids(path, rows, group=2):
    """Write ids, a row group or record batch for every `group` rows; each call writes a newer file."""
    table = pa.table({"id": pa.array(rows, pa.int32())})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=group)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=group)
    elif path.suffix == ".csv":
        path.write_text("id\n" + "".join(f"{row}\n" for row in rows))
    else:
        content = "".join(json.dumps({"id": row}) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    write_ids.clock += 10**9
    os.utime(path, ns=(write_ids.clock, write_ids.clock))


write_ids.clock = 10**18


def open_source(state_dir, path, *args, **kwargs) -> FileSource:
    source: Source = FileSource(path, *args, **kwargs)
    source.attach("s", PosixStore(state_dir))
    return source


def read_ids(source, ranges):
    return [row for range_ in ranges for row in read_range(range_, source.schema, ["id"]).column(0).to_pylist()]


def drain_ids(source, limit, position=None):
    """Return the ids of each plan until no rows are pending, and the last position."""
    plans = []
    while source.pending(position):
        ranges, position = source.plan(position, limit)
        plans.append(read_ids(source, ranges))
    assert source.plan(position, limit) == ([], position)
    return plans, position


def test_all_formats_in_one_directory_older_first(data_dir, state_dir):
    for number, name in enumerate(["z.parquet", "y.arrow", "x.csv", "w.jsonl.gz", "v.ndjson"]):
        write_ids(data_dir / name, [number * 2, number * 2 + 1])
    for name in (".hidden.csv", "_SUCCESS.csv", "a.csv.tmp", "readme.txt", "a.parquet.gz"):
        write_ids(data_dir / name, [99])
    (data_dir / "below.csv").mkdir()
    source = open_source(state_dir, data_dir, schema="id INT")
    ranges, after = source.plan(None, 10**9)
    assert read_ids(source, ranges) == list(range(10))
    assert [range_.reader for range_ in ranges] == ["parquet", "arrow", "csv", "json", "json"]
    assert after == at(5, 0)


def test_files_of_equal_age_are_ordered_by_name(data_dir, state_dir):
    for name in ("b.csv", "a.csv"):
        write_ids(data_dir / name, [ord(name[0])])
        os.utime(data_dir / name, ns=(0, 0))
    source = open_source(state_dir, data_dir)
    assert read_ids(source, source.plan(None, 10)[0]) == [97, 98]


def test_units_are_split_at_the_limit(data_dir, state_dir):
    write_ids(data_dir / "a.parquet", range(10))
    write_ids(data_dir / "b.arrow", range(10, 15))
    source = open_source(state_dir, data_dir)
    plans, after = drain_ids(source, 5)
    assert plans == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14]]
    assert after == at(2, 0)
    assert drain_ids(source, 1)[0] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14]]


@pytest.mark.parametrize("suffix", ["csv", "jsonl.gz"])
def test_all_rows_of_a_large_text_file_count_towards_the_limit(data_dir, state_dir, suffix):
    rows = 30_000  # more than the sample from which they are estimated
    for name, first in (("a", 0), ("b", rows)):
        write_ids(data_dir / f"{name}.{suffix}", range(first, first + rows))
    plans, _ = drain_ids(open_source(state_dir, data_dir, schema="id INT"), 25_000)
    assert [(len(ids), ids[0]) for ids in plans] == [(rows, 0), (rows, rows)]


def test_new_files_with_old_timestamps_are_read(data_dir, state_dir):
    write_ids(data_dir / "a.csv", [1])
    source = open_source(state_dir, data_dir)
    _, position = drain_ids(source, 10)
    write_ids(data_dir / "0.csv", [2])
    os.utime(data_dir / "0.csv", ns=(0, 0))
    assert source.pending(position)
    assert drain_ids(source, 10, position) == ([[2]], at(2, 0))


def test_restart_gives_the_same_ranges_from_the_same_position(data_dir, state_dir):
    write_ids(data_dir / "b.parquet", range(6))
    source = open_source(state_dir, data_dir)
    _, middle = source.plan(None, 4)
    planned = source.plan(middle, 100)
    write_ids(data_dir / "a.parquet", [7])
    os.utime(data_dir / "b.parquet", ns=(2 * 10**18, 2 * 10**18))  # the listing now has another order
    with (state_dir / "files.jsonl").open("ab") as file:
        file.write(b'{"path": "torn')  # a crash while a file was being recorded

    again = open_source(state_dir, data_dir)
    assert again.definition() == source.definition()
    assert again.plan(middle, 2) == (planned[0], at(1, 0))
    assert drain_ids(again, 100, planned[1]) == ([[7]], at(2, 0))
    assert len((state_dir / "files.jsonl").read_text().splitlines()) == 2


def test_the_inferred_schema_survives_the_removal_of_the_first_file(data_dir, state_dir):
    write_ids(data_dir / "a.csv", [1])
    open_source(state_dir, data_dir).plan(None, 10)
    (data_dir / "a.csv").unlink()
    assert open_source(state_dir, data_dir).schema.to_ddl() == "`id` BIGINT"


def test_patterns_and_single_files(data_dir, state_dir):
    write_ids(data_dir / "a.csv", [1])
    write_ids(data_dir / "b.csv", [2])
    assert drain_ids(open_source(state_dir, str(data_dir / "a*.csv")), 10)[0] == [[1]]
    (state_dir / "files.jsonl").unlink()
    assert drain_ids(open_source(state_dir, data_dir / "b.csv"), 10)[0] == [[2]]


def test_an_explicit_format_overrides_the_suffix(data_dir, state_dir):
    write_ids(data_dir / "a.csv", [1])
    (data_dir / "a.csv").rename(data_dir / "a.txt")
    source = open_source(state_dir, data_dir, "csv", "id INT")
    assert drain_ids(source, 10)[0] == [[1]]
    without_format = FileSource(data_dir / "a.txt", schema="id INT")
    (state_dir / "files.jsonl").unlink()
    without_format.attach("s", PosixStore(state_dir))
    with pytest.raises(SourceError, match=r"a\.txt' is unknown"):
        without_format.plan(None, 1)


def test_empty_files_have_no_rows(data_dir, state_dir):
    for name in ("a.csv", "b.json", "c.parquet", "d.arrow"):
        (data_dir / name).touch()
    write_ids(data_dir / "e.parquet", [])
    write_ids(data_dir / "f.arrow", [])
    source = open_source(state_dir, data_dir, schema="id INT")
    assert source.plan(None, 10) == ([], at(6, 0))
    assert not source.pending(None)
    write_ids(data_dir / "g.csv", [1])
    assert drain_ids(source, 10)[0] == [[1]]


@pytest.mark.parametrize("name", ["bad.parquet", "bad.arrow", "bad.csv.gz"])
def test_unreadable_files_fail_or_are_skipped(data_dir, state_dir, name):
    write_ids(data_dir / "a.csv", [1])
    (data_dir / name).write_bytes(b"this is something else entirely")
    strict = open_source(state_dir, data_dir, schema="id INT")
    with pytest.raises(SourceError) as caught:
        strict.plan(None, 10)
    assert str(data_dir / name) in str(caught.value)
    assert "on_error='skip_" in caught.value.hint

    lenient = open_source(state_dir, data_dir, schema="id INT", on_error="skip")
    assert drain_ids(lenient, 10)[0] == [[1]]
    assert list(lenient.skipped) == [str(data_dir / name)]
    assert lenient.skipped[str(data_dir / name)]
    assert open_source(state_dir, data_dir, schema="id INT", on_error="skip").skipped == lenient.skipped


def test_a_removed_file_is_named_and_skipped(data_dir, state_dir):
    write_ids(data_dir / "a.csv", [1])
    source = open_source(state_dir, data_dir)
    ranges, _ = source.plan(None, 10)
    (data_dir / "a.csv").unlink()
    with pytest.raises(SourceError, match=r"a\.csv"):
        read_ids(source, ranges)
    assert source.plan(None, 10)[0] == []  # not read by any batch: the next plan skips the file and records it
    assert "removed before" in source.skipped[str(data_dir / "a.csv")]


def test_schemas_are_inferred(data_dir):
    (data_dir / "a.csv").write_text("n,x,s,t,d,none\n1,1.5,a,2026-01-02 12:00:00.123Z,2026-01-02,\n")
    expected = "`n` BIGINT, `x` DOUBLE, `s` STRING, `t` TIMESTAMP, `d` DATE, `none` STRING"
    assert FileSource(data_dir / "a.csv").schema.to_ddl() == expected
    (data_dir / "b.json").write_text('{"n": 1, "x": 1.5, "s": "a", "t": "2026-01-02T12:00:00.123Z", "b": true, "none": null}\n')
    expected = "`n` BIGINT, `x` DOUBLE, `s` STRING, `t` TIMESTAMP, `b` BOOLEAN, `none` STRING"
    assert FileSource(data_dir / "b.json").schema.to_ddl() == expected
    (data_dir / "c.csv").write_text("1;a\n")
    assert FileSource(data_dir / "c.csv", header=False, delimiter=";").schema.to_ddl() == "`f0` BIGINT, `f1` STRING"
    pq.write_table(pa.table({"t": pa.array([datetime(2026, 1, 2, tzinfo=UTC)], pa.timestamp("ns"))}), data_dir / "d.parquet")
    assert FileSource(data_dir / "d.parquet").schema.to_ddl() == "`t` TIMESTAMP"


def test_failed_inference_names_the_file(data_dir):
    with pytest.raises(SourceError, match=r"no file to take the columns from.*\n.*schema="):
        _ = FileSource(data_dir).schema
    pq.write_table(pa.table({"l": [[1]]}), data_dir / "a.parquet")
    with pytest.raises(SchemaError, match=r"column 'l' of file .*a\.parquet"):
        _ = FileSource(data_dir).schema
    (data_dir / "b.parquet").write_bytes(b"no")
    with pytest.raises(SourceError, match=r"b\.parquet"):
        _ = FileSource(data_dir / "b.parquet").schema


def test_invalid_arguments_are_refused(data_dir, state_dir):
    with pytest.raises(SchemaError, match="unknown format 'xml'"):
        FileSource(data_dir, "xml")
    with pytest.raises(SchemaError, match="unknown on_error 'ignore'"):
        FileSource(data_dir, on_error="ignore")
    with pytest.raises(SchemaError, match="not one character"):
        FileSource(data_dir, delimiter="::")
    with pytest.raises(SourceError, match="does not exist"):
        open_source(state_dir, data_dir / "nowhere", schema="id INT")


def test_a_file_that_is_discovered_while_pending_looks_is_pending(data_dir, state_dir, monkeypatch):
    """A shell asks whether there is work while a micro-batch plans: the new file is unknown, or among the unread ones."""
    source = FileSource(data_dir, schema="id INT")
    source.attach("s", PosixStore(state_dir))
    write_ids(data_dir / "a.parquet", [1])
    list_paths = source._list_data_files

    def list_after_planning(**_: bool):
        monkeypatch.setattr(source, "_list_data_files", list_paths)
        source.plan(None, 10)
        return list_paths()

    monkeypatch.setattr(source, "_list_data_files", list_after_planning)
    assert source.pending(None)
