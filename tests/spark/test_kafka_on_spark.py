"""Kafka read by the worker processes of Spark: each message once, whichever worker gets its partition next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import headrace as hr
from headrace.bench.driver.kafka_broker import KafkaBroker

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def test_workers_read_their_partitions(spark: Any, kafka_broker: KafkaBroker, tmp_path: Path):
    kafka_broker.create_topic("on-spark", 3, retention_ms="-1")
    producer = Producer({"bootstrap.servers": kafka_broker.address})
    source = hr.KafkaSource("on-spark", brokers=kafka_broker.address, schema="v INT, time TIMESTAMP", max_rows_per_batch=100)
    with hr.Session(tmp_path, spark=spark) as session:
        session.create_stream("s", source, time="time")
        counts = session.add("SELECT COUNT(*) AS n, SUM(v) AS total FROM TUMBLE(s, '1 minute')")
        for first in (0, 300):
            for v in range(first, first + 300):
                row = {"v": v, "time": f"2026-01-01T00:00:{v % 60:02d}Z"}
                producer.produce("on-spark", json.dumps(row), partition=v % 3)
            producer.flush()
            while session.advance().rows:
                pass
        session.drain()
        assert counts.results().select(["n", "total"]).to_pylist() == [{"n": 600, "total": 599 * 300}]
