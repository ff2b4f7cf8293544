"""Sources and sinks: the input and output of the engine.

A source runs in the driver and plans input ranges; workers read these with `read_range` into Arrow tables. A sink is a value that
describes the destination of results; workers write to it before a batch is committed, or the driver delivers to it afterwards.
This package does not depend on Spark, SQL or the planner.
"""

from __future__ import annotations

from headrace.connectors.files import FileSource
from headrace.connectors.memory import MemorySource
from headrace.connectors.pending_files import OutputPlace, PendingFile
from headrace.connectors.rate import GENERATORS, RateSource, generate
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
from headrace.connectors.skipped_rows import SkippedRow, read_with_policy
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
    "OutputPlace",
    "ParquetSink",
    "PendingFile",
    "Position",
    "Range",
    "RateSource",
    "Sink",
    "SinkSpec",
    "SkippedRow",
    "Source",
    "TcpSource",
    "generate",
    "parse_sink",
    "read_range",
    "read_with_policy",
    "sink_from_json",
]
