"""Requests of the driver to Kafka: which partitions a topic has, which offsets they reach, and commits for monitoring tools."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace.errors import SourceError

try:
    from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicCollection, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec
except ImportError:  # an extra; `load_library` says so
    KafkaException = OSError

_TIMEOUT_SECONDS = 3.0
_DESCRIBE_SECONDS = 1.0  # how old the list of partitions may be
_ADMIN_DEFAULTS = {"log_level": "0", "reconnect.backoff.max.ms": "1000", "socket.connection.setup.timeout.ms": "3000"}
_UNKNOWN_TOPIC = 3
_NO_LEADERS = -156  # what librdkafka knows about a topic, which may have been created a moment ago


def make_unreachable_error(topic: str, reason: str) -> SourceError:
    """Return the error for brokers that do not answer."""
    return SourceError(
        f"the brokers of Kafka topic '{topic}' cannot be reached",
        detail=reason,
        hint="start them again, or wait for them; the stream goes on where it stopped",
    )


class TopicControl:
    """The requests of one source, for one thread.

    | request | arguments | response |
    |---|---|---|
    | status | | topic_id, oldest, newest: the first offset and the one after the last, by partition |
    | offsets_at | milliseconds | offsets: the first one of each partition with that timestamp or a later one |
    | commit | group, offsets | – |
    """

    def __init__(self, topic: str, options: Mapping[str, str]) -> None:
        """Create a client with resolved options, which include the brokers; it connects on the first request."""
        self._topic, self._options = topic, {**_ADMIN_DEFAULTS, **options}
        self._isolation = IsolationLevel.READ_COMMITTED
        if options.get("isolation.level") == "read_uncommitted":
            self._isolation = IsolationLevel.READ_UNCOMMITTED
        try:
            self._admin = AdminClient(self._options)
        except KafkaException as error:
            raise SourceError(f"the client of Kafka topic '{topic}' cannot be created", detail=_explain(error)) from error
        self._described_at, self._topic_id, self._partitions = 0.0, "", list[int]()
        self._committer: Any = None

    def send_request(self, request: str, **arguments: Any) -> dict[str, Any]:
        """Answer a request; raises SourceError."""
        requests: dict[str, Callable[..., dict[str, Any]]] = {
            "status": self._get_status,
            "offsets_at": self._find_offsets_at,
            "commit": self._commit,
        }
        try:
            try:
                return requests[request](**arguments)
            except KafkaException as error:
                if error.args[0].code() != _NO_LEADERS:
                    raise
                self._admin.list_topics(self._topic, timeout=_TIMEOUT_SECONDS)  # librdkafka itself asks only after minutes
                return requests[request](**arguments)
        except KafkaException as error:
            self._described_at = 0.0
            if error.args[0].code() == _UNKNOWN_TOPIC:
                hint = "create the topic, or drop the stream"
                raise SourceError(f"Kafka topic '{self._topic}' does not exist", hint=hint) from error
            raise make_unreachable_error(self._topic, _explain(error)) from error

    def close(self) -> None:
        """Close the consumer that commits; the other clients close with the object."""
        if self._committer is not None:
            self._committer.close()

    def _get_status(self) -> dict[str, Any]:
        self._describe_topic()
        waiting = self._list_offsets(OffsetSpec.earliest()), self._list_offsets(OffsetSpec.latest())
        oldest, newest = (get_answer() for get_answer in waiting)
        for partition in oldest:
            if min(oldest[partition], newest[partition]) < 0:  # while a broker starts
                raise make_unreachable_error(self._topic, f"no broker knows the offsets of partition {partition}")
        return {"topic_id": self._topic_id, "oldest": oldest, "newest": newest}

    def _find_offsets_at(self, milliseconds: int) -> dict[str, Any]:
        self._describe_topic()
        newest = self._list_offsets(OffsetSpec.latest())
        found = self._list_offsets(OffsetSpec.for_timestamp(milliseconds))()
        return {"offsets": {partition: end if found[partition] < 0 else found[partition] for partition, end in newest().items()}}

    def _describe_topic(self) -> None:
        if time.monotonic() - self._described_at < _DESCRIBE_SECONDS:
            return
        topics = TopicCollection([self._topic])
        answer = self._admin.describe_topics(topics, request_timeout=_TIMEOUT_SECONDS)[self._topic].result(2 * _TIMEOUT_SECONDS)
        self._topic_id, self._partitions = str(answer.topic_id), sorted(partition.id for partition in answer.partitions)
        self._described_at = time.monotonic()

    def _list_offsets(self, spec: Any) -> Callable[[], dict[int, int]]:
        """Request an offset of each partition; return the function that waits for the answer."""
        wanted = {TopicPartition(self._topic, partition): spec for partition in self._partitions}
        answers = self._admin.list_offsets(wanted, isolation_level=self._isolation, request_timeout=_TIMEOUT_SECONDS)
        return lambda: {place.partition: answer.result(2 * _TIMEOUT_SECONDS).offset for place, answer in answers.items()}

    def _commit(self, group: str, offsets: Mapping[int, int]) -> dict[str, Any]:
        if self._committer is None:
            self._committer = Consumer({**self._options, "group.id": group, "enable.auto.commit": "false"})
        places = [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
        self._committer.commit(offsets=places, asynchronous=False)
        return {}


def _explain(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    return str(getattr(reason, "str", lambda: reason)())
