"""The connection of a Kafka sink: a transactional producer, and the mark of its writer among the committed offsets.

The mark of batch b is the offset b + 1 of a consumer group that has the name of the writer and no members. The producer commits
it in the transaction of the rows. `init_transactions` stops every earlier producer of the writer, and ends its open transaction:
what is read afterwards, as read_committed, is final.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from headrace.connectors.message_formats import make_message_format
from headrace.connectors.messages import MessageFormat, Messages
from headrace.connectors.row_text import encode_json_lines, to_json_value
from headrace.connectors.secrets import resolve_reference
from headrace.connectors.sinks.kafka import KafkaSink
from headrace.errors import DestinationUnavailableError, SchemaError, SinkError
from headrace.model.types import Schema

_LOG = logging.getLogger("headrace.kafka")
_REQUEST_SECONDS: Final = 10.0
_CALL_SECONDS: Final = 2 * _REQUEST_SECONDS
_BATCH_MESSAGES = 10_000
_TRANSACTION_OPTION: Final = "transaction.timeout.ms"
_TRANSACTION_MILLISECONDS: Final = "60000"
_FLUSH_SECONDS: Final = 1.0
_STALL_SECONDS: Final = 30.0  # without a message that the brokers take
_CRITICAL: Final = 2  # the log level: what is wrong with the destination is in the status of the sink
_REFUSALS = frozenset({
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._INVALID_ARG, KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG,  # noqa: SLF001
    KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.TOPIC_EXCEPTION,
})  # fmt: skip


class KafkaDestination:
    """See `Destination`."""

    def __init__(self, sink: KafkaSink, writer: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Check the options; nothing is sent yet. Raises SinkError for an option that librdkafka refuses."""
        self._sink, self._name, self._clock = sink, f"headrace-{writer}", clock
        common = {name: resolve_reference(name, value, DestinationUnavailableError) for name, value in sink.options.items()}
        self._common = {"log_level": _CRITICAL, "bootstrap.servers": sink.brokers, **common}
        config = {"partitioner": sink.partitioner, "transactional.id": self._name, **self._common}
        try:
            self._producer: Any = Producer(config, logger=_LOG)
        except (KafkaException, TypeError, ValueError) as error:
            raise DestinationUnavailableError(  # after a restart, as a file of certificates may be missing
                "librdkafka refuses the options of the kafka sink", detail=_describe(error)
            ) from error
        self._group: Any = None
        self._begun_at = 0.0
        self._format: MessageFormat | None = None

    def check_columns(self, schema: pa.Schema) -> None:
        """See `Destination`."""
        self._make_format(schema)

    def _make_format(self, schema: pa.Schema) -> MessageFormat:
        try:
            return make_message_format(self._sink.format, Schema.from_arrow(schema), self._sink.format_options)
        except SchemaError as error:
            raise SinkError(f"the kafka sink: {error.message}", detail=error.detail, hint=error.hint) from error

    def read_mark(self) -> int | None:
        """See `Destination`."""
        self._call("init_transactions")
        options = {name: value for name, value in self._common.items() if name not in _PRODUCER_OPTIONS}
        consumer = Consumer({**options, "group.id": self._name, "enable.auto.commit": False}, logger=_LOG)
        try:
            committed = consumer.committed([self._mark_partition()], timeout=_REQUEST_SECONDS)[0]
            self._group = consumer.consumer_group_metadata()
        finally:
            consumer.close()
        if committed.error is not None:
            raise KafkaException(committed.error)
        return committed.offset - 1 if committed.offset > 0 else None

    def _mark_partition(self, offset: int | None = None) -> TopicPartition:
        return TopicPartition(self._sink.topic, 0) if offset is None else TopicPartition(self._sink.topic, 0, offset)

    def publish(self, batch: int, rows: pa.Table) -> None:
        """See `Destination`."""
        try:
            self._producer.begin_transaction()
            self._begun_at = self._clock()
            self._produce(rows)
            self._flush(rows.num_rows)
            self._call("send_offsets_to_transaction", [self._mark_partition(batch + 1)], self._group)
            self._call("commit_transaction")
        except KafkaException as error:
            if error.args[0].code() in _REFUSALS:
                raise SinkError(f"topic '{self._sink.topic}' refuses the rows", detail=_describe(error)) from error
            raise

    def _call(self, method: str, *arguments: Any) -> None:
        """Call the producer, and give the connection up when librdkafka does not keep the limit, as after a crash of the broker.

        The next connection stops this one, and reads what has become of the transaction.
        """
        future: Future[None] = Future()
        call = partial(getattr(self._producer, method), *arguments, _REQUEST_SECONDS)
        threading.Thread(target=_run_call, args=(call, future), name="headrace-kafka-call", daemon=True).start()
        try:
            future.result(_CALL_SECONDS)
        except TimeoutError as error:
            reason = f"topic '{self._sink.topic}': no answer to {method} for {_CALL_SECONDS:g} s"
            raise DestinationUnavailableError(reason) from error

    def _flush(self, rows: int) -> None:
        """Wait until the brokers have all messages, as long as their number falls; the commit has a short limit of its own."""
        left, moved_at = rows, self._clock()
        while left:
            before, left = left, self._producer.flush(_FLUSH_SECONDS)
            moved_at = self._clock() if left < before else moved_at
            if left and self._clock() - moved_at > _STALL_SECONDS:
                raise DestinationUnavailableError(
                    f"the brokers took none of {left:,} messages in {_STALL_SECONDS:g} s, of {rows:,} of a batch"
                )
            self._check_time(rows, left)

    def _check_time(self, rows: int, left: int) -> None:
        """Raise DestinationUnavailableError when the broker ends the transaction, before a repetition takes as long."""
        limit = str(self._common.get(_TRANSACTION_OPTION, _TRANSACTION_MILLISECONDS))
        if left and self._clock() - self._begun_at > float(limit) / 1000:
            raise DestinationUnavailableError(
                f"a batch of {rows:,} rows takes longer than {_TRANSACTION_OPTION} = {limit}",
                detail=f"{left:,} of its messages are not sent yet",
                hint=f"give the sink a larger '{_TRANSACTION_OPTION}', or the streams smaller batches",
            )

    def _produce(self, rows: pa.Table) -> None:
        keys = encode_keys(rows, self._sink.key)
        self._format = self._format or self._make_format(rows.schema)
        for start in range(0, rows.num_rows, _BATCH_MESSAGES):
            part = rows.slice(start, _BATCH_MESSAGES)
            values = split_messages(self._format.encode(part))
            if self._sink.headers:
                self._produce_one_by_one(part, values, keys[start:])
            else:
                self._produce_batch(values, keys[start:])
            self._check_time(rows.num_rows, rows.num_rows - start)

    def _produce_batch(self, values: Sequence[bytes | None], keys: Sequence[bytes | None]) -> None:
        messages: list[dict[str, Any]] = [{"value": value} for value in values]
        for message, key in zip(messages, keys, strict=False):
            message["key"] = key
        while messages:
            self._producer.poll(0)
            self._producer.produce_batch(self._sink.topic, messages)
            messages = [message for message in messages if "_error" in message]
            for message in messages:
                error = message.pop("_error")
                if error.code() != KafkaError._QUEUE_FULL:  # noqa: SLF001
                    raise KafkaException(error)
            if messages:
                self._producer.poll(0.05)

    def _produce_one_by_one(self, rows: pa.Table, values: Sequence[bytes | None], keys: Sequence[bytes | None]) -> None:
        columns = {name: [_to_bytes(value) for value in rows[name].to_pylist()] for name in self._sink.headers}
        for index, value in enumerate(values):
            headers = [(name, column[index]) for name, column in columns.items()]
            key = keys[index] if self._sink.key else None
            while True:
                try:
                    self._producer.produce(self._sink.topic, value, key, headers=headers)
                    break
                except BufferError:
                    self._producer.poll(0.05)

    def close(self) -> None:
        """See `Destination`; an open transaction ends when the next connection of the writer begins, or by its time limit."""
        self._producer = None


