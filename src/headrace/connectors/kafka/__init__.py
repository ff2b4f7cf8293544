"""Kafka: a source that plans exact ranges of offsets in the driver and reads them in workers, through librdkafka.

client_options  settings of librdkafka, with references in the place of secrets
control         requests of the driver: partitions and their offsets
librdkafka      the C interface that workers read messages with, many at a time
source          plans ranges of offsets, fairly over partitions
reader          a range to rows, with key, headers, timestamp, partition and offset as columns
rejected        messages that are no rows, as dead letters keep them

The names of this package are loaded on first use: they need librdkafka, numba and the kernels of message formats, which a process
without streams of Kafka should not wait for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.connectors.kafka.reader import read_messages
    from headrace.connectors.kafka.rejected import convert_to_text
    from headrace.connectors.kafka.source import KafkaSource

__all__ = ["KafkaSource", "convert_to_text", "read_messages"]

_HOME = {"KafkaSource": "source", "convert_to_text": "rejected", "read_messages": "reader"}


def __getattr__(name: str) -> Any:
    """Import a name on first use."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
