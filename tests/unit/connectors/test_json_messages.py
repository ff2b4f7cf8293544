"""JSON messages against Python's own parser: values, rejects, and bytes that nobody would write."""

from __future__ import annotations

import json
import math
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.message_formats import columns, make_message_format
from headrace.connectors.message_formats.kernels.decoded import EPOCH
from headrace.connectors.messages import DecodedMessages, Messages
from headrace.errors import SchemaError
from headrace.model.types import Schema
from support.examples import scale_examples
from support.json_oracle import decode_row
from support.messages import decode_messages, list_rows, pack, render, unpack

SCHEMA = Schema.parse(
    "tiny TINYINT, small SMALLINT, n INT, big BIGINT, ratio FLOAT, price DOUBLE, ok BOOLEAN, name STRING, day DATE,"
    " time TIMESTAMP, amount DECIMAL(12, 2), wide DECIMAL(38, 10)"
)


def decode(messages: list[bytes], schema: Schema = SCHEMA, columns: list[str] | None = None, **options) -> DecodedMessages:
    return decode_messages("json", messages, schema, columns, **options)


def assert_agrees(messages: list[bytes], schema: Schema = SCHEMA) -> list[list[object] | None]:
    rows = list_rows(decode(messages, schema), len(messages))
    for message, row in zip(messages, rows, strict=True):
        expected = decode_row(message, schema)
        assert render(row) == render(expected), message
    return rows


def reject(message: str | bytes, **options) -> str:
    data = message.encode() if isinstance(message, str) else message
    decoded = decode([b'{"n":1}', data, b'{"n":2}'], **options)
    assert decoded.rejected.tolist() == [1]
    assert decoded.positions.tolist() == [0, 2]
    assert decoded.table.num_rows == 2
    return decoded.reasons[0]


def test_a_message_is_a_row_with_the_declared_types():
    message = (
        b' { "n" : -7, "big":9223372036854775807,"price":12.5e1,"ok":true , "name":"a\\u00e9\\n\\ud83d\\ude00\xc3\xa4",'
        b'"day":"2026-02-28","time":"2026-01-01T02:00:00.5+02:00","amount":"10.20","wide":1.0000000001,"unknown":[{}]} '
    )
    [row] = assert_agrees([message])
    assert row[7] == "aé\n😀ä"
    assert row[9].isoformat() == "2026-01-01T00:00:00.500000+00:00"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("", "the message is empty (byte 0)"),
        ("[1]", "expected a JSON object (byte 0)"),
        ('{"n":1', "malformed JSON (byte 6)"),
        ('{"n":1}}', "bytes after the end of the JSON (byte 7)"),
        ('{"n":1,}', "malformed JSON (byte 7)"),
        ('{"n":01}', "malformed JSON (byte 5)"),
        (b'{"name":"\xff"}', "the message is not UTF-8 (byte 0)"),
        ('{"n":"1"}', "column 'n' INT: expected an integer (byte 5)"),
        ('{"n":1.0}', "column 'n' INT: expected an integer (byte 5)"),
        ('{"n":2147483648}', "column 'n' INT: the number is out of range (byte 5)"),
        ('{"big":9223372036854775808}', "column 'big' BIGINT: the number is out of range (byte 7)"),
        ('{"price":1e400}', "column 'price' DOUBLE: the number is out of range (byte 9)"),
        ('{"ratio":1e39}', "column 'ratio' FLOAT: the number is out of range (byte 9)"),
        ('{"price":NaN}', "malformed JSON (byte 9)"),
        ('{"ok":0}', "column 'ok' BOOLEAN: expected true or false (byte 6)"),
        ('{"name":{}}', "column 'name' STRING: expected text (byte 8)"),
        ('{"name":"\\ud800"}', "column 'name' STRING: the text has half of a surrogate pair (byte 8)"),
        ('{"day":"2026-02-30"}', "column 'day' DATE: expected a date as ISO-8601 text (byte 8)"),
        ('{"time":"yesterday"}', "column 'time' TIMESTAMP: expected a time as ISO-8601 text (byte 9)"),
        ('{"time":1}', "column 'time' TIMESTAMP: expected a time as ISO-8601 text (byte 8)"),
        ('{"amount":1.234}', "column 'amount' DECIMAL(12,2): the number has more digits after the point (byte 10)"),
        ('{"amount":12345678901}', "column 'amount' DECIMAL(12,2): the number is out of range (byte 10)"),
        ('{"wide":1e30}', "column 'wide' DECIMAL(38,10): the number is out of range (byte 8)"),
        ('{"x":' + "[" * 600 + "]" * 600 + "}", "nested deeper than 512 levels (byte 5)"),
    ],
)
def test_a_rejected_message_has_a_reason_and_a_place(message: str | bytes, reason: str):
    assert reject(message) == reason


