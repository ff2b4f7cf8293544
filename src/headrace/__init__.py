"""headrace: ad-hoc, shared stream queries on Apache Spark.

Every row carries the set of queries it still matters to; every operator works once for all of them.

Names are loaded when they are first used, so that `headrace --help` answers at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.builder import from_, hop, select, sliding, tumble
    from headrace.builder_expression import col
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
    from headrace.errors import HeadraceError
    from headrace.query import Query
    from headrace.session import Session

__version__ = "0.1.0"

_HOME = {
    "CallbackSink": "connectors",
    "ConsoleSink": "connectors",
    "FileSource": "connectors",
    "HeadraceError": "errors",
    "JsonLinesSink": "connectors",
    "MemorySink": "connectors",
    "MemorySource": "connectors",
    "NoopSink": "connectors",
    "ParquetSink": "connectors",
    "Query": "query",
    "RateSource": "connectors",
    "Session": "session",
    "TcpSource": "connectors",
    "col": "builder_expression",
    "from_": "builder",
    "hop": "builder",
    "select": "builder",
    "sliding": "builder",
    "tumble": "builder",
}

__all__ = [
    "CallbackSink",
    "ConsoleSink",
    "FileSource",
    "HeadraceError",
    "JsonLinesSink",
    "MemorySink",
    "MemorySource",
    "NoopSink",
    "ParquetSink",
    "Query",
    "RateSource",
    "Session",
    "TcpSource",
    "__version__",
    "col",
    "from_",
    "hop",
    "select",
    "sliding",
    "tumble",
]


def __getattr__(name: str) -> Any:
    """Load a public name from the module it lives in."""
    if name not in _HOME:
        raise AttributeError(f"module 'headrace' has no attribute '{name}'")
    found = getattr(importlib.import_module(f"headrace.{_HOME[name]}"), name)
    globals()[name] = found
    return found
