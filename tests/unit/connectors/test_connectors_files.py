"""Files as a stream: discovery, order, splitting, restart, files that cannot be read."""

from __future__ import annotations

import gzip
import json
import os
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.connectors import FileSource, Source, read_range
from headrace.errors import SchemaError, SourceError


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


def put(path, rows, group=2):
    """Write ids, a row group or record batch for every `group` rows; later calls make younger files."""
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
    put.clock += 10**9
    os.utime(path, ns=(put.clock, put.clock))


put.clock = 10**18


def started(own, path, *args, **kwargs) -> FileSource:
    source: Source = FileSource(path, *args, **kwargs)
    source.attach("s", own)
    return source


def ids(source, ranges):
    return [row for wanted in ranges for row in read_range(wanted, source.schema, ["id"]).column(0).to_pylist()]


def drained(source, limit, position=None):
    """Return the ids of each plan until there is nothing new, and the last position."""
    found = []
    while source.pending(position):
        ranges, position = source.plan(position, limit)
        found.append(ids(source, ranges))
    assert source.plan(position, limit) == ([], position)
    return found, position


def test_all_formats_in_one_directory_older_first(data, own):
    for number, name in enumerate(["z.parquet", "y.arrow", "x.csv", "w.jsonl.gz", "v.ndjson"]):
        put(data / name, [number * 2, number * 2 + 1])
    for name in (".hidden.csv", "_SUCCESS.csv", "a.csv.tmp", "readme.txt", "a.parquet.gz"):
        put(data / name, [99])
    (data / "below.csv").mkdir()
    source = started(own, data, schema="id INT")
    ranges, after = source.plan(None, 10**9)
    assert ids(source, ranges) == list(range(10))
    assert [wanted.reader for wanted in ranges] == ["parquet", "arrow", "csv", "json", "json"]
    assert after == {"file": 5, "unit": 0}


def test_same_age_goes_by_name(data, own):
    for name in ("b.csv", "a.csv"):
        put(data / name, [ord(name[0])])
        os.utime(data / name, ns=(0, 0))
    source = started(own, data)
    assert ids(source, source.plan(None, 10)[0]) == [97, 98]


def test_units_are_split_at_the_limit(data, own):
    put(data / "a.parquet", range(10))
    put(data / "b.arrow", range(10, 15))
    source = started(own, data)
    found, after = drained(source, 5)
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14]]
    assert after == {"file": 2, "unit": 0}
    assert drained(source, 1)[0] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14]]


def test_new_files_are_picked_up_also_when_they_look_old(data, own):
    put(data / "a.csv", [1])
    source = started(own, data)
    _, position = drained(source, 10)
    put(data / "0.csv", [2])
    os.utime(data / "0.csv", ns=(0, 0))
    assert source.pending(position)
    assert drained(source, 10, position) == ([[2]], {"file": 2, "unit": 0})


def test_restart_gives_the_same_ranges_from_the_same_position(data, own):
    put(data / "b.parquet", range(6))
    source = started(own, data)
    _, middle = source.plan(None, 4)
    planned = source.plan(middle, 100)
    put(data / "a.parquet", [7])
    os.utime(data / "b.parquet", ns=(2 * 10**18, 2 * 10**18))  # the listing now has another order
    with (own / "files.jsonl").open("ab") as file:
        file.write(b'{"path": "torn')  # a crash while a file was being noted

    again = started(own, data)
    assert again.definition() == source.definition()
    assert again.plan(middle, 2) == (planned[0], {"file": 1, "unit": 0})
    assert drained(again, 100, planned[1]) == ([[7]], {"file": 2, "unit": 0})
    assert len((own / "files.jsonl").read_text().splitlines()) == 2


def test_inferred_schema_outlives_the_first_file(data, own):
    put(data / "a.csv", [1])
    started(own, data).plan(None, 10)
    (data / "a.csv").unlink()
    assert started(own, data).schema.to_ddl() == "`id` BIGINT"


def test_patterns_and_single_files(data, own):
    put(data / "a.csv", [1])
    put(data / "b.csv", [2])
    assert drained(started(own, str(data / "a*.csv")), 10)[0] == [[1]]
    (own / "files.jsonl").unlink()
    assert drained(started(own, data / "b.csv"), 10)[0] == [[2]]


