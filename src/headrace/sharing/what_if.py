"""What a query would add to the work of all, before it is added: the same planning, with it and without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.plan.stacked import AnyQuery
from headrace.sharing.account import accounts
from headrace.sharing.changelog import Changelog, apply
from headrace.sharing.parts import parts_of
from headrace.sharing.shared_plan import LiveQuery, StreamPlan, plan_stream
from headrace.sharing.statistics import Statistics


@dataclass(frozen=True, slots=True)
class Addition:
    """Seconds of work a second, by the model: of all live queries, with the new one, and of the new one if it ran alone."""

    before: float
    after: float
    alone: float


def what_if(
    live: Sequence[LiveQuery], query: AnyQuery, rates: Mapping[str, float], statistics: Mapping[str, Statistics]
) -> Addition:
    """Return what a query would add; `statistics` are those of the streams it reads."""
    number = 1 + max((one.id for one in live), default=0)
    added = tuple(part.addition for part in parts_of(number, "new", query))
    both = apply(live, Changelog(added))
    alone = tuple(one for one in both if one not in live)
    return Addition(*(_work(_plans(some, statistics), rates) for some in (live, both, alone)))


def _plans(live: Sequence[LiveQuery], statistics: Mapping[str, Statistics]) -> list[StreamPlan]:
    return [plan_stream(name, [one for one in live if name in one.plan.streams], known) for name, known in statistics.items()]


def _work(plans: Sequence[StreamPlan], rates: Mapping[str, float]) -> float:
    return sum(one.shared for one in accounts(plans, rates).values())
