"""`headrace sql`: a SQL shell on a service, or on a session in this process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NamedTuple, TextIO

import typer
from rich.console import Console
from rich.text import Text

from headrace.cli import show_error
from headrace.cli.session_file import SessionFile
from headrace.cli.shell.executor import StatementRunner
from headrace.cli.shell.remote import open_remote
from headrace.cli.shell.render import TERMINAL_ROWS, JsonLinesView, OutcomeView, PlainView, ScreenView
from headrace.cli.shell.repl import (
    NameCache,
    ScriptRunner,
    history_path,
    make_prompt_session,
    open_history,
    read_statements,
    run_prompt_loop,
)
from headrace.cli.shell.target import ShellTarget
from headrace.cli.shell.tokenizer import StatementText
from headrace.cli.spark_options import ExchangeOption, MasterOption, SettingsOption, SparkOptions
from headrace.cli.terminal import BackendName, progress_console, quiet_stdout
from headrace.errors import HeadraceError
from headrace.storage.locations import parse_location

if TYPE_CHECKING:
    from headrace.session import Session

HOST, PORT = "127.0.0.1", 8420
SERVICE = f"http://{HOST}:{PORT}"
_CONNECT_TIMEOUT_SECONDS = 0.5
_ADDRESS_PATTERN = re.compile(r"[\w.-]+:\d+", re.ASCII)


class OpenedTarget(NamedTuple):
    """A target and its description; `is_default` if the user did not choose it."""

    target: ShellTarget
    description: str
    is_default: bool = False


def open_target(
    place: str | None,
    backend: BackendName | None,
    token: str | None,
    certificates: Path | None = None,
    spark: SparkOptions | None = None,
    checkpoint: str | None = None,
) -> OpenedTarget:
    """Open the target the user named; by default the service on the default port if it runs, otherwise the demo streams."""
    if spark is not None and spark != SparkOptions():
        backend = backend or BackendName.spark
        if backend is not BackendName.spark:
            raise typer.BadParameter("--master, --conf and --exchange apply to the Spark back-end")
    if place is None and backend is None and checkpoint is None and _is_service_listening():
        return _open_service(SERVICE, token, certificates, is_default=True)
    if place is not None and (place.startswith(("http://", "https://")) or _ADDRESS_PATTERN.fullmatch(place)):
        if backend is not None or checkpoint is not None:
            raise typer.BadParameter("--backend, --master and --checkpoint apply to a session in this process, not to a service")
        return _open_service(place if "://" in place else f"http://{place}", token, certificates)
    chosen = backend or BackendName.local
    chosen.check_available()
    is_chosen = backend is not None or checkpoint is not None
    location = None if checkpoint is None else parse_location(checkpoint)
    return _open_session(place, chosen, spark or SparkOptions(), location, is_chosen=is_chosen)


def _open_session(
    place: str | None, backend: BackendName, spark: SparkOptions, checkpoint: str | None, *, is_chosen: bool
) -> OpenedTarget:
    from headrace.cli.shell.embedded import (  # noqa: PLC0415  the engine, which a shell on a service does not need
        EmbeddedTarget,
        open_demo_session,
        open_file_session,
    )

    if place is None:
        session = _start_session(backend, lambda: open_demo_session(backend.value, spark, checkpoint))
        reason = "" if is_chosen else f"no service at {SERVICE}, so "
        return OpenedTarget(
            EmbeddedTarget(session),
            f"{reason}a session in this process ({backend.value}) with generated streams",
            is_default=True,
        )
    file = SessionFile.load(Path(place), require_queries=False)
    session = _start_session(backend, lambda: open_file_session(file, backend.value, file.spark.merge(spark), checkpoint))
    bounded = any(stream.kind == "files" for stream in file.streams)
    note = "; reading starts with the first SELECT, TAIL or RESULTS" if bounded else ""
    return OpenedTarget(
        EmbeddedTarget(session, bounded=bounded), f"a session in this process ({backend.value}) from {place}{note}"
    )


def _is_service_listening() -> bool:
    try:
        socket.create_connection((HOST, PORT), _CONNECT_TIMEOUT_SECONDS).close()
    except OSError:
        return False
    return True


def _open_service(url: str, token: str | None, certificates: Path | None, *, is_default: bool = False) -> OpenedTarget:
    try:
        return OpenedTarget(open_remote(url, token, certificates), f"the service at {url}", is_default)
    except HeadraceError as error:
        if not is_default:
            raise
        hint = f"{error.hint}; or open a session in this process: headrace sql --backend local".removeprefix("; or ")
        raise HeadraceError(error.message, detail=error.detail, hint=hint) from error


def _start_session(backend: BackendName, open_session: Callable[[], Session]) -> Session:
    with progress_console(as_json=True).status(f"starting {'Spark' if backend is BackendName.spark else 'a session'} …"):
        return open_session()


def command(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="URL|SESSION.toml",
            help=f"A service, or a session file to run in this process. Default: the service at {SERVICE} if it is running, "
            "otherwise a session in this process with generated streams.",
            show_default=False,
        ),
    ] = None,
    statements: Annotated[
        list[str] | None,
        typer.Option("--command", "-c", metavar="STATEMENTS", help="Run these statements and exit; repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print results as JSON, one object per line.")] = False,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="In a script: continue after an error; exit with 1.")] = False,
    token: Annotated[str | None, typer.Option(envvar="HEADRACE_TOKEN", help="Token for a service that requires one.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificates to trust, in PEM, for a service at https://…")
    ] = None,
    backend: Annotated[
        BackendName | None, typer.Option(help="Back-end of a session in this process; the default is local.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Folder or URL of the checkpoint of a session in this process; on a cluster, one that all machines see. "
            "Default: a temporary folder.",
            show_default=False,
        ),
    ] = None,
    master: MasterOption = None,
    conf: SettingsOption = None,
    exchange: ExchangeOption = None,
) -> None:
    """Open a SQL shell on a running pipeline: add queries, watch their results, see what they share.

    Statements end with a semicolon; HELP; lists them: SELECT …; ADD SELECT … AS name; TAIL name; SHOW QUERIES; EXPLAIN;

    With -c, or if standard input is not a terminal, statements run in order; the first error stops them with exit code 1.
    """
    is_interactive = not statements and sys.stdin.isatty() and sys.stdout.isatty()
    with _exit_on_signals(), contextlib.ExitStack() as stack:
        out = sys.stdout if is_interactive else stack.enter_context(_result_output())
        stack.enter_context(quiet_stdout(wanted=not is_interactive))
        opened = open_target(place, backend, token, tls_ca, SparkOptions().override(master, conf, exchange), checkpoint)
        stack.callback(opened.target.close)
        runner = StatementRunner(opened.target, rows=None if as_json else TERMINAL_ROWS)
        if is_interactive:
            _run_interactive(opened, runner, as_json=as_json)
        else:
            _run_script(
                opened, runner, JsonLinesView(out) if as_json else PlainView(out), statements or [], keep_going=keep_going
            )


def _run_interactive(opened: OpenedTarget, runner: StatementRunner, *, as_json: bool) -> None:
    console = Console(highlight=False)
    view: OutcomeView = JsonLinesView(sys.stdout) if as_json else ScreenView(console)
    streams = ", ".join(stream.name for stream in opened.target.streams()) or "none"
    queries = len(opened.target.queries())
    console.print(Text.assemble((f"headrace {metadata.version('headrace')}", "bold cyan"), f": {opened.description}"))
    console.print(Text(f"{queries} queries; streams: {streams}"))
    console.print(Text("Statements end with ; – Tab completes, HELP; lists all statements, Ctrl-D quits", "dim"))
    names = NameCache(opened.target)
    run_prompt_loop(make_prompt_session(names, open_history(history_path())), runner, view, names, show_error)


def _run_script(
    opened: OpenedTarget, runner: StatementRunner, view: JsonLinesView | PlainView, statements: list[str], *, keep_going: bool
) -> None:
    if opened.is_default:
        Console(stderr=True, highlight=False, soft_wrap=True).print(Text(f"headrace sql: {opened.description}", "dim"))

    def report_error(error: HeadraceError, line: int) -> None:
        if isinstance(view, JsonLinesView):
            view.show_error(error, line)
        message = error.message if statements else f"line {line}: {error.message}"
        show_error(HeadraceError(message, place=error.place, detail=error.detail, hint=error.hint))

    script = ScriptRunner(runner, view, report_error, keep_going=keep_going, allow_open_end=bool(statements))
    if not script.run(_read_input(statements)):
        raise typer.Exit(1)


def _read_input(statements: Sequence[str]) -> Iterator[StatementText]:
    return (piece for text in statements for piece in read_statements([text])) if statements else read_statements(sys.stdin)


@contextlib.contextmanager
def _result_output() -> Iterator[TextIO]:
    """Yield standard output for results only; end without an error when its reader closes the pipe."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        try:
            yield out
        except BrokenPipeError:
            with open(os.devnull, "wb") as devnull:  # noqa: PTH123  the rest of the buffer is discarded
                os.dup2(devnull.fileno(), out.fileno())


@contextlib.contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Exit cleanly on SIGTERM and SIGHUP, so that a temporary query of a SELECT is removed, also from a service."""

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        sys.exit(128 + number)

    previous = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
