"""Write messages through the C interface of librdkafka: many in one call, without a Python object for each."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import c_char_p, c_int, c_int32, c_size_t, c_void_p
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from headrace.connectors.kafka.librdkafka import load_library
from headrace.errors import HeadraceError

_MESSAGE = np.dtype(
    {
        "names": ["error", "topic", "partition", "payload", "size", "key", "key_size", "offset", "private"],
        "formats": ["i4", "i8", "i4", "i8", "i8", "i8", "i8", "i8", "i8"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56, 64],
        "itemsize": 72,
    }
)  # rd_kafka_message_t
_PRODUCER, _COPY = 0, 0x2
_SEND_SECONDS = 120
_OPTIONS = {
    "queue.buffering.max.messages": "2000000",
    "queue.buffering.max.kbytes": "1048576",
    "batch.num.messages": "20000",
    "linger.ms": "10",
    "acks": "1",
    "log_level": "0",
}


class TopicProducer:
    """A context manager that writes messages to partitions of a topic."""

    def __init__(self, topic: str, options: Mapping[str, str]) -> None:
        """Create a client with these options, which include the brokers."""
        self._library = _load_functions()
        reason = ctypes.create_string_buffer(512)
        config = self._library.rd_kafka_conf_new()
        for name, value in {**_OPTIONS, **options}.items():
            if self._library.rd_kafka_conf_set(config, name.encode(), value.encode(), reason, len(reason)):
                raise HeadraceError(f"option '{name}' of the Kafka client is invalid", detail=reason.value.decode())
        self._client = self._library.rd_kafka_new(_PRODUCER, config, reason, len(reason))
        if not self._client:
            raise HeadraceError("the Kafka client cannot be created", detail=reason.value.decode())
        self._topic = self._library.rd_kafka_topic_new(self._client, topic.encode(), None)

    def __enter__(self) -> Self:
        """Return the producer."""
        return self

    def send(self, partition: int, offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> None:
        """Send the messages `data[offsets[i]:offsets[i + 1]]`, and return when the broker has answered for all of them."""
        messages = np.zeros(len(offsets) - 1, _MESSAGE)
        messages["payload"] = data.ctypes.data + offsets[:-1]
        messages["size"] = np.diff(offsets)
        place = messages.ctypes.data_as(c_void_p)
        queued = self._library.rd_kafka_produce_batch(self._topic, partition, _COPY, place, len(messages))
        if queued != len(messages) or self._library.rd_kafka_flush(self._client, _SEND_SECONDS * 1000):
            raise HeadraceError(f"messages of partition {partition} cannot be written: the brokers do not take them")

    def __exit__(self, *_: object) -> None:
        """Free the client."""
        self._library.rd_kafka_topic_destroy(self._topic)
        self._library.rd_kafka_destroy(self._client)


def _load_functions() -> ctypes.CDLL:
    """Return the library with the types of the functions that are used here; a handle of its own, because types belong to it."""
    library = ctypes.CDLL(load_library()._name)  # noqa: SLF001
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "conf_new": (c_void_p, []),
        "conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
        "new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
        "topic_new": (c_void_p, [c_void_p, c_char_p, c_void_p]),
        "topic_destroy": (None, [c_void_p]),
        "produce_batch": (c_int, [c_void_p, c_int32, c_int, c_void_p, c_int]),
        "flush": (c_int, [c_void_p, c_int]),
        "destroy": (None, [c_void_p]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return library
