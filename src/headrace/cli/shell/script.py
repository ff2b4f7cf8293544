"""Scripts: statements from standard input or the command line, run one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from headrace.cli.shell.parse import parse_statement
from headrace.cli.shell.places import place_in_source
from headrace.cli.shell.run import StatementRunner
from headrace.cli.shell.scan import StatementText, split_statements
from headrace.cli.shell.show import OutcomeView
from headrace.cli.shell.statements import QuitStatement, SelectStatement, Statement, TailStatement
from headrace.errors import HeadraceError, SessionError


def read_statements(lines: Iterable[str]) -> Iterator[StatementText]:
    """Yield the statements of a script as soon as they are complete; text after the last `;` is a statement, too."""
    text, line, column = "", 1, 1
    for chunk in lines:
        text += chunk
        if ";" not in chunk:
            continue
        statements, rest = split_statements(text, line, column)
        yield from statements
        text, line, column = rest.text, rest.line, rest.column
    statements, rest = split_statements(text, line, column)
    yield from [*statements, *([rest] if rest.significant_tokens else [])]


def run_statement(
    source: StatementText, runner: StatementRunner, view: OutcomeView, check: Callable[[Statement], None] = lambda _: None
) -> bool:
    """Run a statement and show its outcomes; return False after QUIT. Errors have their place in the source text."""
    try:
        statement = parse_statement(source)
        check(statement)
        with contextlib.closing(runner.run(statement)) as outcomes:
            for outcome in outcomes:
                view.show(outcome)
    except HeadraceError as error:
        raise place_in_source(error, source) from error
    return not isinstance(statement, QuitStatement)


@dataclass(frozen=True, slots=True)
class ScriptRunner:
    """Runs a script; calls `on_error` with each error and its line. Without `keep_going` it stops at the first error."""

    runner: StatementRunner
    view: OutcomeView
    on_error: Callable[[HeadraceError, int], None]
    keep_going: bool = False
    allow_open_end: bool = False
    """Whether SELECT and TAIL may omit LIMIT and FOR; without an end, later statements would never run."""

    def run(self, sources: Iterable[StatementText]) -> bool:
        """Run all statements; return whether all succeeded."""
        succeeded = True
        for source in sources:
            try:
                if not run_statement(source, self.runner, self.view, self._check):
                    break
            except HeadraceError as error:
                succeeded = False
                self.on_error(error, source.line)
                if not self.keep_going:
                    break
        return succeeded

    def _check(self, statement: Statement) -> None:
        if isinstance(statement, TailStatement | SelectStatement) and statement.stop.is_open and not self.allow_open_end:
            keyword = "TAIL" if isinstance(statement, TailStatement) else "SELECT"
            raise SessionError(f"{keyword} in a script needs an end", hint="add LIMIT 10 or FOR 5 SECONDS")
