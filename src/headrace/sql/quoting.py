"""Quotes identifiers and strings for use in SQL text."""

from __future__ import annotations

import re

from sqlglot.dialects.spark import Spark

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_RESERVED = frozenset(keyword.split()[0] for keyword in Spark.Tokenizer.KEYWORDS if keyword.strip())
_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'"})


def identifier(name: str) -> str:
    """Return an identifier, in back-quotes unless it parses as a plain identifier."""
    if _PLAIN.fullmatch(name) and name.upper() not in _RESERVED:
        return name
    return f"`{name.replace('`', '``')}`"


def text_literal(text: str) -> str:
    """Return a string literal of the text."""
    return f"'{text.translate(_ESCAPES)}'"
