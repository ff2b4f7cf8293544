"""Files of messages: JSON lines against Python's json, Avro containers against fastavro, Protobuf against Google's library.

Each property compares all ranges of a file, in small chunks, with what the other library reads.
"""

from __future__ import annotations

import gzip
import json
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.connectors import FileSource, Range, read_range, read_with_policy
from headrace.connectors.file_access import get_status
from headrace.connectors.formats import count_unit_rows, infer_schema
from headrace.connectors.message_files import framing
from headrace.errors import SchemaError, SourceError
from headrace.model.types import Schema
from support.examples import scale_examples

SCHEMA = Schema.parse("n INT, name STRING, deep BIGINT")
PATHS = {"field.deep": "payload.`a.b`.deep"}
drawn = settings(max_examples=scale_examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch):
    """Let a file of a few hundred bytes have several chunks."""
    monkeypatch.setattr(framing, "_CHUNK_BYTES", 64)
    monkeypatch.setattr(framing, "RANGE_ROWS", 5)
    monkeypatch.setattr("headrace.connectors.message_files.reader._CHUNK_BYTES", 64)


def make_range(
    path: Path, reader: str, start: int = 0, stop: int = 1, /, *, on_error: str = "fail", **format_options: Any
) -> Range:
    options = {"on_error": on_error, "format_options": json.dumps(format_options)}
    return Range("s", reader, str(path), start, stop, 1, options)


def read(path: Path, reader: str, schema: Schema = SCHEMA, stop: int = 1, /, **options: Any) -> list[dict[str, Any]]:
    table = read_range(make_range(path, reader, 0, stop, **options), schema, schema.names)
    table.validate(full=True)
    return table.to_pylist()


def read_good(path: Path, reader: str, schema: Schema = SCHEMA, stop: int = 1, /, **options: Any):
    """Return rows, and number, reason and text of what is skipped."""
    outcome = read_with_policy(make_range(path, reader, 0, stop, on_error="skip_row", **options), schema, schema.names)
    assert {row.file for row in outcome.skipped_rows} <= {str(path)}
    return outcome.table.to_pylist(), [(row.line, row.reason, row.text) for row in outcome.skipped_rows]


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


# JSON lines

NAMES = st.text(max_size=30)
OBJECTS = st.fixed_dictionaries(
    {}, optional={"n": st.none() | st.integers(-5, 5), "name": st.none() | NAMES, "more": st.lists(NAMES, max_size=2),
                  "payload": st.none() | st.fixed_dictionaries({"a.b": st.fixed_dictionaries({"deep": st.integers(0, 9)})})},
)  # fmt: skip
BAD_LINES = st.sampled_from(["{", "7", '{"n": "x"}', '{"n": 1} {"n": 2}', '{"payload": 3}', "\ufeff{}", '{"n": 3e9}', "x" * 200])
LINES = st.lists(st.tuples(st.sampled_from(["good", "bad", "blank"]), OBJECTS, BAD_LINES, st.sampled_from(["", " ", "\t\r"])))


def expect_row(value: dict[str, Any]) -> dict[str, Any]:
    deep = (value.get("payload") or {}).get("a.b", {}).get("deep")
    return {"n": value.get("n"), "name": value.get("name"), "deep": deep}


@drawn
@given(lines=LINES, ending=st.sampled_from(["\n", "\r\n"]), is_closed=st.booleans(), suffix=st.sampled_from(["json", "json.gz"]))
def test_lines_of_json(tmp_path: Path, lines: list[Any], ending: str, *, is_closed: bool, suffix: str):
    texts = [
        json.dumps(good, ensure_ascii=False) + blank if kind == "good" else bad if kind == "bad" else blank
        for kind, good, bad, blank in lines
    ]
    if texts and texts[0].startswith("\ufeff"):
        texts[0] = "{"  # a byte order mark belongs to the file
    path = write(tmp_path / f"f.{suffix}", (ending.join(texts) + ending * is_closed).encode())
    rows, skipped = read_good(path, "json", **PATHS)
    assert rows == [expect_row(good) for kind, good, _, _ in lines if kind == "good"]
    bad = [(number, text) for number, (text, line) in enumerate(zip(texts, lines, strict=True), 1) if line[0] == "bad"]
    assert [(number, text) for number, _, text in skipped] == bad
    if not bad:
        assert read(path, "json", **PATHS) == rows
    else:
        with pytest.raises(SourceError) as caught:
            read(path, "json", **PATHS)
        assert caught.value.detail.startswith(f"line {bad[0][0]}: ")