def _run_call(call: Callable[[], object], future: Future[None]) -> None:
    try:
        call()
    except BaseException as error:  # noqa: BLE001  raised in the thread that waits
        future.set_exception(error)
    else:
        future.set_result(None)


_PRODUCER_OPTIONS = frozenset(
    {"compression.type", "compression.codec", "linger.ms", "acks", "batch.size", "transaction.timeout.ms"}
)


def encode_keys(rows: pa.Table, columns: Sequence[str]) -> list[bytes | None]:
    """Return the key of each message; a NULL in the only column is no key."""
    if len(columns) == 1:
        column = rows[columns[0]]
        if pa.types.is_integer(column.type) or pa.types.is_string(column.type):
            return pc.cast(pc.cast(column, pa.string()), pa.binary()).to_pylist()  # type: ignore[no-any-return]
        return [_to_bytes(value) for value in column.to_pylist()]
    return list(encode_json_lines(rows.select(columns))) if columns else []


def split_messages(messages: Messages) -> list[bytes | None]:
    """Return each message as an object, as the client of Kafka takes them; None is a message without a value."""
    data, ends = messages.data.tobytes(), messages.offsets.tolist()
    values: list[bytes | None] = [data[start:end] for start, end in pairwise(ends)]
    for row in () if messages.absent is None else messages.absent.nonzero()[0].tolist():
        values[row] = None
    return values


def _to_bytes(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    text = to_json_value(value)
    return (text if isinstance(text, str) else json.dumps(text)).encode()


def _describe(error: Exception) -> str:
    cause = error.args[0] if error.args else error
    return str(cause.str()) if isinstance(cause, KafkaError) else str(error)
