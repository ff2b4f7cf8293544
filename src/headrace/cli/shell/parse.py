"""The parser of statements.

`ADD <query> AS <name>`: if the last two tokens of the statement are `AS` and a name, they always name the query. A query that
itself ends with an alias has it before that (`ADD SELECT a FROM s AS t AS q`), or is added with its name in front
(`ADD q AS SELECT a FROM s AS t`). The parser does not use the names of streams and columns. `LIMIT n` and `FOR 5 SECONDS` at
the end of a bare SELECT belong to the shell: they say when to stop watching.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence

from headrace.cli.shell.scan import Kind, Piece, Token, place
from headrace.cli.shell.statements import (
    USAGES,
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
from headrace.errors import HeadraceError, SqlError
from headrace.model.duration import parse_duration
from headrace.sql.parse import SqlSource

QUERY_STARTS = ("SELECT", "WITH", "FROM")


def parse(source: Piece) -> Statement:
    """Parse a statement that is not empty; raises SqlError with the place in its text."""
    reader = _Reader(source)
    if reader.at_query():
        return _select(reader)
    word = reader.take()
    parser = _STATEMENTS.get(word.text.upper()) if word.kind is Kind.WORD else None
    if parser is None:
        matches = difflib.get_close_matches(word.text.upper(), [*_STATEMENTS, "SELECT"], 1)
        hint = f"did you mean {matches[0]}?" if matches else "HELP; lists all statements"
        raise reader.refused(word, f"unknown statement '{word.text}'", detail=f"statements: {', '.join(KEYWORDS)}", hint=hint)
    statement = parser(reader)
    if reader.left:
        raise reader.unexpected(word.text.upper())
    return statement


class _Reader:
    """Takes the tokens of a statement one by one, from the front or from the back."""

    def __init__(self, source: Piece) -> None:
        self._piece, self.left = source, list(source.words)

    def refused(self, token: Token | None, message: str, *, detail: str = "", hint: str = "") -> SqlError:
        offset = len(self._piece.text.rstrip()) if token is None else token.start
        return SqlSource(self._piece.text).error_at_offset(offset, message, detail=detail, hint=hint)

    def unexpected(self, statement: str) -> SqlError:
        """Return the error of an unexpected next token, or of an unexpected end of the statement."""
        token = self.left[0] if self.left else None
        usage = next((text for text, _ in USAGES if statement in text), statement)
        message = f"{statement} ends too early" if token is None else f"unexpected '{token.text}' in {statement}"
        needs_quotes = token is not None and token.kind in {Kind.SIGN, Kind.TEXT, Kind.NUMBER}
        hint = "put names with characters other than letters and digits in back-quotes" if needs_quotes else ""
        return self.refused(token, message, detail=f"usage: {usage}", hint=hint)

    def take(self) -> Token:
        return self.left.pop(0)

    def next_is(self, *words: str) -> bool:
        return bool(self.left) and self.left[0].is_word(*words)

    def accept(self, *words: str) -> bool:
        if self.next_is(*words):
            self.take()
            return True
        return False

    def at_query(self) -> bool:
        return self.next_is(*QUERY_STARTS) or (bool(self.left) and self.left[0].text == "(")

    def name(self, statement: str) -> str:
        name = self.left[0].name if self.left else None
        if name is None:
            raise self.unexpected(statement)
        self.take()
        return name

    def number(self, statement: str) -> int:
        token = self.left[0] if self.left else None
        if token is None or not (token.kind is Kind.NUMBER and token.text.isascii() and token.text.isdigit()):
            raise self.unexpected(statement)
        if not int(token.text):
            raise self.refused(token, "invalid number of rows 0", hint="give a number greater than 0")
        return int(self.take().text)

    def seconds(self, statement: str) -> float:
        """Take a duration: 5 SECONDS, or '1 minute 30 seconds'."""
        first = self.left[0] if self.left else None
        if first is not None and first.kind is Kind.TEXT and first.closed:
            text = self.take().text[1:-1]
        elif first is not None and first.kind is Kind.NUMBER and len(self.left) > 1 and self.left[1].kind is Kind.WORD:
            text = f"{self.take().text} {self.take().text.lower()}"
        else:
            raise self.unexpected(statement)
        try:
            micros = parse_duration(text)
        except HeadraceError as error:
            raise self.refused(first, error.message, detail=error.detail, hint=error.hint) from None
        if not micros:
            raise self.refused(first, "invalid duration of 0 seconds")
        return micros / 1e6

    def sql(self) -> Sql:
        """Take all remaining tokens as a query."""
        first, last = self.left[0], self.left[-1]
        self.left = []
        return Sql(self._piece.text[first.start : last.end], *place(self._piece.text, first.start))

    def name_behind(self) -> str | None:
        """Take `AS name` off the end, if there are tokens before it."""
        if len(self.left) < 3 or not self.left[-2].is_word("AS"):
            return None
        name = self.left[-1].name
        if name is not None:
            del self.left[-2:]
        return name

    def end_behind(self) -> End:
        """Take `LIMIT n` and `FOR 5 SECONDS` off the end, in any order."""
        tokens, length = self.left, len(self.left)
        while clause := _clause_length(tokens[:length]):
            length -= clause
        self.left = tokens[length:]
        end = _end(self, "SELECT")
        if self.left:
            raise self.unexpected("SELECT")
        self.left = tokens[:length]
        return end


def _clause_length(tokens: Sequence[Token]) -> int:
    """Return the number of tokens of a trailing LIMIT or FOR clause; 0 without one."""
    kinds = [token.kind for token in tokens[-2:]]
    if len(tokens) > 2 and tokens[-2].is_word("LIMIT") and kinds[1] is Kind.NUMBER:
        return 2
    if len(tokens) > 2 and tokens[-2].is_word("FOR") and kinds[1] is Kind.TEXT:
        return 2
    return 3 if len(tokens) > 3 and tokens[-3].is_word("FOR") and kinds == [Kind.NUMBER, Kind.WORD] else 0


def _end(reader: _Reader, statement: str) -> End:
    rows: int | None = None
    seconds: float | None = None
    while reader.next_is("LIMIT", "FOR"):
        if rows is None and reader.accept("LIMIT"):
            rows = reader.number(statement)
        elif seconds is None and reader.accept("FOR"):
            seconds = reader.seconds(statement)
        else:
            break
    return End(rows, seconds)


def _select(reader: _Reader) -> Select:
    end = reader.end_behind()
    return Select(reader.sql(), end)


def _named_query(reader: _Reader, statement: str) -> tuple[str | None, Sql, bool]:
    """Take `<query> AS name`, `name AS <query>` or only a query; return the name, the query, and whether the name was last."""
    if reader.at_query():
        name = reader.name_behind()
        return name, reader.sql(), name is not None
    name = reader.name(statement)
    if not reader.accept("AS") or not reader.at_query():
        raise reader.unexpected(statement)
    return name, reader.sql(), False


def _add(reader: _Reader) -> Add:
    name, sql, at_end = _named_query(reader, "ADD")
    return Add(sql, name, at_end)


def _replace(reader: _Reader) -> Replace:
    name, sql, at_end = _named_query(reader, "REPLACE")
    if name is None:
        raise reader.unexpected("REPLACE")
    return Replace(name, sql, at_end)


def _remove(reader: _Reader) -> Remove:
    names = [reader.name("REMOVE")]
    while reader.left and reader.left[0].text == ",":
        reader.take()
        names.append(reader.name("REMOVE"))
    return Remove(tuple(names))


def _show(reader: _Reader) -> Show:
    if not reader.next_is(*Shown):
        raise reader.unexpected("SHOW")
    return Show(Shown(reader.take().text.upper()))


def _explain(reader: _Reader) -> Explain:
    if reader.at_query():
        return Explain(reader.sql())
    return Explain(reader.name("EXPLAIN") if reader.left else None)


def _describe(reader: _Reader) -> Describe:
    return Describe(reader.name("DESCRIBE"))


def _tail(reader: _Reader) -> Tail:
    name, from_beginning = reader.name("TAIL"), False
    if reader.accept("FROM"):
        if not reader.next_is("BEGINNING", "NOW"):
            raise reader.unexpected("TAIL")
        from_beginning = reader.take().is_word("BEGINNING")
    return Tail(name, _end(reader, "TAIL"), from_beginning)


def _results(reader: _Reader) -> Results:
    name = reader.name("RESULTS")
    return Results(name, reader.number("RESULTS") if reader.accept("LIMIT") else None)


_STATEMENTS: Mapping[str, Callable[[_Reader], Statement]] = {
    "ADD": _add, "REPLACE": _replace, "REMOVE": _remove, "SHOW": _show, "EXPLAIN": _explain, "DESCRIBE": _describe,
    "DESC": _describe, "TAIL": _tail, "RESULTS": _results, "HELP": lambda _: Help(), "QUIT": lambda _: Quit(),
    "EXIT": lambda _: Quit(),
}  # fmt: skip
KEYWORDS = ("SELECT", *(word for word in _STATEMENTS if word not in {"DESC", "EXIT"}))
