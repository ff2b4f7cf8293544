"""headrace: ad-hoc, shared stream queries on Apache Spark.

Every row carries the set of queries it still matters to; every operator works once for all of them.

Public names are imported on first use, so that `headrace --help` starts fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client import connect
    from headrace.connectors import (
        CallbackSink,
        ConsoleSink,
        FileSource,
        JsonLinesSink,
        MemorySink,
        MemorySource,
        NoopSink,
        ParquetSink,
        RateSource,
        TcpSource,
    )
    from headrace.dsl.expression import (
        avg,
        call,
        col,
        count,
        count_distinct,
        count_if,
        literal,
        max,
        median,
        min,
        percentile,
        percentile_disc,
        stddev_pop,
        stddev_samp,
        sum,
        var_pop,
        var_samp,
    )
    from headrace.dsl.select import from_, hop, select, session_window, sliding, tumble
    from headrace.dsl.stream import StreamFlow, stream
    from headrace.dsl.udf import Function, function, rowwise
    from headrace.errors import HeadraceError
    from headrace.query import Query
    from headrace.session import Session

__version__ = "0.1.0"

_HOME = {
    "CallbackSink": "connectors",
    "ConsoleSink": "connectors",
    "FileSource": "connectors",
    "Function": "user_function",
    "HeadraceError": "errors",
    "JsonLinesSink": "connectors",
    "MemorySink": "connectors",
    "MemorySource": "connectors",
    "NoopSink": "connectors",
    "ParquetSink": "connectors",
    "Query": "query",
    "RateSource": "connectors",
    "Session": "session",
    "StreamFlow": "fluent",
    "TcpSource": "connectors",
    "avg": "builder_aggregate",
    "call": "builder_expression",
    "col": "builder_expression",
    "connect": "client",
    "count": "builder_aggregate",
    "count_distinct": "builder_aggregate",
    "count_if": "builder_aggregate",
    "from_": "builder",
    "function": "user_function",
    "hop": "builder",
    "literal": "builder_expression",
    "max": "builder_aggregate",
    "median": "builder_aggregate",
    "min": "builder_aggregate",
    "percentile": "builder_aggregate",
    "percentile_disc": "builder_aggregate",
    "rowwise": "user_function",
    "select": "builder",
    "session_window": "builder",
    "sliding": "builder",
    "stddev_pop": "builder_aggregate",
    "stddev_samp": "builder_aggregate",
    "stream": "fluent",
    "sum": "builder_aggregate",
    "tumble": "builder",
    "var_pop": "builder_aggregate",
    "var_samp": "builder_aggregate",
}

__all__ = [
    "CallbackSink",
    "ConsoleSink",
    "FileSource",
    "Function",
    "HeadraceError",
    "JsonLinesSink",
    "MemorySink",
    "MemorySource",
    "NoopSink",
    "ParquetSink",
    "Query",
    "RateSource",
    "Session",
    "StreamFlow",
    "TcpSource",
    "__version__",
    "avg",
    "call",
    "col",
    "connect",
    "count",
    "count_distinct",
    "count_if",
    "from_",
    "function",
    "hop",
    "literal",
    "max",
    "median",
    "min",
    "percentile",
    "percentile_disc",
    "rowwise",
    "select",
    "session_window",
    "sliding",
    "stddev_pop",
    "stddev_samp",
    "stream",
    "sum",
    "tumble",
    "var_pop",
    "var_samp",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'headrace' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"headrace.{_HOME[name]}"), name)
    globals()[name] = value
    return value
