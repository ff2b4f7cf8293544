"""The statements of the shell, and their parser.

The tokenizer splits text into tokens, and into statements that end with `;`. Strings, back-quoted names and comments follow the
SQL parser, so that a `;` inside them does not end a statement. It raises no errors: an unclosed token extends to the end of the
text.

`ADD <query> AS <name>`: if the last two tokens of the statement are `AS` and a name, they always name the query. A query that
itself ends with an alias has it before that (`ADD SELECT a FROM s AS t AS q`), or is added with its name in front
(`ADD q AS SELECT a FROM s AS t`). The parser does not use the names of streams and columns. `LIMIT n` and `FOR 5 SECONDS` at
the end of a bare SELECT belong to the shell: they say when to stop watching. `USAGES` lists the whole language, as HELP shows it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TypeAlias

from headrace.errors import HeadraceError, SqlError
from headrace.model.time import parse_duration
from headrace.sql.ddl import CreateQuery, CreateStream, parse_ddl
from headrace.sql.parser import SqlSource
from headrace.statements import SinkOptions, parse_sink_options


class TokenKind(Enum):
    """The kind of a token."""

    WORD = "word"
    NAME = "name in back-quotes"
    TEXT = "text"
    NUMBER = "number"
    SIGN = "sign"
    COMMENT = "comment"


@dataclass(frozen=True, slots=True)
class Token:
    """A token from offset `start` up to `end`; `closed` is False if its closing quote or comment end is missing."""

    kind: TokenKind
    text: str
    start: int
    end: int
    closed: bool = True

    def is_word(self, *words: str) -> bool:
        """Return whether the token is one of these upper-case words, in any case."""
        return self.kind is TokenKind.WORD and self.text.upper() in words

    @property
    def name(self) -> str | None:
        """The name without back-quotes; None if the token is not a name."""
        if self.kind is TokenKind.NAME and self.closed:
            return self.text[1:-1].replace("``", "`") or None
        return self.text if self.kind is TokenKind.WORD else None


@dataclass(frozen=True, slots=True)
class StatementText:
    """The text of a statement without its `;`; `line` and `column` are its start in the source, counted from 1."""

    text: str
    tokens: tuple[Token, ...]
    line: int = 1
    column: int = 1

    @property
    def significant_tokens(self) -> tuple[Token, ...]:
        """The tokens without comments."""
        return tuple(token for token in self.tokens if token.kind is not TokenKind.COMMENT)


_SPACE = re.compile(r"\s+")
_LINE_COMMENT = re.compile(r"--[^\n\r]*")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_PLAIN_PATTERNS = ((TokenKind.NUMBER, re.compile(r"\d+(?:\.\d+)?(?!\w)")), (TokenKind.WORD, re.compile(r"\w+")))
_QUOTED_PATTERNS = {
    "'": (TokenKind.TEXT, re.compile(r"'(?:[^'\\]|\\.)*(')?", re.DOTALL)),
    '"': (TokenKind.TEXT, re.compile(r'"(?:[^"\\]|\\.)*(")?', re.DOTALL)),
    "`": (TokenKind.NAME, re.compile(r"`(?:[^`]|``)*(`)?")),
}
_RAW_PATTERNS = {"'": re.compile(r"[rR]'[^']*(')?"), '"': re.compile(r'[rR]"[^"]*(")?')}


def tokenize(text: str) -> list[Token]:
    """Return all tokens, comments too."""
    tokens: list[Token] = []
    offset = 0
    while offset < len(text):
        space = _SPACE.match(text, offset)
        if space is not None:
            offset = space.end()
            continue
        token = _read_token(text, offset)
        tokens.append(token)
        offset = token.end
    return tokens


def _read_token(text: str, offset: int) -> Token:
    char, next_char = text[offset], text[offset + 1 : offset + 2]
    comment = _LINE_COMMENT.match(text, offset)
    if comment is not None:
        return Token(TokenKind.COMMENT, comment[0], offset, comment.end())
    if char == "/" and next_char == "*":
        return _read_block_comment(text, offset)
    if char in _QUOTED_PATTERNS:
        kind, pattern = _QUOTED_PATTERNS[char]
        return _read_quoted(kind, pattern, text, offset)
    if char in "rR" and next_char in _RAW_PATTERNS:
        return _read_quoted(TokenKind.TEXT, _RAW_PATTERNS[next_char], text, offset)
    for kind, pattern in _PLAIN_PATTERNS:
        match = pattern.match(text, offset)
        if match is not None:
            return Token(kind, match[0], offset, match.end())
    return Token(TokenKind.SIGN, char, offset, offset + 1)


def _read_quoted(kind: TokenKind, pattern: re.Pattern[str], text: str, start: int) -> Token:
    match = pattern.match(text, start)
    assert match is not None
    end = match.end() if match[1] else len(text)  # includes a backslash at the very end
    return Token(kind, text[start:end], start, end, closed=bool(match[1]))


def _read_block_comment(text: str, start: int) -> Token:
    """Read a block comment; block comments nest."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return Token(TokenKind.COMMENT, text[start : edge.end()], start, edge.end())
    return Token(TokenKind.COMMENT, text[start:], start, len(text), closed=False)


def split_statements(text: str, line: int = 1, column: int = 1) -> tuple[list[StatementText], StatementText]:
    """Return the non-empty statements that end with `;`, and the rest of the text after the last of them.

    `line` and `column` are the start of the text itself.
    """
    statements: list[StatementText] = []
    start = 0
    tokens: list[Token] = []
    for token in tokenize(text):
        if token.kind is TokenKind.SIGN and token.text == ";":
            statement = _cut_statement(text, start, token.start, tokens, (line, column))
            statements += [statement] if statement.significant_tokens else []
            start, tokens = token.end, []
        else:
            tokens.append(token)
    return statements, _cut_statement(text, start, len(text), tokens, (line, column))


def _cut_statement(text: str, start: int, end: int, tokens: Sequence[Token], origin: tuple[int, int]) -> StatementText:
    """Cut a statement out of a text; it starts at its first token that is not a comment, where a user looks for an error."""
    first = next((token.start for token in tokens if token.kind is not TokenKind.COMMENT), start)
    shifted = tuple(
        Token(token.kind, token.text, token.start - first, token.end - first, token.closed)
        for token in tokens
        if token.start >= first
    )
    return StatementText(text[first:end], shifted, *line_and_column(text, first, origin))


def line_and_column(text: str, offset: int, origin: tuple[int, int] = (1, 1)) -> tuple[int, int]:
    """Return the line and column of an offset, in a text that starts at `origin`."""
    lines = text.count("\n", 0, offset)
    column = offset - (text.rfind("\n", 0, offset) + 1)
    return origin[0] + lines, column + (1 if lines else origin[1])


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
class RescaleStatement:
    """Change the number of key partitions; None lets it follow parallelism and load."""

    partitions: int | None


class ShowKind(StrEnum):
    """What SHOW can list."""

    queries = "QUERIES"
    streams = "STREAMS"
    plan = "PLAN"


@dataclass(frozen=True, slots=True)
class ShowStatement:
    """List queries or streams, or show the plan."""

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
    ("DROP STREAM name [CASCADE]", "drop a stream; CASCADE removes the queries that read it"),
    ("RESCALE n | AUTO", "change the number of key partitions; AUTO follows the cores and the load"),
    ("TAIL name [FROM BEGINNING] [LIMIT n] [FOR 5 SECONDS]", "follow the results of a query"),
    ("RESULTS name [LIMIT n]", "show the last results of a query"),
    ("SHOW QUERIES | STREAMS | PLAN", "list queries or streams, or show the shared plan"),
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
