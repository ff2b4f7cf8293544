"""A session with a query of every kind on streams of every kind of source, which tests stop, damage, copy and continue.

batch    0        1        2        3   |   4        5       drain
rows     20 a stream and batch, two seconds of event time each
queries  all      -        + late   -   |   -        -
                                    stop and continue
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa

import headrace as hr
from headrace.storage.locations import open_store

START = datetime(2024, 1, 1, tzinfo=UTC)
BATCHES_BEFORE_STOP, BATCHES = 4, 6
COLUMNS = "k INT, n BIGINT, t STRING, time TIMESTAMP"


@hr.function("DOUBLE", arguments="BIGINT")
def halve(values: pa.Array) -> list[float | None]:
    """A UDF without dependencies, so that its stored code is small."""
    return [None if value is None else value / 2 for value in values.to_pylist()]


QUERIES = {
    "hop": "SELECT window_start, k, SUM(n) AS s, MIN(t) AS low, COUNT(DISTINCT n) AS d FROM HOP(a, '6 seconds', '3 seconds')"
    " WHERE n > 3 GROUP BY k",
    "session": "SELECT window_start, window_end, k, COUNT(*) AS c FROM SESSION(a, '700 milliseconds') GROUP BY k",
    "stateless": "SELECT k, n, UPPER(t) AS u FROM f WHERE n % 3 = 0",
    "window_join": "SELECT a.n AS an, b.n AS bn FROM TUMBLE(a, '4 seconds') a LEFT JOIN TUMBLE(b, '4 seconds') b"
    " ON a.k = b.k AND a.n < b.n",
    "sliding_join": "SELECT a.n AS an, b.n AS bn FROM SLIDING(a, '3 seconds') a JOIN SLIDING(b, '3 seconds') b ON a.k = b.k",
    "nested": "SELECT window_end, MAX(s) AS m FROM TUMBLE((SELECT k, SUM(n) AS s"
    " FROM TUMBLE(b, '2 seconds') GROUP BY k), '8 seconds')",
    "function": "SELECT window_start, SUM(halve(n)) AS h FROM TUMBLE(b, '2 seconds')",
}
LATE_QUERY = "SELECT window_start, AVG(n) AS m FROM TUMBLE(f, '2 seconds')"


def make_rows(stream: str, batch: int) -> list[dict[str, object]]:
    """The rows of a stream in a batch, the same in every call; some are out of order."""
    rows = []
    for number in range(20):
        seconds = 2 * batch + number / 10 - (0.3 if number % 7 == 3 else 0.0)
        value = (batch * 31 + number * 17 + ord(stream)) % 23
        time = START + timedelta(seconds=seconds)
        rows.append({"k": value % 4, "n": value, "t": None if value % 5 == 0 else f"t{value}", "time": time})
    return rows


class EveryKindSession:
    """A session over a checkpoint; `folder` is outside of it and has the files of the file source. Both may be URLs.

    `attempt` makes every call that changes the checkpoint; a test may let it call again after an error.
    """

    def __init__(
        self, checkpoint: Path | str, folder: Path | str, attempt: Callable[[Callable[[], object]], object] = operator.call
    ) -> None:
        self.folder, self.attempt = folder, attempt
        self.received: list[object] = []
        write_file(folder, 0)  # the file source takes its columns from it
        attempt(lambda: self._open_session(checkpoint))
        self.sources = {name: hr.MemorySource(COLUMNS) for name in "ab"}
        self.sources["f"] = hr.FileSource(folder)  # type: ignore[assignment]
        for name, source in self.sources.items():
            attempt(partial(self.session.create_stream, name, source, time="time", watermark="1 second"))
        attempt(lambda: self.session.register_function(halve))

    def _open_session(self, checkpoint: Path | str) -> None:
        self.session = hr.Session(checkpoint, backend="local", partitions=2)

    def append(self, batch: int) -> None:
        """Give every stream its rows of a batch."""
        for name in "ab":
            self.attempt(partial(self.sources[name].append, make_rows(name, batch)))
        write_file(self.folder, batch)

    def run(self, first: int, last: int, after_batch: Callable[[int], None] = lambda _: None) -> None:
        """Run the batches first … last − 1; `after_batch` is called after each."""
        for batch in range(first, last):
            self.add_queries(batch)
            self.append(batch)
            self.attempt(self.session.advance)
            after_batch(batch)

    def add_queries(self, batch: int) -> None:
        """Add the queries that begin with a batch."""
        if batch == 0:
            for name, sql in QUERIES.items():
                self.session.add(sql, name=name)
            self.attach_callback()
        if batch == 2:
            self.session.add(LATE_QUERY, name="late")

    def attach_callback(self) -> None:
        """Add the query with a callback; after a restart, as a program does, pass its callback again."""
        self.session.add("SELECT n FROM a", name="callback", sink=self.received.append)

    def read_results(self) -> dict[str, list[object]]:
        """The rows of every query, sorted."""
        return {
            name: sorted((tuple(row.values()) for row in self.session.query(name).results().to_pylist()), key=repr)
            for name in (*QUERIES, "late")
        }


def write_file(folder: Path | str, batch: int) -> None:
    """Write the file of a batch to a folder or a URL, atomically, if it does not exist."""
    store, key = open_store(str(folder)), f"{batch}.arrow"
    if store.find_size(key) is not None:
        return
    table = pa.Table.from_pylist(
        make_rows("f", batch),
        schema=pa.schema([("k", pa.int32()), ("n", pa.int64()), ("t", pa.string()), ("time", pa.timestamp("us", "UTC"))]),
    )
    content = pa.BufferOutputStream()
    with pa.ipc.new_file(content, table.schema) as writer:
        writer.write_table(table)
    store.put(key, [content.getvalue()])
