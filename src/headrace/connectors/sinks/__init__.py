"""Sinks: destinations of query results.

A query has one sink or several (`sink_set`). Sinks *written by workers* receive the rows of each partition before the batch is
committed, as pending files, which no reader sees; the driver gives those of the attempts that count their names after the commit
(`pending_files`). For the others, workers write the rows to the checkpoint, and the driver passes them on after the commit: to a
callback or the console, or to a destination that keeps a mark, so that each batch is published once (`destination`).
"""

from __future__ import annotations

from headrace.connectors.sinks.base import CallbackSink, ConsoleSink, MemorySink, MissingCallback, NoopSink, Sink
from headrace.connectors.sinks.delta import DeltaSink
from headrace.connectors.sinks.destination import Destination, PublishedSink
from headrace.connectors.sinks.files import FileSink, JsonLinesSink, ParquetSink
from headrace.connectors.sinks.iceberg import IcebergSink
from headrace.connectors.sinks.kafka import KafkaSink
from headrace.connectors.sinks.postgres import PostgresSink
from headrace.connectors.sinks.sink_set import NEVER, QuerySink, SinkSet, is_sink_set, query_sink_from_json, sink_set_from_json
from headrace.connectors.sinks.specification import SINK_KINDS, SinkSpec, parse_sink, sink_from_json
from headrace.connectors.sinks.webhook import WebhookSink

__all__ = [
    "NEVER",
    "SINK_KINDS",
    "CallbackSink",
    "ConsoleSink",
    "DeltaSink",
    "Destination",
    "FileSink",
    "IcebergSink",
    "JsonLinesSink",
    "KafkaSink",
    "MemorySink",
    "MissingCallback",
    "NoopSink",
    "ParquetSink",
    "PostgresSink",
    "PublishedSink",
    "QuerySink",
    "Sink",
    "SinkSet",
    "SinkSpec",
    "WebhookSink",
    "is_sink_set",
    "parse_sink",
    "query_sink_from_json",
    "sink_from_json",
    "sink_set_from_json",
]
