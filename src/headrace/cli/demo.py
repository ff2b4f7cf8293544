"""`headrace demo`: queries are added to and removed from two live streams without a restart.

The streams are generated (purchases and ads of a game) with the wall clock as event time, so that the displayed lag is real.
A background thread runs micro-batches; the main thread adds and removes queries on a schedule and draws the screen.
"""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console
from rich.live import Live

from headrace.cli.demo_queries import KINDS, DemoQuery, Event, demo_queries, timetable
from headrace.cli.demo_streams import declare_demo
from headrace.cli.demo_view import closing, screen, status_line
from headrace.cli.meter import Meter, Pump, spread
from headrace.cli.sharing import Sharing, share
from headrace.cli.terminal import BackendName, print_json, progress_console, quiet_stdout
from headrace.plan.stacked import AnyQuery
from headrace.query import Query
from headrace.session import Session
from headrace.sql import Catalog, bind_query

_INTERVAL_SECONDS = 0.4
_TICK_SECONDS = 0.1


@dataclass(slots=True)
class Shown:
    """A query of the demo, with the last row it emitted."""

    demo: DemoQuery
    plan: AnyQuery
    query: Query | None = None
    latest: dict[str, Any] = field(default_factory=dict)
    rows: int = 0

    def receive(self, table: pa.Table) -> None:
        """Receive emitted rows; called as the query's sink."""
        self.rows += table.num_rows
        self.latest = table.slice(table.num_rows - 1).to_pylist()[0]

    @property
    def status(self) -> str:
        """The status in the session."""
        return "accepted" if self.query is None else self.query.status


class Demo:
    """The state of the demo, which the screen shows."""

    def __init__(self, session: Session, length: float, number: int, rate: float) -> None:
        """Declare the streams and schedule the queries."""
        self.session, self.length, self.rate = session, length, rate
        self.meter = Meter()
        self.shown: dict[str, Shown] = {}
        self.log: list[tuple[float, str]] = []
        self.removed = 0
        self._waiting: list[Shown] = []
        self._events = timetable(number, length)
        self.planned = number
        declare_demo(session, rate)
        self.streams = list(session.coordinator.build_catalog().streams)
        self._catalog = Catalog.of(self.streams)
        self.sharing: Sharing = share(self.streams, {})
        self.lags: list[float] = []
        self.warm_up_seconds = 0.0
        self._begun = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun

    @property
    def lag(self) -> float | None:
        """Event-time lag: how far the newest processed row is behind the wall clock; None before the first row."""
        newest = min(stream["max_event_time"] for stream in self.session.streams().values())
        return time.time() - newest / 1e6 if newest > 0 else None

    @property
    def live(self) -> int:
        """Number of live queries."""
        return sum(query.status == "live" for query in self.shown.values())

    @property
    def deployments(self) -> list[float]:
        """Seconds from `add` until live, for each query."""
        durations = [shown.query.deployment_seconds for shown in self.shown.values() if shown.query is not None]
        return [value for value in durations if value is not None]

    def warm_up(self) -> None:
        """Run a query of each kind on some rows and remove them all, so that one-time costs are not measured."""
        names = [self.session.add(query.sql, name=f"warm {query.name}", sink="noop").name for query in demo_queries(KINDS)]
        while not self.session.advance().rows:
            time.sleep(_TICK_SECONDS)
        for name in names:
            self.session.remove(name)
        self.session.advance()
        self.warm_up_seconds = time.monotonic() - self._begun

    def begin(self) -> None:
        """Start the clock and the schedule."""
        self._begun = time.monotonic()
        self.meter = Meter()
        self.happen()

    def happen(self) -> None:
        """Apply the events that are due, and log queries that became live."""
        due = [event for event in self._events if event.at <= self.seconds]
        self._events = self._events[len(due) :]
        for event in due:
            self._do(event)
        for query in [query for query in self._waiting if query.status != "accepted"]:
            self._waiting.remove(query)
            duration = query.query.deployment_seconds if query.query is not None else None
            self._note(
                f"{query.demo.name} is {query.status}" + (f" after {duration * 1000:.0f} ms" if duration is not None else "")
            )
        if due:
            self._replan()
        if self.lag is not None:
            self.lags.append(self.lag)

    def _do(self, event: Event) -> None:
        name = event.query.name
        if event.add:
            state = self.shown[name] = Shown(event.query, bind_query(event.query.sql, self._catalog))
            state.query = self.session.add(event.query.sql, name=name, sink=state.receive)
            self._waiting.append(state)
        else:
            self.session.remove(name)
            self.removed += 1
            self._note(f"{name} was removed")

    def _note(self, text: str) -> None:
        self.log.append((self.seconds, text))

    def _replan(self) -> None:
        current = {query.name for query in self.session.queries()}
        self.sharing = share(self.streams, {name: query.plan for name, query in self.shown.items() if name in current})

    def summary(self, backend: str) -> dict[str, Any]:
        """Return the statistics of the whole run."""
        return {
            "backend": backend,
            "seconds": round(self.meter.seconds, 2),
            "warm_up_seconds": round(self.warm_up_seconds, 2),
            "restarts": 0,
            "queries": {
                "added": len(self.shown),
                "removed": self.removed,
                "live": self.live,
                "failed": sum(query.status == "failed" for query in self.shown.values()),
            },
            "rows": self.meter.rows,
            "rows_per_second": round(self.meter.rows / max(self.meter.seconds, 1e-3), 1),
            "batches": self.meter.batches,
            "results": sum(query.rows for query in self.shown.values()),
            "batch_seconds": spread(self.meter.latencies),
            "deployment_seconds": spread(self.deployments),
            "event_time_lag_seconds": round(statistics.median(self.lags), 3) if self.lags else None,
            "shared_operators": len(self.sharing.operators),
            "by_query": {name: _of(query) for name, query in self.shown.items()},
        }


