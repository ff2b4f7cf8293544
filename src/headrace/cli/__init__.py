"""The command line: `headrace demo | run | explain | …`, one module for each command.

A command is an entry of `COMMANDS`: its name, its module, its help. The module has either `command` (a function with typer
annotations) or `app` (a `typer.Typer`, for a command with subcommands), and is imported only when the command is used, so that
`--help` is fast. For errors that the user can act on, modules raise `HeadraceError`; `main` prints it to standard error without
a traceback and exits with code 1. Wrong usage exits with 2, Ctrl-C with 130.
"""

from __future__ import annotations

import atexit
import gc
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
    "demo": ("headrace.cli.demo", "Watch queries being added to and removed from live streams; needs no files."),
    "run": ("headrace.cli.run", "Run the streams and queries of a session file."),
    "serve": ("headrace.cli.serve", "Serve a session over HTTP: add queries and follow their results."),
    "sql": ("headrace.cli.sql", "Open a SQL shell on a service or an own session: add queries, watch results."),
    "explain": ("headrace.cli.explain", "Show what the queries of a session file share; reads no data."),
    "package": ("headrace.cli.package", "Ship headrace to a cluster, as a zip for spark-submit --py-files."),
    "bench": ("headrace.cli.bench", "Benchmark headrace against other engines on the same data."),
}

INTERRUPTED_EXIT_CODE = 130


def build_application(chosen: str | None = None) -> typer.Typer:
    """Return the application with the chosen command loaded; the others appear in `--help` only."""
    app = typer.Typer(
        name="headrace",
        help="Ad-hoc, shared stream queries on Apache Spark.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root_options)
    for name, (module, help_line) in COMMANDS.items():
        command_module: Any = importlib.import_module(module) if name == chosen else None
        if hasattr(command_module, "app"):
            app.add_typer(command_module.app, name=name, help=help_line)
        else:
            app.command(name, help=None if command_module else help_line)(
                command_module.command if command_module else _refuse_unloaded
            )
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit with 1 on an error and 130 on Ctrl-C."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if arguments is None:  # this process ends with the command
        atexit.register(gc.freeze)  # the last garbage collection would visit all libraries: 0.3 s
    try:
        build_application(next((word for word in words if not word.startswith("-")), None))(args=words, prog_name="headrace")
    except HeadraceError as error:
        show_error(error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT_CODE)


def show_error(error: HeadraceError) -> None:
    """Print all parts of an error to standard error."""
    text = Text.assemble(("error: ", "bold red"), (error.message, "bold"))
    for line in str(error).removeprefix(error.message).splitlines()[1:]:
        label, colon, rest = line.partition(": ")
        is_label = bool(colon) and label in {"detail", "hint"}
        text.append("\n").append(f"{label}: " if is_label else "", "cyan").append(rest if is_label else line)
    Console(stderr=True, highlight=False, soft_wrap=True).print(text)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"headrace {metadata.version('headrace')}")
        raise typer.Exit


def _root_options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    del version


def _refuse_unloaded() -> None:
    raise AssertionError("main called a command that it did not load")
