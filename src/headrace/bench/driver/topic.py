"""A topic of Kafka as stored input: messages that are written once, and that every system reads from the first to the last.

The rows are those of the stream's pools, row i × partitions + p at offset i of partition p, as JSON objects; event time advances
with the row number. The measurement is outside of the systems: how far one has read is the offsets that it commits to the broker,
in a consumer group of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.bench.driver.generator import RowPool, build_pools
from headrace.bench.driver.streams import StreamSpec
from headrace.bench.driver.topic_producer import TopicProducer
from headrace.connectors.kafka.librdkafka import load_library
from headrace.connectors.message_formats import make_message_format
from headrace.connectors.messages import Messages
from headrace.errors import HeadraceError
from headrace.model.types import TIMESTAMP

try:
    from confluent_kafka import Consumer, KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic
except ImportError:  # an extra; `load_library` says so
    KafkaException = OSError

TIME_MEMBER = "at"  # event time in milliseconds since 1970: a number is what every engine parses fast
FORMAT_OPTIONS = {"timestamp_format": "epoch_ms", "field.time": TIME_MEMBER}
_FIRST_TIME_US = 1_767_225_600_000_000  # 2026-01-01T00:00Z
_CHUNK_ROWS = 250_000
_TIMEOUT_SECONDS = 30.0


def require_client() -> None:
    """Raise SourceError, which says what to install, if the client library of Kafka is missing."""
    load_library()


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """The stored input of a scenario: number of messages, and how many of them are a second of event time."""

    rows: int = 20_000_000
    rows_per_second: int = 100_000

    def __post_init__(self) -> None:
        """Reject numbers that are not positive."""
        if self.rows < 1 or self.rows_per_second < 1:
            raise HeadraceError(
                f"a topic has {self.rows} rows, {self.rows_per_second} a second of event time: both must be positive"
            )

    def rows_before(self, _stream: str, time_us: npt.NDArray[np.int64], /) -> npt.NDArray[np.int64]:
        """Return the number of messages with an event time before each of these times."""
        rows: npt.NDArray[np.int64] = (time_us - _FIRST_TIME_US) * self.rows_per_second // 1_000_000
        return np.clip(rows, 0, self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TopicAddress:
    """Where a system finds the messages of a stream, and the consumer group that it commits to."""

    brokers: str
    topic: str
    group: str

    def to_json(self) -> dict[str, str]:
        """Return the JSON form, which are the arguments of the class."""
        return asdict(self)


def write_topic(brokers: str, topic: str, spec: TopicSpec, stream: StreamSpec, report: Callable[[str], None]) -> float:
    """Create a topic and write its messages; return their mean size in bytes. Raise HeadraceError if the brokers lack some."""
    admin = AdminClient({"bootstrap.servers": brokers})
    created = NewTopic(topic, stream.partitions, 1, config={"retention.ms": "-1"})
    try:
        admin.create_topics([created])[topic].result(_TIMEOUT_SECONDS)
    except KafkaException as error:
        raise HeadraceError(f"topic '{topic}' cannot be created at '{brokers}'", detail=str(error.args[0])) from error
    size = 0
    with TopicProducer(topic, {"bootstrap.servers": brokers}) as producer:
        for partition, pool in enumerate(build_pools(stream)):
            for last, messages in _encode_rows(spec, stream, partition, pool):
                producer.send(partition, messages.offsets, messages.data)
                size += int(messages.offsets[-1])
                report(f"writing topic: partition {partition}, {last:,} messages")
    written = sum(offset for offset in read_ends(brokers, topic, stream.partitions))
    if written != count_rows(spec, stream):
        raise HeadraceError(f"the brokers have {written:,} of {count_rows(spec, stream):,} messages of topic '{topic}'")
    return size / written


def delete_topic(brokers: str, topic: str) -> None:
    """Delete a topic."""
    AdminClient({"bootstrap.servers": brokers}).delete_topics([topic])[topic].result(_TIMEOUT_SECONDS)


def count_rows(spec: TopicSpec, stream: StreamSpec) -> int:
    """Return the number of messages: equally many in each partition."""
    return spec.rows // stream.partitions * stream.partitions


def _encode_rows(spec: TopicSpec, stream: StreamSpec, partition: int, pool: RowPool) -> Iterator[tuple[int, Messages]]:
    """Yield the messages of a partition in chunks, each with the number of messages up to its end."""
    encoder = make_message_format("json", stream.schema, FORMAT_OPTIONS)
    for first, last in pool.split_range(0, spec.rows // stream.partitions, _CHUNK_ROWS):
        numbers = np.arange(first, last, dtype=np.int64) * stream.partitions + partition
        milliseconds = numbers * 1_000 // spec.rows_per_second
        times = pa.array(_FIRST_TIME_US + milliseconds * 1_000).view(TIMESTAMP)
        columns = [times if name == stream.time_column else pool.slice_column(name, first, last) for name in stream.schema.names]
        yield last, encoder.encode(pa.table(columns, stream.schema.to_arrow()))


def read_ends(brokers: str, topic: str, partitions: int) -> list[int]:
    """Return the offset after the last message of each partition."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "headrace-bench"})
    try:
        return [consumer.get_watermark_offsets(TopicPartition(topic, p), _TIMEOUT_SECONDS)[1] for p in range(partitions)]
    finally:
        consumer.close()


class CommittedOffsets:
    """What a consumer group has committed of a topic, as the broker knows it."""

    def __init__(self, address: TopicAddress, partitions: int) -> None:
        """Connect, without joining the group."""
        settings = {"bootstrap.servers": address.brokers, "group.id": address.group, "enable.auto.commit": False}
        self._consumer = Consumer(settings)
        self._places = [TopicPartition(address.topic, partition) for partition in range(partitions)]

    def count(self) -> int:
        """Return the number of messages that are committed, over all partitions."""
        try:
            return sum(max(0, place.offset) for place in self._consumer.committed(self._places, _TIMEOUT_SECONDS))
        except KafkaException as error:
            raise HeadraceError("the brokers do not say which offsets are committed", detail=str(error.args[0])) from error

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()