def _of(query: Shown) -> dict[str, Any]:
    deployment_seconds = query.query.deployment_seconds if query.query is not None else None
    error = query.query.error if query.query is not None else None
    return {
        "sql": query.demo.sql,
        "status": query.status,
        "rows": query.rows,
        "deployment_seconds": deployment_seconds and round(deployment_seconds, 4),
        "error": error,
    }


def command(
    length: Annotated[float, typer.Option("--seconds", min=1, help="Duration of the demo.")] = 30,
    number: Annotated[int, typer.Option("--queries", min=1, help="Number of queries to add.")] = 20,
    rate: Annotated[float, typer.Option(min=10, help="Rows per second of both streams together.")] = 100_000,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document at the end; progress goes to standard error.")
    ] = False,
    backend: Annotated[
        BackendName, typer.Option(help="Back-end: Spark, this process (local), or the slow reference.")
    ] = BackendName.spark,
) -> None:
    """Watch queries being added to and removed from two live streams: one pipeline, no restarts. Needs no files."""
    backend.check()
    with quiet_stdout(wanted=as_json):
        summary = _show(length, number, rate, as_json=as_json, backend=backend)
    if as_json:
        print_json(summary)
    if summary["queries"]["failed"]:
        raise typer.Exit(1)


def _show(length: float, number: int, rate: float, *, as_json: bool, backend: BackendName) -> dict[str, Any]:
    console = progress_console(as_json=as_json)
    with console.status(f"starting {'Spark' if backend is BackendName.spark else 'the session'} …"):
        session = Session(backend=backend.value)
    with session:
        demo = Demo(session, length, number, rate)
        with console.status("warming up: starting workers, loading kernels …"):
            demo.warm_up()
        demo.begin()
        pump = Pump(session, demo.meter, _INTERVAL_SECONDS)
        pump.start()
        try:
            _watch(demo, pump, console)
        finally:
            pump.stop()
        pump.check()
        demo.happen()
        demo.meter.advance(session)  # apply the last changes, too
        summary = demo.summary(backend.value)
        console.print(closing(summary, demo.sharing.text()))
    return summary


def _watch(demo: Demo, pump: Pump, console: Console) -> None:
    if console.is_terminal:
        with Live(console=console, screen=False, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
            _until_the_end(demo, pump, lambda: live.update(screen(demo, console.size), refresh=True), every=0.25)
    else:
        _until_the_end(demo, pump, lambda: console.print(status_line(demo), soft_wrap=True), every=1.0)


def _until_the_end(demo: Demo, pump: Pump, draw: Any, *, every: float) -> None:
    tick, due = threading.Event(), 0.0
    while demo.seconds < demo.length:
        pump.check()
        demo.happen()
        if demo.seconds >= due:
            draw()
            due += every
        tick.wait(_TICK_SECONDS)
