"""Avro messages against fastavro: values, evolved schemas, registries, and bytes that are no records."""

from __future__ import annotations

import io
import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.message_formats import make_message_format
from headrace.connectors.message_formats.registry import SchemaRegistry
from headrace.errors import SchemaError, SinkError, SourceError
from headrace.model.types import Schema
from support.examples import scale_examples
from support.messages import decode_messages, list_rows, pack, render, unpack
from support.schema_registry import run_registry

SCHEMA = Schema.parse(
    "n INT, big BIGINT, ratio FLOAT, price DOUBLE, ok BOOLEAN, name STRING, color STRING, day DATE, time TIMESTAMP,"
    " amount DECIMAL(20, 2), code STRING, inner STRING"
)
WRITER = {
    "type": "record", "name": "Event", "namespace": "a.b", "fields": [
        {"name": "before", "type": {"type": "map", "values": {"type": "array", "items": ["null", "string", "a.b.Event"]}}},
        {"name": "big", "type": ["null", "long"]},
        {"name": "n", "type": "int"},
        {"name": "ratio", "type": "float"},
        {"name": "price", "type": ["double", "null", "int"]},
        {"name": "child", "type": ["null", "Event"]},
        {"name": "ok", "type": "boolean"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 3}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "amount", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}]},
        {"name": "payload", "type": {"type": "record", "name": "Payload", "fields": [
            {"name": "skipped", "type": {"type": "array", "items": "double"}}, {"name": "inner", "type": "string"}]}},
        {"name": "other", "type": "Color"},
    ],
}  # fmt: skip
OPTIONS = {"schema": json.dumps(WRITER), "field.inner": "payload.inner"}
PARSED = fastavro.parse_schema(WRITER)


def write(record: dict, schema: object = PARSED) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, schema, record)
    return file.getvalue()


SCALARS = {
    "before": st.just({}), "big": st.none() | st.integers(-(1 << 63), (1 << 63) - 1), "n": st.integers(-(1 << 31), (1 << 31) - 1),
    "ratio": st.floats(width=32), "price": st.none() | st.floats(), "child": st.none(), "ok": st.booleans(),
    "name": st.none() | st.text(max_size=20), "color": st.sampled_from(["RED", "GREEN"]),
    "hash": st.binary(min_size=3, max_size=3),
    "day": st.dates(), "time": st.integers(-62135596800_000, 253402300799_000),
    "amount": st.none() | st.decimals(-(10**17), 10**17, places=2),
    "payload": st.fixed_dictionaries({"skipped": st.lists(st.just(0.5), max_size=3), "inner": st.text(max_size=5)}),
    "other": st.sampled_from(["RED", "GREEN"]),
}  # fmt: skip
LEAVES = st.fixed_dictionaries(SCALARS)
RECORDS = st.recursive(
    LEAVES,
    lambda records: st.builds(
        lambda base, child, entries: base | {"child": child, "before": entries},
        LEAVES,
        st.none() | records,
        st.dictionaries(st.text(max_size=3), st.lists(st.none() | st.text(max_size=3) | records, max_size=2), max_size=2),
    ),
    max_leaves=4,
)


def list_values(record: dict) -> list[object]:
    """Return what the columns of a record are, as fastavro reads it."""
    values = {**record, "inner": record["payload"]["inner"], "code": None}
    values["ratio"] = float(np.float32(values["ratio"]))
    return [values[name] for name in SCHEMA.names]


@settings(max_examples=scale_examples(200))
@given(st.lists(RECORDS, min_size=1, max_size=6))
def test_random_records_are_read_as_fastavro_reads_them(records: list[dict]):
    messages = [write(record) for record in records]
    rows = list_rows(decode_messages("avro", messages, SCHEMA, **OPTIONS), len(messages))
    for message, row in zip(messages, rows, strict=True):
        assert render(row) == render(list_values(fastavro.schemaless_reader(io.BytesIO(message), PARSED, None)))


def test_blocks_with_their_size_are_skipped():
    writer = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "items", "type": {"type": "array", "items": "long"}}, {"name": "n", "type": "int"}],
    }
    message = bytes([3, 4, 2, 4, 0, 14])  # a block of −2 items in 2 bytes, the end, 7
    assert fastavro.schemaless_reader(io.BytesIO(message), writer, None) == {"items": [1, 2], "n": 7}
    decoded = decode_messages("avro", [message], Schema.parse("n INT"), schema=json.dumps(writer))
    assert decoded.table.to_pylist() == [{"n": 7}]


