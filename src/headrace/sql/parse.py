"""Text to syntax tree, with every spot of the text still findable.

The parser is sqlglot's for Spark, with three changes. Functions are left as plain calls (`exp.Anonymous`), so that their
meaning is decided in one place, `headrace.sql.functions`, and not by the transpiler's rewriting. `window` and `session`
before `(` or `.` are read as names, where Spark's grammar has keywords. Two string literals that touch are one with a
quote in it (`'it''s'`), as since Spark 4.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from headrace.errors import SqlError
from headrace.sql.limits import NESTING, STEPS, STEPS_OF_A_TOKEN, check_tree, too_deep, too_slow

_DIALECT = Spark()
_OPENERS = frozenset({TokenType.L_PAREN, TokenType.DOT})
_NAMES = frozenset({TokenType.WINDOW, TokenType.SESSION})
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_CLASS = re.compile(r"<class '[\w.]*?(\w+)'>")


class _Parser(SparkParser):
    """Spark's grammar, but functions keep the name and the arguments they were written with."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: SparkParser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST", "EXTRACT")
    }
    NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {"CASE": SparkParser.NO_PAREN_FUNCTION_PARSERS["CASE"]}
    _levels = 0.0
    _steps = 0

    def _advance(self, times: int = 1) -> None:
        """Go on, or back: what can be read in several ways is tried in all of them, and inside of each again."""
        self._steps += 1
        if self._steps > STEPS + STEPS_OF_A_TOKEN * len(self._tokens):
            raise too_slow(Source(self.sql).place(self._curr.start))
        super()._advance(times)

    def _parse_unary(self) -> exp.Expr | None:
        return self._deeper(1, super()._parse_unary)

    def _parse_select(self, *args: Any, **given: Any) -> exp.Expr | None:
        return self._deeper(0.5, super()._parse_select, *args, **given)  # it is called twice for a sub-query

    def _deeper(self, by: float, parse: Callable[..., exp.Expr | None], *args: Any, **given: Any) -> exp.Expr | None:
        """Count what is inside of each other: all that nests goes through one of the methods above."""
        if self._levels + by > NESTING + 1:
            raise too_deep(NESTING, Source(self.sql).place(self._curr.start))
        self._levels += by
        try:
            return parse(*args, **given)
        finally:
            self._levels -= by


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a query; makes errors that point into it."""

    text: str

    def error(self, node: exp.Expr | None, message: str, *, detail: str = "", hint: str = "") -> SqlError:
        """Return an error that points at the node (or, if it has no position, at the nearest thing that has one)."""
        at = None if node is None else _position(node)
        return self.error_at(at, message, detail=detail, hint=hint)

    def error_at(self, at: int | None, message: str, *, detail: str = "", hint: str = "") -> SqlError:
        """Return an error that points at a character of the text."""
        return SqlError(message, place="" if at is None else self.place(at), detail=detail, hint=hint)

    def place(self, at: int) -> str:
        """Return the line of that character with a caret under it."""
        at = max(0, min(at, len(self.text)))
        begin = self.text.rfind("\n", 0, at) + 1
        line = self.text[begin:].split("\n", 1)[0].rstrip("\r")
        column = min(at - begin, len(line))
        number = self.text.count("\n", 0, at) + 1
        gap = "".join("\t" if char == "\t" else " " for char in line[:column])
        return f"line {number}, column {column + 1}:\n  {line}\n  {gap}^"

    def placed(self, problem: SqlError, node: exp.Expr) -> SqlError:
        """Return the problem with this node as its place, unless it has one."""
        if problem.place:
            return problem
        return self.error(node, problem.message, detail=problem.detail, hint=problem.hint)


def parse(source: Source) -> exp.Expr:
    """Return the tree of the one statement in the text; anything else is an SqlError."""
    if not source.text.strip():
        raise SqlError("query is empty", hint="write SELECT … FROM …")
    if "\0" in source.text:  # names that begin with NUL are the binder's own
        raise source.error_at(source.text.index("\0"), "query contains a NUL character")
    tokens = _tokens(source)
    try:
        trees = [tree for tree in _Parser(dialect=_DIALECT).parse(tokens, source.text) if tree is not None]
    except ParseError as problem:
        raise _syntax_error(source, problem) from None
    if not trees:
        raise SqlError("query is empty", hint="write SELECT … FROM …")
    if len(trees) > 1:
        raise source.error(trees[1], "query has more than one statement", hint="add them one by one")
    check_tree(trees[0])
    return trees[0]


def _tokens(source: Source) -> list[Token]:
    try:
        tokens = _DIALECT.tokenize(source.text)
    except TokenError:
        raise SqlError("query cannot be read", hint="a quote or a comment may not be closed") from None
    for token, following in pairwise(tokens):
        if token.token_type in _NAMES and following.token_type in _OPENERS:
            token.token_type = TokenType.VAR
    if any(token.token_type == TokenType.STRING for token in tokens):
        return _join_quotes(tokens)
    return tokens


def _join_quotes(tokens: list[Token]) -> list[Token]:
    joined: list[Token] = []
    for token in tokens:
        last = joined[-1] if joined else None
        touches = last is not None and last.token_type == token.token_type == TokenType.STRING and last.end + 1 == token.start
        if last is not None and touches:
            last.text, last.end = f"{last.text}'{token.text}", token.end
        else:
            joined.append(token)
    return joined


def _syntax_error(source: Source, problem: ParseError) -> SqlError:
    if not problem.errors:
        return SqlError(f"syntax error: {_ANSI.sub('', str(problem))}")
    first = problem.errors[0]
    what = _CLASS.sub(r"\1", _ANSI.sub("", str(first.get("description") or "not understood")))
    line, column, near = first.get("line") or 1, first.get("col") or 1, str(first.get("highlight") or "")
    lines = source.text.split("\n")
    at = sum(len(text) + 1 for text in lines[: line - 1]) + max(0, column - max(1, len(near)))
    return source.error_at(at, f"syntax error{f' near {near!r}' if near else ''}: {what.rstrip('.')}")


def _position(node: exp.Expr) -> int | None:
    """Return where the node starts: its own position, else that of its leftmost part, else of what holds it."""
    current: exp.Expr | None = node
    while current is not None:
        own = [at for part in current.walk() if (at := _own_position(part)) is not None]
        if own:
            return min(own)
        current = current.parent
    return None


def _own_position(node: exp.Expr) -> int | None:
    at = node.meta.get("start")
    return at if isinstance(at, int) else None
