"""The number of random examples that a test draws."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import settings

Case = TypeVar("Case")
_FEW = 5  # Hypothesis starts with the simplest values, so fewer examples say little


def scale_examples(base: int) -> int:
    """Scale a base count by the Hypothesis profile in use (see `tests/conftest.py`): a profile of 100 examples keeps it."""
    return max(min(base, _FEW), base * settings().max_examples // 100)


def choose_examples(cases: Sequence[Case], base: int, chance: random.Random) -> Sequence[Case]:
    """Choose about as many cases as `scale_examples` says, and all of them under the profile of long runs."""
    is_soak = settings().max_examples >= settings.get_profile("soak").max_examples
    return cases if is_soak else chance.sample(cases, min(len(cases), scale_examples(base)))
