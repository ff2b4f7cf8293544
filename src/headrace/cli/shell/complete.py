"""What may come next, given what was typed: statements, names of streams and queries, columns, functions, keywords."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.cli.shell.parse import KEYWORDS, QUERY_STARTS
from headrace.cli.shell.scan import Kind, Token, scan, split
from headrace.cli.shell.statements import Shown
from headrace.sql.aggregates import AGGREGATES
from headrace.sql.functions import FUNCTIONS

WINDOWS = ("TUMBLE", "HOP", "SESSION", "SLIDING")
SQL_KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "HAVING", "AS", "AND", "OR", "NOT", "IN", "LIKE", "RLIKE", "BETWEEN", "IS", "NULL",
    "CASE", "WHEN", "THEN", "ELSE", "END", "CAST", "JOIN", "LEFT", "RIGHT", "FULL", "OUTER", "INNER", "SEMI", "ANTI", "ON",
    "USING", "UNION ALL", "WITH", "DISTINCT", "FILTER", "INTERVAL", "TRUE", "FALSE", "LIMIT", "FOR",
)  # fmt: skip
WINDOW_COLUMNS = ("window_start", "window_end")
_FUNCTIONS = (*sorted(AGGREGATES), *sorted(FUNCTIONS.keys() - AGGREGATES.keys()))
_BY_NAME = ("TAIL", "REMOVE", "RESULTS", "REPLACE", "EXPLAIN", "DESCRIBE", "DESC")
_AFTER_NAME: Mapping[str, tuple[str, ...]] = {
    "TAIL": ("FROM BEGINNING", "LIMIT", "FOR"), "RESULTS": ("LIMIT",), "REPLACE": ("AS",),
}  # fmt: skip
_UNITS = ("SECONDS", "MINUTES", "MILLISECONDS")
_ALL_KEYWORDS = (*SQL_KEYWORDS, *KEYWORDS, *WINDOWS, *Shown, *_UNITS, "BEGINNING", "NOW", "EXIT", "DESC")
_RESERVED = frozenset(word for keyword in _ALL_KEYWORDS for word in keyword.split())
_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The names there are: streams with their columns, and queries."""

    streams: Mapping[str, Sequence[str]] = field(default_factory=dict)
    queries: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Offer:
    """A word that may come next, what it is, and how many characters before the cursor it takes the place of."""

    text: str
    kind: str
    replaces: int


def offers(before: str, vocabulary: Vocabulary) -> list[Offer]:
    """Return what may come at the end of a text; the best first, nothing twice."""
    typed = split(before)[1].tokens
    touching = bool(typed) and not before[-1:].isspace()
    if touching and typed[-1].kind in {Kind.TEXT, Kind.COMMENT, Kind.NUMBER}:
        return []
    tokens = [token for token in typed if token.kind is not Kind.COMMENT]
    prefix = tokens.pop().text if touching and tokens[-1].kind in {Kind.WORD, Kind.NAME} else ""
    found: dict[str, Offer] = {}
    for text, kind in _candidates(tokens, vocabulary):
        written = _written(text, kind, prefix)
        if written is not None:
            found.setdefault(written.lower(), Offer(written, kind, len(prefix)))
    return list(found.values())


def _written(text: str, kind: str, prefix: str) -> str | None:
    """Return how a word is written that fits a prefix: keywords and functions in its case, names in quotes if they must be."""
    if kind in {"stream", "query", "column"}:
        if not text.lower().startswith(prefix.lstrip("`").lower()):
            return None
        plain = _PLAIN.fullmatch(text) and text.upper() not in _RESERVED and not prefix.startswith("`")
        return text if plain else f"`{text.replace('`', '``')}`"
    if not text.lower().startswith(prefix.lower()):
        return None
    return text.lower() if prefix[-1:].islower() else text.upper()


