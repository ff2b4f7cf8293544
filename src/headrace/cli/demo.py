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

from headrace.cli.demo_queries import KIND_COUNT, DemoEvent, DemoQuery, generate_queries, schedule_events
from headrace.cli.demo_streams import declare_demo_streams
from headrace.cli.demo_view import format_status_line, render_screen, render_summary
from headrace.cli.meter import BatchThread, SessionMeter, summarize_values
from headrace.cli.sharing import SharedPlans, plan_queries
from headrace.cli.terminal import BackendName, print_json, progress_console, quiet_stdout
from headrace.plan.stacked import AnyQuery
from headrace.query import Query
from headrace.session import Session
from headrace.sql import Catalog, bind_query

_INTERVAL_SECONDS = 0.4
_TICK_SECONDS = 0.1


@dataclass(slots=True)
class DemoQueryState:
    """A query of the demo, with the last row it emitted."""

    definition: DemoQuery
    plan: AnyQuery
    handle: Query | None = None
    latest_row: dict[str, Any] = field(default_factory=dict)
    row_count: int = 0

    def receive_rows(self, table: pa.Table) -> None:
        """Receive emitted rows; called as the query's sink."""
        self.row_count += table.num_rows
        self.latest_row = table.slice(table.num_rows - 1).to_pylist()[0]

    @property
    def status(self) -> str:
        """The status in the session."""
        return "accepted" if self.handle is None else self.handle.status


class Demo:
    """The state of the demo, which the screen shows."""

    def __init__(self, session: Session, length: float, number: int, rate: float) -> None:
        """Declare the streams and schedule the queries."""
        self.session, self.length, self.rate = session, length, rate
        self.meter = SessionMeter()
        self.queries: dict[str, DemoQueryState] = {}
        self.log: list[tuple[float, str]] = []
        self.removed_count = 0
        self._pending: list[DemoQueryState] = []
        self._schedule = schedule_events(number, length)
        self.planned_count = number
        declare_demo_streams(session, rate)
        self.streams = list(session.coordinator.build_catalog().streams)
        self._catalog = Catalog.of(self.streams)
        self.shared_plans: SharedPlans = plan_queries(self.streams, {})
        self.lags: list[float] = []
        self.warm_up_seconds = 0.0
        self._started_at = time.monotonic()

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_at

    @property
    def event_time_lag(self) -> float | None:
        """Event-time lag: how far the newest processed row is behind the wall clock; None before the first row."""
        newest = min(stream["max_event_time"] for stream in self.session.streams().values())
        return time.time() - newest / 1e6 if newest > 0 else None

    @property
    def live_count(self) -> int:
        """Number of live queries."""
        return sum(query.status == "live" for query in self.queries.values())

    @property
    def deployment_seconds(self) -> list[float]:
        """Seconds from `add` until live, for each query."""
        durations = [shown.handle.deployment_seconds for shown in self.queries.values() if shown.handle is not None]
        return [value for value in durations if value is not None]

    def warm_up(self) -> None:
        """Run a query of each kind on some rows and remove them all, so that one-time costs are not measured."""
        names = [
            self.session.add(query.sql, name=f"warm {query.name}", sink="noop").name for query in generate_queries(KIND_COUNT)
        ]
        while not self.session.advance().rows:
            time.sleep(_TICK_SECONDS)
        for name in names:
            self.session.remove(name)
        self.session.advance()
        self.warm_up_seconds = time.monotonic() - self._started_at

    def start(self) -> None:
        """Start the clock and the schedule."""
        self._started_at = time.monotonic()
        self.meter = SessionMeter()
        self.apply_due_events()

    def apply_due_events(self) -> None:
        """Apply the events that are due, and log queries that became live."""
        due = [event for event in self._schedule if event.at <= self.elapsed_seconds]
        self._schedule = self._schedule[len(due) :]
        for event in due:
            self._apply_event(event)
        for query in [query for query in self._pending if query.status != "accepted"]:
            self._pending.remove(query)
            duration = query.handle.deployment_seconds if query.handle is not None else None
            self._log_event(
                f"{query.definition.name} is {query.status}"
                + (f" after {duration * 1000:.0f} ms" if duration is not None else "")
            )
        if due:
            self._replan()
        if self.event_time_lag is not None:
            self.lags.append(self.event_time_lag)

    def _apply_event(self, event: DemoEvent) -> None:
        name = event.query.name
        if event.add:
            state = self.queries[name] = DemoQueryState(event.query, bind_query(event.query.sql, self._catalog))
            state.handle = self.session.add(event.query.sql, name=name, sink=state.receive_rows)
            self._pending.append(state)
        else:
            self.session.remove(name)
            self.removed_count += 1
            self._log_event(f"{name} was removed")

    def _log_event(self, text: str) -> None:
        self.log.append((self.elapsed_seconds, text))

    def _replan(self) -> None:
        current = {query.name for query in self.session.queries()}
        self.shared_plans = plan_queries(
            self.streams, {name: query.plan for name, query in self.queries.items() if name in current}
        )

    def summarize(self, backend: str) -> dict[str, Any]:
        """Return the statistics of the whole run."""
        return {
            "backend": backend,
            "seconds": round(self.meter.elapsed_seconds, 2),
            "warm_up_seconds": round(self.warm_up_seconds, 2),
            "restarts": 0,
            "queries": {
                "added": len(self.queries),
                "removed": self.removed_count,
                "live": self.live_count,
                "failed": sum(query.status == "failed" for query in self.queries.values()),
            },
            "rows": self.meter.rows,
            "rows_per_second": round(self.meter.rows / max(self.meter.elapsed_seconds, 1e-3), 1),
            "batches": self.meter.batches,
            "results": sum(query.row_count for query in self.queries.values()),
            "batch_seconds": summarize_values(self.meter.batch_seconds),
            "deployment_seconds": summarize_values(self.deployment_seconds),
            "event_time_lag_seconds": round(statistics.median(self.lags), 3) if self.lags else None,
            "shared_operators": len(self.shared_plans.operators),
            "by_query": {name: _summarize_query(query) for name, query in self.queries.items()},
        }


