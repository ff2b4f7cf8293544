"""A topic of a real broker for tests of the Kafka source, and a session over it."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

import headrace as hr
from headrace.bench.driver.kafka_broker import KafkaBroker

START = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = "k INT, v BIGINT, time TIMESTAMP"
_numbers = count()


class Feed:
    """A topic of a broker, and a session over it."""

    def __init__(self, broker: KafkaBroker, folder: Path, *, partitions: int = 2, **config: str) -> None:
        self.broker, self.folder = broker, folder
        self.topic, self.partitions = f"topic-{next(_numbers)}", partitions
        broker.create_topic(self.topic, partitions, **{"retention_ms": "-1", **config})  # timestamps are old
        self.producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
        self.sent = 0

    def send(self, rows: int, **options: Any) -> None:
        """Send rows v = 0, 1, …, in turn to the partitions."""
        for v in range(self.sent, self.sent + rows):
            row = {"k": v % 3, "v": v, "time": (START + timedelta(seconds=v)).isoformat()}
            self.put(json.dumps(row), **{"partition": v % self.partitions, **options})
        self.sent += rows
        self.producer.flush()

    def put(self, text: str | bytes | None, **options: Any) -> None:
        self.producer.produce(self.topic, text, **{"partition": 0, **options})

    def make_source(self, columns: str = COLUMNS, **options: Any) -> hr.KafkaSource:
        return hr.KafkaSource(self.topic, **{"brokers": self.broker.address, "schema": columns, **options})

    def open(self, columns: str = COLUMNS, time: str = "time", **options: Any) -> hr.Session:
        session = hr.Session(self.folder / "state", backend="local")
        try:
            session.create_stream("s", self.make_source(columns, **options), time=time)
        except BaseException:
            session.close()
            raise
        return session


def finish_letters(session: hr.Session) -> None:
    """Let dead letters be sent, however slow the broker is."""
    deadline = time.monotonic() + 30
    while session._coordinator.state.unpublished and time.monotonic() < deadline:
        session.advance()
        time.sleep(0.02)


def read_all(session: hr.Session, query: hr.Query, key: str = "v") -> list[Any]:
    while session.advance().rows:
        pass
    return sorted(query.results()[key].to_pylist())


def read_topic(broker: KafkaBroker, topic: str, partitions: int = 1) -> list[Any]:
    """Return the committed messages of a topic, by partition and offset."""
    ends = {"enable.auto.commit": False, "auto.offset.reset": "earliest", "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "checker", **ends})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    messages: list[Any] = []
    deadline, left = time.monotonic() + 30, partitions
    while left and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            messages.append(message)
        elif message is not None:
            left -= 1
    consumer.close()
    assert not left
    return sorted(messages, key=lambda message: (message.partition(), message.offset()))