def test_options_of_json_files(tmp_path: Path):
    path = write(tmp_path / "f.jsonl", b'{"at": 1500, "n": 1}\n')
    schema = Schema.parse("at TIMESTAMP, n INT")
    (row,) = read(path, "json", schema, timestamp_format="epoch_ms")
    assert row == {"at": datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC), "n": 1}


def test_only_used_columns_are_decoded_unless_rows_are_skipped(tmp_path: Path):
    path = write(tmp_path / "f.json", b'{"n": 1, "name": 5}\n')
    assert read_range(make_range(path, "json"), SCHEMA, ["n"]).to_pylist() == [{"n": 1}]
    outcome = read_with_policy(make_range(path, "json", on_error="skip_row"), SCHEMA, ["n"])
    assert (outcome.table.num_rows, len(outcome.skipped_rows)) == (0, 1)


@pytest.mark.parametrize("policy", ["fail", "skip_row"])
def test_rows_without_columns_are_counted(tmp_path: Path, policy: str):
    path = write(tmp_path / "f.json", b'{"n": 1}\n' * 20)
    assert read_with_policy(make_range(path, "json", on_error=policy), SCHEMA, []).table.num_rows == 20


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_order_mark_before_json(tmp_path: Path, mark: bytes):
    path = write(tmp_path / "f.json", mark + b'{"n": 1}\n')
    assert [row["n"] for row in read(path, "json")] == [1]


# Avro

WRITER = {
    "type": "record", "name": "R", "fields": [
        {"name": "skipped", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "name", "type": ["null", "string"]},
        {"name": "n", "type": "long"},
        {"name": "payload", "type": {"type": "record", "name": "P", "fields": [
            {"name": "color", "type": {"type": "enum", "name": "C", "symbols": ["RED", "GREEN"]}}]}},
    ],
}  # fmt: skip
AVRO_SCHEMA = Schema.parse("n INT, name STRING, color STRING, absent DOUBLE")
AVRO_PATHS = {"field.color": "payload.color"}
RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "skipped": st.lists(st.none() | NAMES, max_size=2),
            "name": st.none() | NAMES,
            "n": st.integers(-(1 << 33), 1 << 33),
            "payload": st.fixed_dictionaries({"color": st.sampled_from(["RED", "GREEN"])}),
        }
    )
)


def write_avro(path: Path, records: list[Any], *, codec: str = "null", interval: int = 64, schema: Any = WRITER) -> list[int]:
    with path.open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(schema), records, codec=codec, sync_interval=interval)
    return count_unit_rows(get_status(str(path)), "avro")


def make_record(number: int, name: str | None = "x") -> dict[str, Any]:
    return {"skipped": [], "name": name, "n": number, "payload": {"color": "RED"}}


def find_blocks(path: Path) -> list[tuple[int, int]]:
    """Return the bounds of the blocks of a file, each with its sync marker, as fastavro finds them."""
    with path.open("rb") as file:
        return [(block.offset, block.offset + block.size) for block in fastavro.block_reader(file)]


