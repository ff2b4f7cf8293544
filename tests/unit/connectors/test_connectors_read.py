"""Reading ranges of every format: rows of the declared types, or an error that names the file."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.connectors import Range, formats, read_range
from headrace.errors import SchemaError, SourceError
from headrace.model.types import TIMESTAMP, Schema
from headrace.storage.records import decode_records, encode_records

SCHEMA = Schema.parse("id INT, name STRING, price DOUBLE, paid DECIMAL(10, 2), ok BOOLEAN, day DATE, time TIMESTAMP")
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
ROWS = [
    {"id": 1, "name": "a", "price": 1.5, "paid": Decimal("1.25"), "ok": True, "day": date(2026, 1, 2), "time": NOON},
    {"id": 2, "name": None, "price": None, "paid": None, "ok": None, "day": None, "time": NOON + timedelta(milliseconds=1)},
    {"id": 3, "name": "ü,", "price": -2.0, "paid": Decimal("0.10"), "ok": False, "day": date(1969, 12, 31), "time": None},
]
TABLE = pa.Table.from_pylist(ROWS, schema=SCHEMA.to_arrow())
CSV = (
    'id,name,price,paid,ok,day,time\n1,a,1.5,1.25,true,2026-01-02,2026-01-02T12:00:00Z\n'
    '2,,,,,,2026-01-02T12:00:00.001\n3,"ü,",-2,0.1,false,1969-12-31,\n'
)  # fmt: skip
JSON = (
    '{"id": 1, "name": "a", "price": 1.5, "paid": "1.25", "ok": true, "day": "2026-01-02", "time": "2026-01-02T12:00:00Z"}\n'
    '{"id": 2, "time": "2026-01-02 12:00:00.001", "extra": [1]}\n'
    '{"id": 3, "name": "ü,", "price": -2, "paid": 0.10, "ok": false, "day": "1969-12-31", "time": null}\n'
)


def write_arrow(path: Path, table: pa.Table, chunk: int = 2, *, stream: bool = False, compression: str | None = None) -> Path:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=chunk)
    return path


def make_range(path: Path, reader: str, stop: int = 1, **options) -> Range:
    return Range("s", reader, str(path), 0, stop, 3, options)


def write_text(path: Path, content: str) -> Path:
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_all_formats(directory: Path) -> list[Range]:
    pq.write_table(TABLE, directory / "a.parquet", row_group_size=2)
    return [
        make_range(write_arrow(directory / "a.arrow", TABLE), "arrow", 2),
        make_range(write_arrow(directory / "z.arrow", TABLE, compression="zstd"), "arrow", 2),
        make_range(write_arrow(directory / "a.arrows", TABLE, stream=True), "arrow", 2),
        make_range(directory / "a.parquet", "parquet", 2),
        make_range(write_text(directory / "a.csv", CSV), "csv"),
        make_range(write_text(directory / "a.csv.gz", CSV), "csv"),
        make_range(write_text(directory / "b.csv", CSV.split("\n", 1)[1]), "csv", header=False),
        make_range(write_text(directory / "a.json", JSON), "json"),
        make_range(write_text(directory / "a.json.gz", JSON), "json"),
    ]


def test_all_formats_give_the_same_rows_and_types(tmp_path):
    for range_ in write_all_formats(tmp_path):
        table = read_range(range_, SCHEMA, SCHEMA.names)
        assert table.schema.equals(SCHEMA.to_arrow()), range_.path
        assert table.to_pylist() == ROWS, range_.path


@pytest.mark.parametrize("small_file_bytes", [0, 1 << 20])
def test_requested_columns_set_the_order_and_ignore_case(tmp_path, monkeypatch, small_file_bytes: int):
    monkeypatch.setattr(formats, "_SMALL_FILE_BYTES", small_file_bytes)  # of Arrow files: none is small, or all are
    for range_ in write_all_formats(tmp_path):
        table = read_range(range_, SCHEMA, ["TIME", "id"])
        assert table.column_names == ["time", "id"], range_.path
        assert table.column("id").to_pylist() == [1, 2, 3]
        assert read_range(range_, SCHEMA, []).num_rows == 3, range_.path
        assert read_range(range_, SCHEMA, []).num_columns == 0


def test_a_range_reads_part_of_a_file(tmp_path):
    table = pa.table({"id": pa.array(range(10), pa.int32())})
    schema = Schema.parse("id INT")
    write_arrow(tmp_path / "a.arrow", table)
    write_arrow(tmp_path / "a.arrows", table, stream=True)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    for name, reader in (("a.arrow", "arrow"), ("a.arrows", "arrow"), ("a.parquet", "parquet")):
        part = read_range(Range("s", reader, str(tmp_path / name), 1, 3, 4), schema, ["id"])
        assert part.column(0).to_pylist() == [2, 3, 4, 5]


def test_arrow_files_are_mapped_not_copied(tmp_path):
    table = pa.table({"id": pa.array(range(100_000), pa.int32()), "time": pa.array(range(100_000), pa.timestamp("us"))})
    write_arrow(tmp_path / "a.arrow", table, 50_000)
    before = pa.total_allocated_bytes()
    mapped = read_range(make_range(tmp_path / "a.arrow", "arrow", 2), Schema.parse("id INT, time TIMESTAMP"), ["id", "time"])
    assert pa.total_allocated_bytes() - before < 10_000  # not even for times without a zone
    assert mapped.column("id").num_chunks == 2


def test_times_of_any_unit_and_zone_become_utc_microseconds(tmp_path):
    schema = Schema.parse("time TIMESTAMP")
    kinds = [pa.timestamp(unit, tz) for unit in ("s", "ms", "us", "ns") for tz in (None, "UTC", "America/New_York")]
    for kind in kinds:
        table = pa.table({"time": pa.array([NOON, None], TIMESTAMP).cast(kind)})
        for name, reader in (("a.arrow", "arrow"), ("a.parquet", "parquet")):
            write_arrow(tmp_path / name, table) if reader == "arrow" else pq.write_table(table, tmp_path / name)
            converted = read_range(make_range(tmp_path / name, reader), schema, ["time"])
            assert converted.to_pydict() == {"time": [NOON, None]}, kind
            assert converted.schema.types == [TIMESTAMP]
    write_arrow(tmp_path / "ns.arrow", pa.table({"time": pa.array([-1], pa.timestamp("ns"))}))
    converted = read_range(make_range(tmp_path / "ns.arrow", "arrow"), schema, ["time"])
    assert converted.column(0).cast(pa.int64()).to_pylist() == [-1]  # rounded down, not towards 1970


def test_other_encodings_of_a_type_are_converted(tmp_path):
    table = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "name": pa.array(["a", "b"]).dictionary_encode(),
            "price": pa.array([1, 2], pa.float32()),
            "day": pa.array(["2026-01-02", None]),
        }
    )
    converted = read_range(make_range(write_arrow(tmp_path / "a.arrow", table), "arrow"), SCHEMA, ["id", "name", "price", "day"])
    assert converted.to_pylist()[0] == {"id": 1, "name": "a", "price": 1.0, "day": date(2026, 1, 2)}


def test_timestamp_format(tmp_path):
    schema = Schema.parse("time TIMESTAMP")
    path = write_text(tmp_path / "a.csv", "time\n02/01/2026 12:00\n")
    assert read_range(make_range(path, "csv", timestamp_format="%d/%m/%Y %H:%M"), schema, ["time"]).to_pydict() == {
        "time": [NOON]
    }
    path = write_text(tmp_path / "b.csv", "time\n02/01/2026 14:00 +0200\n")
    parsed = read_range(make_range(path, "csv", timestamp_format="%d/%m/%Y %H:%M %z"), schema, ["time"])
    assert parsed.to_pydict() == {"time": [datetime(2026, 1, 2, 14, tzinfo=timezone(timedelta(hours=2)))]}


def test_csv_quotes_byte_order_mark_and_case(tmp_path):
    path = write_text(tmp_path / "a.csv", '\ufeffID;Name\n1;"two\nlines"\n2;""\n3;\n')
    table = read_range(make_range(path, "csv", delimiter=";"), SCHEMA, ["name", "id"])
    assert table.to_pydict() == {"name": ["two\nlines", "", None], "id": [1, 2, 3]}


@pytest.mark.parametrize("content", ["", "\n", "id,name\n"])
def test_csv_without_rows(tmp_path, content):
    assert read_range(make_range(write_text(tmp_path / "a.csv", content), "csv"), Schema.parse("id INT"), ["id"]).num_rows == 0


@pytest.mark.parametrize("content", ["", " \n", "\n\n"])
def test_json_without_rows(tmp_path, content):
    assert read_range(make_range(write_text(tmp_path / "a.json", content), "json"), SCHEMA, ["id", "time"]).num_rows == 0


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "id,name\n1,a\n2\n", "Row #3: Expected 2 columns"),
        ("a.csv", "id,name\n1,a\nx,b\n", "Row #3: CSV conversion error to int32: invalid value 'x'"),
        ("a.csv", "name\na\n", "column 'id' is missing; the file has: name"),
        ("a.csv", "id,id\n1,2\n", "column 'id' occurs twice"),
        ("a.json", '{"id": 1}\n{"id": \n', "line 2: malformed JSON (byte 8)"),
        ("a.json", '{"id": 1}\n{"id": "x"}\n', 'line 2: column \'id\' INT: expected an integer (byte 7): {"id": "x"}'),
        ("a.json", '[{"id": 1}]', "one object on each line"),
        ("a.json", '{"id": 3000000000}\n', "3000000000"),
    ],
)
def test_malformed_text_names_file_and_row(tmp_path, name, content, message):
    path = write_text(tmp_path / name, content)
    with pytest.raises(SourceError) as caught:
        read_range(make_range(path, path.suffix[1:]), SCHEMA, ["id"])
    assert str(path) in str(caught.value)
    assert message in caught.value.detail
    assert "on_error='skip_" in caught.value.hint


@pytest.mark.parametrize(("name", "message"), [("a.csv", "yesterday"), ("a.json", "yesterday")])
def test_invalid_times_are_refused(tmp_path, name, message):
    content = "time\nyesterday\n" if name == "a.csv" else '{"time": "yesterday"}\n'
    with pytest.raises(SourceError, match=message) as caught:
        read_range(make_range(write_text(tmp_path / name, content), name[2:]), SCHEMA, ["time"])
    assert "column 'time'" in caught.value.detail


def test_damaged_files_are_named(tmp_path):
    for range_ in write_all_formats(tmp_path):
        path = Path(range_.path)
        if path.suffix in {".arrow", ".parquet", ".gz", ".arrows"}:
            path.write_bytes(path.read_bytes()[:-40])
            with pytest.raises(SourceError, match=path.name):
                read_range(range_, SCHEMA, ["id", "time"])


def test_a_truncated_arrow_stream_is_refused(tmp_path):
    write_arrow(tmp_path / "a.arrows", TABLE, stream=True)
    with pytest.raises(SourceError, match="ends before record batch 4"):
        read_range(make_range(tmp_path / "a.arrows", "arrow", 5), SCHEMA, ["id"])


@pytest.mark.parametrize(
    ("values", "column", "message"),
    [
        (pa.array([2**40]), "id", "not in range"),
        (pa.array(["x"]), "id", "'x'"),
        (pa.array([1.5]), "id", "1.5"),
        (pa.array([1]), "time", "BIGINT is not converted to TIMESTAMP"),
        (pa.array([True]), "id", "BOOLEAN is not converted to INT"),
        (pa.array([NOON]), "id", "TIMESTAMP is not converted to INT"),
        (pa.array([NOON]), "day", "TIMESTAMP is not converted to DATE"),
        (pa.array([[1]]), "name", "list"),
    ],
)
def test_values_that_do_not_fit_the_type_are_refused(tmp_path, values, column, message):
    path = write_arrow(tmp_path / "a.arrow", pa.table({column: values}))
    with pytest.raises(SourceError) as caught:
        read_range(make_range(path, "arrow"), SCHEMA, [column])
    assert f"column '{column}'" in caught.value.detail
    assert message in caught.value.detail


def test_removed_and_changed_files_are_refused(tmp_path):
    path = write_text(tmp_path / "a.csv", "id\n1\n")
    range_ = make_range(path, "csv", size=path.stat().st_size)
    assert read_range(range_, SCHEMA, ["id"]).num_rows == 1
    write_text(path, "id\n1\n2\n")
    with pytest.raises(SourceError, match="when it was discovered"):
        read_range(range_, SCHEMA, ["id"])
    path.unlink()
    with pytest.raises(SourceError, match=r"a\.csv.*no longer exists"):
        read_range(range_, SCHEMA, ["id"])


def test_an_undeclared_column_is_refused(tmp_path):
    with pytest.raises(SchemaError, match="column 'nope' is not declared"):
        read_range(make_range(write_text(tmp_path / "a.csv", CSV), "csv"), SCHEMA, ["nope"])


def test_range_survives_json():
    range_ = Range("s", "csv", "/x.csv", 0, 1, 7, {"delimiter": ";", "header": True, "size": 3})
    assert decode_records(json.loads(encode_records(range_))) == range_