def test_a_hundred_thousand_spoilt_records_are_all_counted():
    chance = random.Random(3)
    base = {
        "before": {"k": [None, "x"]}, "big": 5, "n": 1, "ratio": 0.5, "price": 1.5, "child": None, "ok": True, "name": "näme",
        "color": "RED", "hash": b"abc", "day": date(2026, 1, 1), "time": datetime(2026, 1, 1, tzinfo=UTC),
        "amount": Decimal("1.25"),
        "payload": {"skipped": [1.0, 2.0], "inner": "i"}, "other": "GREEN",
    }  # fmt: skip
    good = [write(base | {"n": number, "child": base if number % 3 == 0 else None}) for number in range(20)]
    messages, cut = list[bytes](), list[int]()
    for number in range(100_000):
        data = bytearray(chance.choice(good))
        kind = chance.randrange(4)
        if kind == 0:
            del data[chance.randrange(len(data)) :]
            cut.append(number)
        elif kind == 1:
            data[chance.randrange(len(data))] = chance.randrange(256)
        elif kind == 2:
            data[chance.randrange(len(data)) :] = chance.randbytes(30)
        messages.append(bytes(data))
    decoded = decode_messages("avro", messages, SCHEMA, **OPTIONS)
    rows = list_rows(decoded, len(messages))
    assert 20_000 < len(decoded.rejected) < 80_000
    assert all(rows[number] is None for number in cut)
    for number in chance.sample(range(len(messages)), 3000):
        expected = read_strictly(messages[number])  # None also if a text is spoilt that no column needs
        if rows[number] is not None and expected is not None:
            assert render(rows[number]) == render(expected), messages[number]


def read_strictly(message: bytes) -> list[object] | None:
    file = io.BytesIO(message)
    try:
        values = list_values(fastavro.schemaless_reader(file, PARSED, None))
    except (ValueError, OverflowError, IndexError, EOFError, TypeError, KeyError, RecursionError):
        return None
    return None if file.read() else values


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "the message is empty (byte 0)"),
        (b"\x02", "malformed Avro record (byte 1)"),
        (b"\x02\x02\x02", "bytes after the end of the Avro record (byte 2)"),
        (b"\x04\x00", "malformed Avro record (byte 0)"),
        (b"\x02\xfe\xff\xff\xff\x1f", "column 'n' INT: the number is out of range (byte 1)"),
        (b"\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "malformed Avro record (byte 1)"),
    ],
)
def test_a_rejected_record_has_a_reason_and_a_place(message: bytes, reason: str):
    writer = {"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "long"]}]}
    decoded = decode_messages("avro", [b"\x00", message], Schema.parse("n INT"), schema=json.dumps(writer))
    assert (decoded.rejected.tolist(), list(decoded.reasons)) == ([1], [reason])


def test_a_column_that_never_fits_is_refused():
    with pytest.raises(SchemaError, match=r"column 'n' INT does not fit the Avro type 'string'"):
        make_message_format(
            "avro",
            Schema.parse("n INT"),
            {"schema": json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "string"}]})},
        )


def test_rows_are_written_as_fastavro_reads_them():
    table = pa.table(
        {
            "n": pa.array([1, None, -5], pa.int32()), "big": [1 << 62, -1, None],
            "ratio": pa.array([0.5, None, 1.5], pa.float32()),
            "price": [0.1, None, -0.0], "ok": [True, None, False], "name": ["ä", None, ""],
            "day": pa.array([0, None, 5], pa.int32()).cast(pa.date32()),
            "time": pa.array([1, None, -1], pa.timestamp("us", "UTC")),
            "amount": pa.array([Decimal("1.25"), None, Decimal("-123456789012345678.99")], pa.decimal128(20, 2)),
        }
    )  # fmt: skip
    schema = Schema.from_arrow(table.schema)
    avro = make_message_format("avro", schema, {})
    written = avro.encode(table)
    assert avro.decode(written, list(schema)).table.equals(table)
    from headrace.connectors.message_formats.avro_encoder import derive_schema

    derived = json.loads(derive_schema(table.schema))
    assert [fastavro.schemaless_reader(io.BytesIO(message), derived, None) for message in unpack(written)] == table.to_pylist()


def test_a_column_without_a_field_cannot_be_written():
    writer = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]})
    avro = make_message_format("avro", Schema.parse("n INT"), {"schema": writer})
    assert unpack(avro.encode(pa.table({"n": pa.array([1], pa.int32())}))) == [b"\x02"]
    with pytest.raises(SinkError, match="column 'x' has no field"):
        avro.encode(pa.table({"n": pa.array([1], pa.int32()), "x": [1]}))
    with pytest.raises(SinkError, match="column 'n' is NULL"):
        avro.encode(pa.table({"n": pa.array([None], pa.int32())}))
    with pytest.raises(SinkError, match="field 'n' has no column"):
        avro.encode(pa.table({}))


