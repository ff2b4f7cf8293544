"""A stream of Kafka is its topic and its columns: everything else may change at a restart."""

from __future__ import annotations

import json

import pytest

from headrace.errors import CheckpointError
from support.kafka_feed import COLUMNS, Feed, read_all
from support.schema_registry import RegistryServer, run_registry

RECORD = {"type": "record", "name": "R", "fields": [{"name": "v", "type": "long"}]}
_AVRO_COLUMNS = "v BIGINT, _timestamp TIMESTAMP"


def send(feed: Feed, registry: RegistryServer, number: int, schema: dict) -> None:
    schema_id = registry.add("r", json.dumps(schema))
    feed.put(b"\0" + schema_id.to_bytes(4, "big") + bytes([2 * number]), timestamp=1_767_225_600_000)
    feed.producer.flush()


@pytest.mark.kafka
def test_a_registry_may_move(feed: Feed):
    options = {"format": "avro", "time": "_timestamp"}
    with run_registry() as registry:
        send(feed, registry, 1, RECORD)
        with feed.open(_AVRO_COLUMNS, **options, format_options={"registry": registry.url}) as session:
            query = session.add("SELECT v FROM s", name="q")
            assert read_all(session, query) == [1]
    with run_registry() as registry:
        send(feed, registry, 2, RECORD)
        with feed.open(_AVRO_COLUMNS, **options, format_options={"registry": registry.url}) as session:
            assert read_all(session, session.query("q")) == [1, 2]


@pytest.mark.kafka
def test_start_and_policies_may_change_and_columns_may_not(feed: Feed):
    feed.send(2)
    with feed.open() as session:
        read_all(session, session.add("SELECT v FROM s", name="q"))
    feed.send(2)
    feed.put("{broken")
    feed.producer.flush()
    changed = {"start": "latest", "on_error": "skip_row", "max_rows_per_batch": 10, "format_options": {"field.k": "key"}}
    with feed.open(**changed) as session:
        assert read_all(session, session.query("q")) == [0, 1, 2, 3]
    with pytest.raises(CheckpointError, match="stream 's' was declared differently"):
        feed.open(f"{COLUMNS}, more STRING")
    feed.topic = "another"
    feed.broker.create_topic(feed.topic, 1)
    with pytest.raises(CheckpointError, match="stream 's' was declared differently"):
        feed.open()
