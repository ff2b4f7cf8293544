"""Quotes identifiers and strings for use in SQL text."""

from __future__ import annotations

import re

from sqlglot.dialects.spark import Spark

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
