"""Completion: suggests the next word of typed text, from statements, streams, queries, columns, functions and keywords."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.cli.shell.parser import KEYWORDS, QUERY_STARTS, ShowKind
from headrace.cli.shell.tokenizer import Token, TokenKind, split_statements, tokenize
from headrace.sql.aggregate_functions import AGGREGATES
from headrace.sql.functions import FUNCTIONS

WINDOWS = ("TUMBLE", "HOP", "SESSION", "SLIDING")
SQL_KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "HAVING", "AS", "AND", "OR", "NOT", "IN", "LIKE", "RLIKE", "BETWEEN", "IS", "NULL",
    "CASE", "WHEN", "THEN", "ELSE", "END", "CAST", "JOIN", "LEFT", "RIGHT", "FULL", "OUTER", "INNER", "SEMI", "ANTI", "ON",
    "USING", "UNION ALL", "WITH", "DISTINCT", "FILTER", "INTERVAL", "TRUE", "FALSE", "LIMIT", "FOR",
)  # fmt: skip
WINDOW_COLUMNS = ("window_start", "window_end")
_FUNCTIONS = (*sorted(AGGREGATES), *sorted(FUNCTIONS.keys() - AGGREGATES.keys()))
_NAME_STATEMENTS = ("TAIL", "REMOVE", "RESULTS", "REPLACE", "EXPLAIN", "DESCRIBE", "DESC")
_CLAUSES_AFTER_NAME: Mapping[str, tuple[str, ...]] = {
    "TAIL": ("FROM BEGINNING", "LIMIT", "FOR"), "RESULTS": ("LIMIT",), "REPLACE": ("AS",),
}  # fmt: skip
_TIME_UNITS = ("SECONDS", "MINUTES", "MILLISECONDS")
_ALL_KEYWORDS = (*SQL_KEYWORDS, *KEYWORDS, *WINDOWS, *ShowKind, *_TIME_UNITS, "BEGINNING", "NOW", "EXIT", "DESC")
_RESERVED = frozenset(word for keyword in _ALL_KEYWORDS for word in keyword.split())
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The known names: streams with their columns, and queries."""

    streams: Mapping[str, Sequence[str]] = field(default_factory=dict)
    queries: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A suggested word, its kind, and the number of characters before the cursor that it replaces."""

    text: str
    kind: str
    prefix_length: int


def suggest_words(text: str, vocabulary: Vocabulary) -> list[Suggestion]:
    """Return suggestions for the end of a text, best first, without duplicates."""
    all_tokens = split_statements(text)[1].tokens
    is_in_word = bool(all_tokens) and not text[-1:].isspace()
    if is_in_word and all_tokens[-1].kind in {TokenKind.TEXT, TokenKind.COMMENT, TokenKind.NUMBER}:
        return []
    tokens = [token for token in all_tokens if token.kind is not TokenKind.COMMENT]
    prefix = tokens.pop().text if is_in_word and tokens[-1].kind in {TokenKind.WORD, TokenKind.NAME} else ""
    suggestions: dict[str, Suggestion] = {}
    for word, kind in _list_candidates(tokens, vocabulary):
        formatted = _format_word(word, kind, prefix)
        if formatted is not None:
            suggestions.setdefault(formatted.lower(), Suggestion(formatted, kind, len(prefix)))
    return list(suggestions.values())


def _format_word(word: str, kind: str, prefix: str) -> str | None:
    """Format a word for a prefix: keywords and functions in its case, names in back-quotes if necessary; None if no match."""
    if kind in {"stream", "query", "column"}:
        if not word.lower().startswith(prefix.lstrip("`").lower()):
            return None
        is_plain = _PLAIN_NAME.fullmatch(word) and word.upper() not in _RESERVED and not prefix.startswith("`")
        return word if is_plain else f"`{word.replace('`', '``')}`"
    if not word.lower().startswith(prefix.lower()):
        return None
    return word.lower() if prefix[-1:].islower() else word.upper()


def _list_candidates(tokens: Sequence[Token], vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    if not tokens:
        yield from _label_words("statement", KEYWORDS)
        return
    first = tokens[0].text.upper()
    if first == "SHOW":
        yield from _label_words("keyword", ShowKind if len(tokens) == 1 else ())
    elif first == "DROP":
        yield from _candidates_of_drop(tokens, vocabulary)
    elif first == "ALTER":
        words = {
            1: ("QUERY",),
            3: ("ADD", "DROP"),
            4: ("SINK",),
            5: ("WITH",) if tokens[3:4] and tokens[3].is_word("ADD") else (),
        }
        yield from _label_words("keyword", words.get(len(tokens), ()))
        yield from _label_words("query", vocabulary.queries if len(tokens) == 2 else ())
    elif first in _NAME_STATEMENTS and len(tokens) == 1:
        yield from _label_words("query", vocabulary.queries)
        yield from _label_words("stream", vocabulary.streams if first in {"DESCRIBE", "DESC"} else ())
        yield from _label_words("keyword", QUERY_STARTS[:2] if first in {"EXPLAIN", "REPLACE"} else ())
    elif first in {"TAIL", "RESULTS", "REMOVE"} or (first == "REPLACE" and len(tokens) == 2):
        yield from _candidates_after_name(first, tokens, vocabulary)
    elif first == "ADD" and len(tokens) == 1:
        yield from _label_words("keyword", QUERY_STARTS[:2])
    elif first in {"ADD", "REPLACE", "EXPLAIN", "("} or first in QUERY_STARTS:
        yield from _candidates_in_query(tokens, vocabulary)


def _candidates_of_drop(tokens: Sequence[Token], vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    if len(tokens) == 2 and tokens[1].is_word("STREAM"):
        yield from _label_words("stream", vocabulary.streams)
    else:
        yield from _label_words("keyword", {1: ("STREAM",), 3: ("CASCADE",)}.get(len(tokens), ()))


def _candidates_after_name(first: str, tokens: Sequence[Token], vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    last = tokens[-1]
    if first == "REMOVE":
        yield from _label_words("query", vocabulary.queries if last.text == "," else ())
    elif last.is_word("FROM"):
        yield from _label_words("keyword", ("BEGINNING", "NOW"))
    elif tokens[-2].is_word("FOR"):
        yield from _label_words("keyword", _TIME_UNITS if last.kind is TokenKind.NUMBER else ())
    elif not last.is_word("LIMIT", "FOR"):
        yield from _label_words("keyword", _CLAUSES_AFTER_NAME.get(first, ()))


def _candidates_in_query(tokens: Sequence[Token], vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    last = tokens[-1]
    if last.text == "." and len(tokens) > 1:
        stream = _find_aliases(tokens, vocabulary).get((tokens[-2].name or "").lower())
        yield from _label_words("column", (*vocabulary.streams.get(stream or "", ()), *WINDOW_COLUMNS))
        return
    if last.is_word("FROM", "JOIN") or (last.text == "(" and len(tokens) > 1 and tokens[-2].is_word(*WINDOWS)):
        yield from _label_words("stream", vocabulary.streams)
        yield from _label_words("window", WINDOWS if last.text != "(" else ())
        yield from _label_words("keyword", ("SELECT",) if last.text == "(" else ())
        return
    if len(tokens) > 1 and tokens[-2].is_word("FOR") and last.kind is TokenKind.NUMBER:
        yield from _label_words("keyword", _TIME_UNITS)
        return
    if last.is_word("AS"):
        return
    used_streams = set(_find_aliases(tokens, vocabulary).values()) or vocabulary.streams.keys()
    yield from _label_words(
        "column", (column for name in vocabulary.streams if name in used_streams for column in vocabulary.streams[name])
    )
    yield from _label_words("column", WINDOW_COLUMNS)
    yield from _label_words("keyword", SQL_KEYWORDS)
    yield from _label_words("function", _FUNCTIONS)


def _find_aliases(tokens: Sequence[Token], vocabulary: Vocabulary) -> dict[str, str]:
    """Map the lower-case names and aliases of the streams in a query to the streams."""
    streams_by_name = {name.lower(): name for name in vocabulary.streams}
    aliases: dict[str, str] = {}
    for i, token in enumerate(tokens):
        stream = streams_by_name.get((token.name or "").lower())
        if stream is None or not i or not (tokens[i - 1].is_word("FROM", "JOIN") or tokens[i - 1].text in {"(", ","}):
            continue
        aliases[stream.lower()] = stream
        alias = _find_alias(tokens, i)
        if alias is not None:
            aliases[alias.lower()] = stream
    return aliases


def _find_alias(tokens: Sequence[Token], i: int) -> str | None:
    """Return the alias of the stream at token `i`: after it, or after the closing parenthesis of its window."""
    j = i + 1
    if tokens[i - 1].text == "(":
        j = next((k + 1 for k in range(i, len(tokens)) if tokens[k].text == ")"), len(tokens))
    if j < len(tokens) and tokens[j].is_word("AS"):
        j += 1
    token = tokens[j] if j < len(tokens) else None
    return None if token is None or token.is_word(*_RESERVED) else token.name


def _label_words(label: str, words: Iterable[str]) -> Iterator[tuple[str, str]]:
    return ((word, label) for word in words)


def classify_tokens(text: str, vocabulary: Vocabulary) -> Iterator[tuple[Token, str]]:
    """Yield the tokens of a text with their kinds, for syntax highlighting."""
    for token in tokenize(text):
        yield token, _classify_token(token, vocabulary)


def _classify_token(token: Token, vocabulary: Vocabulary) -> str:
    if token.kind is not TokenKind.WORD:
        return {TokenKind.TEXT: "text", TokenKind.NUMBER: "number", TokenKind.COMMENT: "comment", TokenKind.NAME: "name"}.get(
            token.kind, "sign"
        )
    if token.text.upper() in _RESERVED:
        return "keyword"
    if token.text.lower() in AGGREGATES or token.text.lower() in FUNCTIONS:
        return "function"
    return "stream" if any(token.text.lower() == name.lower() for name in vocabulary.streams) else "name"
