"""Text to tokens, and to pieces that end with `;`.

Strings, names in back-quotes and comments are those of the SQL parser, so that a `;` inside of them ends nothing. Nothing is
refused here: what is not closed goes on to the end of the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What a token is."""

    WORD = "word"
    NAME = "name in back-quotes"
    TEXT = "text"
    NUMBER = "number"
    SIGN = "sign"
    COMMENT = "comment"


@dataclass(frozen=True, slots=True)
class Token:
    """A token, and where it is: from `start` up to `end`; `closed` is False if its end was not found."""

    kind: Kind
    text: str
    start: int
    end: int
    closed: bool = True

    def is_word(self, *words: str) -> bool:
        """Tell whether it is one of these words, which are given in upper case."""
        return self.kind is Kind.WORD and self.text.upper() in words

    @property
    def name(self) -> str | None:
        """The name that is meant, if it can be one."""
        if self.kind is Kind.NAME and self.closed:
            return self.text[1:-1].replace("``", "`") or None
        return self.text if self.kind is Kind.WORD else None


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text, without its `;`; `line` and `column` say where it begins, counted from 1."""

    text: str
    tokens: tuple[Token, ...]
    line: int = 1
    column: int = 1

    @property
    def words(self) -> tuple[Token, ...]:
        """The tokens that mean something."""
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
    found: list[Token] = []
    at = 0
    while at < len(text):
        space = _SPACE.match(text, at)
        if space is not None:
            at = space.end()
            continue
        token = _token(text, at)
        found.append(token)
        at = token.end
    return found


def _token(text: str, at: int) -> Token:
    char, following = text[at], text[at + 1 : at + 2]
    line = _LINE_COMMENT.match(text, at)
    if line is not None:
        return Token(Kind.COMMENT, line[0], at, line.end())
    if char == "/" and following == "*":
        return _block_comment(text, at)
    if char in _QUOTED:
        kind, pattern = _QUOTED[char]
        return _quoted(kind, pattern, text, at)
    if char in "rR" and following in _RAW:
        return _quoted(Kind.TEXT, _RAW[following], text, at)
    for kind, pattern in _PLAIN:
        match = pattern.match(text, at)
        if match is not None:
            return Token(kind, match[0], at, match.end())
    return Token(Kind.SIGN, char, at, at + 1)


def _quoted(kind: Kind, pattern: re.Pattern[str], text: str, at: int) -> Token:
    match = pattern.match(text, at)
    assert match is not None
    end = match.end() if match[1] else len(text)  # a backslash at the very end is part of it
    return Token(kind, text[at:end], at, end, closed=bool(match[1]))


def _block_comment(text: str, at: int) -> Token:
    """Comments of this kind can hold others."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, at):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return Token(Kind.COMMENT, text[at : edge.end()], at, edge.end())
    return Token(Kind.COMMENT, text[at:], at, len(text), closed=False)


def split(text: str, line: int = 1, column: int = 1) -> tuple[list[Piece], Piece]:
    """Return the pieces that end with `;` and mean something, and the rest behind the last of them.

    `line` and `column` say where the text itself begins.
    """
    pieces: list[Piece] = []
    start = 0
    mine: list[Token] = []
    for token in scan(text):
        if token.kind is Kind.SIGN and token.text == ";":
            piece = _piece(text, start, token.start, mine, (line, column))
            pieces += [piece] if piece.words else []
            start, mine = token.end, []
        else:
            mine.append(token)
    return pieces, _piece(text, start, len(text), mine, (line, column))


def _piece(text: str, start: int, end: int, tokens: Sequence[Token], origin: tuple[int, int]) -> Piece:
    """Cut a piece out; it begins with its first word, so that its place is where a reader would look for it."""
    first = next((token.start for token in tokens if token.kind is not Kind.COMMENT), start)
    moved = tuple(Token(t.kind, t.text, t.start - first, t.end - first, t.closed) for t in tokens if t.start >= first)
    return Piece(text[first:end], moved, *place(text, first, origin))


def place(text: str, at: int, origin: tuple[int, int] = (1, 1)) -> tuple[int, int]:
    """Return line and column of a character, in a text that begins at `origin`."""
    lines = text.count("\n", 0, at)
    column = at - (text.rfind("\n", 0, at) + 1)
    return origin[0] + lines, column + (1 if lines else origin[1])
