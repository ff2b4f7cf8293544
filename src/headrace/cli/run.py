"""`headrace run SESSION.toml`: run the streams and queries of a file, once over the existing input or until stopped.

After a crash at any point the same command resumes from its checkpoint with exactly-once results. The file format is described
in `headrace.cli.session_file`. The output is a live table on a terminal, status lines for logs, and a summary at the end.

A resumed run reconciles the queries of the file with those of the checkpoint. Same name, text and sink: the query continues.
Only in the checkpoint: it is removed. Only in the file: it is added. Same name but a different text or sink: an error, because
the results would mix two queries. A query that had failed stays failed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.cli import show_error
from headrace.cli.explain import plan_session_file
from headrace.cli.meter import SessionMeter, run_batches
from headrace.cli.session_file import QueryEntry, SessionFile
from headrace.cli.spark_options import ExchangeOption, MasterOption, SettingsOption, SparkOptions, StandbyOption
from headrace.cli.terminal import (
    BackendName,
    format_count,
    format_seconds,
    parse_partitions_option,
    print_json,
    progress_console,
    quiet_stdout,
    result_table,
    stop_on_signal,
)
from headrace.connectors import FileSink, MemorySink, RateSource, Sink
from headrace.connectors.file_access import path_exists
from headrace.connectors.pending_files import delete_sink_files, list_sink_files
from headrace.connectors.row_text import to_json_value
from headrace.errors import HeadraceError, NameTakenError, OwnershipLostError, SessionError, SinkError
from headrace.logging import LogFormat, LogLevel, configure
from headrace.model.budget import parse_own_budget
from headrace.query import Query
from headrace.runtime.partition_scaling import PartitionSetting
from headrace.runtime.sink_queue import QueueStatus
from headrace.session import ROWS_PER_BATCH, Session
from headrace.storage.checkpoint import delete_checkpoint
from headrace.storage.locations import StorageOptions, parse_location, use_storage_options


@dataclass(frozen=True, slots=True)
class KnownQuery:
    """A query of the session and its sinks."""

    handle: Query
    sinks: tuple[Sink, ...]

    @property
    def row_count(self) -> int:
        """Number of emitted rows."""
        return self.handle.emitted

    @property
    def status(self) -> str:
        """One of accepted, live, removed, failed."""
        return self.handle.status

    @property
    def error(self) -> str | None:
        """Why it failed, if it did."""
        return self.handle.error

    @property
    def late(self) -> dict[str, int]:
        """Late rows, by stream."""
        return self.handle.late

    @property
    def destination(self) -> str:
        """Where the results go: the folder of a file sink, otherwise a few words."""
        return ", ".join(sink.path if isinstance(sink, FileSink) else sink.describe() for sink in self.sinks)

    @property
    def is_readable(self) -> bool:
        """Whether the session keeps the results."""
        return any(isinstance(sink, MemorySink) for sink in self.sinks)

    @property
    def path(self) -> str | None:
        """The folder of a file sink, otherwise None."""
        return next((sink.path for sink in self.sinks if isinstance(sink, FileSink)), None)


def load_known_queries(session: Session) -> dict[str, KnownQuery]:
    """Return the live and failed queries of a recovered session by name; the last one if several of a name failed."""
    records = session._registry.records.values()  # noqa: SLF001
    failed = {
        record.name: KnownQuery(Query(session, record), record.sinks.sinks) for record in records if record.status == "failed"
    }
    return failed | {query.name: KnownQuery(query, query._record.sinks.sinks) for query in session.queries()}  # noqa: SLF001


def install_queries(
    session: Session, file: SessionFile, sinks: Mapping[str, tuple[Sink, ...]], known: Mapping[str, KnownQuery], console: Console
) -> dict[str, KnownQuery]:
    """Add and remove queries so that the session has those of the file; return them in the order of the file."""
    entries = {entry.name: entry for entry in file.queries}
    with use_storage_options(file.storage):
        for entry in file.queries:  # raise before anything changes
            _check_query(entry, sinks[entry.name], known.get(entry.name), session, file)
    for name, query in known.items():
        if name not in entries and query.status != "failed":
            session.remove(name)
            console.print(f"removed query '{name}', which is no longer in the file", markup=False)
    return {name: known[name] if name in known else _add_query(session, entry, sinks[name]) for name, entry in entries.items()}


def _add_query(session: Session, entry: QueryEntry, sinks: tuple[Sink, ...]) -> KnownQuery:
    return KnownQuery(session.add(entry.sql, name=entry.name, sinks=sinks, budget=entry.budget), sinks)


def _check_query(
    entry: QueryEntry, sinks: tuple[Sink, ...], known: KnownQuery | None, session: Session, file: SessionFile
) -> None:
    paths = [sink.path for sink in sinks if isinstance(sink, FileSink)]
    if known is None:
        used = next((path for path in paths if list_sink_files(path)), None)
        if used is not None:
            raise SessionError(
                f"directory '{used}' of query '{entry.name}' contains results of another checkpoint",
                hint="delete it, choose another one, or start over with --fresh",
            )
        return
    hint = f"rename the query, start over with --fresh, or use another --checkpoint than '{session.checkpoint.location}'"
    if known.handle.sql != entry.sql:
        raise NameTakenError(
            f"query '{entry.name}' in '{file.path}' differs from its text in the checkpoint",
            detail=f"in the checkpoint: {known.handle.sql}",
            hint=hint,
        )
    if known.sinks != sinks:
        raise NameTakenError(
            f"query '{entry.name}' in '{file.path}' differs from its sink in the checkpoint",
            detail=f"in the checkpoint: {known.destination}; in the file: {KnownQuery(known.handle, sinks).destination}",
            hint=hint,
        )
    budget = parse_own_budget(entry.budget, session.budget) or session.budget
    if known.handle.budget != budget:
        raise NameTakenError(
            f"query '{entry.name}' in '{file.path}' differs from its budget in the checkpoint",
            detail=f"in the checkpoint: {known.handle.budget}; in the file: {budget}",
            hint=hint,
        )
    missing = next((path for path in paths if known.row_count and not path_exists(path)), None)
    if missing is not None:
        raise SessionError(
            f"directory '{missing}' of query '{entry.name}' is missing, with {known.row_count} rows that are not written again",
            hint=hint,
        )


def was_drained(session: Session) -> bool:
    """Return whether an earlier run with --once closed all windows, so that all new rows are late for them."""
    return session.drained


def delete_checkpoint_and_results(checkpoint: str | None, options: StorageOptions, sinks: Iterable[Sink]) -> None:
    """Delete a checkpoint and the result files of these sinks, and no other files."""
    if checkpoint is not None:
        delete_checkpoint(checkpoint, options)
    for sink in sinks:
        if isinstance(sink, FileSink):
            with use_storage_options(options):
                delete_sink_files(sink.path)


_STATUS_LINE_SECONDS = 5.0
_MAX_SHOWN_ROWS = 20
_MAX_SHOWN_QUERIES = 25


class StatusLog:
    """Prints a status line every few seconds if there were new micro-batches, for logs."""

    def __init__(self, session: Session, meter: SessionMeter, console: Console) -> None:
        """Take the session, its meter and the console."""
        self._session, self._meter, self._console = session, meter, console
        self._due, self._batches = 0.0, 0

    def __call__(self) -> None:
        """Print a line if it is due and there were new micro-batches."""
        meter = self._meter
        if meter.elapsed_seconds >= self._due and meter.batches > self._batches:
            self._console.print(format_status_line(self._session, meter), soft_wrap=True)
            self._due, self._batches = meter.elapsed_seconds + _STATUS_LINE_SECONDS, meter.batches


def format_status_line(session: Session, meter: SessionMeter) -> str:
    """Return the statistics of a running session in one line."""
    live = sum(query.status == "live" for query in session.queries())
    degraded = [name for name, stream in session.streams().items() if stream["status"] == "degraded"]
    degraded += [f"{queue.description} of {queue.query}" for queue in _list_degraded_sinks(session)]
    return (
        f"batch {session.last_batch} · {format_count(meter.rows_per_second)} rows/s · "
        f"{format_seconds(meter.median_batch_seconds)} a batch · "
        f"{live} live queries · {meter.rows:,} rows read · {meter.emitted:,} results"
        + (f" · degraded: {', '.join(degraded)}" if degraded else "")
    )


def _list_degraded_sinks(session: Session) -> list[QueueStatus]:
    return [queue for queue in session.sink_changes.list_queues() if queue.problem]


def render_live(session: Session, queries: Mapping[str, KnownQuery], meter: SessionMeter) -> RenderableType:
    """Return the live table of a running session."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("query", "status", "results", "late rows", "goes to"):
        table.add_column(
            title, justify="right" if title in {"results", "late rows"} else "left", overflow="ellipsis", no_wrap=True
        )
    for name, query in list(queries.items())[:_MAX_SHOWN_QUERIES]:
        destination = query.destination
        table.add_row(name, _color_status(query.status), f"{query.row_count:,}", f"{sum(query.late.values()):,}", destination)
    hidden = len(queries) - _MAX_SHOWN_QUERIES
    footer = [Text(f"… and {hidden} more queries", "dim")] if hidden > 0 else []
    return Group(
        Text(format_status_line(session, meter), "bold"), table, *footer, Text("Ctrl-C stops; the same command resumes", "dim")
    )


