"""What a query would add to the work of all, before it is added: the same planning, with it and without."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headrace.plan.stacked import AnyQuery
from headrace.sharing.account import Charge, spent
from headrace.sharing.changelog import Changelog, apply
from headrace.sharing.parts import parts_of, whole
from headrace.sharing.shared_plan import LiveQuery

Charged = Callable[[Sequence[LiveQuery]], Iterable[Charge]]


@dataclass(frozen=True, slots=True)
class Growth:
    """Seconds of work a second, by the model: of all live queries, with the new one, and of the new one if it ran alone."""

    before: float
    after: float
    alone: float


def what_if(live: Sequence[LiveQuery], query: AnyQuery, charged: Charged) -> Growth:
    """Return what a query would add; `charged` plans some queries and says what they cost."""
    number = 1 + max((whole(one.id) for one in live), default=0)
    added = tuple(part.addition for part in parts_of(number, "new", query))
    both = apply(live, Changelog(added))
    alone = tuple(one for one in both if one not in live)
    return Growth(*(spent(charged(some)) for some in (live, both, alone)))
