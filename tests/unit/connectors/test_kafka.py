"""The Kafka source against a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

import headrace as hr
from headrace.bench.driver.kafka_broker import run_kafka_broker
from headrace.connectors.kafka import reader
from headrace.connectors.kafka.consumer_pool import get_pool
from headrace.connectors.kafka.control import TopicControl
from headrace.connectors.kafka.source import share_rows
from headrace.errors import SchemaError, SourceError
from support.kafka_feed import COLUMNS, START, Feed, read_all

ROOT = Path(__file__).resolve().parents[3]


def get_error(session: hr.Session) -> str:
    session.advance()
    return str(session.streams()["s"]["error"])


def test_equal_shares_of_a_batch():
    assert share_rows({0: 10, 1: 1000, 2: 1000}, 300) == {0: 10, 1: 145, 2: 145}
    assert share_rows({0: 10, 1: 20}, 300) == {0: 10, 1: 20}
    assert share_rows({0: 5, 1: 5, 2: 0}, 1) == {0: 1, 1: 1, 2: 0}


@pytest.mark.kafka
def test_rows_come_once_over_batches_and_restarts(feed: Feed):
    feed.send(1000)
    with feed.open(max_rows_per_batch=300) as session:
        query = session.add("SELECT v FROM s", name="q")
        assert session.advance().rows == 300
    feed.send(200)
    with feed.open(max_rows_per_batch=300) as session:
        assert read_all(session, session.query("q")) == list(range(1200))
        assert session.streams()["s"]["rows"] == 1200
    assert query.name == "q"


@pytest.mark.kafka
def test_metadata_are_columns(feed: Feed):
    feed.put('{"time": "2026-01-01T00:00:00Z"}', key="a", timestamp=1_767_225_600_123, headers=[("h", b"1"), ("n", None)])
    feed.put('{"time": "2026-01-01T00:00:00Z"}', partition=1)
    feed.producer.flush()
    columns = "time TIMESTAMP, _key STRING, _partition INT, at BIGINT, _timestamp TIMESTAMP, _headers STRING"
    with feed.open(columns, offset="at") as session:
        query = session.add("SELECT _key, _partition, at, _timestamp, _headers FROM s")
        session.advance()
        first, second = sorted(query.results().to_pylist(), key=lambda row: row["_partition"])
    stamp = datetime(2026, 1, 1, 0, 0, 0, 123_000, UTC)
    assert first == {"_key": "a", "_partition": 0, "at": 0, "_timestamp": stamp, "_headers": '{"h": "1", "n": null}'}
    assert (second["_key"], second["_partition"], second["_headers"]) == (None, 1, None)


@pytest.mark.kafka
def test_the_timestamp_of_messages_may_be_the_event_time(feed: Feed):
    for second in (1, 5, 25):
        feed.put('{"v": 1}', timestamp=1_767_225_600_000 + second * 1000)
    feed.producer.flush()
    with hr.Session(feed.folder, backend="local") as session:
        session.create_stream("s", feed.make_source("v INT, _timestamp TIMESTAMP"), time="_timestamp", watermark_by="stream")
        query = session.add("SELECT COUNT(*) AS n FROM TUMBLE(s, '10 seconds')")
        session.advance()
        assert query.results()["n"].to_pylist() == [2]


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("start", "expected"),
    [("earliest", 0), ("latest", 10), ("2026-01-01T00:00:04Z", 4), ({0: 3, 1: 4}, 6)],
)
def test_start(feed: Feed, start: Any, expected: int):
    for v in range(10):
        row = json.dumps({"v": v, "time": "2026-01-01T00:00:00Z"})
        feed.put(row, partition=v % 2, timestamp=1_767_225_600_000 + v * 1000)
    feed.producer.flush()
    with feed.open(start=start) as session:
        query = session.add("SELECT v FROM s")
        feed.sent = 10
        feed.send(2)
        values = read_all(session, query)
    wanted = [v for v in range(12) if v >= 10 or v // 2 >= start[v % 2]] if isinstance(start, Mapping) else range(expected, 12)
    assert values == list(wanted)


@pytest.mark.kafka
def test_transactions_leave_holes(feed: Feed):
    settings = {"bootstrap.servers": feed.broker.address, "transactional.id": feed.topic, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(30)
    number = count()
    for commits in (True, False, True, False):
        producer.begin_transaction()
        for _ in range(50):
            row = {"v": next(number), "time": "2026-01-01T00:00:00Z"}
            producer.produce(feed.topic, json.dumps(row), partition=0)
        producer.flush()
        producer.commit_transaction(30) if commits else producer.abort_transaction(30)
    with feed.open(max_rows_per_batch=7) as session:
        query = session.add("SELECT v FROM s")
        while session.has_work():
            session.advance()
        assert sorted(query.results()["v"].to_pylist()) == [*range(50), *range(100, 150)]
        assert session.get_source("s").count_lag(session._coordinator.state.streams["s"].position) == 0


@pytest.mark.kafka
def test_bad_messages_are_counted_and_written(feed: Feed):
    feed.send(10)
    feed.put("{broken")
    feed.put(None)
    feed.send(4)
    letters = feed.folder / "letters"
    with feed.open() as session:
        assert "message 5 of partition 0" in get_error(session)
    with feed.open(on_error="skip_row", dead_letter=f"jsonl:{letters}") as session:
        query = session.add("SELECT v FROM s")
        read_all(session, query)
        report = session.streams()["s"]
    assert sorted(query.results()["v"].to_pylist()) == list(range(14))
    assert report["skipped_rows"] == len(report["skipped_samples"]) == 1
    assert report["untimed"] == 1  # a message without a value is a row of NULLs
    assert report["skipped_samples"][0]["file"] == f"{feed.topic}/0"
    assert report["skipped_samples"][0]["line"] == 5
    assert "{broken" in "".join(path.read_text() for path in letters.glob("*.jsonl"))


@pytest.mark.kafka
def test_new_partitions_are_found(feed: Feed, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.connectors.kafka.control._DESCRIBE_SECONDS", 0.0)
    feed.send(4)
    with feed.open() as session:
        query = session.add("SELECT v FROM s")
        session.advance()
        feed.broker.add_partitions(feed.topic, 3)
        feed.partitions, feed.producer = 3, Producer({"bootstrap.servers": feed.broker.address})
        feed.send(6)
        assert read_all(session, query) == list(range(10))
        assert set(session._coordinator.state.streams["s"].partition_times) == {0, 1, 2}


@pytest.mark.kafka
def test_deleted_messages_are_an_error_or_counted(feed: Feed):
    feed.send(20)
    feed.broker.delete_records(feed.topic, {0: 4, 1: 0})
    options = {"start": "earliest"}
    with feed.open(**options) as session:
        session.advance()
        feed.send(20)
        feed.broker.delete_records(feed.topic, {0: 15})
        error = get_error(session)
    assert f"5 messages of partition 0 of Kafka topic '{feed.topic}' were deleted before they were read" in error
    assert "offsets 10 to 14" in error
    with feed.open(**options, on_lost="skip") as session:
        query = session.add("SELECT v FROM s")
        assert read_all(session, query) == sorted([*range(21, 40, 2), *range(30, 40, 2)])
        assert (session.streams()["s"]["lost"], session.streams()["s"]["skipped"]) == ({0: 5}, {})
    with feed.open(**options, on_lost="skip") as session:  # the count survives
        assert session.streams()["s"]["lost"] == {0: 5}


@pytest.mark.kafka
def test_a_topic_that_is_created_again_is_an_error_of_its_stream_alone(feed: Feed, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.connectors.kafka.control._DESCRIBE_SECONDS", 0.0)
    feed.send(4)
    with feed.open() as session:
        other = hr.MemorySource("v INT, time TIMESTAMP")
        session.create_stream("m", other, time="time")
        query = session.add("SELECT v FROM m")
        session.advance()
        feed.broker.delete_topic(feed.topic)
        other.append([{"v": 1, "time": START}])
        assert f"Kafka topic '{feed.topic}' does not exist" in get_error(session)
        assert query.results().num_rows == 1
        feed.broker.create_topic(feed.topic, 2)
        feed.send(4)
        session._coordinator.sources.health.retry_now()
        assert f"Kafka topic '{feed.topic}' was deleted and created again" in get_error(session)


@pytest.mark.kafka
def test_a_broker_that_is_down_stops_its_stream_alone(tmp_path: Path):
    with run_kafka_broker(tmp_path / "broker") as broker:
        feed = Feed(broker, tmp_path)
        feed.send(100)
        with feed.open() as session:
            memory = hr.MemorySource("v INT, time TIMESTAMP")
            session.create_stream("m", memory, time="time")
            query, other = session.add("SELECT v FROM s"), session.add("SELECT v FROM m")
            session.advance()
            feed.send(50)
            broker.kill()
            for v in range(3):
                memory.append([{"v": v, "time": START}])
                session.advance()
            assert other.results().num_rows == 3
            while session.streams()["s"]["status"] == "ok":
                session.advance()
            broker.start()
            deadline = time.monotonic() + 30
            while query.results().num_rows < 150 and time.monotonic() < deadline:
                session._coordinator.sources.health.retry_now()
                session.advance()
            assert sorted(query.results()["v"].to_pylist()) == list(range(150))
        get_pool().close_idle()


@pytest.mark.kafka
def test_lag_and_offsets_for_monitoring(feed: Feed):
    feed.send(30)
    with feed.open(group=f"g-{feed.topic}", max_rows_per_batch=20) as session:
        source = session.get_source("s")
        session.advance()
        session.advance()
        position = session._coordinator.state.streams["s"].position
        assert source.count_partition_lag(position) == {0: 0, 1: 0}
        feed.send(10)
        session.has_work()
        assert source.count_lag(position) == 10
        consumer = Consumer({"bootstrap.servers": feed.broker.address, "group.id": f"g-{feed.topic}"})
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            session.has_work()
            committed = consumer.committed([TopicPartition(feed.topic, p) for p in range(2)], 10)
            if [place.offset for place in committed] == [15, 15]:
                break
        else:
            pytest.fail(f"committed: {committed}")
        consumer.close()


@pytest.mark.kafka
def test_a_batch_has_about_as_many_bytes_as_allowed(feed: Feed):
    def send(rows: int, size: int) -> None:
        for number in range(rows):
            row = json.dumps({"v": 1, "time": "2026-01-01T00:00:00Z", "text": ""})
            feed.put(row.replace('""', f'"{"x" * (size - len(row))}"'), partition=number % 2)
        feed.producer.flush()

    send(400, 1000)
    with feed.open(max_bytes_per_batch=100_000) as session:
        session.add("SELECT v FROM s")
        assert [session.advance().rows for _ in range(3)] == [2, 100, 100]  # at first as if a message had 1 MiB
        send(300, 100)
        sizes = [session.advance().rows for _ in range(4)]
    assert sizes[:3] == [100, 100, 100]
    assert 150 < sizes[3] < 198  # a smaller mean counts by half: (1000 + 100) / 2 → 181
    with feed.open(max_bytes_per_batch=100_000) as session:  # what a message has is not stored
        send(10, 100)
        assert session.advance().rows == 2


@pytest.mark.kafka
def test_ranges_of_one_partition_are_read_in_any_order(feed: Feed):
    feed.send(100, partition=0)
    source = feed.make_source()
    with feed.open():
        pass
    from dataclasses import replace

    from headrace.storage.posix import PosixStore

    source.attach("s", PosixStore(feed.folder / "x"))
    whole = source.plan(None, 1000)[0][0]
    for start, stop in ((50, 60), (0, 10), (10, 20), (95, 100), (20, 20), (0, 100)):
        content = reader.read_messages(replace(whole, start=start, stop=stop), source.schema, ["v"])
        assert content.rows["v"].to_pylist() == list(range(start, stop))
        assert (content.rejected.num_rows, content.messages) == (0, stop - start)
        assert 40 * content.messages <= content.bytes <= 80 * content.messages
    source.close()


def test_arguments_are_checked():
    def make(**options: Any) -> hr.KafkaSource:
        return hr.KafkaSource("t", brokers="127.0.0.1:1", **{"schema": COLUMNS, **options})

    with pytest.raises(SchemaError, match="invalid start 'sometime'"):
        make(start="sometime")
    with pytest.raises(SchemaError, match="'_key' has the key of messages, which is STRING, not INT"):
        make(schema="_key INT, time TIMESTAMP")
    with pytest.raises(SchemaError, match="unknown on_lost 'x'"):
        make(on_lost="x")
    with pytest.raises(SchemaError, match="max_bytes_per_batch is 0, but must be positive"):
        make(max_bytes_per_batch=0)
    with pytest.raises(SchemaError, match="stall_timeout is '1 millisecond', which is less than a second"):
        make(stall_timeout="1 millisecond")
    with pytest.raises(SourceError, match=r"option 'sasl.password' is a secret") as caught:
        make(options={"sasl.password": "hunter2"})
    assert "hunter2" not in str(caught.value)
    with pytest.raises(SourceError, match=r"option 'group.id' of a Kafka client cannot be set"):
        make(options={"group.id": "g"})


def test_a_secret_is_resolved_where_a_client_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from headrace.connectors.kafka.client_options import resolve_options

    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    source = hr.KafkaSource("t", brokers="127.0.0.1:1", schema=COLUMNS, options={"sasl.password": "env:KAFKA_PASSWORD"})
    assert "hunter2" not in json.dumps([source.definition(), source._range_options])
    assert resolve_options({"sasl.password": "env:KAFKA_PASSWORD", "a": True}) == {"sasl.password": "hunter2", "a": "true"}
    with pytest.raises(SourceError, match=r"environment variable 'NOT_SET' with the option 'sasl.password' cannot be read"):
        resolve_options({"sasl.password": "env:NOT_SET"})


def test_brokers_that_do_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.connectors.kafka.control._TIMEOUT_SECONDS", 0.2)
    session = hr.Session(tmp_path, backend="local")
    with pytest.raises(SourceError, match="the brokers of Kafka topic 't' cannot be reached"):
        session.create_stream("s", hr.KafkaSource("t", brokers="127.0.0.1:1", schema=COLUMNS), time="time")
    session.close()


def test_a_partition_without_known_offsets_is_unreachable_and_no_new_topic(monkeypatch: pytest.MonkeyPatch):
    """A broker that starts answers -1001 for partitions whose leader it does not know yet."""
    control = TopicControl("t", {"bootstrap.servers": "127.0.0.1:1"})
    answers = iter([{0: 0, 1: 0}, {0: 7, 1: -1001}])
    monkeypatch.setattr(control, "_describe_topic", lambda: None)
    monkeypatch.setattr(control, "_list_offsets", lambda _spec: partial(next, answers))
    with pytest.raises(SourceError, match="cannot be reached") as caught:
        control.send_request("status")
    assert caught.value.detail == "no broker knows the offsets of partition 1"


@pytest.mark.kafka
def test_a_topic_that_had_no_leaders_when_it_was_asked_for(feed: Feed):
    """librdkafka remembers that a topic which was just created had no leaders, until its metadata is requested again."""
    feed.send(3)
    control = TopicControl(feed.topic, {"bootstrap.servers": feed.broker.address})
    control._admin = admin = ForgetfulAdmin(control._admin)
    assert control.send_request("status")["newest"] == {0: 2, 1: 1}
    assert admin.refreshed == [feed.topic]


class ForgetfulAdmin:
    """An admin client that knows no leaders before its metadata is refreshed."""

    def __init__(self, admin: Any) -> None:
        self._admin, self.refreshed = admin, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._admin, name)

    def list_offsets(self, wanted: Mapping[TopicPartition, Any], **options: Any) -> dict[TopicPartition, Future[Any]]:
        if self.refreshed:
            return self._admin.list_offsets(wanted, **options)
        answers = {place: Future[Any]() for place in wanted}
        for answer in answers.values():
            answer.set_exception(KafkaException(KafkaError(KafkaError._NOENT)))
        return answers

    def list_topics(self, topic: str, timeout: float) -> Any:
        self.refreshed.append(topic)
        return self._admin.list_topics(topic, timeout=timeout)
