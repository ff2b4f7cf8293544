"""Parses SQL text to a syntax tree whose nodes keep their positions in the text.

The parser is sqlglot's Spark parser with three changes. Functions stay plain calls (`exp.Anonymous`), so that only
`headrace.sql.functions` defines their meaning, not the rewrites of the transpiler. `window` and `session` before `(` or `.` are
names, where Spark's grammar has keywords. Two adjacent string literals without a space are one literal that contains a quote
(`'it''s'`), as in Spark 4.

Importing this module raises InstallationError if sqlglot is compiled (package `sqlglotc`): an interpreted class cannot extend a
compiled one.

`quote_identifier` and `quote_string` do the reverse: they quote names and strings for use in SQL text.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from headrace.errors import InstallationError, SqlError
from headrace.sql.limits import (
    MAX_NESTING,
    PARSER_STEPS_BASE,
    PARSER_STEPS_PER_TOKEN,
    check_tree_depth,
    nesting_error,
    parse_effort_error,
)

_DIALECT = Spark()
_NAME_FOLLOWERS = frozenset({TokenType.L_PAREN, TokenType.DOT})
_WINDOW_KEYWORDS = frozenset({TokenType.WINDOW, TokenType.SESSION})
_PARSER_PACKAGES = ("headrace", "sqlglot")
_ANSI_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_CLASS_REPR = re.compile(r"<class '[\w.]*?(\w+)'>")


class _Parser(SparkParser):
    """Spark's grammar, except that functions keep their written name and arguments; limits depth and backtracking."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: SparkParser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST", "EXTRACT")
    }
    NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {"CASE": SparkParser.NO_PAREN_FUNCTION_PARSERS["CASE"]}
    _nesting = 0.0
    _step_count = 0

    def _advance(self, times: int = 1) -> None:
        """Count steps: the parser backtracks through every reading of an ambiguous text, and so at every level of nesting."""
        self._step_count += 1
        if self._step_count > PARSER_STEPS_BASE + PARSER_STEPS_PER_TOKEN * len(self._tokens):
            raise parse_effort_error(SqlSource(self.sql).format_location(self._curr.start))
        super()._advance(times)

    def _parse_unary(self) -> exp.Expr | None:
        return self._parse_nested(1, super()._parse_unary)

    def _parse_select(self, *args: Any, **kwargs: Any) -> exp.Expr | None:
        return self._parse_nested(0.5, super()._parse_select, *args, **kwargs)  # sqlglot calls it twice per sub-query

    def _parse_nested(self, levels: float, parse: Callable[..., exp.Expr | None], *args: Any, **kwargs: Any) -> exp.Expr | None:
        """Count nesting levels: every nested construct goes through one of the methods above."""
        if self._nesting + levels > MAX_NESTING + 1:
            raise nesting_error(MAX_NESTING, SqlSource(self.sql).format_location(self._curr.start))
        self._nesting += levels
        try:
            return parse(*args, **kwargs)
        finally:
            self._nesting -= levels


def check_sqlglot() -> None:
    """Raise InstallationError if the parser cannot be made because sqlglot is compiled; every query would fail later."""
    try:
        _Parser(dialect=_DIALECT)
    except TypeError as problem:
        raise InstallationError(
            "headrace does not work with the compiled parser of sqlglot, package 'sqlglotc'",
            detail=str(problem),
            hint="run 'pip uninstall sqlglotc', which leaves sqlglot itself in place, or use an environment without it",
        ) from problem


check_sqlglot()


@dataclass(frozen=True, slots=True)
class SqlSource:
    """The text of a query; makes errors with a location in that text."""

    text: str

    def error_at_node(self, node: exp.Expr | None, message: str, *, detail: str = "", hint: str = "") -> SqlError:
        """Return an error located at the node, or at the nearest node that has a position."""
        offset = None if node is None else _find_position(node)
        return self.error_at_offset(offset, message, detail=detail, hint=hint)

    def error_at_offset(self, offset: int | None, message: str, *, detail: str = "", hint: str = "") -> SqlError:
        """Return an error located at a character of the text."""
        return SqlError(message, place="" if offset is None else self.format_location(offset), detail=detail, hint=hint)

    def format_location(self, offset: int) -> str:
        """Return line and column of that character, and the line with a caret below it."""
        offset = max(0, min(offset, len(self.text)))
        begin = self.text.rfind("\n", 0, offset) + 1
        line = self.text[begin:].split("\n", 1)[0].rstrip("\r")
        column = min(offset - begin, len(line))
        number = self.text.count("\n", 0, offset) + 1
        gap = "".join("\t" if char == "\t" else " " for char in line[:column])
        return f"line {number}, column {column + 1}:\n  {line}\n  {gap}^"

    def with_location(self, problem: SqlError, node: exp.Expr) -> SqlError:
        """Return the error located at this node, unless it already has a location."""
        if problem.place:
            return problem
        return self.error_at_node(node, problem.message, detail=problem.detail, hint=problem.hint)


