"""A session in which everything goes wrong for others: bystander queries must not notice.

The culprits are queries over the same stream, another stream with a malformed file, a silent server, and sinks that block.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace.errors import HeadraceError

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "k INT, note STRING, time TIMESTAMP"
BUDGET = {"join_pairs": 10_000}
BYSTANDERS = {
    "sum": "SELECT window_start, k % 3 AS g, SUM(k) AS total FROM HOP(s, '4 seconds', '2 seconds') GROUP BY k % 3",
    "session": "SELECT k, COUNT(*) AS n FROM SESSION(s, '300 ms') GROUP BY k",
    "rows": "SELECT k, UPPER(note) AS note FROM s WHERE k > 40",
    "window_join": "SELECT l.k FROM TUMBLE(s, '2 seconds') l JOIN TUMBLE(s, '2 seconds') r ON l.k = r.k",
    "sliding_join": "SELECT l.k FROM SLIDING(s, '1 second') l JOIN SLIDING(s, '1 second') r ON l.k = r.k",
}


def make_text_bomb(levels: int = 12) -> str:
    text = "note"
    for _ in range(levels):
        text = f"REPLACE({text}, 'a', 'aaaaaaaaaa')"
    return text


def raise_exit(_: pa.Array) -> pa.Array:
    raise SystemExit(3)


def raise_type_error(_: pa.Array) -> pa.Array:
    raise TypeError("not today")


CULPRITS = {
    "poison": "SELECT CAST(CAST(k / 10.0 AS DECIMAL(38,38)) AS INT) AS x FROM s",
    "text_bomb": f"SELECT COUNT(*) AS n FROM TUMBLE(s, '2 seconds') WHERE LENGTH({make_text_bomb()}) > 3",
    "cross_join": "SELECT l.k FROM TUMBLE(s, '1 second') l JOIN TUMBLE(s, '1 second') r ON l.note <> r.note "
    "JOIN TUMBLE(s, '1 second') q ON q.note <> l.note",
    "sliding_cross_join": "SELECT l.k FROM SLIDING(s, '4 seconds') l JOIN SLIDING(s, '4 seconds') r ON l.note <> r.note",
    "exit": "SELECT raise_exit(k) AS x FROM s",
    "exit_in_predicate": "SELECT COUNT(*) AS n FROM TUMBLE(s, '2 seconds') WHERE raise_exit(k) > 0",
    "type_error": "SELECT k, COUNT(*) AS n FROM TUMBLE(s, '2 seconds') WHERE raise_type_error(k) > 0 GROUP BY k",
}


@contextmanager
def listen_silently() -> Iterator[str]:
    """Yield the address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@dataclass
class HostileRun:
    """Runs bystanders, with or without culprits; `results` has the rows of each bystander.

    `checkpoint` is a folder or a URL, by default in `folder`. Without `restarts` one session runs all batches.
    """

    folder: Path
    options: dict[str, Any]
    functions: dict[str, Callable[[pa.Array], pa.Array]] = field(default_factory=dict)
    culprits: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)
    results: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    released: threading.Event = field(default_factory=threading.Event)
    checkpoint: str = ""
    restarts: bool = True

    def play(self) -> None:
        with ExitStack() as stack:
            session, source = self._open(stack)
            for name, sql in BYSTANDERS.items():
                session.add(sql, name=name)
            session.advance()
            run_batches(session, source, 0, 3)
            self._add_culprits(session)
            self._attach_silent_server(stack, session)
            run_batches(session, source, 3, 6)
            self.statuses = {query.name: query.status for query in session.queries()}
            for name in [name for name in self.culprits if name in self.statuses]:
                session.remove(name)
            if not self.restarts:
                self._finish(session, source)
        if self.restarts:
            with ExitStack() as stack:
                self._finish(*self._open(stack))

    def _finish(self, session: hr.Session, source: hr.MemorySource) -> None:
        run_batches(session, source, 6, 9)
        self.results = {name: session.query(name).results().to_pylist() for name in BYSTANDERS}
        self.released.set()

    def _open(self, stack: ExitStack) -> tuple[hr.Session, hr.MemorySource]:
        checkpoint = self.checkpoint or self.folder / "checkpoint"
        session = stack.enter_context(hr.Session(checkpoint, budget=BUDGET, delivery_timeout=0.5, **self.options))
        source = hr.MemorySource(SCHEMA)
        session.create_stream("s", source, time="time", watermark="500 ms")
        for name, code in self.functions.items() if session.last_batch < 0 else ():
            session.register_function(name, code, "INT", arguments="INT")
        (self.folder / "broken").mkdir(exist_ok=True)
        session.create_stream("broken", hr.FileSource(self.folder / "broken", schema="n INT, time TIMESTAMP"), time="time")
        return session, source

    def _add_culprits(self, session: hr.Session) -> None:
        for name, sql in self.culprits.items():
            session.add(sql, name=name)
        if self.culprits:
            (self.folder / "broken" / "1.arrow").write_bytes(b"rubbish")
            session.add("SELECT n FROM broken", name="over_broken")
            session.add("SELECT k FROM s", name="blocking", sink=lambda _: self.released.wait(60))
            session.add("SELECT k FROM s", name="raising", sink=lambda _: 1 / 0)

    def _attach_silent_server(self, stack: ExitStack, session: hr.Session) -> None:
        if self.culprits:
            address = stack.enter_context(listen_silently())

            def attach() -> None:
                try:
                    session.create_stream("silent", hr.TcpSource(address, "x"), time="time")
                except HeadraceError:
                    self.statuses["silent"] = "refused"

            threading.Thread(target=attach, daemon=True).start()


def run_batches(session: hr.Session, source: hr.MemorySource, first: int, last: int) -> None:
    for batch in range(first, last):
        source.append(make_rows(batch))
        session.advance()


def make_rows(batch: int) -> list[dict[str, Any]]:
    """Return rows of one second of event time, with disorder and a few late ones."""
    return [
        {
            "k": (number * 7 + batch) % 60,
            "note": f"a{number % 40}",
            "time": BEGIN + timedelta(seconds=batch, milliseconds=(number * 37) % 1000 - (600 if number % 17 == 0 else 0)),
        }
        for number in range(120)
    ]


def end_worker(values: pa.Array) -> pa.Array:
    """Return the values, unless one of them is above 58: then end the process."""
    if (pc.max(values).as_py() or 0) > 58:
        os._exit(7)
    return values
