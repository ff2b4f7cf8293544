"""The number of random examples that a test draws."""

from __future__ import annotations

from hypothesis import settings

_FEW = 5  # Hypothesis starts with the simplest values, so fewer examples say little


def scale_examples(base: int) -> int:
    """Scale a base count by the Hypothesis profile in use (see `tests/conftest.py`): a profile of 100 examples keeps it."""
    return max(min(base, _FEW), base * settings().max_examples // 100)
