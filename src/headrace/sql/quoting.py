"""Names and texts as they are written in queries, so that they are read back as what they are."""

from __future__ import annotations

import re

from sqlglot.dialects.spark import Spark

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_RESERVED = frozenset(keyword.split()[0] for keyword in Spark.Tokenizer.KEYWORDS if keyword.strip())
_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'"})


def identifier(name: str) -> str:
    """Return a name; in back-quotes if it could be read as anything else."""
    if _PLAIN.fullmatch(name) and name.upper() not in _RESERVED:
        return name
    return f"`{name.replace('`', '``')}`"


def text_literal(text: str) -> str:
    """Return a text in quotes."""
    return f"'{text.translate(_ESCAPES)}'"
