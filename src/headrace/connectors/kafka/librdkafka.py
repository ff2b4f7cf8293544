"""The C interface of librdkafka, which confluent-kafka brings along: messages are read by the ten thousand, as pointers.

Only what confluent-kafka's own interface cannot do is called here: its consumers make an object of each message, at a tenth of
the speed. The library is found through the extension module of confluent-kafka, which is linked with it.
"""

from __future__ import annotations

import ctypes
import functools
import json
import time
from collections.abc import Generator, Mapping
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.engine.kernels import gather
from headrace.errors import SourceError

try:
    from confluent_kafka import cimpl
except ImportError:  # an extra
    cimpl = None  # type: ignore[assignment]

Pointers = npt.NDArray[np.int64]

PARTITION_EOF = -191
CHUNK_MESSAGES = 1 << 16
_OFFSET_LOST = -140
_ALL_BROKERS_DOWN = -187
_CONSUMER = 1
_EVENT_ERROR, _EVENT_STATISTICS = 0x8, 0x40
_DESTROY_NOW = 0x8
_POLL_MILLISECONDS = 50
_BROKERS_DOWN_SECONDS = 1.0  # without progress, after all connections were lost
_STATISTICS_SECONDS = 1.0  # between two reports of the offsets that were fetched
_MAX_OPEN_PARTITIONS = 16  # of a consumer; each prefetches up to `queued.max.messages.kbytes`
_DEFAULTS = {
    "enable.partition.eof": "true",
    "enable.auto.commit": "false",
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "log_level": "0",  # errors are events
    "check.crcs": "false",
    "fetch.wait.max.ms": "50",  # also how long the end of a range takes that ends in marks of transactions
    "fetch.queue.backoff.ms": "2",  # a full queue is the normal state of a reader that prefetches
    "fetch.message.max.bytes": "4194304",
    "queued.min.messages": "1000000",
    "queued.max.messages.kbytes": "16384",
    "reconnect.backoff.max.ms": "1000",
}


