"""Phrases that several explanations share."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = 8


def listed(parts: Sequence[str]) -> str:
    """Return the parts separated by commas; of a long list, the first ones and the number of the others."""
    shown = ", ".join(parts[:_SHOWN]) or "none"
    return shown if len(parts) <= _SHOWN else f"{shown} … and {len(parts) - _SHOWN} more"


def plural(word: str, count: int) -> str:
    """Return the singular or plural form for a count."""
    return word if count == 1 else ("queries" if word == "query" else f"{word}s")


def users(names: Sequence[str]) -> str:
    """Return the number and the names of the queries that use an operator."""
    return f"{len(names)} {plural('query', len(names))}: {listed(names)}"
