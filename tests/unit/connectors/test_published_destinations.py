"""Connections to destinations, each against a fake of its server: what is sent, and which answers are final.

The client of Kafka is a fake with a clock, so that brokers can be slow without a wait.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import httpx
import pyarrow as pa
import pydantic
import pytest
from confluent_kafka import KafkaError, KafkaException
from pyiceberg.exceptions import RESTError
from pyiceberg.table import Table, Transaction

import headrace as hr
from headrace.connectors.letter_destination import LetterDestination
from headrace.connectors.letter_topic import LetterSink
from headrace.connectors.sinks.kafka_destination import KafkaDestination, encode_keys
from headrace.connectors.sinks.postgres_destination import PostgresDestination, encode_csv, to_postgres_type
from headrace.connectors.sinks.webhook_destination import WebhookDestination
from headrace.errors import DestinationUnavailableError, SinkError

ROWS = pa.table({"n": pa.array([1, 2, 3], pa.int64())})


# --- kafka -----------------------------------------------------------------------------------------------------------


class SlowProducer:
    """Sends `rate` messages a second; its queue has room for all."""

    def __init__(self, rate: float) -> None:
        self.rate, self.now, self.values, self.sent = rate, 0.0, list[Any](), 0.0
        self.steps: list[str] = []

    def __len__(self) -> int:
        return len(self.values) - int(self.sent)

    def begin_transaction(self) -> None:
        self.steps.append("begin")

    def produce_batch(self, _topic: str, messages: list[dict[str, Any]]) -> None:
        self.values += [message["value"] for message in messages]

    def poll(self, _seconds: float) -> int:
        return 0

    def flush(self, seconds: float) -> int:
        self.now += seconds
        self.sent = min(len(self.values), self.sent + self.rate * seconds)
        return len(self)

    def send_offsets_to_transaction(self, *_: object) -> None:
        self.steps.append("offsets")

    def commit_transaction(self, _seconds: float) -> None:
        assert not len(self)
        self.steps.append("commit")


def publish_slowly(rate: float, rows: pa.Table = ROWS, **sink_options: Any) -> SlowProducer:
    producer = SlowProducer(rate)
    sink = hr.KafkaSink("127.0.0.1:1", "t", **sink_options)
    destination = KafkaDestination(sink, "w", clock=lambda: producer.now)
    destination._producer = producer
    destination.publish(0, rows)
    return producer


def test_a_batch_may_take_long_while_the_brokers_take_messages():
    producer = publish_slowly(rate=0.1)
    assert (producer.now, producer.steps) == (30.0, ["begin", "offsets", "commit"])


def test_brokers_that_take_nothing_are_not_available():
    with pytest.raises(DestinationUnavailableError, match="the brokers took none of 3 messages in 30 s, of 3 of a batch"):
        publish_slowly(rate=0)


def test_a_batch_that_takes_longer_than_a_transaction_says_what_to_change():
    rows = pa.table({"n": range(10)})
    reason = (
        r"a batch of 10 rows takes longer than transaction\.timeout\.ms = 60000\n"
        r"detail: 3 of its messages are not sent yet\nhint: give the sink a larger 'transaction\.timeout\.ms'"
    )
    with pytest.raises(DestinationUnavailableError, match=reason):
        publish_slowly(0.12, rows)
    assert "commit" in publish_slowly(0.12, rows, options={"transaction.timeout.ms": "120000"}).steps


@pytest.mark.parametrize("method", ["send_offsets_to_transaction", "commit_transaction"])
def test_a_call_that_blocks_is_given_up(monkeypatch: pytest.MonkeyPatch, method: str):
    ended = Event()
    monkeypatch.setattr(SlowProducer, method, lambda *_: ended.wait(20))
    monkeypatch.setattr("headrace.connectors.sinks.kafka_destination._CALL_SECONDS", 0.01)
    with pytest.raises(DestinationUnavailableError, match=f"topic 't': no answer to {method}"):
        publish_slowly(rate=10)
    ended.set()


def test_a_null_of_format_raw_is_a_message_without_a_value():
    assert publish_slowly(10, pa.table({"v": ["a", None, ""]}), format="raw").values == [b"a", None, b""]


def make_full_producer(full: int, code: int = KafkaError._QUEUE_FULL) -> SlowProducer:
    """Return a producer whose queue refuses that many calls before it has room again."""
    producer = SlowProducer(rate=10)
    calls = iter(range(full))
    produce_batch = producer.produce_batch

    def refuse_some(topic: str, messages: list[dict[str, Any]]) -> None:
        if next(calls, None) is None:
            produce_batch(topic, messages)
            return
        produce_batch(topic, messages[:1])
        for message in messages[1:]:
            message["_error"] = KafkaError(code)

    def produce(_topic: str, value: bytes, key: bytes | None, **options: Any) -> None:
        if next(calls, None) is not None:
            raise BufferError
        producer.values.append((value, key, options))

    producer.produce_batch, producer.produce = refuse_some, produce
    return producer


def publish_to(producer: SlowProducer, rows: pa.Table, **sink_options: Any) -> None:
    destination = KafkaDestination(hr.KafkaSink("127.0.0.1:1", "t", **sink_options), "w", clock=lambda: producer.now)
    destination._producer = producer
    destination.publish(0, rows)


def test_messages_wait_until_the_queue_has_room():
    producer = make_full_producer(2)
    publish_to(producer, ROWS)
    assert producer.values == [b'{"n":1}', b'{"n":2}', b'{"n":3}']
    producer = make_full_producer(2)
    publish_to(producer, ROWS, headers="n", key="n")
    assert producer.values == [(b'{"n":%d}' % n, b"%d" % n, {"headers": [("n", b"%d" % n)]}) for n in (1, 2, 3)]
    producer = make_full_producer(0)
    publish_to(producer, ROWS, headers="n")
    assert [key for _, key, _ in producer.values] == [None] * 3


@pytest.mark.parametrize(("code", "error"), [(KafkaError.MSG_SIZE_TOO_LARGE, SinkError), (KafkaError._TRANSPORT, KafkaException)])
def test_a_message_that_no_broker_takes_is_refused_and_an_outage_is_not(code: int, error: type[Exception]):
    with pytest.raises(error) as caught:
        publish_to(make_full_producer(1, code), ROWS)
    assert str(KafkaError(code).str()) in str(caught.value)


def test_the_mark_is_the_offset_behind_the_batch():
    producer = SlowProducer(rate=10)
    producer.send_offsets_to_transaction = lambda places, *_: producer.steps.append([(p.topic, p.offset) for p in places])
    destination = KafkaDestination(hr.KafkaSink("127.0.0.1:1", "t"), "w", clock=lambda: producer.now)
    destination._producer = producer
    destination.publish(7, ROWS)
    assert producer.steps == ["begin", [("t", 8)], "commit"]


def test_rows_of_several_slices_have_their_own_keys(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.connectors.sinks.kafka_destination._BATCH_MESSAGES", 2)
    producer = SlowProducer(rate=10)
    sent: list[tuple[bytes, bytes]] = []
    producer.produce_batch = lambda _, messages: sent.extend((m["value"], m["key"]) for m in messages)
    publish_to(producer, ROWS, key="n")
    assert sent == [(b'{"n":1}', b"1"), (b'{"n":2}', b"2"), (b'{"n":3}', b"3")]


def test_options_that_librdkafka_refuses_are_named():
    with pytest.raises(DestinationUnavailableError, match=r'No such configuration property: "compresion\.type"'):
        KafkaDestination(hr.KafkaSink("127.0.0.1:1", "t", options={"compresion.type": "lz4"}), "w")


def test_a_key_is_the_text_of_one_column_or_an_object_of_several():
    rows = pa.table({"a": pa.array([1, None], pa.int64()), "s": ["x", None], "d": [date(2026, 1, 2), None], "b": [True, False]})
    assert encode_keys(rows, ["a"]) == [b"1", None]
    assert encode_keys(rows, ["s"]) == [b"x", None]
    assert encode_keys(rows, ["d"]) == [b"2026-01-02", None]
    assert encode_keys(rows, ["b"]) == [b"true", b"false"]
    assert encode_keys(rows, ["a", "s"]) == [b'{"a": 1, "s": "x"}', b'{"a": null, "s": null}']
    assert encode_keys(rows, []) == []


def test_a_dead_letter_is_the_message_that_was_read_with_its_place(monkeypatch: pytest.MonkeyPatch):
    destination = LetterDestination(LetterSink("127.0.0.1:1", "letters"), "w")
    producer = destination._producer = make_full_producer(1)
    time = datetime(2026, 1, 1, 0, 0, 1, 500, tzinfo=UTC)
    place = {"stream": "s", "topic": "t", "partition": 2, "offset": 5, "reason": "bad"}
    headers = [{"name": "h", "value": b"1"}]
    rows = [{**place, "value": b"v", "key": b"k", "timestamp": when, "headers": headers} for when in (time, None)]
    for row in rows:
        destination._send(row)
    expected = [("h", b"1"), *((f"headrace.error.{name}", str(value).encode()) for name, value in place.items())]
    stamps = [options.pop("timestamp") for _, _, options in producer.values]
    assert stamps == [1767225601000, 0], "0 is the time of sending"
    assert producer.values == [(b"v", b"k", {"headers": expected})] * 2


# --- iceberg ---------------------------------------------------------------------------------------------------------


class Answer(pydantic.BaseModel):
    """What a REST catalog should answer."""

    name: str


def make_transient_errors() -> Iterator[Exception]:
    """Yield what pyiceberg raises when a REST catalog, or a proxy before it, answers nonsense."""
    yield RESTError("502 from a proxy")
    for parse in (lambda: json.loads("<html>"), lambda: Answer.model_validate_json("{}"), b"\xff".decode):
        try:
            parse()
        except ValueError as error:
            yield error


@pytest.mark.parametrize("step", ["append", "commit"])
def test_a_catalog_that_answers_nonsense_is_tried_again(tmp_path: Path, monkeypatch, step: str):
    options = {"type": "sql", "uri": f"sqlite:///{tmp_path / 'catalog.db'}", "warehouse": f"file://{tmp_path / 'warehouse'}"}
    destination = hr.IcebergSink("a.t", options).connect("w")
    destination.read_mark()
    destination.publish(0, ROWS)
    owner, name = {"append": (Transaction, "append"), "commit": (Table, "_do_commit")}[step]
    for error in make_transient_errors():
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, Mock(side_effect=error))
            with pytest.raises(type(error)):
                destination.publish(1, ROWS)
    with pytest.raises(SinkError, match="refuses the rows"):
        destination.publish(1, pa.table({"other": ["x"]}))
    destination.publish(1, ROWS)
    destination.close()


def test_a_type_that_iceberg_does_not_have_is_refused(tmp_path: Path):
    options = {"type": "sql", "uri": f"sqlite:///{tmp_path / 'catalog.db'}", "warehouse": f"file://{tmp_path / 'warehouse'}"}
    destination = hr.IcebergSink("a.t", options).connect("w")
    destination.read_mark()
    with pytest.raises(SinkError, match="refuses the rows"):
        destination.publish(0, pa.table({"n": pa.array([1], pa.duration("s"))}))
    destination.close()


# --- postgres --------------------------------------------------------------------------------------------------------


def test_columns_of_a_new_table_have_the_types_of_postgres():
    kinds = [
        pa.int16(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.bool_(), pa.date32(),
        pa.decimal128(12, 2), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.list_(pa.int64()),
    ]  # fmt: skip
    assert [to_postgres_type(kind) for kind in kinds] == [
        "SMALLINT", "BIGINT", "REAL", "DOUBLE PRECISION", "TEXT", "BYTEA", "BOOLEAN", "DATE", "NUMERIC(12, 2)", "TIMESTAMP",
        "TIMESTAMPTZ", "JSONB",
    ]  # fmt: skip


def test_rows_are_csv_with_null_as_nothing():
    rows = pa.table({
        "s": ["a,b", "", None], "b": [b"\xff", b"", None], "l": [[1, None], [], None], "d": [Decimal("1.50"), None, None],
        "t": pa.array([datetime(2026, 1, 1, 12, tzinfo=UTC), None, None], pa.timestamp("us", "Europe/Berlin")),
    })  # fmt: skip
    assert encode_csv(rows).decode().splitlines() == [
        '"a,b","\\xff","[1, null]",1.50,2026-01-01 12:00:00.000000Z', '"","\\x","[]",,', ",,,,",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "action"), [(["k", "a", "b"], 'UPDATE SET "a" = EXCLUDED."a", "b" = EXCLUDED."b"'), (["k"], "NOTHING")]
)
def test_the_last_row_of_a_key_replaces_the_earlier_one(columns: list[str], action: str):
    connection = Mock()
    sink = hr.PostgresSink("postgresql://h/d", "s.t", key="k")
    destination = PostgresDestination(sink, "w-0")
    table = pa.table({name: [1] for name in columns})
    connection.cursor.return_value = Context(Mock(copy=Mock(return_value=Context(Mock()))))
    destination._copy_rows(connection, table)
    [(statement,)] = [call.args for call in connection.execute.call_args_list]
    names = ", ".join(f'"{name}"' for name in columns)
    assert statement.as_string(None) == (
        f'INSERT INTO "s"."t" ({names}) SELECT DISTINCT ON ("k") {names} FROM "headrace_w_0" '
        f'ORDER BY "k", "headrace_order" DESC ON CONFLICT ("k") DO {action}'
    )


class Context:
    """A context manager around a fake."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __enter__(self) -> Any:
        return self.inside

    def __exit__(self, *_: object) -> None:
        pass