def parse_statement(source: SqlSource) -> exp.Expr:
    """Return the syntax tree of the single statement in the text; SqlError for any other text."""
    if not source.text.strip():
        raise SqlError("query is empty", hint="write SELECT … FROM …")
    if "\0" in source.text:  # the binder reserves names that start with NUL for placeholders
        raise source.error_at_offset(source.text.index("\0"), "query contains a NUL character")
    tokens = tokenize_sql(source)
    try:
        trees = [tree for tree in _Parser(dialect=_DIALECT).parse(tokens, source.text) if tree is not None]
    except ParseError as problem:
        raise _make_syntax_error(source, problem) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as problem:
        if not _is_raised_by_sqlglot(problem):
            raise
        raise SqlError(f"query cannot be parsed ({type(problem).__name__}: {problem})") from problem
    if not trees:
        raise SqlError("query is empty", hint="write SELECT … FROM …")
    if len(trees) > 1:
        raise source.error_at_node(trees[1], "query has more than one statement", hint="add them one by one")
    check_tree_depth(trees[0])
    return trees[0]


def tokenize_sql(source: SqlSource) -> list[Token]:
    """Return the tokens of a text; raises SqlError if a quote or a comment is not closed."""
    try:
        tokens = _DIALECT.tokenize(source.text)
    except TokenError:
        raise SqlError("query cannot be read", hint="a quote or a comment may not be closed") from None
    for token, following in pairwise(tokens):
        if token.token_type in _WINDOW_KEYWORDS and following.token_type in _NAME_FOLLOWERS:
            token.token_type = TokenType.VAR
    if any(token.token_type == TokenType.STRING for token in tokens):
        return _merge_adjacent_strings(tokens)
    return tokens


def _merge_adjacent_strings(tokens: list[Token]) -> list[Token]:
    merged: list[Token] = []
    for token in tokens:
        last = merged[-1] if merged else None
        touches = last is not None and last.token_type == token.token_type == TokenType.STRING and last.end + 1 == token.start
        if last is not None and touches:
            last.text, last.end = f"{last.text}'{token.text}", token.end
        else:
            merged.append(token)
    return merged


def _is_raised_by_sqlglot(problem: Exception) -> bool:
    """Return whether sqlglot failed, not the methods that `_Parser` adds: sqlglot does not expect every text."""
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(problem.__traceback__)]
    packages = [name.partition(".")[0] for name in modules]
    return next(package for package in reversed(packages) if package in _PARSER_PACKAGES) == "sqlglot"


def _make_syntax_error(source: SqlSource, problem: ParseError) -> SqlError:
    if not problem.errors:
        return SqlError(f"syntax error: {_ANSI_ESCAPE.sub('', str(problem))}")
    first = problem.errors[0]
    description = _CLASS_REPR.sub(r"\1", _ANSI_ESCAPE.sub("", str(first.get("description") or "not understood")))
    line, column, near = first.get("line") or 1, first.get("col") or 1, str(first.get("highlight") or "")
    lines = source.text.split("\n")
    offset = sum(len(text) + 1 for text in lines[: line - 1]) + max(0, column - max(1, len(near)))
    return source.error_at_offset(offset, f"syntax error{f' near {near!r}' if near else ''}: {description.rstrip('.')}")


def _find_position(node: exp.Expr) -> int | None:
    """Return the start offset of a node: the least of its subtree, else that of the nearest ancestor that has one."""
    current: exp.Expr | None = node
    while current is not None:
        offsets = [at for part in current.walk() if (at := _get_own_position(part)) is not None]
        if offsets:
            return min(offsets)
        current = current.parent
    return None


def _get_own_position(node: exp.Expr) -> int | None:
    offset = node.meta.get("start")
    return offset if isinstance(offset, int) else None


_PLAIN_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_RESERVED_WORDS = frozenset(keyword.split()[0] for keyword in Spark.Tokenizer.KEYWORDS if keyword.strip())
_STRING_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'"})


def quote_identifier(name: str) -> str:
    """Return an identifier, in back-quotes unless it parses as a plain identifier."""
    if _PLAIN_IDENTIFIER.fullmatch(name) and name.upper() not in _RESERVED_WORDS:
        return name
    return f"`{name.replace('`', '``')}`"


def quote_string(text: str) -> str:
    """Return a string literal of the text."""
    return f"'{text.translate(_STRING_ESCAPES)}'"