def frame(schema_id: int, message: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + message


def test_fields_that_come_and_go_keep_a_stream_running():
    first = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}, {"name": "gone", "type": "string"}]}
    second = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "name", "type": ["null", "string"], "default": None}, {"name": "n", "type": "long"}],
    }
    third = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "string"}]}
    schema = Schema.parse("n BIGINT, name STRING")
    with run_registry() as registry:
        ids = [registry.add(f"s{number}", json.dumps(text)) for number, text in enumerate([first, second, third])]
        messages = [
            frame(ids[0], write({"n": 1, "gone": "x"}, first)),
            frame(ids[1], write({"n": 2, "name": "y"}, second)),
            frame(ids[0], write({"n": 3, "gone": ""}, first)),
            frame(ids[2], write({"n": "4"}, third)),
            frame(99, b"\x02"),
            b"\x01\x02",
        ]
        decoded = decode_messages("avro", messages, schema, registry=registry.url)
        assert list_rows(decoded, 6) == [[1, None], [2, "y"], [3, None], None, None, None]
        assert list(decoded.reasons) == [
            f"column 'n' BIGINT does not fit the Avro type 'string', in schema {ids[2]} of the registry",
            "the registry has no schema with id 99",
            "the message does not begin with the header of a schema registry",
        ]
        decode_messages("avro", messages, schema, registry=registry.url)
        assert len(registry.requests) == 4  # each id once


def test_a_registry_that_fails_stops_the_stream_and_not_the_rows(monkeypatch: pytest.MonkeyPatch):
    schema, message = Schema.parse("n INT"), frame(1, b"\x02")
    with run_registry(password="secret") as registry:
        registry.add("s", json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}))
        with pytest.raises(SourceError, match="refuses '/schemas/ids/1' with 401"):
            decode_messages("avro", [message], schema, registry=registry.url)
        monkeypatch.setenv("HEADRACE_REGISTRY_USER", "user")
        monkeypatch.setenv("HEADRACE_REGISTRY_PASSWORD", "secret")
        registry.failing = True
        with pytest.raises(SourceError, match="with 500"):
            decode_messages("avro", [message], schema, registry=registry.url)
        registry.failing = False
        assert decode_messages("avro", [message], schema, registry=registry.url).table.to_pylist() == [{"n": 1}]
    with pytest.raises(SourceError, match="does not answer"):
        SchemaRegistry(registry.url).find_schema(1)


def test_an_unknown_schema_is_asked_for_again_after_a_while():
    now = [0.0]
    with run_registry() as registry:
        client = SchemaRegistry(registry.url, clock=lambda: now[0])
        assert [client.find_schema(1), client.find_schema(1)] == [None, None]
        assert len(registry.requests) == 1
        registry.add("s", json.dumps({"type": "record", "name": "R", "fields": []}))
        now[0] = 11.0
        assert client.find_schema(1) is not None
        assert [client.find_schema(number) for number in range(2, 500)] == [None] * 498
        assert len(registry.requests) == 102  # unknown ids are asked for a hundred times at most


def test_rows_are_registered_and_read_again():
    table = pa.table({"n": pa.array([1, 2], pa.int32())})
    schema = Schema.from_arrow(table.schema)
    with run_registry() as registry:
        avro = make_message_format("avro", schema, {"registry": registry.url, "subject": "out-value"})
        written = avro.encode(table)
        assert unpack(written)[0] == frame(1, b"\x02\x02")
        assert avro.decode(written, list(schema)).table.equals(table)
        avro.encode(table)
        assert registry.requests == ["POST /subjects/out-value/versions", "GET /schemas/ids/1"]
        other = pa.table({"n": pa.array([1], pa.int32()), "more": ["x"]})
        strict = make_message_format(
            "avro",
            Schema.from_arrow(other.schema),
            {
                "registry": registry.url,
                "subject": "out-value",
                "schema": json.dumps(
                    {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}, {"name": "more", "type": "string"}]}
                ),
            },
        )
        with pytest.raises(SinkError, match="with 409"):
            strict.encode(other)


def test_the_address_of_a_registry_has_no_password():
    with pytest.raises(SchemaError, match="has a password"):
        make_message_format("avro", Schema.parse("n INT"), {"registry": "http://user:pass@127.0.0.1:1"})


def test_absent_records_are_rows_of_nulls():
    messages = pack([b"\x02\x02", b""])
    avro = make_message_format("avro", Schema.parse("n INT"), {})
    decoded = avro.decode(type(messages)(messages.offsets, messages.data, np.array([False, True])), list(Schema.parse("n INT")))
    assert decoded.table.to_pylist() == [{"n": 1}, {"n": None}]
