"""Statements that are not typed: read from standard input or given on the command line, done one after the other."""

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
    """Yield the statements of a script as soon as they are complete; what is behind the last `;` is one, too."""
    text, line, column = "", 1, 1
    for one in lines:
        text += one
        if ";" not in one:
            continue
        pieces, rest = split(text, line, column)
        yield from pieces
        text, line, column = rest.text, rest.line, rest.column
    pieces, rest = split(text, line, column)
    yield from [*pieces, *([rest] if rest.words else [])]


def run_piece(piece: Piece, runner: Runner, view: View, check: Callable[[Statement], None] = lambda _: None) -> bool:
    """Do a statement and show what comes of it; False if it was to leave. Errors have their place in what was typed."""
    try:
        statement = parse(piece)
        check(statement)
        with contextlib.closing(runner.run(statement)) as outcomes:
            for outcome in outcomes:
                view.show(outcome)
    except HeadraceError as error:
        raise in_piece(error, piece) from error
    return not isinstance(statement, Quit)


@dataclass(frozen=True, slots=True)
class Script:
    """How a script is run: `told` hears of every error, with its line; without `keep_going` the first one is the last."""

    runner: Runner
    view: View
    told: Callable[[HeadraceError, int], None]
    keep_going: bool = False
    open_ends: bool = False
    """Whether a query may be followed without an end; otherwise nothing behind that statement would ever be done."""

    def run(self, pieces: Iterable[Piece]) -> bool:
        """Do all statements; True if none was refused."""
        good = True
        for piece in pieces:
            try:
                if not run_piece(piece, self.runner, self.view, self._check):
                    break
            except HeadraceError as error:
                good = False
                self.told(error, piece.line)
                if not self.keep_going:
                    break
        return good

    def _check(self, statement: Statement) -> None:
        if isinstance(statement, Tail | Select) and statement.end.is_open and not self.open_ends:
            what = "TAIL" if isinstance(statement, Tail) else "SELECT"
            raise SessionError(f"{what} in a script needs an end", hint="write LIMIT 10 or FOR 5 SECONDS behind it")