def _color_status(status: str) -> Text:
    return Text(status, {"live": "green", "failed": "bold red"}.get(status, "yellow"))


def print_summary(
    queries: Mapping[str, KnownQuery], outcome: Mapping[str, Any], duration: float, console: Console, *, results: bool
) -> None:
    """Print the summary of a run; with `results`, first the rows of queries with a memory sink."""
    if results:
        for name, query in queries.items():
            if query.is_readable and query.row_count:
                console.print(result_table(f"{name} · {query.row_count:,} rows", query.handle.results(), _MAX_SHOWN_ROWS))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("query", "status", "rows", "late rows", "went to"):
        table.add_column(title, justify="right" if title in {"rows", "late rows"} else "left", overflow="fold")
    for name, query in queries.items():
        destination = Text(query.destination)
        if query.error:
            destination.append(f"\n{query.error}", "red")
        table.add_row(
            Text(name), _color_status(query.status), f"{query.row_count:,}", f"{sum(query.late.values()):,}", destination
        )
    console.print(table)
    for name, stream in outcome["streams"].items():
        line = f"stream {name}: {stream['rows']:,} rows, {stream['untimed']:,} without event time, "
        line += f"{len(stream['skipped'])} files skipped"
        if stream["ahead"]:
            line += f", {stream['ahead']:,} rows too far in the future"
        if stream["skipped_rows"]:
            line += f", {stream['skipped_rows']:,} {'messages' if stream['kind'] == 'kafka' else 'lines'} skipped"
        if stream["lost"]:
            line += f", {sum(stream['lost'].values()):,} messages were deleted before they were read"
        console.print(line, soft_wrap=True)
        if stream["error"]:
            console.print(Text(f"  {stream['status']}: {stream['error']}", "red"), soft_wrap=True)
        for path, reason in stream["skipped"].items():
            console.print(Text(f"  skipped {path}: {reason}", "yellow"), soft_wrap=True)
        for row in stream["skipped_samples"]:
            text = (
                f"  skipped {'message' if stream['kind'] == 'kafka' else 'line'} {row['line']} of {row['file']}: {row['reason']}"
            )
            console.print(Text(text, "yellow"), soft_wrap=True)
    for sink in outcome["degraded_sinks"]:
        line = (
            f"sink {sink['description']} of query '{sink['query']}' is degraded, {sink['waiting_batches']} micro-batches wait: "
        )
        console.print(Text(f"{line}{sink['problem']}; the same command publishes them", "red"), soft_wrap=True)
    console.print(f"{outcome['batches']} micro-batches, {len(queries)} queries, one pipeline, {duration:.1f} s")