def test_of_a_name_that_occurs_twice_the_last_value_counts():
    rows = assert_agrees([b'{"n":1,"n":2}', b'{"n":"x","n":2}', b'{"n":2,"n":"x"}', b'{"n":2,"n":null}', b'{"\\u006e":3}'])
    assert [row and row[2] for row in rows] == [2, 2, None, None, 3]


def test_nested_members_are_columns_by_path():
    schema = Schema.parse("id INT, user STRING, `a.b` INT")
    options = {"field.id": "payload.id", "field.user": "payload.user.name", "field.a.b": "`a.b`"}
    messages = [
        b'{"payload":{"user":{"x":{"id":9},"name":"u"},"id":1},"a.b":5}',
        b'{"payload":{}}',
        b'{"payload":null,"a":{"b":1}}',
        b'{"payload":{"id":1},"payload":{"user":{"name":"v"}}}',
        b'{"payload":{"id":1},"payload":null}',
        b'{"payload":3}',
        b'{"payload":3,"payload":{"id":4}}',
        b'{"payload":{"user":[]}}',
    ]
    decoded = decode(messages, schema, **options)
    paths = {"id": ("payload", "id"), "user": ("payload", "user", "name"), "a.b": ("a.b",)}
    rows = list_rows(decoded, len(messages))
    assert [render(row) for row in rows] == [render(decode_row(message, schema, paths)) for message in messages]
    assert rows[:5] == [[1, "u", 5], [None] * 3, [None] * 3, [None, "v", None], [None] * 3]
    assert decoded.reasons[0] == "column 'id' INT: expected an object on the way to the column (byte 11)"


@pytest.mark.parametrize("paths", [{"field.a": "x", "field.b": "x"}, {"field.a": "x", "field.b": "x.y"}, {"field.a": "b"}])
def test_two_columns_do_not_share_a_member(paths: dict[str, str]):
    with pytest.raises(SchemaError, match="are read from the same member"):
        make_message_format("json", Schema.parse("a INT, b INT"), paths)


@pytest.mark.parametrize(
    ("timestamp_format", "value", "expected"),
    [
        ("epoch_s", "1767225600", "2026-01-01T00:00:00"),
        ("epoch_s", "1767225600.0000019", "2026-01-01T00:00:00.000001"),
        ("epoch_ms", "-0.5", "1969-12-31T23:59:59.999500"),
        ("epoch_ms", "1.767225600123e12", "2026-01-01T00:00:00.123000"),
        ("epoch_us", "1767225600000001", "2026-01-01T00:00:00.000001"),
        ("%d.%m.%Y %H:%M", '"01.02.2026 03:04"', "2026-02-01T03:04:00"),
        ("%d.%m.%Y %H:%M %z", '"01.02.2026 03:04 +0100"', "2026-02-01T02:04:00"),
    ],
)
def test_times_in_other_formats(timestamp_format: str, value: str, expected: str):
    schema = Schema.parse("n INT, time TIMESTAMP")
    options = {"timestamp_format": timestamp_format}
    decoded = decode([f'{{"time":{value}}}'.encode(), b'{"time":null}', b'{"time":"?"}', b'{"time":1e300}'], schema, **options)
    assert [row["time"] and row["time"].isoformat() for row in decoded.table.to_pylist()] == [f"{expected}+00:00", None]
    assert decoded.rejected.tolist() == [2, 3]


def test_nanoseconds_since_1970_need_no_conversion_in_python(monkeypatch: pytest.MonkeyPatch):
    """Java writes an Instant as seconds with nine digits: 19 digits, of which a word holds most."""
    monkeypatch.delitem(columns._CONVERTERS, EPOCH)
    options = {"timestamp_format": "epoch_s"}
    texts = [b'{"time":1767225600.123456789}', b'{"time":-1.000000001}', b'{"time":9223372036.854775807}']
    decoded = decode(texts, Schema.parse("time TIMESTAMP"), **options)
    micros = decoded.table.column("time").cast(pa.int64()).to_pylist()
    assert micros == [1_767_225_600_123_456, -1_000_001, 9_223_372_036_854_775]
    with pytest.raises(KeyError):
        decode([b'{"time":9223372036.854775808}'], Schema.parse("time TIMESTAMP"), **options)


