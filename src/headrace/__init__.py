"""headrace: ad-hoc, shared stream queries on Apache Spark.

Every row carries the set of queries it still matters to; every operator works once for all of them.
"""

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
)
from headrace.errors import HeadraceError
from headrace.query import Query
from headrace.session import Session

__version__ = "0.1.0"

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
    "__version__",
]
