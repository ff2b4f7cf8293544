"""`headrace run SESSION.toml`: run the streams and queries of a file, once over the existing input or until stopped.

After a crash at any point the same command resumes from its checkpoint with exactly-once results. The file format is described
in `headrace.cli.session_file`; `headrace.cli.resume` reconciles the queries of the file with those of the checkpoint.
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
from headrace.cli.explain import plan_session_file
from headrace.cli.meter import SessionMeter, run_batches
from headrace.cli.resume import KnownQuery, delete_checkpoint, install_queries, load_known_queries, was_drained
from headrace.cli.run_view import StatusLog, print_summary, render_live
from headrace.cli.session_file import SessionFile
from headrace.cli.terminal import BackendName, print_json, progress_console, quiet_stdout, stop_on_signal
from headrace.connectors import MemorySink, NoopSink, RateSource, Sink
from headrace.connectors.text import to_json_value
from headrace.errors import HeadraceError, SessionError
from headrace.session import ROWS_PER_BATCH, Session

_INTERVAL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of a run, from the session file and the command line."""

    file: SessionFile
    sinks: Mapping[str, Sink]
    checkpoint: Path | None
    backend: BackendName
    once: bool
    as_json: bool


def command(
    file: Annotated[Path, typer.Argument(metavar="SESSION.toml", help="Streams and queries, in TOML.")],
    once: Annotated[bool, typer.Option("--once", help="Read the existing input, close all windows, exit.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of results: JSON lines in DIR/<query>, unless a query has its own sink."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document at the end; progress goes to standard error.")
    ] = False,
    backend: Annotated[
        BackendName, typer.Option(help="Back-end: Spark, this process (local), or the slow reference.")
    ] = BackendName.spark,
    checkpoint: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the checkpoint.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete checkpoint and results of earlier runs first.")] = False,
) -> None:
    """Run the streams and queries of a session file until Ctrl-C or, with --once, until the existing input is read.

    The file has a table streams.NAME for each stream (source = "files" or "rate", path, schema, time, watermark, …) and
    a table queries.NAME for each query (sql, sink = "memory", "console", "noop", "parquet:DIR" or "jsonl:DIR").

    The same command resumes where it stopped, also after kill -9. The exit code is 1 if a query or a source failed.
    """
    session_file = SessionFile.load(file)
    sinks = {query.name: session_file.make_sink(query, out) for query in session_file.queries}
    settings = RunSettings(
        session_file, sinks, _choose_checkpoint(session_file, sinks, checkpoint, out, once=once), backend, once, as_json
    )
    _check_bounded(settings)
    plan_session_file(session_file)  # raises for an invalid query before a back-end starts
    backend.check_available()
    if fresh:
        delete_checkpoint(settings.checkpoint, sinks.values())
    with quiet_stdout(wanted=as_json):
        outcome = _run_session(settings)
    if as_json:
        print_json(outcome)
    if outcome["error"] or any(query["status"] == "failed" for query in outcome["queries"].values()):
        raise typer.Exit(1)


def _choose_checkpoint(
    file: SessionFile, sinks: Mapping[str, Sink], chosen: Path | None, out: Path | None, *, once: bool
) -> Path | None:
    """Return the checkpoint folder; None (a temporary one) only if no sink could get duplicates from a second run."""
    if chosen is not None:
        return chosen.expanduser().absolute()
    if file.checkpoint is not None:
        return file.checkpoint
    if out is not None:
        return out.expanduser().absolute() / ".checkpoint"
    leaves_nothing = all(not sink.written_by_workers or isinstance(sink, NoopSink) for sink in sinks.values())
    return None if once and leaves_nothing else file.path.parent / ".headrace" / file.path.stem


def _check_bounded(settings: RunSettings) -> None:
    for stream in settings.file.streams:
        if settings.once and stream.kind == "rate" and "rows" not in stream.options:
            raise SessionError(
                f"stream '{stream.name}' is unbounded, so --once would never end", hint=f"set rows = … in [streams.{stream.name}]"
            )


def _run_session(settings: RunSettings) -> dict[str, Any]:
    console = progress_console(as_json=settings.as_json)
    with console.status(f"starting {'Spark' if settings.backend is BackendName.spark else 'the session'} …"):
        rows, master = settings.file.rows_per_batch or ROWS_PER_BATCH, settings.file.master or "local[*]"
        session = Session(settings.checkpoint, backend=settings.backend.value, rows_per_batch=rows, master=master)
    error: HeadraceError | None = None
    with session:
        _declare_streams(session, settings)
        queries = install_queries(session, settings.file, settings.sinks, load_known_queries(session), console)
        if was_drained(session) and not settings.once:
            console.print(
                "an earlier run with --once closed all windows: new rows are late for them (--fresh starts over)",
                style="yellow",
            )
        meter = SessionMeter()
        try:
            if settings.once:
                _read_all(session, meter, console)
            else:
                _run_until_stopped(session, queries, meter, console)
        except HeadraceError as caught:
            error = caught
            show_error(caught)
        outcome = _summarize_run(session, settings, queries, error)
        if not settings.as_json:
            print_summary(queries, outcome, meter.elapsed_seconds, console, results=settings.once)
    return outcome


def _declare_streams(session: Session, settings: RunSettings) -> None:
    for entry in settings.file.streams:
        clock = _AdvancedClock()
        source = entry.open(clock) if entry.kind == "rate" and settings.once else entry.open()
        session.create_stream(entry.name, source, time=entry.time, watermark=entry.watermark)
        if isinstance(source, RateSource) and settings.once:
            clock.seconds = entry.options["rows"] / entry.options["rows_per_second"] + 1


class _AdvancedClock:
    """A clock that can be set forward, so that --once reads all rows of a bounded generated stream immediately."""

    seconds = 0.0

    def __call__(self) -> float:
        return time.time() + self.seconds


def _read_all(session: Session, meter: SessionMeter, console: Console) -> None:
    with console.status("reading …") as status:
        while meter.advance(session):
            status.update(f"reading: {meter.rows:,} rows in {meter.batches} micro-batches, {meter.emitted:,} results")
        status.update("closing windows …")
        session.drain()


def _run_until_stopped(session: Session, queries: Mapping[str, KnownQuery], meter: SessionMeter, console: Console) -> None:
    stopping = threading.Event()
    with stop_on_signal(stopping):
        if console.is_terminal:
            with Live(
                console=console, get_renderable=lambda: render_live(session, queries, meter), refresh_per_second=4, transient=True
            ):
                run_batches(session, meter, _INTERVAL_SECONDS, stopping)
        else:
            run_batches(session, meter, _INTERVAL_SECONDS, stopping, StatusLog(session, meter, console))


def _summarize_run(
    session: Session, settings: RunSettings, queries: Mapping[str, KnownQuery], error: HeadraceError | None
) -> dict[str, Any]:
    streams = {
        name: {field: report[field] for field in ("rows", "untimed", "skipped")}
        for name, report in session.streams().items()
        if any(entry.name == name for entry in settings.file.streams)
    }
    return {
        "session": str(settings.file.path),
        "backend": settings.backend.value,
        "checkpoint": None if settings.checkpoint is None else str(settings.checkpoint),
        "batches": session.last_batch + 1,
        "streams": streams,
        "queries": {name: _summarize_query(query, settings) for name, query in queries.items()},
        "error": None if error is None else str(error),
    }


def _summarize_query(query: KnownQuery, settings: RunSettings) -> dict[str, Any]:
    summary = {
        "rows": query.row_count,
        "sink": query.sink.kind,
        "path": query.path,
        "status": query.status,
        "error": query.error,
        "late": query.late,
    }
    if settings.once and settings.as_json and isinstance(query.sink, MemorySink):
        rows = query.handle.results().to_pylist()
        summary["results"] = [{name: to_json_value(value) for name, value in row.items()} for row in rows]
    return summary
