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
        DeltaSink,
        FileSource,
        IcebergSink,
        JsonLinesSink,
        KafkaSink,
        KafkaSource,
        MemorySink,
        MemorySource,
        NoopSink,
        ParquetSink,
        PostgresSink,
        RateSource,
        TcpSource,
        WebhookSink,
    )
    from headrace.dsl.expression import (
        avg,
        call,
        col,
        count,
        count_distinct,
        count_if,
        literal,
        max,  # noqa: A004
        median,
        min,  # noqa: A004
        percentile,
        percentile_disc,
        stddev_pop,
        stddev_samp,
        sum,  # noqa: A004
        var_pop,
        var_samp,
    )
    from headrace.dsl.select import from_, select
    from headrace.dsl.stream import StreamFlow, stream
    from headrace.dsl.udf import Function, function, rowwise
    from headrace.dsl.windows import hop, session_window, sliding, tumble
    from headrace.errors import HeadraceError
    from headrace.model.budget import QueryBudget
    from headrace.query import Query
    from headrace.runtime.listeners import SessionListener
    from headrace.session import Session

__version__ = "0.1.0"

_HOME = {
    "CallbackSink": "connectors",
    "ConsoleSink": "connectors",
    "DeltaSink": "connectors",
    "FileSource": "connectors",
    "Function": "dsl.udf",
    "HeadraceError": "errors",
    "IcebergSink": "connectors",
    "JsonLinesSink": "connectors",
    "KafkaSink": "connectors",
    "KafkaSource": "connectors",
    "MemorySink": "connectors",
    "MemorySource": "connectors",
    "NoopSink": "connectors",
    "ParquetSink": "connectors",
    "PostgresSink": "connectors",
    "Query": "query",
    "QueryBudget": "model.budget",
    "RateSource": "connectors",
    "Session": "session",
    "SessionListener": "runtime.listeners",
    "StreamFlow": "dsl.stream",
    "TcpSource": "connectors",
    "WebhookSink": "connectors",
    "avg": "dsl.expression",
    "call": "dsl.expression",
    "col": "dsl.expression",
    "connect": "client",
    "count": "dsl.expression",
    "count_distinct": "dsl.expression",
    "count_if": "dsl.expression",
    "from_": "dsl.select",
    "function": "dsl.udf",
    "hop": "dsl.windows",
    "literal": "dsl.expression",
    "max": "dsl.expression",
    "median": "dsl.expression",
    "min": "dsl.expression",
    "percentile": "dsl.expression",
    "percentile_disc": "dsl.expression",
    "rowwise": "dsl.udf",
    "select": "dsl.select",
    "session_window": "dsl.windows",
    "sliding": "dsl.windows",
    "stddev_pop": "dsl.expression",
    "stddev_samp": "dsl.expression",
    "stream": "dsl.stream",
    "sum": "dsl.expression",
    "tumble": "dsl.windows",
    "var_pop": "dsl.expression",
    "var_samp": "dsl.expression",
}

__all__ = [
    "CallbackSink",
    "ConsoleSink",
    "DeltaSink",
    "FileSource",
    "Function",
    "HeadraceError",
    "IcebergSink",
    "JsonLinesSink",
    "KafkaSink",
    "KafkaSource",
    "MemorySink",
    "MemorySource",
    "NoopSink",
    "ParquetSink",
    "PostgresSink",
    "Query",
    "QueryBudget",
    "RateSource",
    "Session",
    "SessionListener",
    "StreamFlow",
    "TcpSource",
    "WebhookSink",
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


def __dir__() -> list[str]:
    """Return the public names, loaded or not, and the attributes that every module has."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__") and name.endswith("__"))})
