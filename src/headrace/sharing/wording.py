"""Words of explanations that several of them use."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = 8


def listed(parts: Sequence[str]) -> str:
    """Return the parts with commas between them; of many, the first ones and how many more there are."""
    shown = ", ".join(parts[:_SHOWN]) or "none"
    return shown if len(parts) <= _SHOWN else f"{shown} … and {len(parts) - _SHOWN} more"


def plural(word: str, count: int) -> str:
    """Return the word for so many."""
    return word if count == 1 else ("queries" if word == "query" else f"{word}s")


def users(names: Sequence[str]) -> str:
    """Return how many queries use something, and which."""
    return f"{len(names)} {plural('query', len(names))}: {listed(names)}"