@drawn
@given(records=RECORDS, codec=st.sampled_from(["null", "deflate", "bzip2"]), interval=st.integers(1, 300))
def test_avro_files(tmp_path: Path, records: list[Any], codec: str, interval: int):
    path = tmp_path / "f.avro"
    units = write_avro(path, records, codec=codec, interval=interval)
    with path.open("rb") as file:
        expected = [row | {"color": row["payload"]["color"], "absent": None} for row in fastavro.reader(file)]
    expected = [{name: row[name] for name in AVRO_SCHEMA.names} for row in expected]
    assert sum(units) == len(expected)
    in_range = [-(1 << 31) <= row["n"] < 1 << 31 for row in expected]
    rows, skipped = read_good(path, "avro", AVRO_SCHEMA, len(units), **AVRO_PATHS)
    assert rows == [row for row, fits in zip(expected, in_range, strict=True) if fits]
    assert [number for number, _, _ in skipped] == [number for number, fits in enumerate(in_range, 1) if not fits]
    pieces = [make_range(path, "avro", unit, unit + 1, on_error="skip_row", **AVRO_PATHS) for unit in range(len(units))]
    outcomes = [read_with_policy(piece, AVRO_SCHEMA, ["name"]) for piece in pieces]
    assert [row["name"] for outcome in outcomes for row in outcome.table.to_pylist()] == [row["name"] for row in rows]
    assert [row.line for outcome in outcomes for row in outcome.skipped_rows] == [number for number, _, _ in skipped]


@pytest.mark.parametrize("codec", ["snappy", "zstandard"])
def test_codecs_that_fastavro_lacks(tmp_path: Path, codec: str):
    path, plain = tmp_path / "f.avro", tmp_path / "plain.avro"
    write_avro(plain, [make_record(n, "x" * n) for n in range(60)], interval=10_000)
    with plain.open("rb") as file:
        (block,) = fastavro.block_reader(file)
        records = block.bytes_.getvalue()
    packed = pa.Codec("zstd" if codec == "zstandard" else codec).compress(records, asbytes=True)
    packed += zlib.crc32(records).to_bytes(4, "big") if codec == "snappy" else b""
    data = plain.read_bytes()
    named = data[: find_blocks(plain)[0][0]].replace(b"\x14avro.codec\x08null", b"\x14avro.codec" + write_text(codec))
    path.write_bytes(named + b"\x78" + write_varint(2 * len(packed)) + packed + data[-16:])
    assert read(path, "avro", AVRO_SCHEMA) == read(plain, "avro", AVRO_SCHEMA)
    path.write_bytes(path.read_bytes().replace(packed, packed[:-9] + bytes(9)))
    with pytest.raises(SourceError, match="block 0 is damaged: it cannot be decompressed"):
        read(path, "avro", AVRO_SCHEMA)


def write_text(text: str) -> bytes:
    return write_varint(2 * len(text)) + text.encode()


def damage(path: Path, kind: str, block: int) -> None:
    data, bounds = bytearray(path.read_bytes()), find_blocks(path)
    start, stop = bounds[block]
    if kind == "sync marker":
        data[stop - 5] ^= 255
    elif kind == "size":
        data[start + 1 : start + 3] = b"\xff\xff"
    elif kind == "content":
        data[start + 4 : stop - 16] = bytes([255]) * (stop - start - 20)
    else:
        del data[stop - 20 :]
    path.write_bytes(data)


@pytest.mark.parametrize("codec", ["null", "deflate"])
@pytest.mark.parametrize("kind", ["sync marker", "size", "content", "end"])
def test_damaged_blocks_of_avro_files(tmp_path: Path, kind: str, codec: str):
    """One of 6 blocks is damaged: the rows of the others are read, and what is lost is counted."""
    path = tmp_path / "f.avro"
    units = write_avro(path, [make_record(n) for n in range(60)], codec=codec, interval=50)
    assert len(units) > 4
    damage(path, kind, len(units) - 1 if kind == "end" else 2)
    with pytest.raises((pa.ArrowInvalid, SourceError), match=f"block {len(units) - 1 if kind == 'end' else 2}"):
        read(path, "avro", AVRO_SCHEMA, len(count_unit_rows(get_status(str(path)), "avro")))
    found = count_unit_rows(get_status(str(path)), "avro", allows_damage=True)
    rows, skipped = read_good(path, "avro", AVRO_SCHEMA, len(found))
    lost = set(range(60)) - {row["n"] for row in rows}
    at = sum(units[: -1 if kind == "end" else 2])
    assert lost
    assert min(lost) == at
    assert max(lost) < at + 2 * max(units)
    assert skipped
    assert all(reason.startswith("block ") for _, reason, _ in skipped)


