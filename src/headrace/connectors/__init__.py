"""Sources and sinks: how rows get in, and how results get out.

A source lives in the driver and only plans; workers read what it planned with `read_range`, straight into Arrow. A sink
is a value that says where results go; its calls are made by workers before a batch is committed, or by the driver after.
Nothing here knows Spark, SQL or how queries are shared.
"""

from __future__ import annotations

from headrace.connectors.files import FileSource
from headrace.connectors.generate import GENERATORS, generate
from headrace.connectors.memory import MemorySource
from headrace.connectors.rate import RateSource
from headrace.connectors.read import read_range
from headrace.connectors.sinks import (
    CallbackSink,
    ConsoleSink,
    JsonLinesSink,
    MemorySink,
    NoopSink,
    ParquetSink,
    Sink,
    SinkSpec,
    parse_sink,
    sink_from_json,
)
from headrace.connectors.source import Position, Range, Source
from headrace.connectors.tcp import TcpSource

__all__ = [
    "GENERATORS",
    "CallbackSink",
    "ConsoleSink",
    "FileSource",
    "JsonLinesSink",
    "MemorySink",
    "MemorySource",
    "NoopSink",
    "ParquetSink",
    "Position",
    "Range",
    "RateSource",
    "Sink",
    "SinkSpec",
    "Source",
    "TcpSource",
    "generate",
    "parse_sink",
    "read_range",
    "sink_from_json",
]
