"""The statements of the shell, and their parser.

`ADD <query> AS <name>`: if the last two tokens of the statement are `AS` and a name, they always name the query. A query that
itself ends with an alias has it before that (`ADD SELECT a FROM s AS t AS q`), or is added with its name in front
(`ADD q AS SELECT a FROM s AS t`). The parser does not use the names of streams and columns. `LIMIT n` and `FOR 5 SECONDS` at
the end of a bare SELECT belong to the shell: they say when to stop watching. `USAGES` lists the whole language, as HELP shows it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from headrace.cli.shell.tokenizer import StatementText, Token, TokenKind, line_and_column
from headrace.errors import HeadraceError, SqlError
from headrace.model.time import parse_duration
from headrace.sql.ddl import AddSinkStatement, CreateQuery, CreateStream, DropSinkStatement, parse_ddl
from headrace.sql.parser import SqlSource
from headrace.statements import SinkOptions, parse_sink_options


@dataclass(frozen=True, slots=True)
class SqlText:
    """The text of a query, and the line and column in its statement where it starts, counted from 1."""

    text: str
    line: int = 1
    column: int = 1


@dataclass(frozen=True, slots=True)
class StopCondition:
    """When to stop following a query: after a number of rows or seconds, whichever is first; None is no limit."""

    rows: int | None = None
    seconds: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is no limit."""
        return self.rows is None and self.seconds is None


@dataclass(frozen=True, slots=True)
class AddStatement:
    """Add a query; without a name one is generated. `is_name_at_end`: the name was written last, as in `ADD … AS name`."""

    sql: SqlText
    name: str | None = None
    is_name_at_end: bool = False
    sink: SinkOptions | None = None


@dataclass(frozen=True, slots=True)
class ReplaceStatement:
    """Replace a query; with `adds_missing`, add it if there is none of that name."""

    name: str
    sql: SqlText
    is_name_at_end: bool = False
    adds_missing: bool = False
    sink: SinkOptions | None = None