def test_a_fraction_of_more_digits_than_a_word_is_as_exact_as_a_short_one():
    decoded = decode([b'{"time":5000000000000000000e-25}'], Schema.parse("time TIMESTAMP"), timestamp_format="epoch_s")
    assert decoded.table.column("time").cast(pa.int64()).to_pylist() == [0]


@pytest.mark.parametrize(("unit", "text"), [("epoch_s", "1767225600.000010"), ("epoch_ms", "1767225600000.010")])
def test_times_are_written_with_no_digits_beyond_microseconds(unit: str, text: str):
    schema = Schema.parse("time TIMESTAMP")
    table = pa.table([pa.array([1_767_225_600_000_010]).view(pa.timestamp("us", "UTC"))], schema.to_arrow())
    written = make_message_format("json", schema, {"timestamp_format": unit}).encode(table)
    assert unpack(written) == [f'{{"time":{text}}}'.encode()]


def test_only_columns_that_are_read_decide_unless_bad_rows_are_skipped():
    messages = [b'{"n":1,"name":2}', b'{"n":"x","name":"y"}']
    assert decode(messages, columns=["n"]).table.to_pylist() == [{"n": 1}]
    assert decode(messages, columns=["n"], on_error="skip_row").rejected.tolist() == [0, 1]


def test_a_message_without_a_value_is_a_row_of_nulls():
    messages = pack([b'{"n":1}', b"", b""])
    absent = np.array([False, True, False])
    decoded = make_message_format("json", SCHEMA, {}).decode(
        Messages(messages.offsets, messages.data, absent), [SCHEMA.fields[2]]
    )
    assert decoded.table.to_pylist() == [{"n": 1}, {"n": None}]
    assert decoded.rejected.tolist() == [2]


def test_a_part_of_the_messages_of_a_buffer_is_decoded():
    messages = pack([b'{"n":1}', b'{"n":2}', b'{"n":3', b'{"n":4}'])
    part = Messages(messages.offsets[1:3], messages.data)
    assert make_message_format("json", SCHEMA, {}).decode(part, [SCHEMA.fields[2]]).table.to_pylist() == [{"n": 2}]


NUMBERS = st.one_of(
    st.integers(-(10**22), 10**22).map(str),
    st.integers(-300, 300).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    st.decimals(-(10**12), 10**12, places=2).map(str),
    st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)
TEXTS = st.one_of(
    st.text(max_size=20),
    st.text(alphabet='"\\\n\t/é😀\ud800\udc00aé', max_size=10),
    st.datetimes().map(lambda value: value.isoformat()),
    st.datetimes().map(lambda value: value.strftime("%Y-%m-%d %H:%M:%S+01:30")),
    st.dates().map(lambda value: value.isoformat()),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "1e2", "12.34", "2026-13-01", "2026-01-01T24:00", "0001-01-01T00:00+01:00"]),
)


def dump_text(text: str, *, escapes: bool) -> str:
    return json.dumps(text, ensure_ascii=escapes or any("\ud800" <= char <= "\udfff" for char in text))


def dump_object(members: list[tuple[str, str]]) -> str:
    return "{" + " ,".join(f"{name}: {value}" for name, value in members) + "}"


