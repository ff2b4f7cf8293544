"""Protobuf messages against Google's library: values, evolved schemas, a registry, and bytes that are no messages."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.message_formats import make_message_format
from headrace.errors import SchemaError, SinkError
from headrace.model.types import Schema
from support.examples import scale_examples
from support.messages import decode_messages, list_rows, render, unpack
from support.schema_registry import run_registry

PROTO = """
syntax = "proto3";  // a comment
package shop.v1;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
option java_package = "x.y";

message Ignored { repeated Ignored more = 1; }
/* the message that is read */
message Order {
  enum Color { NONE = 0; RED = 1; GREEN = 5 [deprecated = true]; }
  message Item { string name = 1; sint32 count = 2; optional int64 weight = 300; }
  reserved 100 to 110, 120;
  int32 n = 1;
  optional int64 big = 2;
  float ratio = 3; double price = 4 [json_name = "p"];
  bool ok = 5;
  string name = 6;
  Color color = 7;
  google.protobuf.Timestamp time = 8;
  Item item = 9;
  oneof choice { string left = 10; sint64 right = 11; Item other = 15; }
  fixed32 unsigned = 12; sfixed64 fixed = 13;
  google.protobuf.StringValue wrapped = 14;
  map<string, Item> entries = 16; repeated int32 list = 17;
  bytes data = 18;
  string amount = 19;
}
"""
SCHEMA = Schema.parse(
    "n INT, big BIGINT, ratio FLOAT, price DOUBLE, ok BOOLEAN, name STRING, color STRING, time TIMESTAMP, item_name STRING,"
    " item_count INT, item_weight BIGINT, left STRING, right BIGINT, other_name STRING, unsigned BIGINT, fixed BIGINT,"
    " wrapped STRING, data STRING, amount DECIMAL(10, 2), absent INT"
)
OPTIONS = {
    "schema": PROTO, "message": "Order", "field.item_name": "item.name", "field.item_count": "item.count",
    "field.item_weight": "item.weight", "field.other_name": "other.name",
}  # fmt: skip
_F = descriptor_pb2.FieldDescriptorProto


def make_class() -> type:
    """Build the message of PROTO with Google's library, without protoc."""
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto", package="shop.v1", syntax="proto3",
        dependency=["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"],
    )  # fmt: skip
    order = file.message_type.add(name="Order")
    order.enum_type.add(name="Color").value.extend(
        [
            descriptor_pb2.EnumValueDescriptorProto(name=name, number=number)
            for name, number in (("NONE", 0), ("RED", 1), ("GREEN", 5))
        ]
    )
    item = order.nested_type.add(name="Item")
    item.field.add(name="name", number=1, type=_F.TYPE_STRING, label=1)
    item.field.add(name="count", number=2, type=_F.TYPE_SINT32, label=1)
    item.field.add(name="weight", number=300, type=_F.TYPE_INT64, label=1, proto3_optional=True, oneof_index=0)
    item.oneof_decl.add(name="_weight")
    entry = order.nested_type.add(name="EntriesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_F.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=_F.TYPE_MESSAGE, label=1, type_name=".shop.v1.Order.Item")
    order.oneof_decl.add(name="choice")
    order.oneof_decl.add(name="_big")
    kinds = [
        ("n", 1, "INT32"), ("big", 2, "INT64"), ("ratio", 3, "FLOAT"), ("price", 4, "DOUBLE"), ("ok", 5, "BOOL"),
        ("name", 6, "STRING"),
        ("color", 7, "ENUM"), ("time", 8, "MESSAGE"), ("item", 9, "MESSAGE"), ("left", 10, "STRING"), ("right", 11, "SINT64"),
        ("unsigned", 12, "FIXED32"), ("fixed", 13, "SFIXED64"), ("wrapped", 14, "MESSAGE"), ("other", 15, "MESSAGE"),
        ("entries", 16, "MESSAGE"), ("list", 17, "INT32"), ("data", 18, "BYTES"), ("amount", 19, "STRING"),
    ]  # fmt: skip
    names = {"color": ".Order.Color", "item": ".Order.Item", "other": ".Order.Item", "entries": ".Order.EntriesEntry"}
    known = {"time": ".google.protobuf.Timestamp", "wrapped": ".google.protobuf.StringValue"}
    for name, number, kind in kinds:
        part = order.field.add(
            name=name, number=number, type=getattr(_F, f"TYPE_{kind}"), label=3 if name in {"list", "entries"} else 1
        )
        if name in names or name in known:
            part.type_name = known.get(name) or f".shop.v1{names[name]}"
        if name in {"left", "right", "other"}:
            part.oneof_index = 0
        if name == "big":
            part.proto3_optional, part.oneof_index = True, 1
    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.v1.Order"))


Order = make_class()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def list_values(message: object) -> list[object]:
    """Return what the columns of a message are, as Google's library reads it."""

    def pick(name: str, *path: str) -> object:
        if name in {"big", "time", "item", "left", "right", "other", "wrapped"} and not message.HasField(name):
            return None
        value = getattr(message, name)
        for step in path:
            value = None if step == "weight" and not value.HasField("weight") else getattr(value, step)
        return value

    time = pick("time")
    return [
        message.n, pick("big"), message.ratio, message.price, message.ok, message.name,
        {0: "NONE", 1: "RED", 5: "GREEN"}[message.color],
        None if time is None else EPOCH + timedelta(seconds=time.seconds, microseconds=time.nanos // 1000),
        pick("item", "name"), pick("item", "count"), pick("item", "weight"), pick("left"), pick("right"), pick("other", "name"),
        message.unsigned, message.fixed, pick("wrapped", "value"), message.data.decode(),
        Decimal(message.amount).quantize(Decimal("0.01")) if message.amount else None, None,
    ]  # fmt: skip


ITEMS = st.builds(
    lambda name, count, weight: Order.Item(name=name, count=count, weight=weight),
    st.text(max_size=5), st.integers(-(1 << 31), (1 << 31) - 1), st.none() | st.integers(-5, 5),
)  # fmt: skip
INTS = st.integers(-(1 << 63), (1 << 63) - 1)
ORDERS = st.fixed_dictionaries(
    {},
    optional={
        "n": st.integers(-(1 << 31), (1 << 31) - 1), "big": INTS, "ratio": st.floats(width=32), "price": st.floats(),
        "ok": st.booleans(), "name": st.text(max_size=10), "color": st.sampled_from([0, 1, 5]), "item": ITEMS,
        "unsigned": st.integers(0, (1 << 32) - 1),
        "fixed": INTS, "wrapped": st.text(max_size=3).map(lambda text: {"value": text}),
        "list": st.lists(st.integers(-3, 300), max_size=3), "data": st.text(max_size=4).map(str.encode),
        "entries": st.dictionaries(st.text(max_size=2), ITEMS, max_size=2),
        "amount": st.decimals(-(10**5), 10**5, places=2).map(str),
        "time": st.builds(
            lambda seconds, nanos: {"seconds": seconds, "nanos": nanos},
            st.integers(-62135596800, 253402300799), st.integers(0, 999_999_999),
        ),
    },
)  # fmt: skip
CHOICES = st.lists(
    st.one_of(
        st.text(max_size=3).map(lambda text: {"left": text}),
        INTS.map(lambda number: {"right": number}),
        ITEMS.map(lambda item: {"other": item}),
    ),
    max_size=2,
)


@settings(max_examples=scale_examples(200))
@given(st.lists(st.tuples(ORDERS, ORDERS, CHOICES), min_size=1, max_size=5))
def test_random_messages_are_read_as_googles_library_reads_them(drawn: list):
    messages = [
        b"".join(Order(**part).SerializeToString() for part in (first, *choices, second)) for first, second, choices in drawn
    ]  # a message may come in parts, which are merged
    rows = list_rows(decode_messages("protobuf", messages, SCHEMA, **OPTIONS), len(messages))
    for message, row in zip(messages, rows, strict=True):
        assert render(row) == render(list_values(Order.FromString(message))), message


def test_a_time_in_two_parts_is_merged_like_any_message():
    parts = [Order(time={"seconds": 1, "nanos": 5000}), Order(time={"seconds": -3}), Order(time={}), Order(left="x")]
    message = b"".join(part.SerializeToString() for part in parts)
    (row,) = list_rows(decode_messages("protobuf", [message], SCHEMA, **OPTIONS), 1)
    assert render(row) == render(list_values(Order.FromString(message)))
    assert row[7] == EPOCH + timedelta(seconds=-3, microseconds=5)


def test_a_hundred_thousand_spoilt_messages_are_all_counted():
    chance = random.Random(8)
    good = [
        Order(
            n=number, big=number << 40, name="näme", color=1, item=Order.Item(name="i", count=-1), list=[1, 2], price=0.5,
            right=3,
            entries={"k": Order.Item(name="e")}, amount="1.25",
        ).SerializeToString()
        for number in range(20)
    ]  # fmt: skip
    messages = []
    for _ in range(100_000):
        data = bytearray(chance.choice(good))
        kind = chance.randrange(4)
        if kind == 0:
            del data[chance.randrange(len(data)) :]
        elif kind == 1:
            data[chance.randrange(len(data))] = chance.randrange(256)
        elif kind == 2:
            data[chance.randrange(len(data)) :] = chance.randbytes(30)
        messages.append(bytes(data))
    decoded = decode_messages("protobuf", messages, SCHEMA, **OPTIONS)
    rows = list_rows(decoded, len(messages))
    assert 20_000 < len(decoded.rejected) < 80_000
    for number in chance.sample(range(len(messages)), 3000):
        try:
            expected = list_values(Order.FromString(messages[number]))
        except (DecodeError, KeyError, ValueError, ArithmeticError):  # an enum, a text or a decimal that does not fit
            continue
        if rows[number] is not None:
            assert render(rows[number]) == render(expected), messages[number]


def test_a_rejected_message_has_a_reason_and_a_place():
    messages = [b"\x08", b"\x00\x00", b"\x08\x01\x52\x05ab", b"\x52\x01\xff", b"\x38\x09", b"\x9a\x01\x01x", b"\x0b\x0c", b""]
    decoded = decode_messages("protobuf", messages, SCHEMA, **OPTIONS)
    assert list(zip(decoded.rejected.tolist(), decoded.reasons, strict=True)) == [
        (0, "malformed Protobuf message (byte 0)"),
        (1, "malformed Protobuf message (byte 0)"),
        (2, "malformed Protobuf message (byte 2)"),
        (3, "column 'left' STRING: the text is not UTF-8 (byte 0)"),
        (4, "column 'color' STRING: the value has another type (byte 0)"),
        (5, "column 'amount' DECIMAL(10,2): expected a number, or text that spells one (byte 3)"),
    ]
    assert decoded.table.num_rows == 2


def test_columns_that_never_fit_are_refused():
    for ddl, text in [("n STRING", "type 'int32'"), ("list INT", "repeated field"), ("item INT", "type 'shop.v1.Order.Item'")]:
        with pytest.raises(SchemaError, match=text):
            make_message_format("protobuf", Schema.parse(ddl), {"schema": PROTO, "message": "Order"})
    with pytest.raises(SchemaError, match="names no message"):
        make_message_format("protobuf", SCHEMA, {"schema": PROTO, "message": "Nothing"})


@pytest.mark.parametrize("text", ["message A {", "message A { int32 x = y; }", "message A { Other x = 1; }", "message A { % }"])
def test_a_text_that_is_no_schema_is_refused(text: str):
    with pytest.raises(SchemaError, match="the Protobuf schema"):
        make_message_format("protobuf", Schema.parse("x INT"), {"schema": text})


TABLE = pa.table(
    {
        "n": pa.array([1, None, -5], pa.int32()), "big": [1 << 62, -1, None], "ratio": pa.array([0.5, None, 1.5], pa.float32()),
        "price": [0.1, None, -0.0], "ok": [True, None, False], "name": ["ä", None, ""],
        "day": pa.array([0, None, -5], pa.int32()).cast(pa.date32()), "time": pa.array([1, None, -1], pa.timestamp("us", "UTC")),
        "amount": pa.array([Decimal("1.25"), None, Decimal("-123456789012345678.99")], pa.decimal128(20, 2)),
    }
)  # fmt: skip


def test_rows_are_written_and_read_again():
    schema = Schema.from_arrow(TABLE.schema)
    protobuf = make_message_format("protobuf", schema, {})
    assert protobuf.decode(protobuf.encode(TABLE), list(schema)).table.equals(TABLE)


def test_rows_are_written_as_googles_library_reads_them():
    protobuf = make_message_format("protobuf", SCHEMA, {"schema": PROTO, "message": "Order"})
    columns = pa.table(
        {"n": pa.array([-1], pa.int32()), "right": [-3], "fixed": [7], "name": ["ä"], "time": TABLE["time"].slice(2)}
    )
    [message] = unpack(protobuf.encode(columns))
    order = Order.FromString(message)
    assert (order.n, order.right, order.fixed, order.name) == (-1, -3, 7, "ä")
    assert order.time.ToMicroseconds() == -1
    with pytest.raises(SinkError, match="has no field in the Protobuf message"):
        protobuf.encode(pa.table({"unknown": [1]}))


def test_a_registry_knows_the_types_and_what_they_import():
    schema = Schema.parse("n INT, note STRING")
    with run_registry() as registry:
        registry.add("common.proto", 'syntax = "proto3"; package c; message Note { string note = 1; }', "PROTOBUF")
        reference = {"name": "common.proto", "subject": "common.proto", "version": 1}
        text = 'syntax = "proto3"; import "common.proto"; message A { message B { int32 n = 2; } int32 n = 1; }'
        text += " message C { c.Note x = 1; int32 n = 3; }"
        number = registry.add("s", text, "PROTOBUF", (reference,)).to_bytes(4, "big")
        messages = [
            b"\0" + number + b"\0\x08\x05",
            b"\0" + number + b"\x04\0\0\x10\x06",
            b"\0" + number + b"\x02\x02\x18\x07\x0a\x03\x0a\x01y",
        ]
        messages += [b"\0" + number + b"\x02\x08", b"\0" + number + b"\x14"]
        options = {"registry": registry.url, "field.note": "x.note"}
        decoded = decode_messages("protobuf", messages, schema, **options)
        assert list_rows(decoded, 5)[:3] == [[5, None], [6, None], [7, "y"]]
        assert decoded.reasons[0].startswith("the Protobuf schema has no message at place [4]")
        assert decoded.reasons[1] == "the message does not name its type after the header of the registry"
        protobuf = make_message_format(
            "protobuf", Schema.from_arrow(TABLE.schema), {"registry": registry.url, "subject": "out-value"}
        )
        assert protobuf.decode(protobuf.encode(TABLE), list(Schema.from_arrow(TABLE.schema))).table.equals(TABLE)


def test_fields_that_come_and_go_keep_a_stream_running():
    first, second = (
        'syntax = "proto3"; message R { int32 n = 1; string gone = 2; }',
        'syntax = "proto3"; message R { string name = 3; int64 n = 1; }',
    )
    schema = Schema.parse("n BIGINT, name STRING")
    with run_registry() as registry:
        ids = [registry.add("s", text, "PROTOBUF").to_bytes(4, "big") for text in (first, second)]
        messages = [
            b"\0" + ids[0] + b"\0\x08\x01\x12\x01x",
            b"\0" + ids[1] + b"\0\x08\x02\x1a\x01y",
            b"\0" + ids[0] + b"\0\x08\x03",
        ]
        assert list_rows(decode_messages("protobuf", messages, schema, registry=registry.url), 3) == [
            [1, None],
            [2, "y"],
            [3, None],
        ]
