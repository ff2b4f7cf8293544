# ruff: noqa: S311, S608  generated queries with random constants
"""`headrace demo`: queries are added to and removed from two live streams without a restart.

The streams are generated (purchases and ads of a game) with the wall clock as event time, so that the displayed lag is real.
A background thread runs micro-batches; the main thread adds and removes queries on a schedule and draws the screen. Queries and
schedule are generated from a seed.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console
from rich.live import Live

from headrace.cli.demo_view import format_status_line, render_screen, render_summary
from headrace.cli.explain import SharedPlans, plan_queries
from headrace.cli.meter import BatchThread, SessionMeter, summarize_values
from headrace.cli.spark_options import ExchangeOption, MasterOption, SettingsOption, SparkOptions
from headrace.cli.terminal import BackendName, print_json, progress_console, quiet_stdout
from headrace.connectors import RateSource
from headrace.plan.derived import AnyQuery
from headrace.query import Query
from headrace.session import Session
from headrace.sql import Catalog, bind_query

DEFAULT_RATE = 2_000.0
_SHARES = {"purchases": 0.8, "ads": 0.2}  # of all rows
_WATERMARK = "500 ms"


def declare_demo_streams(session: Session, rate: float = DEFAULT_RATE) -> None:
    """Declare both streams with `rate` rows per second in total; a recovered session keeps their start time."""
    streams = session.streams()
    for name, share in _SHARES.items():
        recorded_start = streams[name]["source"]["start_time"] if name in streams else None
        start = datetime.now(UTC) if recorded_start is None else datetime.fromtimestamp(recorded_start / 1e6, UTC)
        source = RateSource(max(rate * share, 1), name, start_time=start)
        session.create_stream(name, source, time="time", watermark=_WATERMARK)


SEED = 7
_KEPT_SHARE = 0.7  # of the queries stay until the end


@dataclass(frozen=True, slots=True)
class DemoQuery:
    """A query with its name and a short description."""

    name: str
    about: str
    sql: str


@dataclass(frozen=True, slots=True)
class DemoEvent:
    """The addition (`add`) or removal of a query `at` seconds after the start."""

    at: float
    add: bool
    query: DemoQuery


def generate_queries(number: int, seed: int = SEED) -> Iterator[DemoQuery]:
    """Yield queries: mostly windowed aggregations, some stateless queries, session windows and unions."""
    rng = random.Random(seed)
    for index in range(number):
        maker = _QUERY_MAKERS[index % len(_QUERY_MAKERS)]
        about, sql = maker(rng)
        yield DemoQuery(f"{maker.__name__.lstrip('_')}_{index + 1}", about, sql)


def schedule_events(number: int, length: float, seed: int = SEED) -> list[DemoEvent]:
    """Return the events in order of time: additions until 60 % of the length, removals from 50 % to 90 %."""
    queries = list(generate_queries(number, seed))
    additions = [DemoEvent(0.6 * length * index / max(number, 1), add=True, query=query) for index, query in enumerate(queries)]
    removed = random.Random(seed).sample(queries[: number // 2], min(number // 2, number - round(_KEPT_SHARE * number)))
    removals = [
        DemoEvent(length * (0.5 + 0.4 * (index + 1) / len(removed)), add=False, query=query)
        for index, query in enumerate(removed)
    ]
    return sorted(additions + removals, key=lambda event: event.at)


def _random_window(rng: random.Random, stream: str) -> tuple[str, str]:
    size = rng.choice((1, 2, 3, 4, 5))
    slide = rng.choice((size, size, 1, 2))
    if slide == size:
        return f"every {size} s", f"TUMBLE({stream}, '{size} seconds')"
    return f"{size} s, every {slide} s", f"HOP({stream}, '{size} seconds', '{slide} seconds')"


def _revenue(rng: random.Random) -> tuple[str, str]:
    schedule, source = _random_window(rng, "purchases")
    low = rng.randrange(5, 95, 5)
    outputs = "window_start, gem_pack, SUM(price) AS revenue, COUNT(*) AS sold"
    sql = f"SELECT {outputs} FROM {source} WHERE price > {low} GROUP BY gem_pack"
    return f"revenue by pack, price > {low}, {schedule}", sql


def _prices(rng: random.Random) -> tuple[str, str]:
    schedule, source = _random_window(rng, "purchases")
    pack = rng.randrange(10)
    sql = f"SELECT window_start, AVG(price) AS mean, MIN(price) AS low, MAX(price) AS high FROM {source} WHERE gem_pack = {pack}"
    return f"prices of pack {pack}, {schedule}", sql


def _ads(rng: random.Random) -> tuple[str, str]:
    schedule, source = _random_window(rng, "ads")
    low = rng.randrange(10, 60, 10)
    outputs = "window_start, ad_id, COUNT(*) AS shown, SUM(cost) AS cost"
    sql = f"SELECT {outputs} FROM {source} WHERE cost BETWEEN {low} AND {low + 30} GROUP BY ad_id"
    return f"ads by id, cost {low}–{low + 30}, {schedule}", sql


def _packs(rng: random.Random) -> tuple[str, str]:
    schedule, source = _random_window(rng, "purchases")
    low, floor = rng.randrange(10, 90, 10), rng.choice((10, 100))
    sql = (
        f"SELECT window_start, gem_pack, COUNT(*) AS sold, STDDEV(price) AS spread FROM {source} "
        f"WHERE price <= {low} GROUP BY gem_pack HAVING COUNT(*) > {floor}"
    )
    return f"busy packs, price ≤ {low}, {schedule}", sql


def _jackpot(rng: random.Random) -> tuple[str, str]:
    pack = rng.randrange(10)
    return (
        f"each purchase of pack {pack} above 99.97",
        f"SELECT user_id, price, time FROM purchases WHERE price > 99.97 AND gem_pack = {pack}",
    )


def _visits(rng: random.Random) -> tuple[str, str]:
    gap, users = rng.choice((1, 2)), rng.choice((20, 50))
    sql = (
        f"SELECT window_start, window_end, user_id, COUNT(*) AS n FROM SESSION(purchases, '{gap} seconds') "
        f"WHERE price > 99.8 AND user_id < {users} GROUP BY user_id"
    )
    return f"sessions of {users} users, gap {gap} s", sql


def _balance(rng: random.Random) -> tuple[str, str]:
    size = rng.choice((2, 4))
    both = "SELECT price AS amount, gem_pack, time FROM purchases UNION ALL SELECT -cost AS amount, gem_pack, time FROM ads"
    sql = f"SELECT window_start, gem_pack, SUM(amount) AS balance FROM TUMBLE(({both}), '{size} seconds') GROUP BY gem_pack"
    return f"purchases − ads by pack, every {size} s", sql


_QUERY_MAKERS: tuple[Callable[[random.Random], tuple[str, str]], ...] = (
    _revenue, _ads, _prices, _revenue, _jackpot, _packs, _ads, _visits, _revenue, _balance,
)  # fmt: skip

KIND_COUNT = len(_QUERY_MAKERS)  # this many queries include one of each kind


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
        self.streams = list(session.catalog.streams)
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
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="New folder or URL of the checkpoint; on a cluster, one that all share."),
    ] = None,
    master: MasterOption = None,
    conf: SettingsOption = None,
    exchange: ExchangeOption = None,
) -> None:
    """Watch queries being added to and removed from two live streams: one pipeline, no restarts. Needs no files."""
    backend.check_available()
    arguments = {"checkpoint": checkpoint, **SparkOptions().override(master, conf, exchange).to_arguments()}
    with quiet_stdout(wanted=as_json):
        summary = _run_demo(length, number, rate, as_json=as_json, backend=backend, arguments=arguments)
    if as_json:
        print_json(summary)
    if summary["queries"]["failed"]:
        raise typer.Exit(1)


def _run_demo(
    length: float, number: int, rate: float, *, as_json: bool, backend: BackendName, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    console = progress_console(as_json=as_json)
    with console.status(f"starting {'Spark' if backend is BackendName.spark else 'the session'} …"):
        session = Session(backend=backend.value, **arguments)
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