def test_a_record_that_does_not_fit_is_skipped_alone_and_a_malformed_one_with_those_behind(tmp_path: Path):
    path = tmp_path / "f.avro"
    write_avro(path, [make_record(1), make_record(1 << 40), make_record(3), make_record(4)], interval=10_000)
    rows, skipped = read_good(path, "avro", AVRO_SCHEMA)
    assert [row["n"] for row in rows] == [1, 3, 4]
    assert [(number, reason) for number, reason, _ in skipped] == [
        (2, "block 0: column 'n' INT: the number is out of range (byte 4)")
    ]
    data, (start, stop) = path.read_bytes(), find_blocks(path)[0]
    third = data.rindex(b"\x06\x00", start, stop)  # n = 3, RED
    path.write_bytes(data[: third + 1] + b"\x40" + data[third + 2 :])
    rows, skipped = read_good(path, "avro", AVRO_SCHEMA)
    assert [row["n"] for row in rows] == [1]
    assert [number for number, _, _ in skipped] == [2, 3, 4]
    assert ["malformed" in reason for _, reason, _ in skipped] == [False, True, True]


@pytest.mark.parametrize(
    "content", [b"Obj", b"Obj\x02", b"Obj\x01\x04\x16avro.sch", b"Obj\x01\x00" + bytes(16), b"no Avro at all"]
)
def test_files_that_are_no_avro_are_named(tmp_path: Path, content: bytes):
    path = write(tmp_path / "f.avro", content)
    with pytest.raises(SourceError, match=r"f\.avro' of stream 's' cannot be read"):
        read(path, "avro", AVRO_SCHEMA)
    with pytest.raises(pa.ArrowInvalid, match="Avro"):
        count_unit_rows(get_status(str(path)), "avro")


def test_a_file_of_another_schema_is_refused_as_a_whole(tmp_path: Path):
    path = tmp_path / "f.avro"
    write_avro(path, [make_record(1)])
    with pytest.raises(SourceError, match="column 'name' DOUBLE does not fit the Avro type"):
        read(path, "avro", Schema.parse("name DOUBLE"))


def test_columns_of_an_avro_file(tmp_path: Path):
    fields = [
        {"name": "i", "type": "int"}, {"name": "s", "type": ["null", "string"]}, {"name": "b", "type": ["boolean", "null"]},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "m", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "d", "type": {"type": "int", "logicalType": "date"}}, {"name": "f", "type": "float"},
    ]  # fmt: skip
    path = tmp_path / "f.avro"
    write_avro(path, [], schema={"type": "record", "name": "R", "fields": fields})
    expected = "i INT, s STRING, b BOOLEAN, t TIMESTAMP, m DECIMAL(9, 2), d DATE, f FLOAT"
    assert infer_schema(str(path), "avro", {}).to_ddl() == Schema.parse(expected).to_ddl()
    write_avro(path, [])
    with pytest.raises(SchemaError, match="column 'skipped'"):
        infer_schema(str(path), "avro", {})


def test_a_file_that_is_repaired_in_place_is_read_as_a_whole(tmp_path: Path):
    path = tmp_path / "f.avro"
    units = write_avro(path, [make_record(n) for n in range(20)])
    data = path.read_bytes()
    damage(path, "sync marker", 1)
    assert len(read_good(path, "avro", AVRO_SCHEMA, len(units) - 1)[0]) < 20
    path.write_bytes(data)
    for _ in range(2):
        assert len(read(path, "avro", AVRO_SCHEMA, len(units))) == 20


@drawn
@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=3),
       codec=st.sampled_from(["null", "deflate"]))  # fmt: skip