# --- webhook ---------------------------------------------------------------------------------------------------------


def answer_with(monkeypatch: pytest.MonkeyPatch, *statuses: int) -> list[httpx.Request]:
    """Let HTTP clients reach a server that gives these answers, and then 204; return the requests."""
    requests: list[httpx.Request] = []
    left = iter(statuses)

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(next(left, 204), headers={"Location": "http://other/"}, text="x" * 300)

    client = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **options: client(transport=httpx.MockTransport(answer), **options))
    return requests


def test_a_webhook_posts_signed_parts_of_a_batch(monkeypatch: pytest.MonkeyPatch):
    requests = answer_with(monkeypatch)
    monkeypatch.setenv("HOOK_SECRET", "s3cret")
    monkeypatch.setattr("time.time", lambda: 1234.9)
    sink = hr.WebhookSink("http://h/hook", secret="env:HOOK_SECRET", headers={"Authorization": "env:HOOK_SECRET"}, max_rows=2)
    destination = WebhookDestination(sink, "w")
    assert destination.read_mark() is None
    destination.publish(7, ROWS)
    destination.publish(8, ROWS.slice(3))
    destination.close()
    assert [request.headers["Idempotency-Key"] for request in requests] == ["w-7-0", "w-7-1"]
    assert [json.loads(request.content) for request in requests] == [
        {"writer": "w", "batch": 7, "part": 0, "rows": [{"n": 1}, {"n": 2}]},
        {"writer": "w", "batch": 7, "part": 1, "rows": [{"n": 3}]},
    ]
    for request in requests:
        assert request.headers["X-Headrace-Timestamp"] == "1234"
        digest = hmac.new(b"s3cret", b"1234." + request.content, hashlib.sha256).hexdigest()
        assert request.headers["X-Headrace-Signature"] == f"sha256={digest}"
        assert request.headers["Authorization"] == "s3cret"


def test_a_webhook_without_a_secret_signs_nothing(monkeypatch: pytest.MonkeyPatch):
    requests = answer_with(monkeypatch)
    destination = WebhookDestination(hr.WebhookSink("http://h/hook"), "w")
    destination.read_mark()
    destination.publish(0, ROWS)
    assert ["X-Headrace-Signature" in request.headers for request in requests] == [False]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, SinkError),
        (413, SinkError),
        (422, SinkError),
        (429, ConnectionError),
        (503, ConnectionError),
        (307, ConnectionError),
    ],
)
def test_a_webhook_that_refuses_rows_is_final_and_any_other_answer_is_not(monkeypatch, status: int, error: type[Exception]):
    requests = answer_with(monkeypatch, status)
    destination = WebhookDestination(hr.WebhookSink("http://h/hook"), "w")
    with pytest.raises(error, match=f"status {status}") as caught:
        destination.publish(0, ROWS)
    assert len(requests) == 1, "a redirect leads nowhere"
    assert not isinstance(caught.value, SinkError) or caught.value.detail == "x" * 200
