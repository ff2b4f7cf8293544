"""The connection to a topic of dead letters: messages as they were read, with the mark of the newest batch that was sent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa

from headrace.connectors.letter_topic import LetterSink
from headrace.connectors.sinks.kafka_destination import KafkaDestination

_PREFIX = "headrace.error."
_MAX_MESSAGE_BYTES = "1000000000"  # what librdkafka allows: the brokers decide


class LetterDestination(KafkaDestination):
    """See `Destination`; the rows have the columns of `REJECTED_SCHEMA`, and the stream."""

    def __init__(self, sink: LetterSink, writer: str) -> None:
        """See `KafkaDestination`."""
        limits = {"message.max.bytes": _MAX_MESSAGE_BYTES, **sink.options}
        super().__init__(LetterSink(brokers=sink.brokers, topic=sink.topic, options=limits), writer)

    def check_columns(self, schema: pa.Schema) -> None:
        """See `Destination`; the columns are always the same."""

    def _produce(self, rows: pa.Table) -> None:
        for batch in rows.to_batches(max_chunksize=1000):
            for row in batch.to_pylist():
                self._send(row)

    def _send(self, row: Mapping[str, Any]) -> None:
        places = {name: str(row[name]) for name in ("stream", "topic", "partition", "offset", "reason")}
        headers = [(header["name"], header["value"]) for header in row["headers"]]
        headers += [(f"{_PREFIX}{name}", text.encode()) for name, text in places.items()]
        timestamp = 0 if row["timestamp"] is None else _to_milliseconds(row["timestamp"])  # 0: the time of sending
        is_queued = False
        while not is_queued:
            try:
                self._producer.produce(self._sink.topic, row["value"], row["key"], timestamp=timestamp, headers=headers)
                is_queued = True
            except BufferError:
                self._producer.poll(0.05)


def _to_milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)
