"""Messages of CSV against Python's csv, Arrow payloads, and texts."""

from __future__ import annotations

import csv
import io
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.message_formats import make_message_format
from headrace.connectors.messages import Messages
from headrace.errors import SchemaError, SinkError
from headrace.model.types import Schema
from support.examples import scale_examples
from support.messages import decode_messages, list_rows, pack, render, unpack

SCHEMA = Schema.parse("n INT, price DOUBLE, ok BOOLEAN, name STRING, day DATE, time TIMESTAMP, amount DECIMAL(10, 2)")
ROWS = pa.table(
    {
        "n": pa.array([1, None], pa.int32()), "price": [0.5, None], "ok": [True, None], "name": ['a,"b"\nc', None],
        "day": pa.array([5, None], pa.int32()).cast(pa.date32()), "time": pa.array([1, None], pa.timestamp("us", "UTC")),
        "amount": pa.array(["1.25", None]).cast(pa.decimal128(10, 2)),
    }
)  # fmt: skip


def test_records_are_written_and_read_again():
    csv_format = make_message_format("csv", SCHEMA, {})
    written = csv_format.encode(ROWS)
    assert unpack(written)[0] == b'1,0.5,true,"a,""b""\nc",1970-01-06,1970-01-01T00:00:00.000001Z,1.25'
    assert csv_format.decode(written, list(SCHEMA)).table.equals(ROWS)
    assert csv_format.decode(written, [SCHEMA.fields[3]]).table.equals(ROWS.select(["name"]))


TIMES = [b"2026-01-01 00:00", b":01", b"2026-01-01", b"T00:00"]
NUMBERS = [b"1", b"2", b".5", b"e1", b"7", b"8"]


@pytest.mark.parametrize(
    ("kind", "messages", "rejected"),
    [("INT", NUMBERS, [2, 3]), ("DOUBLE", NUMBERS, [3]), ("DECIMAL(20, 1)", NUMBERS, [3]), ("TIMESTAMP", TIMES, [1, 3])],
)
def test_a_value_at_the_end_of_a_message_does_not_go_on_in_the_next(kind: str, messages: list[bytes], rejected: list[int]):
    assert decode_messages("csv", messages, Schema.parse(f"n {kind}")).rejected.tolist() == rejected


@settings(max_examples=scale_examples(200))
@given(st.lists(st.lists(st.text(alphabet='a";\r\n ä', max_size=4), min_size=2, max_size=3), min_size=1, max_size=5))
def test_random_records_are_read_as_python_reads_them(records: list[list[str]]):
    schema = Schema.parse("a STRING, b STRING")
    messages = []
    for record in records:
        file = io.StringIO()
        csv.writer(file, delimiter=";", lineterminator="", quoting=csv.QUOTE_ALL).writerow(record)
        messages.append(file.getvalue().encode())
    rows = list_rows(decode_messages("csv", messages, schema, delimiter=";"), len(messages))
    assert rows == [record if len(record) == 2 else None for record in records]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"", "the message is empty (byte 0)"),
        (b"1,2", "malformed CSV record (byte 3)"),
        (b"1,,,,,,,8", "malformed CSV record (byte 7)"),
        (b'1,,,"x', "malformed CSV record (byte 5)"),
        (b"1,,,\xff,,,", "the message is not UTF-8 (byte 0)"),
        (b"1.5,,,,,,", "column 'n' INT: expected an integer (byte 0)"),
        (b"99999999999,,,,,,", "column 'n' INT: the number is out of range (byte 0)"),
        (b",x,,,,,", "column 'price' DOUBLE: expected a number (byte 1)"),
        (b",,yes,,,,", "column 'ok' BOOLEAN: expected true or false (byte 2)"),
        (b",,,,2026-13-01,,", "column 'day' DATE: expected a date as ISO-8601 text (byte 4)"),
        (b",,,,,,1.234", "column 'amount' DECIMAL(10,2): the number has more digits after the point (byte 6)"),
    ],
)  # fmt: skip
def test_a_rejected_record_has_a_reason_and_a_place(record: bytes, reason: str):
    decoded = decode_messages("csv", [b"1,1e3,TRUE,,,,\r\n", record, b'-0,NaN,0,"",,2026-01-01 00:00Z,1'], SCHEMA)
    assert (decoded.rejected.tolist(), list(decoded.reasons)) == ([1], [reason])
    columns = decoded.table.select(["n", "price", "ok", "name"])
    assert [render(list(row.values())) for row in columns.to_pylist()] == [
        ["1", "1000.0", "True", "None"], ["0", "nan", "False", "''"],
    ]  # fmt: skip


