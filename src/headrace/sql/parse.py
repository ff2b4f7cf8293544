"""Parses SQL text to a syntax tree whose nodes keep their positions in the text.

The parser is sqlglot's Spark parser with three changes. Functions stay plain calls (`exp.Anonymous`), so that only
`headrace.sql.functions` defines their meaning, not the rewrites of the transpiler. `window` and `session` before `(` or `.` are
names, where Spark's grammar has keywords. Two adjacent string literals without a space are one literal that contains a quote
(`'it''s'`), as in Spark 4.
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
    """Spark's grammar, except that functions keep their written name and arguments; limits depth and backtracking."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: SparkParser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST", "EXTRACT")
    }
    NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {"CASE": SparkParser.NO_PAREN_FUNCTION_PARSERS["CASE"]}
    _levels = 0.0
    _steps = 0

    def _advance(self, times: int = 1) -> None:
        """Count steps: the parser backtracks through every reading of an ambiguous text, and so at every level of nesting."""
        self._steps += 1
        if self._steps > STEPS + STEPS_OF_A_TOKEN * len(self._tokens):
            raise too_slow(Source(self.sql).place(self._curr.start))
        super()._advance(times)

    def _parse_unary(self) -> exp.Expr | None:
        return self._deeper(1, super()._parse_unary)

    def _parse_select(self, *args: Any, **kwargs: Any) -> exp.Expr | None:
        return self._deeper(0.5, super()._parse_select, *args, **kwargs)  # sqlglot calls it twice per sub-query

    def _deeper(self, levels: float, parse: Callable[..., exp.Expr | None], *args: Any, **kwargs: Any) -> exp.Expr | None:
        """Count nesting levels: every nested construct goes through one of the methods above."""
        if self._levels + levels > NESTING + 1:
            raise too_deep(NESTING, Source(self.sql).place(self._curr.start))
        self._levels += levels
        try:
            return parse(*args, **kwargs)
        finally:
            self._levels -= levels


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a query; makes errors with a location in that text."""

    text: str

    def error(self, node: exp.Expr | None, message: str, *, detail: str = "", hint: str = "") -> SqlError:
        """Return an error located at the node, or at the nearest node that has a position."""
        offset = None if node is None else _position(node)
        return self.error_at(offset, message, detail=detail, hint=hint)

    def error_at(self, offset: int | None, message: str, *, detail: str = "", hint: str = "") -> SqlError:
        """Return an error located at a character of the text."""
        return SqlError(message, place="" if offset is None else self.place(offset), detail=detail, hint=hint)

    def place(self, offset: int) -> str:
        """Return line and column of that character, and the line with a caret below it."""
        offset = max(0, min(offset, len(self.text)))
        begin = self.text.rfind("\n", 0, offset) + 1
        line = self.text[begin:].split("\n", 1)[0].rstrip("\r")
        column = min(offset - begin, len(line))
        number = self.text.count("\n", 0, offset) + 1
        gap = "".join("\t" if char == "\t" else " " for char in line[:column])
        return f"line {number}, column {column + 1}:\n  {line}\n  {gap}^"

    def placed(self, problem: SqlError, node: exp.Expr) -> SqlError:
        """Return the error located at this node, unless it already has a location."""
        if problem.place:
            return problem
        return self.error(node, problem.message, detail=problem.detail, hint=problem.hint)


def parse(source: Source) -> exp.Expr:
    """Return the syntax tree of the single statement in the text; SqlError for any other text."""
    if not source.text.strip():
        raise SqlError("query is empty", hint="write SELECT … FROM …")
    if "\0" in source.text:  # the binder reserves names that start with NUL for placeholders
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
    merged: list[Token] = []
    for token in tokens:
        last = merged[-1] if merged else None
        touches = last is not None and last.token_type == token.token_type == TokenType.STRING and last.end + 1 == token.start
        if last is not None and touches:
            last.text, last.end = f"{last.text}'{token.text}", token.end
        else:
            merged.append(token)
    return merged


def _syntax_error(source: Source, problem: ParseError) -> SqlError:
    if not problem.errors:
        return SqlError(f"syntax error: {_ANSI.sub('', str(problem))}")
    first = problem.errors[0]
    description = _CLASS.sub(r"\1", _ANSI.sub("", str(first.get("description") or "not understood")))
    line, column, near = first.get("line") or 1, first.get("col") or 1, str(first.get("highlight") or "")
    lines = source.text.split("\n")
    offset = sum(len(text) + 1 for text in lines[: line - 1]) + max(0, column - max(1, len(near)))
    return source.error_at(offset, f"syntax error{f' near {near!r}' if near else ''}: {description.rstrip('.')}")


def _position(node: exp.Expr) -> int | None:
    """Return the start offset of a node: the least of its subtree, else that of the nearest ancestor that has one."""
    current: exp.Expr | None = node
    while current is not None:
        offsets = [at for part in current.walk() if (at := _own_position(part)) is not None]
        if offsets:
            return min(offsets)
        current = current.parent
    return None


def _own_position(node: exp.Expr) -> int | None:
    offset = node.meta.get("start")
    return offset if isinstance(offset, int) else None
