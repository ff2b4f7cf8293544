"""The tokenizer: splits text into tokens, and into statements that end with `;`.

Strings, back-quoted names and comments follow the SQL parser, so that a `;` inside them does not end a statement. The tokenizer
raises no errors: an unclosed token extends to the end of the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
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

    kind: Kind
    text: str
    start: int
    end: int
    closed: bool = True

    def is_word(self, *words: str) -> bool:
        """Return whether the token is one of these upper-case words, in any case."""
        return self.kind is Kind.WORD and self.text.upper() in words

    @property
    def name(self) -> str | None:
        """The name without back-quotes; None if the token is not a name."""
        if self.kind is Kind.NAME and self.closed:
            return self.text[1:-1].replace("``", "`") or None
        return self.text if self.kind is Kind.WORD else None


@dataclass(frozen=True, slots=True)
class Piece:
    """The text of a statement without its `;`; `line` and `column` are its start in the source, counted from 1."""

    text: str
    tokens: tuple[Token, ...]
    line: int = 1
    column: int = 1

    @property
    def words(self) -> tuple[Token, ...]:
        """The tokens without comments."""
        return tuple(token for token in self.tokens if token.kind is not Kind.COMMENT)


_SPACE = re.compile(r"\s+")
_LINE_COMMENT = re.compile(r"--[^\n\r]*")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_PLAIN = ((Kind.NUMBER, re.compile(r"\d+(?:\.\d+)?(?!\w)")), (Kind.WORD, re.compile(r"\w+")))
_QUOTED = {
    "'": (Kind.TEXT, re.compile(r"'(?:[^'\\]|\\.)*(')?", re.DOTALL)),
    '"': (Kind.TEXT, re.compile(r'"(?:[^"\\]|\\.)*(")?', re.DOTALL)),
    "`": (Kind.NAME, re.compile(r"`(?:[^`]|``)*(`)?")),
}
_RAW = {"'": re.compile(r"[rR]'[^']*(')?"), '"': re.compile(r'[rR]"[^"]*(")?')}


def scan(text: str) -> list[Token]:
    """Return all tokens, comments too."""
    tokens: list[Token] = []
    offset = 0
    while offset < len(text):
        space = _SPACE.match(text, offset)
        if space is not None:
            offset = space.end()
            continue
        token = _token(text, offset)
        tokens.append(token)
        offset = token.end
    return tokens


def _token(text: str, offset: int) -> Token:
    char, next_char = text[offset], text[offset + 1 : offset + 2]
    comment = _LINE_COMMENT.match(text, offset)
    if comment is not None:
        return Token(Kind.COMMENT, comment[0], offset, comment.end())
    if char == "/" and next_char == "*":
        return _block_comment(text, offset)
    if char in _QUOTED:
        kind, pattern = _QUOTED[char]
        return _quoted(kind, pattern, text, offset)
    if char in "rR" and next_char in _RAW:
        return _quoted(Kind.TEXT, _RAW[next_char], text, offset)
    for kind, pattern in _PLAIN:
        match = pattern.match(text, offset)
        if match is not None:
            return Token(kind, match[0], offset, match.end())
    return Token(Kind.SIGN, char, offset, offset + 1)


def _quoted(kind: Kind, pattern: re.Pattern[str], text: str, start: int) -> Token:
    match = pattern.match(text, start)
    assert match is not None
    end = match.end() if match[1] else len(text)  # includes a backslash at the very end
    return Token(kind, text[start:end], start, end, closed=bool(match[1]))


def _block_comment(text: str, start: int) -> Token:
    """Read a block comment; block comments nest."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return Token(Kind.COMMENT, text[start : edge.end()], start, edge.end())
    return Token(Kind.COMMENT, text[start:], start, len(text), closed=False)


def split(text: str, line: int = 1, column: int = 1) -> tuple[list[Piece], Piece]:
    """Return the non-empty statements that end with `;`, and the rest of the text after the last of them.

    `line` and `column` are the start of the text itself.
    """
    statements: list[Piece] = []
    start = 0
    tokens: list[Token] = []
    for token in scan(text):
        if token.kind is Kind.SIGN and token.text == ";":
            statement = _piece(text, start, token.start, tokens, (line, column))
            statements += [statement] if statement.words else []
            start, tokens = token.end, []
        else:
            tokens.append(token)
    return statements, _piece(text, start, len(text), tokens, (line, column))


def _piece(text: str, start: int, end: int, tokens: Sequence[Token], origin: tuple[int, int]) -> Piece:
    """Cut a statement out of a text; it starts at its first token that is not a comment, where a user looks for an error."""
    first = next((token.start for token in tokens if token.kind is not Kind.COMMENT), start)
    shifted = tuple(
        Token(token.kind, token.text, token.start - first, token.end - first, token.closed)
        for token in tokens
        if token.start >= first
    )
    return Piece(text[first:end], shifted, *place(text, first, origin))


def place(text: str, offset: int, origin: tuple[int, int] = (1, 1)) -> tuple[int, int]:
    """Return the line and column of an offset, in a text that starts at `origin`."""
    lines = text.count("\n", 0, offset)
    column = offset - (text.rfind("\n", 0, offset) + 1)
    return origin[0] + lines, column + (1 if lines else origin[1])