def test_random_damage_loses_no_row_silently(tmp_path: Path, flips: list[tuple[float, int]], codec: str):
    """Behind the header, any damage is an error of the file, and with skip_row a count; rows of other blocks are unharmed."""
    path, records = tmp_path / "f.avro", [make_record(n, f"name {n}") for n in range(40)]
    write_avro(path, records, codec=codec)
    data, start = bytearray(path.read_bytes()), find_blocks(path)[0][0]
    for place, mask in flips:
        data[start + int(place * (len(data) - start))] ^= mask
    path.write_bytes(data)
    units = count_unit_rows(get_status(str(path)), "avro", allows_damage=True)
    rows, skipped = read_good(path, "avro", AVRO_SCHEMA, len(units))
    assert skipped or len(rows) == 40


# Protobuf

PROTO = """
syntax = "proto3";
package t;
message Inner { int64 deep = 1; }
message M { int32 n = 1; string name = 2; Inner inner = 3; }
"""
PROTO_OPTIONS = {"schema": PROTO, "message": "M", "field.deep": "inner.deep"}


def make_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="t", syntax="proto3")
    kind = descriptor_pb2.FieldDescriptorProto
    file.message_type.add(name="Inner").field.add(name="deep", number=1, type=kind.TYPE_INT64, label=1)
    message = file.message_type.add(name="M")
    message.field.add(name="n", number=1, type=kind.TYPE_INT32, label=1)
    message.field.add(name="name", number=2, type=kind.TYPE_STRING, label=1)
    message.field.add(name="inner", number=3, type=kind.TYPE_MESSAGE, label=1, type_name=".t.Inner")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.M"))


MESSAGE = make_class()
VALUES = st.lists(st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), st.text(max_size=200), st.integers(0, 9)))


def write_varint(value: int) -> bytes:
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def make_message(n: int, name: str, deep: int) -> bytes:
    message = MESSAGE(n=n, name=name)
    if deep:
        message.inner.deep = deep
    data: bytes = message.SerializeToString()
    return write_varint(len(data)) + data


def expect_message(value: tuple[int, str, int]) -> dict[str, Any]:
    return {"n": value[0], "name": value[1], "deep": value[2] or None}


@drawn
@given(values=VALUES, suffix=st.sampled_from(["pb", "pb.gz"]))
def test_protobuf_files(tmp_path: Path, values: list[tuple[int, str, int]], suffix: str):
    content = b"".join(make_message(*value) for value in values)
    path = write(tmp_path / f"f.{suffix}", content)
    assert read(path, "protobuf", **PROTO_OPTIONS) == [expect_message(value) for value in values]
    assert bool(values) == bool(content)
    if values:
        assert len(count_unit_rows(get_status(str(path)), "protobuf")) == 1


@drawn
@given(values=VALUES.filter(bool), cut=st.integers(1, 300))
def test_a_protobuf_file_that_is_cut_off(tmp_path: Path, values: list[tuple[int, str, int]], cut: int):
    messages = [make_message(*value) for value in values]
    content = b"".join(messages)[:-cut]
    path = write(tmp_path / "f.pb", content)
    complete = next(n for n in range(len(messages), -1, -1) if len(b"".join(messages[:n])) <= len(content))
    rows, skipped = read_good(path, "protobuf", **PROTO_OPTIONS)
    assert rows == [expect_message(value) for value in values[:complete]]
    start = len(b"".join(messages[:complete]))
    if start == len(content):
        assert skipped == []
        return
    ((number, reason, text),) = skipped
    assert (number, text) == (complete + 1, "")
    assert f"the length at byte {start} is malformed, or greater than the rest of the file" in reason
    with pytest.raises(SourceError, match=f"message {complete + 1}: "):
        read(path, "protobuf", **PROTO_OPTIONS)


def test_protobuf_messages_that_are_malformed_or_longer_than_a_chunk(tmp_path: Path):
    long = make_message(2, "x" * 1000, 0)
    path = write(tmp_path / "f.pb", make_message(1, "a", 0) + b"\x02\x08\xff" + long + b"\x00")
    rows, skipped = read_good(path, "protobuf", **PROTO_OPTIONS)
    assert [(row["n"], len(row["name"])) for row in rows] == [(1, 1), (2, 1000), (0, 0)]
    assert [number for number, _, _ in skipped] == [2]
    assert "malformed Protobuf message" in skipped[0][1]


