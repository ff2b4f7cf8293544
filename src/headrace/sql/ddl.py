"""Statements about streams and queries: CREATE, ALTER, DROP, SHOW, DESCRIBE.

    CREATE STREAM name (column TYPE, …, WATERMARK FOR column AS column - INTERVAL '2 seconds') WITH (connector = 'kafka', …)
    DROP STREAM name [CASCADE]
    CREATE [OR REPLACE] QUERY name [WITH (sink = '…')] AS SELECT …         MATERIALIZED VIEW means QUERY
    ALTER QUERY name ADD SINK WITH (sink = '…', …)
    ALTER QUERY name DROP SINK number [DISCARD]                           DISCARD drops what waits for it
    DROP QUERY name
    SHOW STREAMS | QUERIES | SINKS
    DESCRIBE name

The options of WITH are texts, numbers or booleans. Their names are words, or texts if they contain dots: the option
'properties.NAME' is the setting NAME of the client that the connector uses, 'format.NAME' the option NAME of the format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sqlglot.tokenizer_core import Token, TokenType

from headrace.errors import SqlError
from headrace.sql.parser import SqlSource, tokenize_sql

_WORD = re.compile(r"[^\W\d]\w*")
_UNITS = ("MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK")


@dataclass(frozen=True, slots=True)
class CreateStream:
    """Declare a stream; `columns` is a declaration as `Schema.parse` takes it, empty if the source has its own columns."""

    name: str
    columns: str
    time: str
    watermark: str
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DropStreamStatement:
    """Drop a stream; with `cascade`, remove the queries that read it."""

    name: str
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class CreateQuery:
    """Add a query, or replace the one of that name."""

    name: str
    sql: str
    options: dict[str, str] = field(default_factory=dict)
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class DropQuery:
    """Remove a query."""

    name: str


@dataclass(frozen=True, slots=True)
class AddSinkStatement:
    """Add a sink to a live query."""

    name: str
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DropSinkStatement:
    """Take a sink from a live query; with `discard`, what waits for it, too."""

    name: str
    number: int
    discard: bool = False


@dataclass(frozen=True, slots=True)
class ShowObjects:
    """List the `streams`, the `queries` or the `sinks`."""

    kind: str


@dataclass(frozen=True, slots=True)
class DescribeObject:
    """List the columns of a stream or a query."""

    name: str


DdlStatement: TypeAlias = (
    CreateStream
    | DropStreamStatement
    | CreateQuery
    | AddSinkStatement
    | DropSinkStatement
    | DropQuery
    | ShowObjects
    | DescribeObject
)


def parse_ddl(text: str) -> DdlStatement:
    """Return the statement of a text, which may end with `;`; raises SqlError with the place in the text."""
    return _DdlParser(text, tokenize_sql(SqlSource(text))).parse()


class _DdlParser:
    """Reads tokens from left to right; every method raises SqlError at the first token that does not fit."""

    def __init__(self, text: str, tokens: Sequence[Token]) -> None:
        self._text = text
        self._tokens = tokens[:-1] if tokens and tokens[-1].token_type is TokenType.SEMICOLON else tokens
        self._next = 0

    def parse(self) -> DdlStatement:
        """Return the whole statement."""
        statements: dict[str, Callable[[], DdlStatement]] = {
            "CREATE": self._parse_create,
            "ALTER": self._parse_alter,
            "DROP": self._parse_drop,
            "SHOW": self._parse_show,
            "DESCRIBE": self._parse_describe,
        }
        verb = self._take_word(*statements)
        statement = statements[verb]()
        if self._current is not None:
            raise self._make_error("the end of the statement")
        return statement

    @property
    def _current(self) -> Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _is_word(self, *words: str) -> bool:
        token = self._current
        return token is not None and token.token_type is not TokenType.STRING and token.text.upper() in words

    def _accept(self, *words: str) -> bool:
        """Take a word or a sign if it is next."""
        is_next = self._is_word(*words)
        self._next += is_next
        return is_next

    def _take_word(self, *words: str) -> str:
        if not self._is_word(*words):
            raise self._make_error(" or ".join(words))
        self._next += 1
        return self._tokens[self._next - 1].text.upper()

    def _take_name(self) -> str:
        token = self._current
        is_quoted = token is not None and token.token_type is TokenType.IDENTIFIER
        is_text = token is not None and token.token_type is TokenType.STRING
        if token is None or is_text or not (is_quoted or _WORD.fullmatch(token.text)):
            raise self._make_error("a name")
        self._next += 1
        return token.text

    def _take_text(self) -> str:
        token = self._current
        if token is None or token.token_type is not TokenType.STRING:
            raise self._make_error("a text in quotes")
        self._next += 1
        return token.text

    def _make_error(self, expected: str) -> SqlError:
        token = self._current
        found = "the end" if token is None else f"'{token.text}'"
        offset = len(self._text.rstrip()) if token is None else token.start
        return SqlError(f"expected {expected}, found {found}", place=SqlSource(self._text).format_location(offset))

    def _parse_create(self) -> DdlStatement:
        if self._accept("STREAM"):
            return self._parse_create_stream()
        replaces = self._accept("OR")
        if replaces:
            self._take_word("REPLACE")
        if self._accept("MATERIALIZED"):
            self._take_word("VIEW")
        elif not self._accept("QUERY"):
            raise self._make_error("STREAM, QUERY or MATERIALIZED VIEW")
        name = self._take_name()
        options = self._parse_options() if self._accept("WITH") else {}
        self._take_word("AS")
        if self._current is None:
            raise self._make_error("a query")
        sql = self._text[self._current.start : self._tokens[-1].end + 1]
        self._next = len(self._tokens)
        return CreateQuery(name, sql, options, replaces)

    def _parse_create_stream(self) -> CreateStream:
        name = self._take_name()
        self._take_word("(")
        columns: list[str] = []
        time, watermark = "", "0 seconds"
        while True:
            if self._accept("WATERMARK"):
                time, watermark = self._parse_watermark()
            else:
                columns.append(self._parse_column())
            if not self._accept(","):
                break
        self._take_word(")")
        self._take_word("WITH")
        options = self._parse_options()
        if not time:
            hint = "write WATERMARK FOR column AS column - INTERVAL '2 seconds' after its columns"
            raise SqlError(f"stream '{name}' has no event time", hint=hint)
        return CreateStream(name, ", ".join(columns), time, watermark, options)

    def _parse_column(self) -> str:
        """Return the declaration of a column, as it is written: up to the comma or parenthesis behind its type."""
        start = self._current
        name = self._take_name()
        depth, first = 0, self._next
        while (token := self._current) is not None and (depth or token.text not in {",", ")"}):
            depth += (token.text == "(") - (token.text == ")")
            self._next += 1
        if start is None or self._next == first:
            raise self._make_error("a type")
        kind = self._text[self._tokens[first].start : self._tokens[self._next - 1].end + 1]
        return f"`{name.replace('`', '``')}` {kind}"

    def _parse_watermark(self) -> tuple[str, str]:
        self._take_word("FOR")
        time = self._take_name()
        self._take_word("AS")
        if self._take_name().lower() != time.lower():
            self._next -= 1
            raise self._make_error(f"'{time}', the column of the watermark")
        return time, self._parse_interval() if self._accept("-") else "0 seconds"

    def _parse_interval(self) -> str:
        """Return INTERVAL '2 seconds' or INTERVAL '2' SECOND as a duration."""
        self._take_word("INTERVAL")
        token = self._current
        if token is not None and token.token_type is TokenType.NUMBER:
            self._next += 1
            amount = token.text
        else:
            amount = self._take_text()
        units = (*_UNITS, *(f"{unit}S" for unit in _UNITS))
        return f"{amount} {self._take_word(*units).lower()}" if self._is_word(*units) else amount

    def _parse_options(self) -> dict[str, str]:
        options: dict[str, str] = {}
        self._take_word("(")
        while not self._accept(")"):
            token = self._current
            name = self._take_text() if token is not None and token.token_type is TokenType.STRING else self._take_name()
            if name.lower() in options:
                self._next -= 1
                raise self._make_error(f"another option than '{name}', which is given twice")
            self._take_word("=")
            options[name if "." in name else name.lower()] = self._parse_value()
            if not self._accept(","):
                self._take_word(")")
                break
        return options

    def _parse_value(self) -> str:
        sign = "-" if self._accept("-") else ""
        token = self._current
        is_number = token is not None and token.token_type is TokenType.NUMBER
        is_text = token is not None and token.token_type is TokenType.STRING
        if token is None or not (is_number or (not sign and (is_text or self._is_word("TRUE", "FALSE")))):
            raise self._make_error("a text in quotes, a number, TRUE or FALSE")
        self._next += 1
        return token.text if is_text else f"{sign}{token.text.lower()}"

    def _parse_alter(self) -> DdlStatement:
        self._take_word("QUERY")
        name = self._take_name()
        verb = self._take_word("ADD", "DROP")
        self._take_word("SINK")
        if verb == "ADD":
            self._take_word("WITH")
            return AddSinkStatement(name, self._parse_options())
        token = self._current
        if token is None or token.token_type is not TokenType.NUMBER or not token.text.isdigit():
            raise self._make_error("the number of a sink")
        self._next += 1
        return DropSinkStatement(name, int(token.text), self._accept("DISCARD"))

    def _parse_drop(self) -> DdlStatement:
        if self._accept("STREAM"):
            return DropStreamStatement(self._take_name(), self._accept("CASCADE"))
        if self._accept("MATERIALIZED"):
            self._take_word("VIEW")
        elif not self._accept("QUERY"):
            raise self._make_error("STREAM, QUERY or MATERIALIZED VIEW")
        return DropQuery(self._take_name())

    def _parse_show(self) -> DdlStatement:
        token = self._current  # the dialect takes all that follows SHOW as one text
        kind = "" if token is None else token.text.strip().removesuffix(";").strip().lower()
        if kind not in {"streams", "queries", "sinks"}:
            raise self._make_error("STREAMS, QUERIES or SINKS")
        self._next += 1
        return ShowObjects(kind)

    def _parse_describe(self) -> DdlStatement:
        return DescribeObject(self._take_name())
