"""A topic of the broker of this process, for the tests of the Kafka source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.bench.driver.kafka_broker import KafkaBroker
from headrace.connectors.kafka.consumer_pool import get_pool
from support.kafka_feed import Feed


@pytest.fixture
def feed(kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator[Feed]:
    yield Feed(kafka_broker, tmp_path)
    get_pool().close_idle()
