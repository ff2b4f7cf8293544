"""The tokens of the shell.

The tokenizer splits text into tokens, and into statements that end with `;`. Strings, back-quoted names and comments follow the
SQL parser, so that a `;` inside them does not end a statement. It raises no errors: an unclosed token extends to the end of the
text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


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