@dataclass(frozen=True, slots=True)
class RemoveStatement:
    """Remove queries, one after the other."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DropStatement:
    """Drop a stream; with `cascade`, remove the queries that read it."""

    name: str
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class CreateStatement:
    """Declare a stream, with the text of the whole statement."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class AlterStatement:
    """Add a sink to a query, or take one from it, with the text of the whole statement."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class RescaleStatement:
    """Change the number of key partitions; None lets it follow parallelism and load."""

    partitions: int | None


class ShowKind(StrEnum):
    """What SHOW can list."""

    queries = "QUERIES"
    streams = "STREAMS"
    sinks = "SINKS"
    plan = "PLAN"


@dataclass(frozen=True, slots=True)
class ShowStatement:
    """List queries, streams or sinks, or show the plan."""

    kind: ShowKind


@dataclass(frozen=True, slots=True)
class ExplainStatement:
    """Explain what is shared: by all queries (None), by a query (its name), or by a query that is not added (its text)."""

    subject: SqlText | str | None = None


@dataclass(frozen=True, slots=True)
class DescribeStatement:
    """Show the columns of a stream or a query."""

    name: str


@dataclass(frozen=True, slots=True)
class TailStatement:
    """Follow the results of a query, from now on or from the beginning."""

    name: str
    stop: StopCondition = StopCondition()
    from_beginning: bool = False


@dataclass(frozen=True, slots=True)
class ResultsStatement:
    """Show the last `rows` rows that a query emitted."""

    name: str
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class SelectStatement:
    """Run a temporary query: add it, follow it from its beginning, and remove it afterwards."""

    sql: SqlText
    stop: StopCondition = StopCondition()


@dataclass(frozen=True, slots=True)
class HelpStatement:
    """List all statements."""


@dataclass(frozen=True, slots=True)
class QuitStatement:
    """Quit the shell."""


Statement: TypeAlias = (
    AddStatement
    | ReplaceStatement
    | RemoveStatement
    | CreateStatement
    | DropStatement
    | AlterStatement
    | RescaleStatement
    | ShowStatement
    | ExplainStatement
    | DescribeStatement
    | TailStatement
    | ResultsStatement
    | SelectStatement
    | HelpStatement
    | QuitStatement
)

USAGES: tuple[tuple[str, str], ...] = (
    ("SELECT … [LIMIT n] [FOR 5 SECONDS]", "run a query while you watch it; it is removed when you stop"),
    ("ADD SELECT … AS name", "add a query that stays; ADD name AS SELECT … is the same"),
    ("REPLACE name AS SELECT …", "replace a query"),
    ("REMOVE name [, name …]", "remove queries; their results stay; DROP QUERY name is the same"),
    ("CREATE STREAM name (column TYPE, …, WATERMARK FOR …) WITH (…)", "declare a stream of files, Kafka, a server, …"),
    ("CREATE [OR REPLACE] QUERY name [WITH (sink = …)] AS SELECT …", "add or replace a query, with a sink"),
    ("ALTER QUERY name ADD SINK WITH (sink = …)", "add a sink to a query, from the next micro-batch on"),
    ("ALTER QUERY name DROP SINK n [DISCARD]", "take a sink from a query; DISCARD drops what waits for it"),
    ("DROP STREAM name [CASCADE]", "drop a stream; CASCADE removes the queries that read it"),
    ("RESCALE n | AUTO", "change the number of key partitions; AUTO follows the cores and the load"),
    ("TAIL name [FROM BEGINNING] [LIMIT n] [FOR 5 SECONDS]", "follow the results of a query"),
    ("RESULTS name [LIMIT n]", "show the last results of a query"),
    ("SHOW QUERIES | STREAMS | SINKS | PLAN", "list queries, streams or sinks, or show the shared plan"),
    ("EXPLAIN [name | SELECT …]", "show what all queries share, what a query shares, or what it would share"),
    ("DESCRIBE name", "show the columns of a stream or a query"),
    ("HELP, QUIT", "show this list; quit"),
)
QUERY_STARTS = ("SELECT", "WITH", "FROM")


def parse_statement(source: StatementText) -> Statement:
    """Parse a statement that is not empty; raises SqlError with the place in its text."""
    reader = _TokenReader(source)
    if reader.is_at_query():
        return _parse_select(reader)
    word = reader.take()
    parser = _STATEMENT_PARSERS.get(word.text.upper()) if word.kind is TokenKind.WORD else None
    if parser is None:
        matches = difflib.get_close_matches(word.text.upper(), [*_STATEMENT_PARSERS, "SELECT"], 1)
        hint = f"did you mean {matches[0]}?" if matches else "HELP; lists all statements"
        raise reader.error_at(word, f"unknown statement '{word.text}'", detail=f"statements: {', '.join(KEYWORDS)}", hint=hint)
    statement = parser(reader)
    if reader.remaining:
        raise reader.unexpected_token(word.text.upper())
    return statement


class _TokenReader:
    """Takes the tokens of a statement one by one, from the front or from the back."""

    def __init__(self, source: StatementText) -> None:
        self._statement_text, self.remaining = source, list(source.significant_tokens)

    @property
    def text(self) -> str:
        return self._statement_text.text

    def error_at(self, token: Token | None, message: str, *, detail: str = "", hint: str = "") -> SqlError:
        offset = len(self._statement_text.text.rstrip()) if token is None else token.start
        return SqlSource(self._statement_text.text).error_at_offset(offset, message, detail=detail, hint=hint)

    def unexpected_token(self, statement: str) -> SqlError:
        """Return the error of an unexpected next token, or of an unexpected end of the statement."""
        token = self.remaining[0] if self.remaining else None
        usage = next((text for text, _ in USAGES if statement in text), statement)
        message = f"{statement} ends too early" if token is None else f"unexpected '{token.text}' in {statement}"
        needs_quotes = token is not None and token.kind in {TokenKind.SIGN, TokenKind.TEXT, TokenKind.NUMBER}
        hint = "put names with characters other than letters and digits in back-quotes" if needs_quotes else ""
        return self.error_at(token, message, detail=f"usage: {usage}", hint=hint)

    def take(self) -> Token:
        return self.remaining.pop(0)

    def next_is(self, *words: str) -> bool:
        return bool(self.remaining) and self.remaining[0].is_word(*words)

    def accept(self, *words: str) -> bool:
        if self.next_is(*words):
            self.take()
            return True
        return False

    def is_at_query(self) -> bool:
        return self.next_is(*QUERY_STARTS) or (bool(self.remaining) and self.remaining[0].text == "(")

    def take_name(self, statement: str) -> str:
        name = self.remaining[0].name if self.remaining else None
        if name is None:
            raise self.unexpected_token(statement)
        self.take()
        return name

    def take_count(self, statement: str, unit: str = "rows") -> int:
        token = self.remaining[0] if self.remaining else None
        if token is None or not (token.kind is TokenKind.NUMBER and token.text.isascii() and token.text.isdigit()):
            raise self.unexpected_token(statement)
        if not int(token.text):
            raise self.error_at(token, f"invalid number of {unit} 0", hint="give a number greater than 0")
        return int(self.take().text)

    def take_seconds(self, statement: str) -> float:
        """Take a duration: 5 SECONDS, or '1 minute 30 seconds'."""
        first = self.remaining[0] if self.remaining else None
        if first is not None and first.kind is TokenKind.TEXT and first.closed:
            text = self.take().text[1:-1]
        elif (
            first is not None
            and first.kind is TokenKind.NUMBER
            and len(self.remaining) > 1
            and self.remaining[1].kind is TokenKind.WORD
        ):
            text = f"{self.take().text} {self.take().text.lower()}"
        else:
            raise self.unexpected_token(statement)
        try:
            micros = parse_duration(text)
        except HeadraceError as error:
            raise self.error_at(first, error.message, detail=error.detail, hint=error.hint) from None
        if not micros:
            raise self.error_at(first, "invalid duration of 0 seconds")
        return micros / 1e6

    def take_sql(self) -> SqlText:
        """Take all remaining tokens as a query."""
        first, last = self.remaining[0], self.remaining[-1]
        self.remaining = []
        return SqlText(
            self._statement_text.text[first.start : last.end], *line_and_column(self._statement_text.text, first.start)
        )

    def take_trailing_name(self) -> str | None:
        """Take `AS name` off the end, if there are tokens before it."""
        if len(self.remaining) < 3 or not self.remaining[-2].is_word("AS"):
            return None
        name = self.remaining[-1].name
        if name is not None:
            del self.remaining[-2:]
        return name

    def take_trailing_stop(self) -> StopCondition:
        """Take `LIMIT n` and `FOR 5 SECONDS` off the end, in any order."""
        tokens, length = self.remaining, len(self.remaining)
        while clause := _trailing_clause_length(tokens[:length]):
            length -= clause
        self.remaining = tokens[length:]
        end = _parse_stop(self, "SELECT")
        if self.remaining:
            raise self.unexpected_token("SELECT")
        self.remaining = tokens[:length]
        return end


def _trailing_clause_length(tokens: Sequence[Token]) -> int:
    """Return the number of tokens of a trailing LIMIT or FOR clause; 0 without one."""
    kinds = [token.kind for token in tokens[-2:]]
    if len(tokens) > 2 and tokens[-2].is_word("LIMIT") and kinds[1] is TokenKind.NUMBER:
        return 2
    if len(tokens) > 2 and tokens[-2].is_word("FOR") and kinds[1] is TokenKind.TEXT:
        return 2
    return 3 if len(tokens) > 3 and tokens[-3].is_word("FOR") and kinds == [TokenKind.NUMBER, TokenKind.WORD] else 0


def _parse_stop(reader: _TokenReader, statement: str) -> StopCondition:
    rows: int | None = None
    seconds: float | None = None
    while reader.next_is("LIMIT", "FOR"):
        if rows is None and reader.accept("LIMIT"):
            rows = reader.take_count(statement)
        elif seconds is None and reader.accept("FOR"):
            seconds = reader.take_seconds(statement)
        else:
            break
    return StopCondition(rows, seconds)


def _parse_select(reader: _TokenReader) -> SelectStatement:
    end = reader.take_trailing_stop()
    return SelectStatement(reader.take_sql(), end)


def _parse_named_query(reader: _TokenReader, statement: str) -> tuple[str | None, SqlText, bool]:
    """Take `<query> AS name`, `name AS <query>` or only a query; return the name, the query, and whether the name was last."""
    if reader.is_at_query():
        name = reader.take_trailing_name()
        return name, reader.take_sql(), name is not None
    name = reader.take_name(statement)
    if not reader.accept("AS") or not reader.is_at_query():
        raise reader.unexpected_token(statement)
    return name, reader.take_sql(), False


def _parse_add(reader: _TokenReader) -> AddStatement:
    name, sql, at_end = _parse_named_query(reader, "ADD")
    return AddStatement(sql, name, at_end)


def _parse_replace(reader: _TokenReader) -> ReplaceStatement:
    name, sql, at_end = _parse_named_query(reader, "REPLACE")
    if name is None:
        raise reader.unexpected_token("REPLACE")
    return ReplaceStatement(name, sql, at_end)


def _parse_remove(reader: _TokenReader) -> RemoveStatement:
    names = [reader.take_name("REMOVE")]
    while reader.remaining and reader.remaining[0].text == ",":
        reader.take()
        names.append(reader.take_name("REMOVE"))
    return RemoveStatement(tuple(names))


def _parse_create(reader: _TokenReader) -> Statement:
    statement = parse_ddl(reader.text)
    reader.remaining.clear()
    if isinstance(statement, CreateStream):
        return CreateStatement(statement.name, reader.text)
    assert isinstance(statement, CreateQuery)
    sql = SqlText(statement.sql, *line_and_column(reader.text, len(reader.text.rstrip()) - len(statement.sql)))
    name, sink = statement.name, parse_sink_options(statement.options)
    return ReplaceStatement(name, sql, adds_missing=True, sink=sink) if statement.replaces else AddStatement(sql, name, sink=sink)


def _parse_alter(reader: _TokenReader) -> AlterStatement:
    statement = parse_ddl(reader.text)
    reader.remaining.clear()
    assert isinstance(statement, AddSinkStatement | DropSinkStatement)
    return AlterStatement(statement.name, reader.text.strip())


def _parse_drop(reader: _TokenReader) -> Statement:
    if reader.accept("QUERY"):
        return RemoveStatement((reader.take_name("DROP"),))
    if not reader.accept("STREAM"):
        raise reader.unexpected_token("DROP")
    return DropStatement(reader.take_name("DROP"), cascade=reader.accept("CASCADE"))


def _parse_rescale(reader: _TokenReader) -> RescaleStatement:
    return RescaleStatement(None if reader.accept("AUTO") else reader.take_count("RESCALE", "partitions"))


def _parse_show(reader: _TokenReader) -> ShowStatement:
    if not reader.next_is(*ShowKind):
        raise reader.unexpected_token("SHOW")
    return ShowStatement(ShowKind(reader.take().text.upper()))


def _parse_explain(reader: _TokenReader) -> ExplainStatement:
    if reader.is_at_query():
        return ExplainStatement(reader.take_sql())
    return ExplainStatement(reader.take_name("EXPLAIN") if reader.remaining else None)


def _parse_describe(reader: _TokenReader) -> DescribeStatement:
    return DescribeStatement(reader.take_name("DESCRIBE"))


def _parse_tail(reader: _TokenReader) -> TailStatement:
    name, from_beginning = reader.take_name("TAIL"), False
    if reader.accept("FROM"):
        if not reader.next_is("BEGINNING", "NOW"):
            raise reader.unexpected_token("TAIL")
        from_beginning = reader.take().is_word("BEGINNING")
    return TailStatement(name, _parse_stop(reader, "TAIL"), from_beginning)


def _parse_results(reader: _TokenReader) -> ResultsStatement:
    name = reader.take_name("RESULTS")
    return ResultsStatement(name, reader.take_count("RESULTS") if reader.accept("LIMIT") else None)


_STATEMENT_PARSERS: Mapping[str, Callable[[_TokenReader], Statement]] = {
    "ADD": _parse_add,
    "REPLACE": _parse_replace,
    "REMOVE": _parse_remove,
    "CREATE": _parse_create,
    "ALTER": _parse_alter,
    "DROP": _parse_drop,
    "RESCALE": _parse_rescale,
    "SHOW": _parse_show,
    "EXPLAIN": _parse_explain,
    "DESCRIBE": _parse_describe,
    "DESC": _parse_describe,
    "TAIL": _parse_tail,
    "RESULTS": _parse_results,
    "HELP": lambda _: HelpStatement(),
    "QUIT": lambda _: QuitStatement(),
    "EXIT": lambda _: QuitStatement(),
}
KEYWORDS = ("SELECT", *(word for word in _STATEMENT_PARSERS if word not in {"DESC", "EXIT"}))
