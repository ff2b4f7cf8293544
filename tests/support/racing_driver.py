"""A driver process on a checkpoint in an object store, on the local back-end; it prints what it does as lines of JSON.

    python racing_driver.py ROOT OPTIONS REPORT ROWS_PER_BATCH

It waits as a standby while another driver has the checkpoint. It reads the files of ROOT/in to the end, closes all windows and
writes the rows of the queries to REPORT. If another driver takes the checkpoint over, it says why and exits with 3.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.errors import HeadraceError
from headrace.session import Session
from headrace.storage.locations import open_store

QUERIES = {
    "hop": "SELECT window_start, k, SUM(n) AS s FROM HOP(f, '6 seconds', '3 seconds') WHERE n > 3 GROUP BY k",
    "rows": "SELECT k, n FROM f WHERE n % 3 = 0",
    "join": "SELECT a.n AS an, b.n AS bn FROM SLIDING(f, '1 second') a JOIN SLIDING(f, '1 second') b ON a.k = b.k AND a.n < b.n",
    "sums": "SELECT window_start, k, SUM(n) AS s FROM TUMBLE(f, '2 seconds') GROUP BY k",
    "files": "SELECT k, n FROM f WHERE n > 5",
}
FILE_QUERIES = ("sums", "files")


def declare(session: Session, root: str) -> None:
    """Declare the stream, and add the queries that the checkpoint does not have."""
    session.create_stream("f", hr.FileSource(f"{root}/in"), time="time", watermark="1 second")
    for name, sql in QUERIES.items():
        if session.find(name) is None:
            session.add(sql, name=name, sink=f"jsonl:{root}/out/{name}" if name in FILE_QUERIES else None)


def read_rows(session: Session, root: str, options: dict[str, str]) -> dict[str, list[str]]:
    """The rows of every query: those that the session keeps, or those of the visible files of its sink."""
    rows = {}
    for name in QUERIES:
        if name in FILE_QUERIES:
            store = open_store(f"{root}/out/{name}", options=options)
            rows[name] = sorted(line.decode() for key in store.list("") for line in store.get(key).splitlines())
        else:
            rows[name] = sorted(repr(tuple(row.values())) for row in session.query(name).results().to_pylist())
    return rows


def note(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def main(root: str, options: dict[str, str], report: Path, rows_per_batch: int) -> None:
    """Run to the end of the input."""
    note(step="started")
    with Session(
        f"{root}/checkpoint", backend="local", partitions=2, rows_per_batch=rows_per_batch, storage_options=options, standby=True
    ) as session:
        declare(session, root)
        note(step="opened", batch=session.last_batch)
        while session.has_work():
            done = session.advance()
            note(step="committed", batch=done.batch)
        session.drain()
        rows = read_rows(session, root, options)
    report.write_text(json.dumps(rows))


if __name__ == "__main__":
    try:
        main(sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    except HeadraceError as error:
        note(step="failed", kind=type(error).__name__, error=str(error))
        sys.exit(3)
