"""The interactive loop of the shell: read, run and show statements until Ctrl-D. An error ends a statement, not the shell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace.cli.shell.prompt import Names, pieces_of
from headrace.cli.shell.run import Runner
from headrace.cli.shell.script import run_piece
from headrace.cli.shell.show import View
from headrace.errors import HeadraceError


class Prompting(Protocol):
    """A source of typed text; raises KeyboardInterrupt for Ctrl-C and EOFError for Ctrl-D."""

    def prompt(self) -> str:
        """Return the typed text."""


def converse(prompt: Prompting, runner: Runner, view: View, names: Names, report_error: Callable[[HeadraceError], None]) -> None:
    """Read and run statements until QUIT or Ctrl-D; Ctrl-C discards the typed text, or stops the running statement."""
    while True:
        try:
            text = prompt.prompt()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        try:
            if not all(run_piece(piece, runner, view) for piece in pieces_of(text)):
                return
        except HeadraceError as error:
            report_error(error)
        except KeyboardInterrupt:
            report_error(HeadraceError("interrupted"))
        finally:
            names.forget()
