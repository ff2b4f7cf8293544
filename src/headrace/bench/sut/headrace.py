"""headrace itself, through its public API: one session, one shared pipeline, a callback for each query's results.

Options: "rows_per_batch" as `Session` takes it, "interval" seconds at least between micro-batches.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.backends.spark.environment import SETTINGS, start_spark
from headrace.bench.query import BenchQuery
from headrace.bench.sut.adapter import NO_TEXT, Started, SutConfig, Teller
from headrace.bench.sut.process import serve
from headrace.bench.sut.results import ResultSender, by_window
from headrace.connectors import MemorySource, TcpSource
from headrace.errors import HeadraceError
from headrace.model.schema import Schema
from headrace.query import Query
from headrace.session import Session

_WARM_BATCHES, _WARM_ROWS, _WARM_VALUES = 6, 600_000, 1_000  # several ranges each, so that every worker is warm
_SLIDING_ROWS = 100_000  # such joins give results at once and keep all rows: fewer of them, and a partner in each stream
_ROWS_PER_BATCH = 40_000_000  # a batch takes what is there: one that is late is larger, and costs less a row
_LOOK = 0.2  # seconds
_PATIENCE = 120.0


class Headrace:
    """The adapter."""

    def __init__(self, multiway: str = "global") -> None:
        """Start nothing yet; `multiway` is as `Session` takes it."""
        self._multiway = multiway
        self._session: Session | None = None
        self._spark: Any = None
        self._watched = Watched()

    def start(self, config: SutConfig, tell: Teller) -> Started:
        """See `Adapter`; a session that is thrown away starts Spark's workers before rows come."""
        self._tell, self._results = tell, ResultSender(config.collector)
        rows_per_batch = int(config.options.get("rows_per_batch", _ROWS_PER_BATCH))
        interval = float(config.options.get("interval", 0.0))
        self._spark = start_spark("local[*]", {"spark.local.dir": str(config.scratch)})
        warm_up(self._spark, config, rows_per_batch)
        self._session = Session(
            config.scratch / "checkpoint", spark=self._spark, rows_per_batch=rows_per_batch, multiway=self._multiway
        )
        for stream in config.streams:
            declare(self._session, config, stream.name, TcpSource(config.driver, stream.name))
        queries = [query for one in config.queries if (query := self._add(one)) is not None]
        self._session.start(interval)
        for query in queries:
            query.wait_live(_PATIENCE)
        threading.Thread(target=self._watched.follow, args=(self._session, tell), daemon=True).start()
        settings = {"rows_per_batch": rows_per_batch, "interval": interval, "results": "a callback a query, after the commit"}
        return Started({"headrace": _version("headrace"), "pyspark": _version("pyspark")}, {**settings, "spark": dict(SETTINGS)})

    def _add(self, asked: BenchQuery) -> Query | None:
        assert self._session is not None
        if not asked.sql.get("headrace"):
            self._tell.refused(asked.name, NO_TEXT)
            return None
        try:
            return self._session.add(asked.sql["headrace"], name=asked.name, sink=self._sink(asked.name))
        except HeadraceError as error:
            self._tell.refused(asked.name, str(error))
            return None

    def _sink(self, name: str) -> Callable[[pa.Table], None]:
        return lambda table: self._results.send(name, by_window(table.column("window_end")))

    def change(self, added: Sequence[BenchQuery], removed: Sequence[str]) -> None:
        """See `Adapter`; what becomes of the queries is told by the thread that watches."""
        assert self._session is not None
        for name in removed:
            query = self._session.query(name)
            self._session.remove(name)
            self._watched.going(query)
        for asked in added:
            query_added = self._add(asked)
            if query_added is not None:
                self._watched.coming(query_added)

    def check(self) -> None:
        """See `Adapter`."""
        assert self._session is not None
        self._session.wait(lambda: False, 0)  # raises what ended the session
        for query in self._session.queries():
            if query.status == "failed":
                raise HeadraceError(f"query '{query.name}' failed", detail=query.error or "")

    def close(self) -> None:
        """See `Adapter`."""
        if self._session is not None:
            self._session.close()
        if self._spark is not None:
            self._spark.stop()


class Watched:
    """Queries asked for and not answered yet; a thread tells of them after the micro-batch that settles it."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._open: list[tuple[Query, str]] = []  # with the status that settles it

    def coming(self, query: Query) -> None:
        """Tell when it is live."""
        with self._lock:
            self._open.append((query, "live"))

    def going(self, query: Query) -> None:
        """Tell when it is removed."""
        with self._lock:
            self._open.append((query, "removed"))

    def follow(self, session: Session, tell: Teller) -> None:
        """Tell until the session ends; what ended it is told by `Headrace.check`."""
        with contextlib.suppress(HeadraceError):
            while not session.is_closed:
                session.wait(lambda: any(query.status == wanted for query, wanted in self._open), _LOOK)
                self._tell(tell)

    def _tell(self, tell: Teller) -> None:
        with self._lock:
            settled = [(query, wanted) for query, wanted in self._open if query.status == wanted]
            self._open = [(query, wanted) for query, wanted in self._open if query.status != wanted]
        for query, wanted in settled:
            (tell.live if wanted == "live" else tell.removed)(query.name)


def declare(session: Session, config: SutConfig, name: str, source: Any) -> None:
    """Create a stream over a source as the benchmark declares it."""
    spec = config.stream(name).spec
    session.create_stream(name, source, time=spec.time, watermark=f"{spec.watermark} seconds")


def warm_up(spark: Any, config: SutConfig, rows_per_batch: int) -> None:
    """Run made-up rows through the same queries in a session of its own: Spark's workers start, kernels are loaded."""
    sliding = any("SLIDING(" in query.sql.get("headrace", "") for query in config.queries)
    rows = _SLIDING_ROWS if sliding else _WARM_ROWS
    different = rows * _WARM_BATCHES if sliding else _WARM_VALUES
    with Session(spark=spark, rows_per_batch=rows_per_batch) as session:
        sources = {stream.name: MemorySource(stream.schema) for stream in config.streams}
        for name, source in sources.items():
            declare(session, config, name, source)
        for number, query in enumerate(config.queries):
            if query.sql.get("headrace"):
                try:
                    session.add(query.sql["headrace"], name=str(number), sink="noop")
                except HeadraceError:  # refused when it is asked for
                    continue
        for batch in range(_WARM_BATCHES):
            for name, source in sources.items():
                source.append(rows_for(config.stream(name).schema, batch * rows, rows, different))
            session.advance()


def rows_for(schema: Schema, first: int, rows: int, different: int = _WARM_VALUES) -> pa.Table:
    """Return any rows of a schema, a microsecond apart from each other, with so many different values in each column."""
    numbers = np.arange(first, first + rows)
    columns = []
    for field in schema:
        values = pa.array(numbers if pa.types.is_timestamp(field.type) else numbers % different)
        if pa.types.is_timestamp(field.type):
            columns.append(values.cast(pa.timestamp("us")).cast(field.type))
        else:
            columns.append(values.cast(field.type))
    return pa.table(columns, schema.to_arrow())


def _version(package: str) -> str:
    return importlib.metadata.version(package)


if __name__ == "__main__":
    serve(Headrace())