def test_given_format_goes_before_the_suffix(data, own):
    put(data / "a.csv", [1])
    (data / "a.csv").rename(data / "a.txt")
    source = started(own, data, "csv", "id INT")
    assert drained(source, 10)[0] == [[1]]
    unsure = FileSource(data / "a.txt", schema="id INT")
    (own / "files.jsonl").unlink()
    unsure.attach("s", own)
    with pytest.raises(SourceError, match=r"a\.txt' is unknown"):
        unsure.plan(None, 1)


def test_empty_files_are_fine(data, own):
    for name in ("a.csv", "b.json", "c.parquet", "d.arrow"):
        (data / name).touch()
    put(data / "e.parquet", [])
    put(data / "f.arrow", [])
    source = started(own, data, schema="id INT")
    assert source.plan(None, 10) == ([], {"file": 6, "unit": 0})
    assert not source.pending(None)
    put(data / "g.csv", [1])
    assert drained(source, 10)[0] == [[1]]


@pytest.mark.parametrize("name", ["bad.parquet", "bad.arrow", "bad.csv.gz"])
def test_files_that_cannot_be_opened(data, own, name):
    put(data / "a.csv", [1])
    (data / name).write_bytes(b"this is something else entirely")
    strict = started(own, data, schema="id INT")
    with pytest.raises(SourceError) as caught:
        strict.plan(None, 10)
    assert str(data / name) in str(caught.value)
    assert "on_error='skip'" in caught.value.hint

    lenient = started(own, data, schema="id INT", on_error="skip")
    assert drained(lenient, 10)[0] == [[1]]
    assert list(lenient.skipped) == [str(data / name)]
    assert lenient.skipped[str(data / name)]
    assert started(own, data, schema="id INT", on_error="skip").skipped == lenient.skipped


def test_vanished_file_is_named(data, own):
    put(data / "a.csv", [1])
    source = started(own, data)
    ranges, _ = source.plan(None, 10)
    (data / "a.csv").unlink()
    with pytest.raises(SourceError, match=r"a\.csv"):
        ids(source, ranges)
    assert source.plan(None, 10)[0] == []  # no batch has read it: planned anew, it is left out and named
    assert "removed before" in source.skipped[str(data / "a.csv")]


def test_inference(data):
    (data / "a.csv").write_text("n,x,s,t,d,none\n1,1.5,a,2026-01-02 12:00:00.123Z,2026-01-02,\n")
    expected = "`n` BIGINT, `x` DOUBLE, `s` STRING, `t` TIMESTAMP, `d` DATE, `none` STRING"
    assert FileSource(data / "a.csv").schema.to_ddl() == expected
    (data / "b.json").write_text('{"n": 1, "x": 1.5, "s": "a", "t": "2026-01-02T12:00:00.123Z", "b": true, "none": null}\n')
    expected = "`n` BIGINT, `x` DOUBLE, `s` STRING, `t` TIMESTAMP, `b` BOOLEAN, `none` STRING"
    assert FileSource(data / "b.json").schema.to_ddl() == expected
    (data / "c.csv").write_text("1;a\n")
    assert FileSource(data / "c.csv", header=False, delimiter=";").schema.to_ddl() == "`f0` BIGINT, `f1` STRING"
    pq.write_table(pa.table({"t": pa.array([datetime(2026, 1, 2, tzinfo=UTC)], pa.timestamp("ns"))}), data / "d.parquet")
    assert FileSource(data / "d.parquet").schema.to_ddl() == "`t` TIMESTAMP"


def test_inference_that_cannot_be(data):
    with pytest.raises(SourceError, match=r"no file to take the columns from.*\n.*schema="):
        _ = FileSource(data).schema
    pq.write_table(pa.table({"l": [[1]]}), data / "a.parquet")
    with pytest.raises(SchemaError, match=r"column 'l' of file .*a\.parquet"):
        _ = FileSource(data).schema
    (data / "b.parquet").write_bytes(b"no")
    with pytest.raises(SourceError, match=r"b\.parquet"):
        _ = FileSource(data / "b.parquet").schema


def test_bad_arguments(data, own):
    with pytest.raises(SchemaError, match="unknown format 'xml'"):
        FileSource(data, "xml")
    with pytest.raises(SchemaError, match="unknown on_error 'ignore'"):
        FileSource(data, on_error="ignore")
    with pytest.raises(SchemaError, match="not one character"):
        FileSource(data, delimiter="::")
    with pytest.raises(SourceError, match="does not exist"):
        started(own, data / "nowhere", schema="id INT")