@functools.cache
def load_library() -> ctypes.CDLL:
    """Return librdkafka, with the types of the functions that are used; raises SourceError if it is not installed."""
    if cimpl is None:
        raise SourceError("Kafka needs the package confluent-kafka", hint="pip install 'headrace[kafka]'")
    library = ctypes.CDLL(cimpl.__file__)
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "conf_new": (c_void_p, []),
        "conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
        "conf_set_events": (None, [c_void_p, c_int]),
        "conf_destroy": (None, [c_void_p]),
        "new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
        "destroy_flags": (None, [c_void_p, c_int]),
        "topic_new": (c_void_p, [c_void_p, c_char_p, c_void_p]),
        "topic_destroy": (None, [c_void_p]),
        "queue_new": (c_void_p, [c_void_p]),
        "queue_destroy": (None, [c_void_p]),
        "queue_get_main": (c_void_p, [c_void_p]),
        "queue_poll": (c_void_p, [c_void_p, c_int]),
        "event_type": (c_int, [c_void_p]),
        "event_stats": (c_char_p, [c_void_p]),
        "event_error": (c_int, [c_void_p]),
        "event_error_string": (c_char_p, [c_void_p]),
        "event_destroy": (None, [c_void_p]),
        "consume_start_queue": (c_int, [c_void_p, c_int32, c_int64, c_void_p]),
        "consume_stop": (c_int, [c_void_p, c_int32]),
        "consume_batch_queue": (c_ssize_t, [c_void_p, c_int, c_void_p, c_size_t]),
        "message_errstr": (c_char_p, [c_void_p]),
        "message_headers": (c_int, [c_void_p, POINTER(c_void_p)]),
        "header_get_all": (
            c_int,
            [c_void_p, c_size_t, POINTER(c_char_p), POINTER(c_void_p), POINTER(c_size_t)],
        ),
        "last_error": (c_int, []),
        "err2str": (c_char_p, [c_int]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return library


@functools.cache
def get_address(name: str) -> int:
    """Return the address of a function of the library, for compiled loops."""
    function = getattr(ctypes.CDLL(load_library()._name), f"rd_kafka_{name}")  # noqa: SLF001
    return ctypes.cast(function, c_void_p).value or 0


@dataclass(slots=True)
class _OpenPartition:
    """A partition that a consumer fetches: the next offset to deliver, and messages beyond the last range."""

    queue: int
    position: int
    leftover: Pointers = field(default_factory=lambda: np.empty(0, np.int64))


class TopicConsumer:
    """Reads ranges of offsets of one topic, and prefetches what follows them. For one thread at a time."""

    def __init__(self, topic: str, options: Mapping[str, str], stall_seconds: float) -> None:
        """Create a client of librdkafka with these options, which include the brokers; it connects in the background.

        A partition that has made no progress for `stall_seconds`, though it has more messages, is an error.
        """
        self.topic, self._library, self._stall_seconds = topic, load_library(), stall_seconds
        interval = round(1000 * min(_STATISTICS_SECONDS, stall_seconds / 4))
        self._client = self._create_client({**_DEFAULTS, **options, "statistics.interval.ms": str(max(1, interval))})
        self._topic = self._library.rd_kafka_topic_new(self._client, topic.encode(), None)
        self._events = self._library.rd_kafka_queue_get_main(self._client)
        self._partitions: dict[int, _OpenPartition] = {}
        self._fetched: dict[int, int] = {}  # the next offset to fetch, by partition: messages that are not delivered count, too
        self._last_error = ""

    def _create_client(self, options: Mapping[str, str]) -> int:
        reason = ctypes.create_string_buffer(512)
        config = self._library.rd_kafka_conf_new()
        for name, value in options.items():
            if self._library.rd_kafka_conf_set(config, name.encode(), value.encode(), reason, len(reason)):
                self._library.rd_kafka_conf_destroy(config)
                raise SourceError(f"option '{name}' of the Kafka client is invalid", detail=reason.value.decode())
        self._library.rd_kafka_conf_set_events(config, _EVENT_ERROR | _EVENT_STATISTICS)
        client = self._library.rd_kafka_new(_CONSUMER, config, reason, len(reason))
        if not client:
            self._library.rd_kafka_conf_destroy(config)
            raise SourceError("the Kafka client cannot be created", detail=reason.value.decode("utf-8", "replace"))
        return int(client)

    def read(self, partition: int, start: int, stop: int) -> Generator[Pointers, None, None]:
        """Yield the messages with the offsets [start, stop), in order; some offsets have none.

        The messages are freed when the next ones are requested, or the generator is closed, which must precede `close`. Raises
        SourceError.
        """
        opened = self._seek(partition, start)
        while opened.position < stop:
            messages = self._take(partition, opened, stop)
            try:
                yield messages
            finally:
                gather.destroy_messages(messages, get_address("message_destroy"))

    def _seek(self, partition: int, start: int) -> _OpenPartition:
        opened = self._partitions.pop(partition, None)
        if opened is not None and opened.position != start:
            self._stop(partition, opened)
            opened = None
        if opened is None:
            while len(self._partitions) >= _MAX_OPEN_PARTITIONS:
                oldest = next(iter(self._partitions))
                self._stop(oldest, self._partitions.pop(oldest))
            opened = _OpenPartition(self._library.rd_kafka_queue_new(self._client), start)
            if self._library.rd_kafka_consume_start_queue(self._topic, partition, start, opened.queue):
                reason = self._library.rd_kafka_err2str(self._library.rd_kafka_last_error()).decode()
                self._library.rd_kafka_queue_destroy(opened.queue)
                raise SourceError(f"partition {partition} of topic '{self.topic}' cannot be read", detail=reason)
        self._partitions[partition] = opened  # the last to be stopped
        return opened

    def _take(self, partition: int, opened: _OpenPartition, stop: int) -> Pointers:
        """Return the next messages before `stop`, none at the end of what there is; later ones are left over."""
        fetched = opened.leftover if opened.leftover.size else self._fetch(partition, opened, stop)
        errors, offsets = np.empty(fetched.size, np.int32), np.empty(fetched.size, np.int64)
        gather.read_heads(fetched, errors, offsets)
        is_message = errors == 0
        messages, offsets_of_messages = fetched[is_message], offsets[is_message]
        opened.leftover = messages[:0]
        try:
            for message, error, offset in zip(fetched[~is_message], errors[~is_message], offsets[~is_message], strict=True):
                self._handle_error(partition, opened, int(message), int(error), int(offset))
        except BaseException:
            gather.destroy_messages(messages, get_address("message_destroy"))
            raise
        finally:
            gather.destroy_messages(fetched[~is_message], get_address("message_destroy"))
        is_due = offsets_of_messages < stop
        due: Pointers = messages[is_due]
        opened.leftover = messages[~is_due]
        if opened.leftover.size:
            opened.position = stop
        elif due.size:
            opened.position = max(opened.position, int(offsets_of_messages[is_due][-1]) + 1)
        return due

    def _fetch(self, partition: int, opened: _OpenPartition, stop: int) -> Pointers:
        """Wait for messages of a partition; raises SourceError if it makes no progress.

        A long stretch of aborted messages is progress: nothing of it is delivered, but the offset to fetch next moves.
        """
        wanted = np.empty(min(CHUNK_MESSAGES, stop - opened.position), np.int64)
        moved_at, patience, fetched = time.monotonic(), self._stall_seconds, self._fetched.get(partition)
        while True:
            count = self._library.rd_kafka_consume_batch_queue(
                opened.queue, _POLL_MILLISECONDS, wanted.ctypes.data_as(c_void_p), wanted.size
            )
            is_down = self._poll_events()
            if count > 0:
                self._last_error = ""
                return wanted[:count]
            now = time.monotonic()
            if self._fetched.get(partition) != fetched:
                moved_at, patience, fetched = now, self._stall_seconds, self._fetched.get(partition)
            elif is_down:
                patience = min(patience, _BROKERS_DOWN_SECONDS)
            if now - moved_at > patience:
                raise SourceError(
                    f"partition {partition} of topic '{self.topic}' does not answer",
                    detail=self._last_error or f"nothing for {patience:g} s from offset {opened.position}",
                    hint="start the brokers again, or wait for them; the stream goes on where it stopped. If they are slow, "
                    "raise stall_timeout",
                )

    def _poll_events(self) -> bool:
        """Take the errors and reports of the client that wait; return whether one of them is that all brokers are down."""
        is_down = False
        while event := self._library.rd_kafka_queue_poll(self._events, 0):
            if self._library.rd_kafka_event_type(event) == _EVENT_STATISTICS:
                self._record_statistics(json.loads(self._library.rd_kafka_event_stats(event)))
            elif code := int(self._library.rd_kafka_event_error(event)):
                self._last_error = (self._library.rd_kafka_event_error_string(event) or b"").decode("utf-8", "replace")
                is_down |= code == _ALL_BROKERS_DOWN
            self._library.rd_kafka_event_destroy(event)
        return is_down

    def _record_statistics(self, report: Mapping[str, Any]) -> None:
        partitions = report.get("topics", {}).get(self.topic, {}).get("partitions", {})
        self._fetched |= {int(number): state["next_offset"] for number, state in partitions.items()}

    def _handle_error(self, partition: int, opened: _OpenPartition, message: int, error: int, offset: int) -> None:
        """Take the end of a partition as progress; raise SourceError for anything else."""
        if error == PARTITION_EOF:
            opened.position = max(opened.position, offset)
            return
        reason = (self._library.rd_kafka_message_errstr(message) or b"").decode("utf-8", "replace")
        if error == _OFFSET_LOST:
            raise SourceError(
                f"partition {partition} of topic '{self.topic}' has no message at offset {opened.position} any more",
                detail=reason,
                hint="retention has deleted it, or the topic was created again",
            )
        raise SourceError(f"partition {partition} of topic '{self.topic}' cannot be read", detail=reason)

    def _stop(self, partition: int, opened: _OpenPartition) -> None:
        self._library.rd_kafka_consume_stop(self._topic, partition)
        gather.destroy_messages(opened.leftover, get_address("message_destroy"))
        self._library.rd_kafka_queue_destroy(opened.queue)

    def close(self) -> None:
        """Stop fetching and free the client."""
        for partition, opened in self._partitions.items():
            self._stop(partition, opened)
        self._partitions.clear()
        self._library.rd_kafka_queue_destroy(self._events)
        self._library.rd_kafka_topic_destroy(self._topic)
        self._library.rd_kafka_destroy_flags(self._client, _DESTROY_NOW)


def read_headers(message: int) -> list[tuple[str, bytes | None]]:
    """Return the headers of a message."""
    library, headers = load_library(), c_void_p()
    if library.rd_kafka_message_headers(message, byref(headers)):
        return []
    found: list[tuple[str, bytes | None]] = []
    name, value, size = c_char_p(), c_void_p(), c_size_t()
    while not library.rd_kafka_header_get_all(headers, len(found), byref(name), byref(value), byref(size)):
        content = None if value.value is None else ctypes.string_at(value.value, size.value)
        found.append(((name.value or b"").decode("utf-8", "replace"), content))
    return found
