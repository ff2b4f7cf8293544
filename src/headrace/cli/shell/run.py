"""Execution of statements on a target; yields outcomes that a view renders.

    for outcome in StatementRunner(target).run(statement): view.show(outcome)

The temporary query of a bare SELECT is removed when the generator ends or is closed, also after an error.
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
from headrace.sql.quoting import quote_identifier

_Found = TypeVar("_Found")


def passing_name() -> str:
    """Return a random name for a temporary query, so that several shells on a service do not choose the same."""
    return f"shell_{secrets.token_hex(3)}"


class Runner:
    """Runs statements on a target; `rows` is the number of results to show by default (None: all)."""

    def __init__(self, target: Target, *, rows: int | None = None, name: Callable[[], str] = passing_name) -> None:
        """Take a target, which the caller closes."""
        self._target, self._rows, self._name = target, rows, name

    def run(self, statement: Statement) -> Generator[Outcome, None, None]:
        """Run a statement; errors have their place in the statement, not only in its query."""
        match statement:
            case Add():
                yield Changed("added", self._named_at_end(statement, lambda sql: self._target.add(sql, statement.name)))
            case Replace():
                yield Changed("replaced", self._named_at_end(statement, lambda sql: self._target.replace(statement.name, sql)))
            case Remove():
                for name in statement.names:
                    removed = self._target.query(name)
                    self._target.remove(name)
                    yield Changed("removed", removed)
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
        query = _placed(statement.sql, lambda sql: self._target.add(sql, self._name()))
        try:
            yield Changed("added", query, passing=True)
            yield from self._followed(query, statement.end, from_beginning=True)
        finally:
            with contextlib.suppress(NotFoundError):  # another client removed it
                self._target.remove(query.name)
        yield Changed("removed", self._target.query(query.name), passing=True)

    def _followed(self, query: QueryInfo, end: End, *, from_beginning: bool) -> Iterator[Outcome]:
        yield Following(query, end, from_beginning, lambda back: self._target.follow(query.name, back))
        current = self._target.query(query.name)
        if current.status == "failed":
            raise EvaluationError(f"query '{current.name}' failed", detail=current.error)
        yield Ended(current)

    def _named_at_end(self, statement: Add | Replace, action: Callable[[str], QueryInfo]) -> QueryInfo:
        """Run a statement with a query; if the query is invalid only without its trailing `AS name`, explain that in the hint."""
        try:
            return _placed(statement.sql, action)
        except SqlError as error:
            if not (
                statement.at_end
                and statement.name
                and self._is_good(f"{statement.sql.text} AS {quote_identifier(statement.name)}")
            ):
                raise
            verb = type(statement).__name__.removesuffix("Statement").upper()
            hint = f"'AS {statement.name}' at the end names the query; to keep it as an alias, write {verb} name AS SELECT …"
            raise SqlError(error.message, place=error.place, detail=error.detail, hint=hint) from error

    def _is_good(self, sql: str) -> bool:
        try:
            self._target.check(sql)
        except HeadraceError:
            return False
        return True

    def _shown(self, kind: Shown) -> Outcome:
        if kind is Shown.queries:
            return Queries(tuple(self._target.queries()))
        if kind is Shown.streams:
            return Streams(tuple(self._target.streams()))
        return Plan(self._target.explain())

    def _explained(self, subject: Sql | str | None) -> Outcome:
        if subject is None:
            return Plan(self._target.explain())
        streams = [stream.stream for stream in self._target.streams()]
        others = {query.name: query.sql for query in self._target.queries() if query.status != "failed"}
        if isinstance(subject, Sql):
            columns = columns_of(_placed(subject, self._target.check))
            return Meaning("", columns, uses_of(subject.text, streams, others))
        query = self._target.query(subject)
        others.pop(subject, None)
        return Meaning(query.name, query.columns, uses_of(query.sql, streams, others))

    def _described(self, name: str) -> Columns:
        for stream in self._target.streams():
            if stream.name.lower() == name.lower():
                return Columns("stream", stream.name, tuple(stream.columns.items()))
        try:
            query = self._target.query(name)
        except NotFoundError as error:
            known = ", ".join(stream.name for stream in self._target.streams())
            raise NotFoundError(
                f"no stream or query '{name}' exists", detail=f"streams: {known}; {error.detail}", hint=error.hint
            ) from error
        return Columns("query", query.name, tuple(query.columns.items()), query.sql)


def _placed(sql: Sql, action: Callable[[str], _Found]) -> _Found:
    """Call an action with a query's text; its errors get their place in the statement."""
    try:
        return action(sql.text)
    except HeadraceError as error:
        raise moved(error, sql.line, sql.column) from error