def _candidates(tokens: Sequence[Token], vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    if not tokens:
        yield from _all("statement", KEYWORDS)
        return
    first = tokens[0].text.upper()
    if first == "SHOW":
        yield from _all("keyword", Shown if len(tokens) == 1 else ())
    elif first in _BY_NAME and len(tokens) == 1:
        yield from _all("query", vocabulary.queries)
        yield from _all("stream", vocabulary.streams if first in {"DESCRIBE", "DESC"} else ())
        yield from _all("keyword", QUERY_STARTS[:2] if first in {"EXPLAIN", "REPLACE"} else ())
    elif first in {"TAIL", "RESULTS", "REMOVE"} or (first == "REPLACE" and len(tokens) == 2):
        yield from _behind_name(first, tokens, vocabulary)
    elif first == "ADD" and len(tokens) == 1:
        yield from _all("keyword", QUERY_STARTS[:2])
    elif first in {"ADD", "REPLACE", "EXPLAIN", "("} or first in QUERY_STARTS:
        yield from _in_query(tokens, vocabulary)


def _behind_name(first: str, tokens: Sequence[Token], vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    last = tokens[-1]
    if first == "REMOVE":
        yield from _all("query", vocabulary.queries if last.text == "," else ())
    elif last.is_word("FROM"):
        yield from _all("keyword", ("BEGINNING", "NOW"))
    elif tokens[-2].is_word("FOR"):
        yield from _all("keyword", _UNITS if last.kind is Kind.NUMBER else ())
    elif not last.is_word("LIMIT", "FOR"):
        yield from _all("keyword", _AFTER_NAME.get(first, ()))


def _in_query(tokens: Sequence[Token], vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    last = tokens[-1]
    if last.text == "." and len(tokens) > 1:
        stream = _aliases(tokens, vocabulary).get((tokens[-2].name or "").lower())
        yield from _all("column", (*vocabulary.streams.get(stream or "", ()), *WINDOW_COLUMNS))
        return
    if last.is_word("FROM", "JOIN") or (last.text == "(" and len(tokens) > 1 and tokens[-2].is_word(*WINDOWS)):
        yield from _all("stream", vocabulary.streams)
        yield from _all("window", WINDOWS if last.text != "(" else ())
        yield from _all("keyword", ("SELECT",) if last.text == "(" else ())
        return
    if len(tokens) > 1 and tokens[-2].is_word("FOR") and last.kind is Kind.NUMBER:
        yield from _all("keyword", _UNITS)
        return
    if last.is_word("AS"):
        return
    read = set(_aliases(tokens, vocabulary).values()) or vocabulary.streams.keys()
    yield from _all("column", (column for name in vocabulary.streams if name in read for column in vocabulary.streams[name]))
    yield from _all("column", WINDOW_COLUMNS)
    yield from _all("keyword", SQL_KEYWORDS)
    yield from _all("function", _FUNCTIONS)


def _aliases(tokens: Sequence[Token], vocabulary: Vocabulary) -> dict[str, str]:
    """Return the names by which streams can be called in a query, in lower case: their own, and aliases given to them."""
    known = {name.lower(): name for name in vocabulary.streams}
    found: dict[str, str] = {}
    for at, token in enumerate(tokens):
        stream = known.get((token.name or "").lower())
        if stream is None or not at or not (tokens[at - 1].is_word("FROM", "JOIN") or tokens[at - 1].text in {"(", ","}):
            continue
        found[stream.lower()] = stream
        alias = _alias_behind(tokens, at)
        if alias is not None:
            found[alias.lower()] = stream
    return found


def _alias_behind(tokens: Sequence[Token], at: int) -> str | None:
    """Return the alias of the stream at a place: behind it, or behind the parenthesis of its window."""
    following = at + 1
    if tokens[at - 1].text == "(":
        following = next((place + 1 for place in range(at, len(tokens)) if tokens[place].text == ")"), len(tokens))
    if following < len(tokens) and tokens[following].is_word("AS"):
        following += 1
    token = tokens[following] if following < len(tokens) else None
    return None if token is None or token.is_word(*_RESERVED) else token.name


def _all(kind: str, words: Iterable[str]) -> Iterator[tuple[str, str]]:
    return ((word, kind) for word in words)


def kinds(text: str, vocabulary: Vocabulary) -> Iterator[tuple[Token, str]]:
    """Yield the tokens of a text with what each of them is, for a prompt that shows them in colors."""
    for token in scan(text):
        yield token, _kind(token, vocabulary)


def _kind(token: Token, vocabulary: Vocabulary) -> str:
    if token.kind is not Kind.WORD:
        return {Kind.TEXT: "text", Kind.NUMBER: "number", Kind.COMMENT: "comment", Kind.NAME: "name"}.get(token.kind, "sign")
    if token.text.upper() in _RESERVED:
        return "keyword"
    if token.text.lower() in AGGREGATES or token.text.lower() in FUNCTIONS:
        return "function"
    return "stream" if any(token.text.lower() == name.lower() for name in vocabulary.streams) else "name"
