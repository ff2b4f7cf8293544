"""`headrace run SESSION.toml`: the streams and queries of a file, once over what is there, or until stopped.

Killed at any point and started again with the same words, it goes on from its checkpoint: every result once, none
missing. The format of the file is in `headrace.cli.session_file`; what is done with queries that a checkpoint already
knows is in `headrace.cli.resume`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from headrace.cli import show_error
from headrace.cli.explain import sharing_of
from headrace.cli.meter import Meter, pump
from headrace.cli.resume import Known, forget, install, known_queries, was_drained
from headrace.cli.run_view import PlainStatus, live, show
from headrace.cli.session_file import SessionFile
from headrace.cli.terminal import BackendName, print_json, progress_console, quiet_stdout, stop_on_signal
from headrace.connectors import MemorySink, NoopSink, RateSource, Sink
from headrace.connectors.text import json_value
from headrace.errors import HeadraceError, SessionError
from headrace.session import ROWS_PER_BATCH, Session

_INTERVAL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Plan:
    """A run, decided: what the file says and what the command line says, put together."""

    file: SessionFile
    sinks: Mapping[str, Sink]
    checkpoint: Path | None
    backend: BackendName
    once: bool
    as_json: bool


def command(
    file: Annotated[Path, typer.Argument(metavar="SESSION.toml", help="Streams and queries, in TOML.")],
    once: Annotated[bool, typer.Option("--once", help="Read what is there, close all windows, exit.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where results go: JSON lines in DIR/<query>, unless a query names its sink."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document at the end; progress goes to standard error.")
    ] = False,
    backend: Annotated[
        BackendName, typer.Option(help="Where to run: Spark, this process, or the (slow) reference.")
    ] = BackendName.spark,
    checkpoint: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to remember how far it got.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget checkpoint and results of earlier runs, start over.")] = False,
) -> None:
    """Run the streams and queries of a session file, until Ctrl-C or, with --once, until all that is there was read.

    The file has a table streams.NAME for each stream (source = "files" or "rate", path, schema, time, watermark, …) and
    a table queries.NAME for each query (sql, sink = "memory", "console", "noop", "parquet:DIR" or "jsonl:DIR").

    The same command again goes on where it stopped, also after kill -9. Exit code 1 if a query or a source failed.
    """
    spec = SessionFile.load(file)
    sinks = {query.name: spec.sink_of(query, out) for query in spec.queries}
    plan = Plan(spec, sinks, _checkpoint_of(spec, sinks, checkpoint, out, once=once), backend, once, as_json)
    _check_bounded(plan)
    sharing_of(spec)  # refuses a bad query before anything is started
    backend.check()
    if fresh:
        forget(plan.checkpoint, sinks.values())
    with quiet_stdout(wanted=as_json):
        outcome = _run(plan)
    if as_json:
        print_json(outcome)
    if outcome["error"] or any(query["status"] == "failed" for query in outcome["queries"].values()):
        raise typer.Exit(1)


def _checkpoint_of(
    file: SessionFile, sinks: Mapping[str, Sink], given: Path | None, out: Path | None, *, once: bool
) -> Path | None:
    """Return the checkpoint directory; None (a temporary one) only if nothing is left behind that could double."""
    if given is not None:
        return given.expanduser().absolute()
    if file.checkpoint is not None:
        return file.checkpoint
    if out is not None:
        return out.expanduser().absolute() / ".checkpoint"
    leaves_nothing = all(not sink.written_by_workers or isinstance(sink, NoopSink) for sink in sinks.values())
    return None if once and leaves_nothing else file.path.parent / ".headrace" / file.path.stem


def _check_bounded(plan: Plan) -> None:
    for stream in plan.file.streams:
        if plan.once and stream.kind == "rate" and "rows" not in stream.options:
            raise SessionError(
                f"stream '{stream.name}' never ends, so --once would not either", hint=f"set rows = … in [streams.{stream.name}]"
            )


def _run(plan: Plan) -> dict[str, Any]:
    console = progress_console(as_json=plan.as_json)
    with console.status(f"starting {'Spark' if plan.backend is BackendName.spark else 'the session'} …"):
        rows, master = plan.file.rows_per_batch or ROWS_PER_BATCH, plan.file.master or "local[*]"
        session = Session(plan.checkpoint, backend=plan.backend.value, rows_per_batch=rows, master=master)
    error: HeadraceError | None = None
    with session:
        _declare(session, plan)
        queries = install(session, plan.file, plan.sinks, known_queries(session), console)
        if was_drained(session) and not plan.once:
            console.print(
                "all windows were closed by an earlier run with --once: new rows are late for them (--fresh starts over)",
                style="yellow",
            )
        meter = Meter()
        try:
            if plan.once:
                _read_all(session, meter, console)
            else:
                _follow(session, queries, meter, console)
        except HeadraceError as caught:
            error = caught
            show_error(caught)
        outcome = _summary(session, plan, queries, error)
        if not plan.as_json:
            show(queries, outcome, meter.seconds, console, results=plan.once)
    return outcome


def _declare(session: Session, plan: Plan) -> None:
    for entry in plan.file.streams:
        ahead = _Ahead()
        source = entry.open(ahead) if entry.kind == "rate" and plan.once else entry.open()
        session.create_stream(entry.name, source, time=entry.time, watermark=entry.watermark)
        if isinstance(source, RateSource) and plan.once:
            ahead.seconds = entry.options["rows"] / entry.options["rows_per_second"] + 1


class _Ahead:
    """A clock that can be put forward: with --once, all rows of a bounded made-up stream are there at once."""

    seconds = 0.0

    def __call__(self) -> float:
        return time.time() + self.seconds


def _read_all(session: Session, meter: Meter, console: Console) -> None:
    with console.status("reading …") as status:
        while meter.advance(session):
            status.update(f"reading: {meter.rows:,} rows in {meter.batches} micro-batches, {meter.emitted:,} results")
        status.update("closing windows …")
        session.drain()


def _follow(session: Session, queries: Mapping[str, Known], meter: Meter, console: Console) -> None:
    stopping = threading.Event()
    with stop_on_signal(stopping):
        if console.is_terminal:
            with Live(
                console=console, get_renderable=lambda: live(session, queries, meter), refresh_per_second=4, transient=True
            ):
                pump(session, meter, _INTERVAL_SECONDS, stopping)
        else:
            pump(session, meter, _INTERVAL_SECONDS, stopping, PlainStatus(session, meter, console))


def _summary(session: Session, plan: Plan, queries: Mapping[str, Known], error: HeadraceError | None) -> dict[str, Any]:
    streams = {
        name: {part: found[part] for part in ("rows", "untimed", "skipped")}
        for name, found in session.streams().items()
        if any(entry.name == name for entry in plan.file.streams)
    }
    return {
        "session": str(plan.file.path),
        "backend": plan.backend.value,
        "checkpoint": None if plan.checkpoint is None else str(plan.checkpoint),
        "batches": session.last_batch + 1,
        "streams": streams,
        "queries": {name: _query_summary(query, plan) for name, query in queries.items()},
        "error": None if error is None else str(error),
    }


def _query_summary(query: Known, plan: Plan) -> dict[str, Any]:
    found = {
        "rows": query.rows,
        "sink": query.sink.kind,
        "path": query.path,
        "status": query.status,
        "error": query.error,
        "late": query.late,
    }
    if plan.once and plan.as_json and isinstance(query.sink, MemorySink):
        rows = query.handle.results().to_pylist()
        found["results"] = [{name: json_value(value) for name, value in row.items()} for row in rows]
    return found