_INTERVAL_SECONDS = 0.25
_SKIPPED_EXIT_CODE = 3
_STREAM_FIELDS = ("rows", "untimed", "ahead", "skipped", "skipped_rows", "skipped_samples", "lost", "status", "error")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of a run, from the session file and the command line."""

    file: SessionFile
    sinks: Mapping[str, tuple[Sink, ...]]
    checkpoint: str | None
    backend: BackendName
    once: bool
    as_json: bool
    spark: SparkOptions
    partitions: PartitionSetting | None = None
    standby: bool = False


def command(
    file: Annotated[Path, typer.Argument(metavar="SESSION.toml", help="Streams and queries, in TOML.")],
    once: Annotated[bool, typer.Option("--once", help="Read the existing input, close all windows, exit.")] = False,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder or URL of results: JSON lines in DIR/<query>, unless a query has its own sink."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document at the end; progress goes to standard error.")
    ] = False,
    backend: Annotated[
        BackendName, typer.Option(help="Back-end: Spark, this process (local), or the slow reference.")
    ] = BackendName.spark,
    checkpoint: Annotated[str | None, typer.Option(metavar="DIR", help="Folder or URL of the checkpoint.")] = None,
    partitions: Annotated[
        str | None, typer.Option(metavar="N|auto", help="Key partitions; auto follows the cores and the load.")
    ] = None,
    log_format: Annotated[LogFormat, typer.Option(help="Form of log lines on standard error.")] = LogFormat.text,
    log_level: Annotated[LogLevel, typer.Option(help="Least level of log lines.")] = LogLevel.warning,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete checkpoint and results of earlier runs first.")] = False,
    master: MasterOption = None,
    conf: SettingsOption = None,
    exchange: ExchangeOption = None,
    standby: StandbyOption = False,
) -> None:
    """Run the streams and queries of a session file until Ctrl-C or, with --once, until the existing input is read.

    The file has a table streams.NAME for each stream (source = "files" or "rate", path, schema, time, watermark, …) and
    a table queries.NAME for each query (sql, sink = "memory", "console", "noop", "parquet:DIR", "jsonl:DIR",
    or a table {kind = "kafka", …}; sinks = […] for several).

    The same command resumes where it stopped, also after kill -9. The exit code is 1 if a query or a source failed, or results
    wait for a sink whose destination is not available, and 3 if all went well except that rows or files were skipped
    (on_error). With --standby it waits while another process uses the checkpoint, also after it has lost the checkpoint to
    another one.
    """
    configure(log_format, log_level)
    session_file = SessionFile.load(file)
    results = None if out is None else parse_location(out, SinkError, "--out")
    sinks = {query.name: session_file.make_sinks(query, results) for query in session_file.queries}
    folder = _choose_checkpoint(session_file, sinks, checkpoint, results, once=once)
    chosen_partitions = parse_partitions_option(partitions) or session_file.partitions
    spark = session_file.spark.override(master, conf, exchange)
    settings = RunSettings(session_file, sinks, folder, backend, once, as_json, spark, chosen_partitions, standby)
    _check_bounded(settings)
    plan_session_file(session_file)  # raises for an invalid query before a back-end starts
    backend.check_available()
    if fresh:
        delete_checkpoint_and_results(settings.checkpoint, session_file.storage, chain.from_iterable(sinks.values()))
    with quiet_stdout(wanted=as_json):
        outcome = _run_session(settings)
    if as_json:
        print_json(outcome)
    failed_queries = any(query["status"] == "failed" for query in outcome["queries"].values())
    if (
        outcome["error"]
        or failed_queries
        or outcome["degraded_sinks"]
        or any(stream["status"] == "degraded" for stream in outcome["streams"].values())
    ):
        raise typer.Exit(1)
    if any(stream["skipped"] or stream["skipped_rows"] or stream["lost"] for stream in outcome["streams"].values()):
        raise typer.Exit(_SKIPPED_EXIT_CODE)


def _choose_checkpoint(
    file: SessionFile, sinks: Mapping[str, tuple[Sink, ...]], chosen: str | None, out: str | None, *, once: bool
) -> str | None:
    """Return the location of the checkpoint; None (a temporary one) only if no sink could get duplicates from a second run."""
    if chosen is not None:
        return parse_location(chosen)
    if file.checkpoint is not None:
        return file.checkpoint
    if out is not None:
        return f"{out}/.checkpoint"
    leaves_nothing = all(sink.kind in {"memory", "console", "noop"} for sink in chain.from_iterable(sinks.values()))
    return None if once and leaves_nothing else str(file.path.parent / ".headrace" / file.path.stem)


def _check_bounded(settings: RunSettings) -> None:
    for stream in settings.file.streams:
        if settings.once and stream.kind == "rate" and "rows" not in stream.options:
            raise SessionError(
                f"stream '{stream.name}' is unbounded, so --once would never end", hint=f"set rows = … in [streams.{stream.name}]"
            )


def _run_session(settings: RunSettings) -> dict[str, Any]:
    """Run the session, as a standby again whenever another process has taken its checkpoint over; return the outcome."""
    console = progress_console(as_json=settings.as_json)
    while True:
        try:
            outcome, error = _run_until_error(settings, console)
        except OwnershipLostError as lost:  # before the first micro-batch
            if not settings.standby:
                raise
            show_error(lost)
        else:
            if not settings.standby or not isinstance(error, OwnershipLostError):
                return outcome
        console.print("waiting as a standby …", style="dim")


def _run_until_error(settings: RunSettings, console: Console) -> tuple[dict[str, Any], HeadraceError | None]:
    with console.status(f"starting {'Spark' if settings.backend is BackendName.spark else 'the session'} …"):
        session = Session(
            settings.checkpoint,
            backend=settings.backend.value,
            rows_per_batch=settings.file.rows_per_batch or ROWS_PER_BATCH,
            functions=settings.file.functions,
            storage_options=settings.file.storage,
            partitions=settings.partitions,
            standby=settings.standby,
            **settings.file.changes,
            **settings.file.get_join_arguments(),
            **settings.spark.to_arguments(),
        )
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
    return outcome, error


def _declare_streams(session: Session, settings: RunSettings) -> None:
    for entry in settings.file.streams:
        clock = _AdvancedClock()
        source = entry.open(clock) if entry.kind == "rate" and settings.once else entry.open()
        entry.declare(session, source)
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
        name: {"kind": report["source"].get("kind", ""), **{field: report[field] for field in _STREAM_FIELDS}}
        for name, report in session.streams().items()
        if any(entry.name == name for entry in settings.file.streams)
    }
    return {
        "session": str(settings.file.path),
        "backend": settings.backend.value,
        "checkpoint": settings.checkpoint,
        "batches": session.last_batch + 1,
        "streams": streams,
        "queries": {name: _summarize_query(query, settings) for name, query in queries.items()},
        "degraded_sinks": [asdict(queue) for queue in _list_degraded_sinks(session)],
        "error": None if error is None else str(error),
    }


def _summarize_query(query: KnownQuery, settings: RunSettings) -> dict[str, Any]:
    summary = {
        "rows": query.row_count,
        "sink": ", ".join(sink.kind for sink in query.sinks),
        "path": query.path,
        "status": query.status,
        "error": query.error,
        "late": query.late,
    }
    if settings.once and settings.as_json and query.is_readable:
        rows = query.handle.results().to_pylist()
        summary["results"] = [{name: to_json_value(value) for name, value in row.items()} for row in rows]
    return summary
