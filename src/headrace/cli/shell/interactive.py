"""The loop of a shell at a terminal: read, do, show, until Ctrl-D. Errors end a statement, never the shell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace.cli.shell.prompt import Names, pieces_of
from headrace.cli.shell.run import Runner
from headrace.cli.shell.script import run_piece
from headrace.cli.shell.show import View
from headrace.errors import HeadraceError


class Prompting(Protocol):
    """What asks for text: raises KeyboardInterrupt for Ctrl-C and EOFError for Ctrl-D."""

    def prompt(self) -> str:
        """Return what was typed."""


def converse(asked: Prompting, runner: Runner, view: View, names: Names, told: Callable[[HeadraceError], None]) -> None:
    """Ask and answer until QUIT or Ctrl-D; Ctrl-C throws away what was typed, or stops what is being done."""
    while True:
        try:
            text = asked.prompt()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        try:
            if not all(run_piece(piece, runner, view) for piece in pieces_of(text)):
                return
        except HeadraceError as error:
            told(error)
        except KeyboardInterrupt:
            told(HeadraceError("interrupted"))
        finally:
            names.forget()
