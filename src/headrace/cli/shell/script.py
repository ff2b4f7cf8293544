"""Scripts: statements from standard input or the command line, run one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from headrace.cli.shell.parse import parse
from headrace.cli.shell.places import in_piece
from headrace.cli.shell.run import Runner
from headrace.cli.shell.scan import Piece, split
from headrace.cli.shell.show import View
from headrace.cli.shell.statements import Quit, Select, Statement, Tail
from headrace.errors import HeadraceError, SessionError


def read(lines: Iterable[str]) -> Iterator[Piece]:
    """Yield the statements of a script as soon as they are complete; text after the last `;` is a statement, too."""
    text, line, column = "", 1, 1
    for chunk in lines:
        text += chunk
        if ";" not in chunk:
            continue
        statements, rest = split(text, line, column)
        yield from statements
        text, line, column = rest.text, rest.line, rest.column
    statements, rest = split(text, line, column)
    yield from [*statements, *([rest] if rest.words else [])]


def run_piece(source: Piece, runner: Runner, view: View, check: Callable[[Statement], None] = lambda _: None) -> bool:
    """Run a statement and show its outcomes; return False after QUIT. Errors have their place in the source text."""
    try:
        statement = parse(source)
        check(statement)
        with contextlib.closing(runner.run(statement)) as outcomes:
            for outcome in outcomes:
                view.show(outcome)
    except HeadraceError as error:
        raise in_piece(error, source) from error
    return not isinstance(statement, Quit)


@dataclass(frozen=True, slots=True)
class Script:
    """Runs a script; calls `on_error` with each error and its line. Without `keep_going` it stops at the first error."""

    runner: Runner
    view: View
    told: Callable[[HeadraceError, int], None]
    keep_going: bool = False
    open_ends: bool = False
    """Whether SELECT and TAIL may omit LIMIT and FOR; without an end, later statements would never run."""

    def run(self, sources: Iterable[Piece]) -> bool:
        """Run all statements; return whether all succeeded."""
        succeeded = True
        for source in sources:
            try:
                if not run_piece(source, self.runner, self.view, self._check):
                    break
            except HeadraceError as error:
                succeeded = False
                self.told(error, source.line)
                if not self.keep_going:
                    break
        return succeeded

    def _check(self, statement: Statement) -> None:
        if isinstance(statement, Tail | Select) and statement.end.is_open and not self.open_ends:
            keyword = "TAIL" if isinstance(statement, Tail) else "SELECT"
            raise SessionError(f"{keyword} in a script needs an end", hint="add LIMIT 10 or FOR 5 SECONDS")
