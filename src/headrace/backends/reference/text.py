"""String functions; a character is a code point, and trimming removes spaces only."""

from __future__ import annotations

import re

from headrace.errors import EvaluationError


def match_like(text: str, pattern: str, escape: str = "\\") -> bool:
    """Match the whole text; `%` is any run of characters (also newlines), `_` any character; `escape` makes the next literal."""
    return re.fullmatch(_like_to_regex(pattern, escape), text, re.DOTALL) is not None


def _like_to_regex(pattern: str, escape: str) -> str:
    parts, characters = [], iter(pattern)
    for character in characters:
        if character == escape:
            parts.append(re.escape(next(characters, escape)))
        else:
            parts.append({"%": ".*", "_": "."}.get(character) or re.escape(character))
    return "".join(parts)


def match_regex(text: str, pattern: str) -> bool:
    """Tell whether the regular expression matches anywhere in the text."""
    try:
        return re.search(pattern, text) is not None
    except re.error as error:
        raise EvaluationError(f"regular expression '{pattern}' is not understood", detail=str(error)) from error


def take_substring(text: str, position: int, length: int | None = None) -> str:
    """Return up to `length` characters from `position`: 1 and 0 are the first, -1 the last; empty outside the text."""
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    end = len(text) if length is None else start + length
    return text[max(start, 0) : max(end, 0)]


def replace_text(text: str, search: str, replacement: str = "") -> str:
    """Replace every occurrence; an empty search changes nothing."""
    return text.replace(search, replacement) if search else text
