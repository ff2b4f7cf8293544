"""The interactive loop of the shell: read, run and show statements until Ctrl-D. An error ends a statement, not the shell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace.cli.shell.prompt import NameCache, split_complete
from headrace.cli.shell.run import StatementRunner
from headrace.cli.shell.script import run_statement
from headrace.cli.shell.show import OutcomeView
from headrace.errors import HeadraceError


class PromptSource(Protocol):
    """A source of typed text; raises KeyboardInterrupt for Ctrl-C and EOFError for Ctrl-D."""

    def prompt(self) -> str:
        """Return the typed text."""


def run_prompt_loop(
    prompt: PromptSource,
    runner: StatementRunner,
    view: OutcomeView,
    names: NameCache,
    report_error: Callable[[HeadraceError], None],
) -> None:
    """Read and run statements until QUIT or Ctrl-D; Ctrl-C discards the typed text, or stops the running statement."""
    while True:
        try:
            text = prompt.prompt()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        try:
            if not all(run_statement(piece, runner, view) for piece in split_complete(text)):
                return
        except HeadraceError as error:
            report_error(error)
        except KeyboardInterrupt:
            report_error(HeadraceError("interrupted"))
        finally:
            names.invalidate()