def test_fifty_thousand_spoilt_records_are_all_counted():
    chance = random.Random(4)
    good = unpack(make_message_format("csv", SCHEMA, {}).encode(ROWS))[0]
    messages = []
    for _ in range(50_000):
        data = bytearray(good)
        data[chance.randrange(len(data)) :] = chance.choice([b"", chance.randbytes(3), good, b'"'])
        messages.append(bytes(data))
    decoded = decode_messages("csv", messages, SCHEMA)
    assert len(list_rows(decoded, len(messages))) == 50_000
    assert 0 < decoded.table.num_rows < 30_000


def test_arrow_payloads_have_many_rows_at_the_position_of_their_message():
    schema = Schema.parse("n BIGINT, name STRING")
    output = io.BytesIO()
    with pa.ipc.new_stream(output, pa.schema([("n", pa.int32()), ("more", pa.string())])) as writer:
        writer.write_table(pa.table({"n": pa.array([1, 2], pa.int32()), "more": ["x", "y"]}))
    stream = output.getvalue()
    spoilt = [stream[:50], stream[:100] + b"\xff" + stream[101:200], b"", b"ARROW1"]
    decoded = decode_messages("arrow", [stream, *spoilt, stream], schema)
    assert decoded.table.to_pylist() == [{"n": 1, "name": None}, {"n": 2, "name": None}] * 2
    assert decoded.positions.tolist() == [0, 0, 5, 5]
    assert decoded.rejected.tolist() == [1, 2, 3, 4]
    arrow = make_message_format("arrow", Schema.from_arrow(ROWS.schema), {})
    again = arrow.decode(arrow.encode(ROWS), list(SCHEMA))
    assert again.table.equals(ROWS)
    assert again.positions.tolist() == [0, 1]


def test_raw_messages_are_texts():
    raw, schema = make_message_format("raw", Schema.parse("value STRING"), {}), Schema.parse("value STRING")
    messages = pack([b"ab", b"", b"\xff", "ä".encode(), b""])
    decoded = raw.decode(Messages(messages.offsets, messages.data, np.array([False] * 4 + [True])), list(schema))
    assert decoded.table["value"].to_pylist() == ["ab", "", "ä", None]
    assert list(decoded.reasons) == ["the message is not UTF-8 (byte 0)"]
    written = raw.encode(decoded.table)
    assert unpack(written) == [b"ab", b"", "ä".encode(), b""]
    assert written.absent.tolist() == [False, False, False, True]
    with pytest.raises(SinkError, match="one column"):
        raw.encode(ROWS)
    with pytest.raises(SchemaError, match="one column of type STRING"):
        make_message_format("raw", SCHEMA, {})


def test_an_unknown_format_is_refused():
    with pytest.raises(SchemaError, match="unknown message format 'xml'"):
        make_message_format("xml", SCHEMA, {})


def test_an_option_of_another_format_is_refused():
    with pytest.raises(SchemaError, match="unknown option 'registry' of the message format"):
        make_message_format("csv", SCHEMA, {"registry": "http://127.0.0.1:1"})
    for name, value in [("json", "epoch"), ("csv", "%Y"), ("avro", "%Y"), ("protobuf", "%Y")]:
        with pytest.raises(SchemaError, match=f"unknown timestamp_format '{value}'"):
            make_message_format(name, SCHEMA, {"timestamp_format": value})
    with pytest.raises(SchemaError, match=r"option 'field.x' names no column"):
        make_message_format("json", SCHEMA, {"field.x": "a"})


@pytest.mark.parametrize("name", ["json", "avro", "protobuf", "csv", "arrow", "raw"])
@pytest.mark.parametrize("on_error", ["fail", "skip_row"])
def test_messages_of_which_no_column_is_read_are_counted(name: str, on_error: str):
    schema = Schema.parse("name STRING")
    message_format = make_message_format(name, schema, {"on_error": on_error})
    good = unpack(message_format.encode(pa.table({"name": ["a", "b"]})))
    bad = {"csv": b'"', "raw": b"\xff", "json": b"{"}.get(name, b"\x01")
    decoded = message_format.decode(pack([good[0], bad, good[1]]), [])
    assert (decoded.table.num_rows, decoded.table.num_columns) == (2, 0)
    assert decoded.positions.tolist() == [0, 2]
    assert decoded.rejected.tolist() == [1]