def _summarize_query(query: DemoQueryState) -> dict[str, Any]:
    deployment_seconds = query.handle.deployment_seconds if query.handle is not None else None
    error = query.handle.error if query.handle is not None else None
    return {
        "sql": query.definition.sql,
        "status": query.status,
        "rows": query.row_count,
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
    backend.check_available()
    with quiet_stdout(wanted=as_json):
        summary = _run_demo(length, number, rate, as_json=as_json, backend=backend)
    if as_json:
        print_json(summary)
    if summary["queries"]["failed"]:
        raise typer.Exit(1)


def _run_demo(length: float, number: int, rate: float, *, as_json: bool, backend: BackendName) -> dict[str, Any]:
    console = progress_console(as_json=as_json)
    with console.status(f"starting {'Spark' if backend is BackendName.spark else 'the session'} …"):
        session = Session(backend=backend.value)
    with session:
        demo = Demo(session, length, number, rate)
        with console.status("warming up: starting workers, loading kernels …"):
            demo.warm_up()
        demo.start()
        pump = BatchThread(session, demo.meter, _INTERVAL_SECONDS)
        pump.start()
        try:
            _watch_demo(demo, pump, console)
        finally:
            pump.stop()
        pump.raise_if_failed()
        demo.apply_due_events()
        demo.meter.advance(session)  # apply the last changes, too
        summary = demo.summarize(backend.value)
        console.print(render_summary(summary, demo.shared_plans.to_text()))
    return summary


def _watch_demo(demo: Demo, pump: BatchThread, console: Console) -> None:
    if console.is_terminal:
        with Live(console=console, screen=False, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
            _run_until_end(demo, pump, lambda: live.update(render_screen(demo, console.size), refresh=True), every=0.25)
    else:
        _run_until_end(demo, pump, lambda: console.print(format_status_line(demo), soft_wrap=True), every=1.0)


def _run_until_end(demo: Demo, pump: BatchThread, draw: Any, *, every: float) -> None:
    tick, due = threading.Event(), 0.0
    while demo.elapsed_seconds < demo.length:
        pump.raise_if_failed()
        demo.apply_due_events()
        if demo.elapsed_seconds >= due:
            draw()
            due += every
        tick.wait(_TICK_SECONDS)
