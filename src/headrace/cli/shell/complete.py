"""Completion: suggests the next word of typed text, from statements, streams, queries, columns, functions and keywords."""

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
    """The known names: streams with their columns, and queries."""

    streams: Mapping[str, Sequence[str]] = field(default_factory=dict)
    queries: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Offer:
    """A suggested word, its kind, and the number of characters before the cursor that it replaces."""

    text: str
    kind: str
    replaces: int


def offers(text: str, vocabulary: Vocabulary) -> list[Offer]:
    """Return suggestions for the end of a text, best first, without duplicates."""
    all_tokens = split(text)[1].tokens
    is_in_word = bool(all_tokens) and not text[-1:].isspace()
    if is_in_word and all_tokens[-1].kind in {Kind.TEXT, Kind.COMMENT, Kind.NUMBER}:
        return []
    tokens = [token for token in all_tokens if token.kind is not Kind.COMMENT]
    prefix = tokens.pop().text if is_in_word and tokens[-1].kind in {Kind.WORD, Kind.NAME} else ""
    suggestions: dict[str, Offer] = {}
    for word, kind in _candidates(tokens, vocabulary):
        formatted = _written(word, kind, prefix)
        if formatted is not None:
            suggestions.setdefault(formatted.lower(), Offer(formatted, kind, len(prefix)))
    return list(suggestions.values())


def _written(word: str, kind: str, prefix: str) -> str | None:
    """Format a word for a prefix: keywords and functions in its case, names in back-quotes if necessary; None if no match."""
    if kind in {"stream", "query", "column"}:
        if not word.lower().startswith(prefix.lstrip("`").lower()):
            return None
        is_plain = _PLAIN.fullmatch(word) and word.upper() not in _RESERVED and not prefix.startswith("`")
        return word if is_plain else f"`{word.replace('`', '``')}`"
    if not word.lower().startswith(prefix.lower()):
        return None
    return word.lower() if prefix[-1:].islower() else word.upper()


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
    used_streams = set(_aliases(tokens, vocabulary).values()) or vocabulary.streams.keys()
    yield from _all(
        "column", (column for name in vocabulary.streams if name in used_streams for column in vocabulary.streams[name])
    )
    yield from _all("column", WINDOW_COLUMNS)
    yield from _all("keyword", SQL_KEYWORDS)
    yield from _all("function", _FUNCTIONS)


def _aliases(tokens: Sequence[Token], vocabulary: Vocabulary) -> dict[str, str]:
    """Map the lower-case names and aliases of the streams in a query to the streams."""
    streams_by_name = {name.lower(): name for name in vocabulary.streams}
    aliases: dict[str, str] = {}
    for i, token in enumerate(tokens):
        stream = streams_by_name.get((token.name or "").lower())
        if stream is None or not i or not (tokens[i - 1].is_word("FROM", "JOIN") or tokens[i - 1].text in {"(", ","}):
            continue
        aliases[stream.lower()] = stream
        alias = _alias_behind(tokens, i)
        if alias is not None:
            aliases[alias.lower()] = stream
    return aliases


def _alias_behind(tokens: Sequence[Token], i: int) -> str | None:
    """Return the alias of the stream at token `i`: after it, or after the closing parenthesis of its window."""
    j = i + 1
    if tokens[i - 1].text == "(":
        j = next((k + 1 for k in range(i, len(tokens)) if tokens[k].text == ")"), len(tokens))
    if j < len(tokens) and tokens[j].is_word("AS"):
        j += 1
    token = tokens[j] if j < len(tokens) else None
    return None if token is None or token.is_word(*_RESERVED) else token.name


def _all(label: str, words: Iterable[str]) -> Iterator[tuple[str, str]]:
    return ((word, label) for word in words)


def kinds(text: str, vocabulary: Vocabulary) -> Iterator[tuple[Token, str]]:
    """Yield the tokens of a text with their kinds, for syntax highlighting."""
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
