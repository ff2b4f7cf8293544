"""Phrases that several explanations share."""

from __future__ import annotations

from collections.abc import Sequence

_MAX_LISTED = 8


def format_list(parts: Sequence[str]) -> str:
    """Return the parts separated by commas; of a long list, the first ones and the number of the others."""
    shown = ", ".join(parts[:_MAX_LISTED]) or "none"
    return shown if len(parts) <= _MAX_LISTED else f"{shown} … and {len(parts) - _MAX_LISTED} more"


def pluralize(word: str, count: int) -> str:
    """Return the singular or plural form for a count."""
    return word if count == 1 else ("queries" if word == "query" else f"{word}s")


def format_users(names: Sequence[str]) -> str:
    """Return the number and the names of the queries that use an operator."""
    return f"{len(names)} {pluralize('query', len(names))}: {format_list(names)}"
