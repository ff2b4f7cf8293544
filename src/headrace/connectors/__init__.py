"""Sources and sinks: the input and output of the engine.

A source runs in the driver and plans input ranges; workers read these with `read_range` into Arrow tables. A sink is a value that
describes the destination of results; workers write to it before a batch is committed, or the driver delivers to it afterwards.
This package does not depend on Spark, SQL or the planner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.connectors import kafka
from headrace.connectors.files import FileSource
from headrace.connectors.memory import MemorySource
from headrace.connectors.pending_files import OutputPlace, PendingFile
from headrace.connectors.rate import GENERATORS, RateSource, generate
from headrace.connectors.read import read_range
from headrace.connectors.sinks import (
    NEVER,
    SINK_KINDS,
    CallbackSink,
    ConsoleSink,
    DeltaSink,
    Destination,
    FileSink,
    IcebergSink,
    JsonLinesSink,
    KafkaSink,
    MemorySink,
    MissingCallback,
    NoopSink,
    ParquetSink,
    PostgresSink,
    PublishedSink,
    QuerySink,
    Sink,
    SinkSet,
    SinkSpec,
    WebhookSink,
    is_sink_set,
    parse_sink,
    query_sink_from_json,
    sink_from_json,
    sink_set_from_json,
)
from headrace.connectors.skipped_rows import SkippedRow, read_with_policy
from headrace.connectors.source import Position, Range, Source
from headrace.connectors.tcp import TcpSource

if TYPE_CHECKING:
    from headrace.connectors.kafka import KafkaSource

__all__ = [
    "GENERATORS",
    "NEVER",
    "SINK_KINDS",
    "CallbackSink",
    "ConsoleSink",
    "DeltaSink",
    "Destination",
    "FileSink",
    "FileSource",
    "IcebergSink",
    "JsonLinesSink",
    "KafkaSink",
    "KafkaSource",
    "MemorySink",
    "MemorySource",
    "MissingCallback",
    "NoopSink",
    "OutputPlace",
    "ParquetSink",
    "PendingFile",
    "Position",
    "PostgresSink",
    "PublishedSink",
    "QuerySink",
    "Range",
    "RateSource",
    "Sink",
    "SinkSet",
    "SinkSpec",
    "SkippedRow",
    "Source",
    "TcpSource",
    "WebhookSink",
    "generate",
    "is_sink_set",
    "parse_sink",
    "query_sink_from_json",
    "read_range",
    "read_with_policy",
    "sink_from_json",
    "sink_set_from_json",
]


def __getattr__(name: str) -> Any:
    """Import the source of Kafka on first use."""
    if name != "KafkaSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return kafka.KafkaSource
