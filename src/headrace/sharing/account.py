"""What each query costs: its part of what is shared, and what it would cost alone. All of it by the model.

What something costs that several queries share is divided among them in proportion to what each would pay for it alone, so that
nobody pays more for being in company, and all parts together are what is spent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.sharing.parts import whole


@dataclass(frozen=True, slots=True)
class Charge:
    """Something that is done once for all its users, in seconds of work a second; `alone` has what each would pay by itself."""

    together: float
    alone: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Account:
    """Seconds of work a second; `share` is the query's part of all that the model charges for."""

    alone: float
    shared: float
    share: float


def spent(charges: Iterable[Charge]) -> float:
    """Return what all of it costs."""
    return math.fsum(charge.together for charge in charges)


def accounts(charges: Iterable[Charge]) -> dict[int, Account]:
    """Return the account of each query, by id."""
    alone: dict[int, float] = defaultdict(float)
    shared: dict[int, float] = defaultdict(float)
    for charge in charges:
        total = sum(charge.alone.values())
        for number, cost in charge.alone.items():
            part = cost / total if total else 1 / len(charge.alone)
            alone[whole(number)] += cost
            shared[whole(number)] += charge.together * part
    all_of_it = sum(shared.values()) or 1.0
    return {number: Account(alone[number], shared[number], shared[number] / all_of_it) for number in alone}
