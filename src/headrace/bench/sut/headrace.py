"""Run headrace through its public API: one session, one shared pipeline, a result callback for each query.

Options: "rows_per_batch" as in `Session`, "interval" the minimum seconds between micro-batches.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.backends.spark.environment import SPARK_SETTINGS, start_spark
from headrace.bench.query import BenchQuery
from headrace.bench.sut.adapter import NO_TEXT, Started, SutConfig, Teller
from headrace.bench.sut.process import serve
from headrace.bench.sut.results import ResultSender, by_window
from headrace.connectors import MemorySource, TcpSource
from headrace.errors import HeadraceError
from headrace.model.schema import Schema
from headrace.query import Query
from headrace.session import Session

_WARM_BATCHES, _WARM_ROWS, _WARM_VALUES = 6, 600_000, 1_000  # several ranges per batch, so that every worker warms up
_SLIDING_ROWS = 100_000  # fewer rows, each with a partner: sliding joins emit at once and keep all rows
_ROWS_PER_BATCH = 40_000_000  # a batch takes all available rows: a late batch is larger and costs less per row
_LOOK = 0.2  # seconds
_PATIENCE = 120.0


class Headrace:
    """The adapter of headrace."""

    def __init__(self, multiway: str = "global") -> None:
        """Create the adapter; `multiway` is the parameter of `Session`."""
        self._multiway = multiway
        self._session: Session | None = None
        self._spark: Any = None
        self._watched = Watched()

    def start(self, config: SutConfig, reporter: Teller) -> Started:
        """See `SutAdapter`; a temporary session starts the Spark workers before the first rows arrive."""
        self._tell, self._results = reporter, ResultSender(config.collector)
        rows_per_batch = int(config.options.get("rows_per_batch", _ROWS_PER_BATCH))
        interval = float(config.options.get("interval", 0.0))
        self._spark = start_spark("local[*]", {"spark.local.dir": str(config.scratch)})
        warm_up(self._spark, config, rows_per_batch)
        self._session = Session(
            config.scratch / "checkpoint", spark=self._spark, rows_per_batch=rows_per_batch, multiway=self._multiway
        )
        for stream in config.streams:
            declare(self._session, config, stream.name, TcpSource(config.driver, stream.name))
        queries = [query for bench_query in config.queries if (query := self._add(bench_query)) is not None]
        self._session.start(interval)
        for query in queries:
            query.wait_live(_PATIENCE)
        threading.Thread(target=self._watched.follow, args=(self._session, reporter), daemon=True).start()
        settings = {
            "rows_per_batch": rows_per_batch,
            "interval": interval,
            "results": "one callback per query, after the commit",
        }
        return Started(
            {"headrace": _version("headrace"), "pyspark": _version("pyspark")}, {**settings, "spark": dict(SPARK_SETTINGS)}
        )

    def _add(self, bench_query: BenchQuery) -> Query | None:
        assert self._session is not None
        if not bench_query.sql.get("headrace"):
            self._tell.refused(bench_query.name, NO_TEXT)
            return None
        try:
            return self._session.add(bench_query.sql["headrace"], name=bench_query.name, sink=self._sink(bench_query.name))
        except HeadraceError as error:
            self._tell.refused(bench_query.name, str(error))
            return None

    def _sink(self, name: str) -> Callable[[pa.Table], None]:
        return lambda table: self._results.send(name, by_window(table.column("window_end")))

    def change(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        """See `SutAdapter`; the watcher thread reports the queries."""
        assert self._session is not None
        for name in removed:
            query = self._session.query(name)
            self._session.remove(name)
            self._watched.going(query)
        for bench_query in added:
            new_query = self._add(bench_query)
            if new_query is not None:
                self._watched.coming(new_query)

    def check(self) -> None:
        """See `SutAdapter`."""
        assert self._session is not None
        self._session.wait(lambda: False, 0)  # raises the error that ended the session
        for query in self._session.queries():
            if query.status == "failed":
                raise HeadraceError(f"query '{query.name}' failed", detail=query.error or "")

    def close(self) -> None:
        """See `SutAdapter`."""
        if self._session is not None:
            self._session.close()
        if self._spark is not None:
            self._spark.stop()


class Watched:
    """Requested changes without a report; a thread reports each after the micro-batch that applies it."""

    def __init__(self) -> None:
        """Start without pending changes."""
        self._lock = threading.Lock()
        self._open: list[tuple[Query, str]] = []  # each with its expected status

    def coming(self, query: Query) -> None:
        """Report the query once it is live."""
        with self._lock:
            self._open.append((query, "live"))

    def going(self, query: Query) -> None:
        """Report the query once it is removed."""
        with self._lock:
            self._open.append((query, "removed"))

    def follow(self, session: Session, reporter: Teller) -> None:
        """Report changes until the session ends; `HeadraceAdapter.check` raises its error."""
        with contextlib.suppress(HeadraceError):
            while not session.is_closed:
                session.wait(lambda: any(query.status == expected for query, expected in self._open), _LOOK)
                self._tell(reporter)

    def _tell(self, reporter: Teller) -> None:
        with self._lock:
            settled = [(query, expected) for query, expected in self._open if query.status == expected]
            self._open = [(query, expected) for query, expected in self._open if query.status != expected]
        for query, expected in settled:
            (reporter.live if expected == "live" else reporter.removed)(query.name)


def declare(session: Session, config: SutConfig, name: str, source: Any) -> None:
    """Create a stream over a source, with the time column and watermark of the benchmark."""
    spec = config.stream(name).spec
    session.create_stream(name, source, time=spec.time_column, watermark=f"{spec.watermark} seconds")


def warm_up(spark: Any, config: SutConfig, rows_per_batch: int) -> None:
    """Run synthetic rows through the same queries in a temporary session, to start Spark workers and load kernels."""
    sliding = any("SLIDING(" in query.sql.get("headrace", "") for query in config.queries)
    rows = _SLIDING_ROWS if sliding else _WARM_ROWS
    distinct_values = rows * _WARM_BATCHES if sliding else _WARM_VALUES
    with Session(spark=spark, rows_per_batch=rows_per_batch) as session:
        sources = {stream.name: MemorySource(stream.schema) for stream in config.streams}
        for name, source in sources.items():
            declare(session, config, name, source)
        for number, query in enumerate(config.queries):
            if query.sql.get("headrace"):
                try:
                    session.add(query.sql["headrace"], name=str(number), sink="noop")
                except HeadraceError:  # the measured session refuses it, too
                    continue
        for batch in range(_WARM_BATCHES):
            for name, source in sources.items():
                source.append(rows_for(config.stream(name).schema, batch * rows, rows, distinct_values))
            session.advance()


def rows_for(schema: Schema, first: int, rows: int, distinct_values: int = _WARM_VALUES) -> pa.Table:
    """Return synthetic rows of a schema, one microsecond apart, with `distinct_values` distinct values in each column."""
    numbers = np.arange(first, first + rows)
    columns = []
    for field in schema:
        values = pa.array(numbers if pa.types.is_timestamp(field.type) else numbers % distinct_values)
        if pa.types.is_timestamp(field.type):
            columns.append(values.cast(pa.timestamp("us")).cast(field.type))
        else:
            columns.append(values.cast(field.type))
    return pa.table(columns, schema.to_arrow())


def _version(package: str) -> str:
    return importlib.metadata.version(package)


if __name__ == "__main__":
    serve(Headrace())
