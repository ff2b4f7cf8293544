"""Messages that are spoilt in all ways, through a broker: each is a row or a dead letter, and nothing stops.

10,000 for each format; 100,000 in long runs (`make soak`).
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings

from headrace.bench.driver.topic_producer import TopicProducer
from headrace.connectors.message_formats import make_message_format
from headrace.model.types import Schema
from support.kafka_feed import Feed
from support.messages import unpack
from support.schema_registry import run_registry

COLUMNS = "v BIGINT, name STRING, price DOUBLE"
AVRO = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "v", "type": "long"}, {"name": "name", "type": "string"}, {"name": "price", "type": "double"}],
}
OTHER_AVRO = {"type": "record", "name": "R", "fields": [{"name": "v", "type": "string"}, {"name": "price", "type": "string"}]}
PROTO = 'syntax = "proto3"; message R { int64 v = 1; string name = 2; double price = 3; }'
OTHER_PROTO = 'syntax = "proto3"; message R { string v = 1; double name = 2; string price = 3; }'
UNKNOWN_IDS = (77, 78, 1 << 31)
FETCHED_BYTES = 50_000
LARGE_BYTES = 4 * FETCHED_BYTES


def count_messages() -> int:
    is_soak = settings().max_examples >= settings.get_profile("soak").max_examples
    return 100_000 if is_soak else 10_000


@contextmanager
def prepare_format(name: str) -> Iterator[tuple[dict[str, str], Callable[[bytes], bytes], list[Callable[[bytes], bytes]]]]:
    """Yield the options of a format, what makes a message of an encoded row, and what makes messages with a wrong schema."""
    if name == "json":
        wrong = [b'{"v": "x"}', b"[1]", b"null", b"7", b'{"v": 1.5}', b'{"v": 9223372036854775808}', b'{"name": {}}']
        yield {}, bytes, [lambda _, text=text: text for text in wrong]
        return
    with run_registry() as registry:
        kind, schema, other = (
            ("AVRO", json.dumps(AVRO), json.dumps(OTHER_AVRO)) if name == "avro" else ("PROTOBUF", PROTO, OTHER_PROTO)
        )
        index = b"" if name == "avro" else b"\0"
        known, wrong = registry.add("a", schema, kind), registry.add("b", other, kind)

        def frame(schema_id: int, row: bytes) -> bytes:
            return b"\0" + schema_id.to_bytes(4, "big") + index + row

        wrong_frames = [lambda row, number=number: frame(number, row) for number in (wrong, *UNKNOWN_IDS)]
        yield {"registry": registry.url}, lambda row: frame(known, row), [*wrong_frames, lambda row: b"\1" + row]


def encode_rows(name: str, count: int) -> list[bytes]:
    options = {"avro": {"schema": json.dumps(AVRO)}, "protobuf": {"schema": PROTO}}.get(name, {})
    rows = pa.table({"v": range(count), "name": [f"name {v}" for v in range(count)], "price": [v / 8 for v in range(count)]})
    return unpack(make_message_format(name, Schema.parse(COLUMNS), options).encode(rows))


def spoil(message: bytes, chance: random.Random) -> bytes:
    """Return a message that is cut, changed, extended, or something else."""
    match chance.randrange(5):
        case 0:
            return message[: chance.randrange(len(message))]
        case 1:
            changed = bytearray(message)
            for _ in range(chance.randint(1, 3)):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
            return bytes(changed)
        case 2:
            return message + chance.randbytes(chance.randint(1, 20))
        case 3:
            return chance.randbytes(chance.randrange(40))
        case _:
            place = chance.randrange(len(message))
            return message[:place] + message[place + 1 :]


def read_letters(feed: Feed) -> dict[tuple[int, int], bytes]:
    letters = [json.loads(line) for path in (feed.folder / "letters").glob("*.jsonl") for line in path.read_bytes().splitlines()]
    values = {(letter["partition"], letter["offset"]): read_value(letter) for letter in letters}
    assert len(values) == len(letters)
    return values


def read_value(letter: dict[str, Any]) -> bytes:
    return base64.b64decode(letter["value_base64"]) if letter["value"] is None else letter["value"].encode()


@pytest.mark.kafka
@pytest.mark.parametrize("name", ["json", "avro", "protobuf"])
def test_each_message_is_a_row_or_a_dead_letter(name: str, feed: Feed):
    chance, total = random.Random(name), count_messages()  # the seed
    sent: list[bytes] = []
    valid: set[int] = set()
    with prepare_format(name) as (options, wrap, wrong):
        for v, row in enumerate(encode_rows(name, total)):
            draw = chance.random()
            if draw < 0.5:
                valid.add(v)
                sent.append(wrap(row))
            elif draw < 0.9:
                sent.append(spoil(wrap(row), chance))
            elif draw < 0.999:
                sent.append(chance.choice(wrong)(row))
            else:
                sent.append(wrap(row) + chance.randbytes(LARGE_BYTES))
        with TopicProducer(feed.topic, {"bootstrap.servers": feed.broker.address}) as producer:
            for partition in range(2):
                messages = sent[partition::2]
                ends = np.cumsum([0, *map(len, messages)]).astype(np.int64)
                producer.send(partition, ends, np.frombuffer(b"".join(messages), np.uint8))
        with feed.open(
            f"{COLUMNS}, _offset BIGINT, _partition INT, _timestamp TIMESTAMP", "_timestamp", format=name, format_options=options,
            on_error="skip_row", dead_letter=f"jsonl:{feed.folder / 'letters'}", max_rows_per_batch=total // 3,
            options={"fetch.message.max.bytes": FETCHED_BYTES},
        ) as session:  # fmt: skip
            query = session.add("SELECT v, _partition, _offset FROM s")
            while session.has_work():
                session.advance()
            report = session.streams()["s"]
            rows = {(row["_partition"], row["_offset"]): row["v"] for row in query.results().to_pylist()}
    letters = read_letters(feed)
    assert (report["status"], report["rows"], report["skipped_rows"]) == ("ok", len(rows), len(letters))
    assert rows.keys() | letters.keys() == {(v % 2, v // 2) for v in range(total)}
    assert not rows.keys() & letters.keys()
    assert all(rows[v % 2, v // 2] == v for v in valid)
    assert all(value == sent[2 * offset + partition] for (partition, offset), value in letters.items())
    assert len(letters) > total // 5
