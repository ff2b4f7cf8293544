"""Execution of statements on a target; yields outcomes that a view renders.

    for outcome in StatementRunner(target).run(statement): view.show(outcome)

The temporary query of a bare SELECT is removed when the generator ends or is closed, also after an error. Errors get their place
in the statement and in the source text.

EXPLAIN of a query plans it together with all others without touching the session. That plan uses no statistics, so a running
session may have grouped queries differently where that is cheaper; the session's own explanation shows its current plan.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

from headrace.cli.shell.outcomes import (
    ColumnList,
    FollowedQuery,
    FollowEnded,
    Outcome,
    PartitionsChanged,
    PlanText,
    QueryChanged,
    QueryList,
    QuerySharing,
    ResultRows,
    SinkList,
    StreamCreated,
    StreamDropped,
    StreamList,
    UsageList,
    find_uses,
)
from headrace.cli.shell.parser import (
    AddStatement,
    AlterStatement,
    CreateStatement,
    DescribeStatement,
    DropStatement,
    ExplainStatement,
    HelpStatement,
    QuitStatement,
    RemoveStatement,
    ReplaceStatement,
    RescaleStatement,
    ResultsStatement,
    SelectStatement,
    ShowKind,
    ShowStatement,
    SqlText,
    Statement,
    StopCondition,
    TailStatement,
)
from headrace.cli.shell.target import QuerySummary, ShellTarget, describe_columns
from headrace.cli.shell.tokenizer import StatementText
from headrace.errors import EvaluationError, HeadraceError, NotFoundError, SqlError
from headrace.runtime.partition_scaling import AUTO
from headrace.sql.parser import SqlSource, quote_identifier

_PLACE_PATTERN = re.compile(r"line (\d+), column (\d+):")


def shift_place(error: HeadraceError, line: int, column: int) -> HeadraceError:
    """Return the error with its place in a larger text, in which the erroneous text starts at a line and a column."""
    match = _PLACE_PATTERN.match(error.place)
    if match is None:
        return error
    return _replace_place(error, _format_place(int(match[1]), int(match[2]), line, column) + error.place[match.end() :])


def place_in_source(error: HeadraceError, source: StatementText) -> HeadraceError:
    """Return the error of a statement with its line and column in the source text, and the line of the statement."""
    match = _PLACE_PATTERN.match(error.place)
    if match is None:
        return error
    line, column = int(match[1]), int(match[2])
    line_start = sum(len(text) + 1 for text in source.text.split("\n")[: line - 1])
    _, _, excerpt = SqlSource(source.text).format_location(line_start + column - 1).partition("\n")
    return _replace_place(error, f"{_format_place(line, column, source.line, source.column)}\n{excerpt}")


def _format_place(line: int, column: int, begin_line: int, begin_column: int) -> str:
    return f"line {line + begin_line - 1}, column {column + begin_column - 1 if line == 1 else column}:"


def _replace_place(error: HeadraceError, place: str) -> HeadraceError:
    return type(error)(error.message, place=place, detail=error.detail, hint=error.hint)


_Result = TypeVar("_Result")


def make_temporary_name() -> str:
    """Return a random name for a temporary query, so that several shells on a service do not choose the same."""
    return f"shell_{secrets.token_hex(3)}"


class StatementRunner:
    """Runs statements on a target; `rows` is the number of results to show by default (None: all)."""

    def __init__(self, target: ShellTarget, *, rows: int | None = None, name: Callable[[], str] = make_temporary_name) -> None:
        """Take a target, which the caller closes."""
        self._target, self._default_rows, self._make_name = target, rows, name

    def run(self, statement: Statement) -> Generator[Outcome, None, None]:
        """Run a statement; errors have their place in the statement, not only in its query."""
        match statement:
            case AddStatement():
                yield QueryChanged(
                    "added", self._run_named(statement, lambda sql: self._target.add(sql, statement.name, statement.sink))
                )
            case ReplaceStatement():
                yield self._replace(statement)
            case RemoveStatement():
                for name in statement.names:
                    removed = self._target.query(name)
                    self._target.remove(name)
                    yield QueryChanged("removed", removed)
            case CreateStatement():
                self._target.create_stream(statement.text)
                yield StreamCreated(statement.name)
            case DropStatement():
                self._target.drop_stream(statement.name, cascade=statement.cascade)
                yield StreamDropped(statement.name)
            case AlterStatement():
                self._target.alter_query(statement.text)
                yield QueryChanged("changed", self._target.query(statement.name))
            case RescaleStatement():
                yield PartitionsChanged(*self._target.rescale(AUTO if statement.partitions is None else statement.partitions))
            case ShowStatement():
                yield self._show(statement.kind)
            case ExplainStatement():
                yield self._explain(statement.subject)
            case DescribeStatement():
                yield self._describe(statement.name)
            case TailStatement():
                query = self._target.query(statement.name)
                yield from self._follow_query(query, statement.stop, from_beginning=statement.from_beginning)
            case ResultsStatement():
                rows = self._target.results(statement.name, statement.rows or self._default_rows)
                yield ResultRows(statement.name, rows, max(rows.num_rows, self._target.query(statement.name).emitted))
            case SelectStatement():
                yield from self._run_select(statement)
            case HelpStatement():
                yield UsageList()
            case QuitStatement():
                return

    def _replace(self, statement: ReplaceStatement) -> Outcome:
        name, sink = statement.name, statement.sink
        if statement.adds_missing and all(query.name != name for query in self._target.queries()):
            return QueryChanged("added", self._run_named(statement, lambda sql: self._target.add(sql, name, sink)))
        return QueryChanged("replaced", self._run_named(statement, lambda sql: self._target.replace(name, sql, sink)))

    def _run_select(self, statement: SelectStatement) -> Iterator[Outcome]:
        query = _run_with_place(statement.sql, lambda sql: self._target.add(sql, self._make_name()))
        try:
            yield QueryChanged("added", query, is_temporary=True)
            yield from self._follow_query(query, statement.stop, from_beginning=True)
        finally:
            with contextlib.suppress(NotFoundError):  # another client removed it
                self._target.remove(query.name)
        yield QueryChanged("removed", self._target.query(query.name), is_temporary=True)

    def _follow_query(self, query: QuerySummary, end: StopCondition, *, from_beginning: bool) -> Iterator[Outcome]:
        yield FollowedQuery(query, end, from_beginning, lambda back: self._target.follow(query.name, back))
        current = self._target.query(query.name)
        if current.status == "failed":
            raise EvaluationError(f"query '{current.name}' failed", detail=current.error)
        yield FollowEnded(current)

    def _run_named(self, statement: AddStatement | ReplaceStatement, action: Callable[[str], QuerySummary]) -> QuerySummary:
        """Run a statement with a query; if the query is invalid only without its trailing `AS name`, explain that in the hint."""
        try:
            return _run_with_place(statement.sql, action)
        except SqlError as error:
            if not (
                statement.is_name_at_end
                and statement.name
                and self._is_valid(f"{statement.sql.text} AS {quote_identifier(statement.name)}")
            ):
                raise
            verb = type(statement).__name__.removesuffix("Statement").upper()
            hint = f"'AS {statement.name}' at the end names the query; to keep it as an alias, write {verb} name AS SELECT …"
            raise SqlError(error.message, place=error.place, detail=error.detail, hint=hint) from error

    def _is_valid(self, sql: str) -> bool:
        try:
            self._target.check(sql)
        except HeadraceError:
            return False
        return True

    def _show(self, kind: ShowKind) -> Outcome:
        if kind is ShowKind.queries:
            return QueryList(tuple(self._target.queries()))
        if kind is ShowKind.streams:
            return StreamList(tuple(self._target.streams()))
        if kind is ShowKind.sinks:
            return SinkList(self._target.sinks())
        return PlanText(self._target.explain())

    def _explain(self, subject: SqlText | str | None) -> Outcome:
        if subject is None:
            return PlanText(self._target.explain())
        streams = [stream.stream for stream in self._target.streams()]
        others = {query.name: query.sql for query in self._target.queries() if query.status != "failed"}
        if isinstance(subject, SqlText):
            columns = describe_columns(_run_with_place(subject, self._target.check))
            return QuerySharing("", columns, find_uses(subject.text, streams, others))
        query = self._target.query(subject)
        others.pop(subject, None)
        return QuerySharing(query.name, query.columns, find_uses(query.sql, streams, others))

    def _describe(self, name: str) -> ColumnList:
        for stream in self._target.streams():
            if stream.name.lower() == name.lower():
                return ColumnList("stream", stream.name, tuple(stream.columns.items()))
        try:
            query = self._target.query(name)
        except NotFoundError as error:
            known = ", ".join(stream.name for stream in self._target.streams())
            raise NotFoundError(
                f"no stream or query '{name}' exists", detail=f"streams: {known}; {error.detail}", hint=error.hint
            ) from error
        return ColumnList("query", query.name, tuple(query.columns.items()), query.sql)


def _run_with_place(sql: SqlText, action: Callable[[str], _Result]) -> _Result:
    """Call an action with a query's text; its errors get their place in the statement."""
    try:
        return action(sql.text)
    except HeadraceError as error:
        raise shift_place(error, sql.line, sql.column) from error
