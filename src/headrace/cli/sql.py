"""`headrace sql`: a shell on a service, or on a session of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from types import FrameType
from typing import Annotated, TextIO

import typer
from rich.console import Console
from rich.text import Text

from headrace.cli import show_error
from headrace.cli.shell.interactive import converse
from headrace.cli.shell.json_lines import JsonLines
from headrace.cli.shell.opening import SERVICE, Opened, open_target
from headrace.cli.shell.prompt import Names, history_file, opened_history, prompt_session
from headrace.cli.shell.run import Runner
from headrace.cli.shell.scan import Piece
from headrace.cli.shell.script import Script, read
from headrace.cli.shell.show import TERMINAL_ROWS, Plain, Screen, View
from headrace.cli.terminal import BackendName, quiet_stdout
from headrace.errors import HeadraceError


def command(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="URL|SESSION.toml",
            help=f"A service, or a file for a session of one's own. Without it: the service at {SERVICE} if there is one, "
            "otherwise a session of one's own with made-up streams.",
            show_default=False,
        ),
    ] = None,
    statements: Annotated[
        list[str] | None,
        typer.Option("--command", "-c", metavar="STATEMENTS", help="Do these and exit; can be given several times."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every result as one JSON object a line.")] = False,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="In a script: go on after an error; exit with 1.")] = False,
    token: Annotated[str | None, typer.Option(envvar="HEADRACE_TOKEN", help="For a service that asks for one.")] = None,
    backend: Annotated[
        BackendName | None, typer.Option(help="Where a session of one's own runs; by default in this process (local).")
    ] = None,
) -> None:
    """Type SQL at a running pipeline: add queries, watch what they emit, see what they share.

    Statements end with a semicolon, and HELP; lists them: SELECT …; ADD SELECT … AS name; TAIL name; SHOW QUERIES; EXPLAIN;

    With -c, or from a standard input that is no terminal, they are done in order; the first error ends it with exit code 1.
    """
    typed = not statements and sys.stdin.isatty() and sys.stdout.isatty()
    with _ended_by_signals(), contextlib.ExitStack() as stack:
        out = sys.stdout if typed else stack.enter_context(_own_output())
        stack.enter_context(quiet_stdout(wanted=not typed))
        opened = open_target(place, backend, token)
        stack.callback(opened.target.close)
        runner = Runner(opened.target, rows=None if as_json else TERMINAL_ROWS)
        if typed:
            _converse(opened, runner, as_json=as_json)
        else:
            _run(opened, runner, JsonLines(out) if as_json else Plain(out), statements or [], keep_going=keep_going)


def _converse(opened: Opened, runner: Runner, *, as_json: bool) -> None:
    console = Console(highlight=False)
    view: View = JsonLines(sys.stdout) if as_json else Screen(console)
    streams = ", ".join(stream.name for stream in opened.target.streams()) or "none"
    queries = len(opened.target.queries())
    console.print(Text.assemble((f"headrace {metadata.version('headrace')}", "bold cyan"), f": {opened.about}"))
    console.print(Text(f"{queries} queries; streams: {streams}"))
    console.print(Text("Statements end with ; – Tab completes, HELP; lists what can be said, Ctrl-D leaves", "dim"))
    names = Names(opened.target)
    converse(prompt_session(names, opened_history(history_file())), runner, view, names, show_error)


def _run(opened: Opened, runner: Runner, view: JsonLines | Plain, statements: list[str], *, keep_going: bool) -> None:
    if opened.found:
        Console(stderr=True, highlight=False, soft_wrap=True).print(Text(f"headrace sql: {opened.about}", "dim"))

    def told(error: HeadraceError, line: int) -> None:
        if isinstance(view, JsonLines):
            view.error(error, line)
        message = error.message if statements else f"line {line}: {error.message}"
        show_error(HeadraceError(message, place=error.place, detail=error.detail, hint=error.hint))

    script = Script(runner, view, told, keep_going=keep_going, open_ends=bool(statements))
    if not script.run(_pieces(statements)):
        raise typer.Exit(1)


def _pieces(statements: Sequence[str]) -> Iterator[Piece]:
    return (piece for text in statements for piece in read([text])) if statements else read(sys.stdin)


@contextlib.contextmanager
def _own_output() -> Iterator[TextIO]:
    """Yield standard output for results only; whoever reads it may stop to at any time, and that is the end."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        try:
            yield out
        except BrokenPipeError:
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123  what is left unwritten must go somewhere
                os.dup2(nowhere.fileno(), out.fileno())


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Leave in order when told to: a query that was added only to be watched is removed, also from a service."""

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