@pytest.mark.parametrize("content", [b"\xff" * 20, b"\x80", b"\x05ab", b"\xff\xff\xff\xff\xff\xff\xff\xff\x7fa"])
def test_lengths_that_are_none(tmp_path: Path, content: bytes):
    path = write(tmp_path / "f.pb", content)
    assert count_unit_rows(get_status(str(path)), "protobuf")
    rows, skipped = read_good(path, "protobuf", **PROTO_OPTIONS)
    assert rows == []
    assert [number for number, _, _ in skipped] == [1]


# As a source


def test_invalid_arguments_are_refused(tmp_path: Path):
    columns = "n INT"
    for options in (
        {"format": "csv", "schema": columns, "format_options": {"field.n": "x"}},
        {"schema": columns, "format_options": {"field.n": "x"}},
        {"format": "json", "schema": columns, "format_options": {"field.m": "x"}},
        {"format": "json", "schema": columns, "format_options": {"registry": "http://127.0.0.1:1"}},
        {"format": "avro", "schema": columns, "format_options": {"schema": "{}"}},
        {"format": "protobuf"},
        {"format": "json", "format_options": {"registry": "http://127.0.0.1:1"}},
        {
            "format": "protobuf",
            "schema": "n DOUBLE",
            "format_options": {"schema": PROTO.replace("int32 n", "string n"), "message": "M"},
        },
    ):
        with pytest.raises(SchemaError):
            FileSource(tmp_path, **options)


def open_session(tmp_path: Path, source: FileSource) -> hr.Session:
    session = hr.Session(tmp_path / "checkpoint", backend="local")
    session.create_stream("f", source, time="time")
    return session


QUERY = "SELECT n, name FROM f WHERE n > 0"


def test_avro_files_in_a_session(tmp_path: Path):
    """Two blocks are cut off and one row is out of range: both are counted, and the rest is read in ranges of blocks."""
    schema = {"type": "record", "name": "R", "fields": [
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-micros"}}, {"name": "n", "type": "long"},
        {"name": "name", "type": "string"}]}  # fmt: skip
    (tmp_path / "in").mkdir()
    records = [{"time": n, "n": 1 << 40 if n == 7 else n, "name": f"row {n}"} for n in range(40)]
    write_avro(tmp_path / "in" / "f.avro", records, schema=schema)
    data = (tmp_path / "in" / "f.avro").read_bytes()
    (tmp_path / "in" / "f.avro").write_bytes(data[:-20])
    source = FileSource(tmp_path / "in", schema="time TIMESTAMP, n INT, name STRING", on_error="skip_row",
                        dead_letter=f"jsonl:{tmp_path / 'dead'}")  # fmt: skip
    with open_session(tmp_path, source) as session:
        query = session.add(QUERY)
        session.drain()
        found = sorted(query.results()["n"].to_pylist())
        skipped = session.streams()["f"]["skipped_rows"]
    assert found == [n for n in range(1, found[-1] + 1) if n != 7]
    assert skipped == 2
    letters = [json.loads(line) for path in (tmp_path / "dead").glob("*.jsonl") for line in path.read_text().splitlines()]
    assert sorted(letter["line"] for letter in letters) == [8, found[-1] + 2]


def test_a_damaged_avro_file_fails_or_is_skipped(tmp_path: Path):
    path = tmp_path / "f.avro"
    write_avro(path, [make_record(n) for n in range(9)])
    damage(path, "sync marker", 0)
    for policy in ("fail", "skip_file"):
        with hr.Session(tmp_path / policy, backend="local") as session:
            session.create_stream("f", FileSource(path, schema="n INT, time TIMESTAMP", on_error=policy), time="time")
            session.add("SELECT n FROM f")
            session.advance()
            stream = session.streams()["f"]
        shown = stream["error"] if policy == "fail" else stream["skipped"][str(path)]
        assert "block 0 is damaged: no sync marker" in str(shown)
