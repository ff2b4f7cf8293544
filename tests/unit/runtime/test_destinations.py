"""Destinations that keep a mark, with real servers and tables: each batch once, whoever was interrupted, whoever comes late."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

import headrace as hr
from headrace.bench.driver.kafka_broker import KafkaBroker
from headrace.connectors import Destination, PublishedSink, parse_sink
from headrace.errors import SinkError
from support.postgres_server import PostgresServer, run_postgres

TOPICS = iter(range(1_000))


def read_messages(broker: KafkaBroker, topic: str) -> list[Any]:
    """Return the committed messages of a topic, by partition and offset, as a plain reader sees them."""
    settings = {"bootstrap.servers": broker.address, "group.id": "reader", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True, "log_level": 2})
    partitions = list(consumer.list_topics(topic).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    messages, ended = [], set()
    while len(ended) < len(partitions):
        message = consumer.poll(20)
        assert message is not None
        if message.error():
            ended.add(message.partition())
        else:
            messages.append(message)
    consumer.close()
    return messages


@dataclass
class Target:
    """A sink and what reads its destination: all values of column n, sorted."""

    sink: PublishedSink
    read: Callable[[], list[int]]


def make_kafka(request: pytest.FixtureRequest, _: Path) -> Target:
    broker, topic = request.getfixturevalue("kafka_broker"), f"t{next(TOPICS)}"
    broker.create_topic(topic)
    sink = hr.KafkaSink(broker.address, topic, key="n")
    return Target(sink, lambda: [json.loads(message.value())["n"] for message in read_messages(broker, topic)])


def make_postgres(request: pytest.FixtureRequest, _: Path, *, key: str = "") -> Target:
    server, table = request.getfixturevalue("postgres_server"), f"t{next(TOPICS)}"
    sink = hr.PostgresSink(server.url, table, key=key)
    return Target(sink, lambda: [row[0] for row in server.query(f"SELECT n FROM {table}")])


def make_delta(_request: pytest.FixtureRequest, folder: Path) -> Target:
    path = str(folder / "delta")

    def read() -> list[int]:
        return DeltaTable(path).to_pyarrow_table()["n"].to_pylist()

    return Target(hr.DeltaSink(path), read)


def make_iceberg(_request: pytest.FixtureRequest, folder: Path) -> Target:
    options = {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": f"file://{folder / 'warehouse'}"}

    def read() -> list[int]:
        return load_catalog("default", **options).load_table("shop.results").scan().to_arrow()["n"].to_pylist()

    return Target(hr.IcebergSink("shop.results", options), read)


MAKERS = {
    "kafka": make_kafka,
    "postgres": make_postgres,
    "postgres by key": partial(make_postgres, key="n"),
    "delta": make_delta,
    "iceberg": make_iceberg,
}


SERVERS = {"kafka": [pytest.mark.kafka], "postgres": [pytest.mark.postgres], "postgres by key": [pytest.mark.postgres]}


@pytest.fixture(params=[pytest.param(name, marks=SERVERS.get(name, ())) for name in MAKERS])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return MAKERS[request.param](request, tmp_path)


def make_rows(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64()), "text": [f"row {value}" for value in values]})


def connect(target: Target, writer: str, mark: int | None) -> Destination:
    """Return a connection that has found this mark; a broker that has just started takes a while to find coordinators."""
    deadline = time.monotonic() + 30
    while True:
        destination = target.sink.connect(writer)
        try:
            assert destination.read_mark() == mark
        except KafkaException:
            destination.close()
            assert time.monotonic() < deadline
        else:
            return destination


def test_a_new_connection_finds_the_mark_and_stops_the_earlier_one(target: Target):
    writer = f"writer-{next(TOPICS)}"
    first = connect(target, writer, None)
    first.publish(0, make_rows(0, 1))
    first.publish(3, make_rows(2))
    second = connect(target, writer, 3)
    second.publish(4, make_rows(3))
    try:
        first.publish(4, make_rows(3))  # it was paused, and wakes up
    except SinkError:
        raise
    except Exception:  # noqa: BLE001  the library says so, or finds the mark
        pass
    first.close()
    second.publish(7, make_rows(4))
    second.close()
    assert sorted(target.read()) == [0, 1, 2, 3, 4]
    connect(target, writer, 7).close()


def test_two_sinks_write_to_one_destination(target: Target):
    one, two = (connect(target, f"writer-{next(TOPICS)}", None) for _ in range(2))
    for batch in range(3):
        one.publish(batch, make_rows(batch))
        two.publish(batch, make_rows(100 + batch))
    one.close()
    two.close()
    assert sorted(target.read()) == [0, 1, 2, 100, 101, 102]


@pytest.mark.parametrize("step", ["sink-connect", "sink-publish", "sink-published", "sink-recorded", "committed"])
def test_a_query_that_crashes_publishes_each_row_once(target: Target, harness, step: str):
    harness.session.add("SELECT n, k FROM s", name="q", sinks=["memory", target.sink])
    harness.tick(1, n=1)
    harness.append_rows(2, n=2)
    if step == "sink-connect":
        harness.session.close()
        harness.open_session()
    killed = harness.session
    harness.kill_during(harness.session.advance, step)
    harness.open_session()
    harness.tick(3, n=3)
    assert sorted(target.read()) == [1, 2, 3]
    harness.session.close()
    killed._delivery.close()  # its connection was open until now


# --- kafka -----------------------------------------------------------------------------------------------------------


class DyingError(Exception):
    """Raised in the place of an answer."""


@pytest.mark.kafka
@pytest.mark.parametrize("method", ["begin_transaction", "produce_batch", "send_offsets_to_transaction", "commit_transaction"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_transaction_is_invisible_or_complete(
    kafka_broker: KafkaBroker, harness, monkeypatch, method: str, when: str
):
    """The connection breaks around each request of the second batch; the next connection ends what is open."""
    topic = f"t{next(TOPICS)}"
    kafka_broker.create_topic(topic)
    query = harness.session.add("SELECT n FROM s", sink=hr.KafkaSink(kafka_broker.address, topic))
    harness.tick(1, 1.5, n=1)
    destination = next(iter(harness.session._delivery._published.values())).destination
    producer = destination._producer

    class DyingProducer:
        def __getattr__(self, name: str) -> Any:
            call = getattr(producer, name)
            if name != method:
                return call

            def die(*arguments: Any) -> None:
                if when == "after":
                    call(*arguments)
                raise DyingError(name)

            return die

    destination._producer = DyingProducer()
    harness.tick(2, 2.5, n=2)
    deadline = time.monotonic() + 30
    while query.sinks[0].waiting_batches:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    harness.tick(3, n=3)
    values = [json.loads(message.value())["n"] for message in read_messages(kafka_broker, topic)]
    assert sorted(values) == [1, 1, 2, 2, 3]
    harness.session.close()


@pytest.mark.kafka
def test_messages_have_keys_headers_and_one_partition_for_a_key(kafka_broker: KafkaBroker):
    topic = f"t{next(TOPICS)}"
    kafka_broker.create_topic(topic)
    rows = pa.table({"user": ["a", "b", None, "a"], "n": [1, 2, 3, 4], "price": [1.5, float("nan"), None, 2.0]})
    sink = hr.KafkaSink(kafka_broker.address, topic, key="user", headers="n", options={"compression.type": "lz4"})
    destination = connect(Target(sink, list), topic, None)
    destination.publish(0, rows)
    destination.close()
    messages = read_messages(kafka_broker, topic)
    assert len({message.partition() for message in messages if message.key() == b"a"}) == 1
    found = sorted((message.key() or b"", message.headers(), json.loads(message.value())["price"]) for message in messages)
    assert found == [
        (b"", [("n", b"3")], None),
        (b"a", [("n", b"1")], 1.5),
        (b"a", [("n", b"4")], 2.0),
        (b"b", [("n", b"2")], "NaN"),
    ]


@pytest.mark.kafka
def test_a_message_that_is_too_large_fails_the_query_alone(kafka_broker: KafkaBroker, harness):
    topic = f"t{next(TOPICS)}"
    kafka_broker.create_topic(topic, max_message_bytes="2000")
    query = harness.session.add(f"SELECT '{'x' * 5_000}' AS text FROM s", sink=hr.KafkaSink(kafka_broker.address, topic))
    other = harness.session.add("SELECT n FROM s")
    harness.tick(1)
    harness.tick(2)
    assert (query.status, other.status, other.emitted) == ("failed", "live", 2)
    assert f"topic '{topic}' refuses the rows" in query.error
    harness.session.close()


# --- postgres --------------------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_postgres_keeps_every_type_and_the_last_row_of_a_key(postgres_server: PostgresServer):
    rows = pa.table(
        {
            "id": pa.array([1, 2, 1], pa.int32()),
            "text": ['quote " and , comma', "", None],
            "price": [1.5, float("nan"), None],
            "cost": pa.array([Decimal("1.10"), None, Decimal("2.20")], pa.decimal128(10, 2)),
            "day": [date(2024, 1, 2), None, date(2024, 1, 3)],
            "time": pa.array(
                [datetime(2024, 1, 1, 12, tzinfo=UTC), None, datetime(2024, 1, 1, 13, tzinfo=UTC)], pa.timestamp("us", "UTC")
            ),
            "flag": [True, None, False],
            "raw": [b"\x00\xff", None, b""],
            "list": [[1, 2], None, []],
        }
    )
    destination = hr.PostgresSink(postgres_server.url, "kinds", key="id").connect("w")
    destination.read_mark()
    destination.publish(0, rows)
    destination.publish(1, rows.slice(1, 1))
    found = postgres_server.query("SELECT * FROM kinds ORDER BY id")
    last = (1, None, None, Decimal("2.20"), date(2024, 1, 3), datetime(2024, 1, 1, 13, tzinfo=UTC), False, b"", [])
    assert found[0] == last
    assert found[1][:2] == (2, "")
    assert found[1][2] != found[1][2]
    assert found[1][3:] == (None,) * 6
    destination.close()


@pytest.mark.postgres
def test_a_table_with_other_columns_fails_the_query_with_the_reason(postgres_server: PostgresServer, harness):
    postgres_server.query("CREATE TABLE other (id INT)")
    query = harness.session.add("SELECT n FROM s", sink=hr.PostgresSink(postgres_server.url, "other"))
    harness.tick(1)
    assert "table 'other' refuses the rows" in query.error
    assert 'column "n" does not exist' in query.error


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.postgres
def test_a_server_that_is_killed_and_started_again_gets_every_row_once(tmp_path: Path, harness):
    with run_postgres(tmp_path / "postgres") as server:
        query = harness.session.add("SELECT n FROM s", sink=hr.PostgresSink(server.url, "t"))
        harness.tick(1, n=1)
        server.kill()
        harness.tick(2, n=2)
        wait_until(lambda: query.sinks[0].state == "degraded")
        server.start()
        wait_until(lambda: not query.sinks[0].waiting_batches)
        harness.tick(3, n=3)
        wait_until(lambda: not query.sinks[0].waiting_batches)
        assert server.query("SELECT n FROM t ORDER BY n") == [(1,), (2,), (3,)]
        harness.session.close()


# --- webhook ---------------------------------------------------------------------------------------------------------


@dataclass
class Receiver:
    """A server that takes requests; the first ones get other answers."""

    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.requests.append((dict(self.headers), body))
            self.send_response(receiver.answers.pop(0) if receiver.answers else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield receiver
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_gets_signed_requests_until_it_takes_them(receiver: Receiver, harness, monkeypatch):
    monkeypatch.setenv("HOOK_SECRET", "s3cret")
    monkeypatch.setenv("HOOK_TOKEN", "Bearer abc")
    receiver.answers = [503, 204, 429]
    sink = hr.WebhookSink(receiver.url, secret="env:HOOK_SECRET", headers={"Authorization": "env:HOOK_TOKEN"}, max_rows=2)
    query = harness.session.add("SELECT n FROM s", sink=sink)
    harness.tick(1, 2, 3, n=5)
    deadline = time.monotonic() + 20
    while query.sinks[0].waiting_batches:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    keys = [headers["Idempotency-Key"].partition("-")[2] for headers, _ in receiver.requests]
    assert keys == ["0-0-0-0", "0-0-0-0", "0-0-0-1", "0-0-0-0", "0-0-0-1"]
    for headers, body in receiver.requests:
        signed = f"{headers['X-Headrace-Timestamp']}.".encode() + body
        assert headers["X-Headrace-Signature"] == "sha256=" + hmac.new(b"s3cret", signed, hashlib.sha256).hexdigest()
        assert headers["Authorization"] == "Bearer abc"
    assert [len(json.loads(body)["rows"]) for _, body in receiver.requests] == [2, 2, 1, 2, 1]
    assert json.loads(receiver.requests[0][1])["rows"][0] == {"n": 5}
    manifest = "".join(path.read_text(errors="replace") for path in harness.directory.rglob("*.json"))
    assert "env:HOOK_SECRET" in manifest
    assert "s3cret" not in manifest + repr(query.sinks)


def test_a_webhook_that_refuses_the_rows_fails_the_query(receiver: Receiver, harness):
    receiver.answers = [422]
    query = harness.session.add("SELECT n FROM s", sink=hr.WebhookSink(receiver.url))
    harness.tick(1)
    assert "the webhook refuses the rows with status 422" in query.error


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "kafka", "brokers": "a:1"}, "option 'topic' of the kafka sink is missing"),
        ({"kind": "kafka", "brokers": "a:1", "topc": "t"}, "did you mean 'topic'"),
        (
            {"kind": "kafka", "brokers": "a:1", "topic": "t", "sasl.password": "hunter2"},
            "option 'sasl.password' is a secret",
        ),
        ({"kind": "kafka", "brokers": "a:1", "topic": "t", "transactional.id": "x"}, "is chosen by headrace"),
        ({"kind": "postgres", "url": "postgresql://u:hunter2@h/d", "table": "t"}, "has a password"),
        ({"kind": "postgres", "url": "postgresql://h/d", "table": "t", "password": "hunter2"}, "is a secret"),
        ({"kind": "webhook", "url": "https://h/p", "secret": "hunter2"}, "is a secret"),
        ({"kind": "webhook", "url": "ftp://h/p"}, "not an HTTP address"),
        ({"kind": "iceberg", "table": "t"}, "write NAMESPACE.TABLE"),
        ({"kind": "iceberg", "table": "a.t", "catalog": {"credential": "hunter2"}}, "is a secret"),
        ({"kind": "delta", "path": "s3://b/t", "storage_options": {"AWS_SECRET_ACCESS_KEY": "hunter2"}}, "is a secret"),
    ],
)
def test_invalid_options_are_refused_without_showing_secrets(spec, message: str):
    with pytest.raises(SinkError, match=message) as raised:
        parse_sink(spec)
    assert "hunter2" not in str(raised.value)


def test_options_of_librdkafka_are_checked_when_the_query_is_added(harness):
    with pytest.raises(
        SinkError, match=r"librdkafka refuses the options(.|\n)*No such configuration property: \"compresion.type\""
    ):
        harness.session.add("SELECT n FROM s", sink=hr.KafkaSink("127.0.0.1:1", "t", options={"compresion.type": "lz4"}))


def test_a_missing_library_says_what_to_install(harness, monkeypatch):
    monkeypatch.setattr(hr.DeltaSink, "destination_class", ("headrace.no_such_module", "X"))
    with pytest.raises(SinkError, match=r"pip install 'headrace\[delta\]'"):
        harness.session.add("SELECT n FROM s", sink=hr.DeltaSink("/tmp/x"))