SCALARS = st.one_of(
    NUMBERS,
    st.sampled_from(["null", "true", "false"]),
    st.builds(lambda text, escapes: dump_text(text, escapes=escapes), TEXTS, st.booleans()),
)
NAMES = st.sampled_from([*SCHEMA.names, "other", "na", "ñ"]).map(json.dumps)
VALUES = st.recursive(
    SCALARS,
    lambda values: st.one_of(
        st.lists(values, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(st.tuples(NAMES, values), max_size=3).map(dump_object),
    ),
    max_leaves=5,
)
OBJECTS = st.lists(st.tuples(NAMES, VALUES), max_size=6).map(dump_object)
CUTS = st.tuples(
    st.integers(0, 500),
    st.integers(0, 300),
    st.sampled_from(["", '"', "\\", "{", "]", ",", "é", "0", " ", "\0", "\x0b"]).map(str.encode) | st.binary(max_size=2),
)


def spoil(message: str, cuts: list[tuple[int, int, bytes]]) -> bytes:
    """Replace bytes at random places, or cut the message off."""
    data = bytearray(message.encode())
    for place, length, replacement in cuts:
        at = place % (len(data) + 1)
        data[at : at + length] = replacement
    return bytes(data)


SPOILT = st.builds(spoil, OBJECTS, st.lists(CUTS, max_size=2))


@settings(max_examples=scale_examples(300))
@given(st.lists(SPOILT, min_size=1, max_size=12))
def test_random_messages_agree_with_python(messages: list[bytes]):
    assert_agrees(messages)


def test_a_hundred_thousand_spoilt_messages_are_all_counted():
    chance = random.Random(5)
    good = [
        json.dumps({"n": i, "price": i / 7, "name": f'näme {i} \\ "q"', "time": f"{2000 + i}-01-01", "x": [{"y": [i]}]}).encode()
        for i in range(50)
    ]
    messages = []
    for _ in range(100_000):
        data = bytearray(chance.choice(good))
        kind = chance.randrange(4)
        if kind == 0:
            del data[chance.randrange(len(data)) :]
        elif kind == 1:
            data[chance.randrange(len(data))] = chance.randrange(256)
        elif kind == 2:
            data[chance.randrange(len(data)) :] = chance.choice(good)
        messages.append(bytes(data))
    columns = [field for field in SCHEMA if field.name in {"n", "price", "name", "time"}]
    decoded = decode(messages, SCHEMA, [field.name for field in columns])
    rows = list_rows(decoded, len(messages))
    schema = Schema(tuple(columns))
    for number in chance.sample(range(len(messages)), 3000):
        assert render(rows[number]) == render(decode_row(messages[number], schema)), messages[number]


def test_doubles_are_rounded_correctly():
    chance = random.Random(6)
    texts = [repr(math.ldexp(chance.random() - 0.5, chance.randint(-1060, 1020))) for _ in range(20_000)]
    texts += [f"{chance.randrange(10**19)}e{chance.randint(-340, 300)}" for _ in range(20_000)]
    texts += [f"{(1 << 53) + 2 * i + 1}.{'0' * chance.randint(1, 3)}e0" for i in range(1000)]  # halfway between two doubles
    texts += ["5e-324", "2e-324", "2.4703282292062328e-324", "1.7976931348623157e308", "9007199254740993e-1", "0e999", "-0.0"]
    decoded = decode([f'{{"price":{text}}}'.encode() for text in texts], columns=["price"])
    expected = np.array([value for text in texts if math.isfinite(value := float(text))])
    assert np.array_equal(np.asarray(decoded.table["price"]).view(np.int64), expected.view(np.int64))


ROWS = pa.table(
    {
        "tiny": pa.array([1, None, -128], pa.int8()),
        "price": pa.array([0.1, math.nan, -math.inf]),
        "ratio": pa.array([0.1, None, 1e30], pa.float32()),
        "ok": pa.array([True, None, False]),
        "name": pa.array(['a"\\\n\x00é\x1f', "", None]),
        "day": pa.array([0, -719162, 2932896], pa.int32()).cast(pa.date32()),
        "time": pa.array([1, -62135596800_000_000, 253402300799_999_999], pa.timestamp("us", tz="UTC")),
        "wide": pa.array(["1E-10", None, "-1234567890123456789012345678.0123456789"]).cast(pa.decimal128(38, 10)),
    }
)


def test_rows_are_written_as_objects_and_read_again():
    json_format = make_message_format("json", SCHEMA, {})
    fields = [field for field in SCHEMA if field.name in ROWS.column_names]
    written = json_format.encode(ROWS.select([field.name for field in fields]))
    assert json.loads(unpack(written)[0]) == {
        "tiny": 1, "ratio": 0.1, "price": 0.1, "ok": True, "name": 'a"\\\n\x00é\x1f', "day": "1970-01-01",
        "time": "1970-01-01T00:00:00.000001Z", "wide": "0.0000000001",
    }  # fmt: skip
    again = json_format.decode(written, fields).table
    assert list(map(render, map(list, map(dict.values, again.to_pylist())))) == list(
        map(render, map(list, map(dict.values, ROWS.select(again.column_names).to_pylist())))
    )


def test_columns_are_written_at_their_paths():
    schema = Schema.parse("id INT, name STRING, other INT")
    options = {"field.id": "payload.id", "field.name": "payload.user.name", "field.other": "x"}
    table = pa.table({"id": [1, 2], "other": [3, 4], "name": ["a", None]}).slice(1)
    written = make_message_format("json", schema, options).encode(table)
    assert unpack(written) == [b'{"payload":{"id":2,"user":{"name":null}},"x":4}']
