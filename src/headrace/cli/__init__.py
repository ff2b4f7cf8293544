"""The command line: `headrace demo | run | explain | …`, one module for each command.

A command is a line in `COMMANDS`: its name, its module, its help. The module has either `command` (a function with typer
annotations) or `app` (a `typer.Typer`, for a command with commands of its own), and is imported only when it is asked
for, so that `--help` answers at once. Modules never exit by themselves for a reason the user can act on: they raise
`HeadraceError`, and `main` turns it into a message on standard error and exit code 1, without a traceback. Wrong usage
gives 2, Ctrl-C 130.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from headrace.errors import HeadraceError

COMMANDS = {
    "demo": ("headrace.cli.demo", "Watch queries come and go on a live stream; needs no files."),
    "run": ("headrace.cli.run", "Run the streams and queries of a session file."),
    "serve": ("headrace.cli.serve", "Serve a session over HTTP: add queries, follow their results."),
    "sql": ("headrace.cli.sql", "A shell: add queries and watch their results, here or on a service."),
    "explain": ("headrace.cli.explain", "Show what the queries of a session file share; reads no data."),
    "bench": ("headrace.cli.bench", "Measure throughput beside plain Spark, on the same data in the same run."),
}

INTERRUPTED = 130


def application(wanted: str | None = None) -> typer.Typer:
    """Return the application with one command loaded; the others are there for `--help` only."""
    app = typer.Typer(
        name="headrace",
        help="Ad-hoc, shared stream queries on Apache Spark.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for name, (module, help_line) in COMMANDS.items():
        loaded: Any = importlib.import_module(module) if name == wanted else None
        if hasattr(loaded, "app"):
            app.add_typer(loaded.app, name=name, help=help_line)
        else:
            app.command(name, help=None if loaded else help_line)(loaded.command if loaded else _not_loaded)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with the code that tells what happened."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        application(next((word for word in given if not word.startswith("-")), None))(args=given, prog_name="headrace")
    except HeadraceError as error:
        show_error(error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def show_error(error: HeadraceError) -> None:
    """Print all parts of an error to standard error."""
    text = Text.assemble(("error: ", "bold red"), (error.message, "bold"))
    for line in str(error).removeprefix(error.message).splitlines()[1:]:
        label, colon, rest = line.partition(": ")
        known = bool(colon) and label in {"detail", "hint"}
        text.append("\n").append(f"{label}: " if known else "", "cyan").append(rest if known else line)
    Console(stderr=True, highlight=False, soft_wrap=True).print(text)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"headrace {metadata.version('headrace')}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    del version


def _not_loaded() -> None:
    raise AssertionError("a command was called that main did not load")
