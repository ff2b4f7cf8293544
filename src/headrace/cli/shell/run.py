"""A statement, done: what comes of it, as values that others show.

    for outcome in Runner(target).run(statement): shown.show(outcome)

A query that was added for a bare SELECT is removed when the generator is over or closed, whatever happened meanwhile.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

from headrace.cli.shell.meaning import Meaning, uses_of
from headrace.cli.shell.outcomes import Changed, Columns, Ended, Following, Outcome, Plan, Queries, Rows, Streams, Usage
from headrace.cli.shell.places import moved
from headrace.cli.shell.statements import (
    Add,
    Describe,
    End,
    Explain,
    Help,
    Quit,
    Remove,
    Replace,
    Results,
    Select,
    Show,
    Shown,
    Sql,
    Statement,
    Tail,
)
from headrace.cli.shell.target import QueryInfo, Target, columns_of
from headrace.errors import EvaluationError, HeadraceError, NotFoundError, SqlError
from headrace.sql.quoting import identifier

_Found = TypeVar("_Found")


def passing_name() -> str:
    """Return a name for a query that is there only to be watched; several shells on a service must not choose the same."""
    return f"shell_{secrets.token_hex(3)}"


class Runner:
    """Does statements on a target; `rows` is how many results are shown where the statement does not say (None: all)."""

    def __init__(self, target: Target, *, rows: int | None = None, name: Callable[[], str] = passing_name) -> None:
        """Take a target that others close."""
        self._target, self._rows, self._name = target, rows, name

    def run(self, statement: Statement) -> Generator[Outcome, None, None]:
        """Do a statement; errors have their place in the statement, not only in its query."""
        match statement:
            case Add():
                yield Changed("added", self._named_at_end(statement, lambda sql: self._target.add(sql, statement.name)))
            case Replace():
                yield Changed("replaced", self._named_at_end(statement, lambda sql: self._target.replace(statement.name, sql)))
            case Remove():
                for name in statement.names:
                    info = self._target.query(name)
                    self._target.remove(name)
                    yield Changed("removed", info)
            case Show():
                yield self._shown(statement.what)
            case Explain():
                yield self._explained(statement.of)
            case Describe():
                yield self._described(statement.name)
            case Tail():
                query = self._target.query(statement.name)
                yield from self._followed(query, statement.end, from_beginning=statement.from_beginning)
            case Results():
                rows = self._target.results(statement.name, statement.rows or self._rows)
                yield Rows(statement.name, rows, max(rows.num_rows, self._target.query(statement.name).emitted))
            case Select():
                yield from self._select(statement)
            case Help():
                yield Usage()
            case Quit():
                return

    def _select(self, statement: Select) -> Iterator[Outcome]:
        info = _placed(statement.sql, lambda sql: self._target.add(sql, self._name()))
        try:
            yield Changed("added", info, passing=True)
            yield from self._followed(info, statement.end, from_beginning=True)
        finally:
            with contextlib.suppress(NotFoundError):  # somebody else was faster
                self._target.remove(info.name)
        yield Changed("removed", self._target.query(info.name), passing=True)

    def _followed(self, info: QueryInfo, end: End, *, from_beginning: bool) -> Iterator[Outcome]:
        yield Following(info, end, from_beginning, lambda back: self._target.follow(info.name, back))
        now = self._target.query(info.name)
        if now.status == "failed":
            raise EvaluationError(f"query '{now.name}' failed", detail=now.error)
        yield Ended(now)

    def _named_at_end(self, statement: Add | Replace, act: Callable[[str], QueryInfo]) -> QueryInfo:
        """Do it; if the query is refused, but would be good with the `AS` at its end, say what that was taken for."""
        try:
            return _placed(statement.sql, act)
        except SqlError as error:
            if not (
                statement.at_end and statement.name and self._is_good(f"{statement.sql.text} AS {identifier(statement.name)}")
            ):
                raise
            verb = type(statement).__name__.upper()
            hint = f"'AS {statement.name}' at the end was taken as the query's name; keep it as an alias: {verb} name AS SELECT …"
            raise SqlError(error.message, place=error.place, detail=error.detail, hint=hint) from error

    def _is_good(self, sql: str) -> bool:
        try:
            self._target.check(sql)
        except HeadraceError:
            return False
        return True

    def _shown(self, what: Shown) -> Outcome:
        if what is Shown.queries:
            return Queries(tuple(self._target.queries()))
        if what is Shown.streams:
            return Streams(tuple(self._target.streams()))
        return Plan(self._target.explain())

    def _explained(self, of: Sql | str | None) -> Outcome:
        if of is None:
            return Plan(self._target.explain())
        streams = [one.stream for one in self._target.streams()]
        others = {query.name: query.sql for query in self._target.queries() if query.status != "failed"}
        if isinstance(of, Sql):
            columns = columns_of(_placed(of, self._target.check))
            return Meaning("", columns, uses_of(of.text, streams, others))
        info = self._target.query(of)
        others.pop(of, None)
        return Meaning(info.name, info.columns, uses_of(info.sql, streams, others))

    def _described(self, name: str) -> Columns:
        for stream in self._target.streams():
            if stream.name.lower() == name.lower():
                return Columns("stream", stream.name, tuple(stream.columns.items()))
        try:
            query = self._target.query(name)
        except NotFoundError as error:
            known = ", ".join(stream.name for stream in self._target.streams())
            raise NotFoundError(
                f"no stream or query '{name}' is there", detail=f"streams: {known}; {error.detail}", hint=error.hint
            ) from error
        return Columns("query", query.name, tuple(query.columns.items()), query.sql)


def _placed(sql: Sql, act: Callable[[str], _Found]) -> _Found:
    """Do something with a query's text; what is refused is told with its place in the statement."""
    try:
        return act(sql.text)
    except HeadraceError as error:
        raise moved(error, sql.line, sql.column) from error
