"""Which branches of which queries share one selection, and in which layout: decided by cost.

Members with equal keys are first put together by the expressions their predicates look at. A set of expressions that is
part of another one joins it where that is cheaper than a pass of its own; then each group takes the cheapest layout.
Costs are nanoseconds for the rows of one slice, from measurements on one core (docs/performance.md); only their ratios
matter.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from headrace.model.expression import Expression
from headrace.sharing.selection import Layout, dimensions, select

MAX_GRID = 1 << 16
MAX_SIGNATURES = 1 << 62


@dataclass(frozen=True, slots=True)
class Statistics:
    """What is known of a stream: rows in a slice and distinct keys; guesses until measured."""

    rows: int = 100_000
    keys: int = 1_000


class Selective(Protocol):
    """Anything with a predicate that can share a selection with others of the same `sharing_key`."""

    @property
    def predicate(self) -> Expression:
        """Which rows it wants."""

    @property
    def sharing_key(self) -> Hashable:
        """Only members with equal keys may share."""


M = TypeVar("M", bound=Selective)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one slice costs under a layout, in nanoseconds; infinite when the layout cannot be used."""

    layout: Layout
    nanoseconds: float


def costs(predicates: Sequence[Expression], stats: Statistics) -> tuple[Cost, ...]:
    """Return the cost of every layout for a set of predicates."""
    distinct = tuple(dict.fromkeys(predicates))
    dims = dimensions(distinct)
    size = math.prod(d.size for d in dims)
    kept = min(stats.rows, stats.keys * size)
    grid = stats.rows * (4 + 2 * len(dims)) + kept * 20 + stats.keys * size if size <= MAX_GRID else math.inf
    signatures = stats.rows * (40 + 2 * len(dims)) + kept * 30 + size.bit_length() * len(distinct) * 1_000
    each = len(distinct) * (stats.rows * 8 + min(stats.rows, stats.keys) * 20)
    return (
        Cost(Layout.GRID, grid),
        Cost(Layout.SIGNATURES, signatures if size <= MAX_SIGNATURES else math.inf),
        Cost(Layout.PER_QUERY, each),
    )


def cheapest(predicates: Sequence[Expression], stats: Statistics) -> Cost:
    """Return the layout to use for a set of predicates."""
    return min(costs(predicates, stats), key=lambda cost: cost.nanoseconds)


def group(members: Iterable[M], stats: Statistics) -> list[tuple[Layout, list[M]]]:
    """Split members into groups that share a selection; the result depends on the set of members, not on their order."""
    clusters: dict[tuple[Hashable, frozenset[Expression]], list[M]] = {}
    for member in members:
        looked_at = frozenset(d.expression for d in dimensions([member.predicate]))
        clusters.setdefault((member.sharing_key, looked_at), []).append(member)
    merged: list[tuple[Hashable, frozenset[Expression], list[M]]] = []
    for (key, looked_at), found in sorted(clusters.items(), key=lambda item: (-len(item[0][1]), str(item[0]))):
        host = next((m for m in merged if m[0] == key and looked_at <= m[1] and _pays(m[2], found, stats)), None)
        if host is None:
            merged.append((key, looked_at, list(found)))
        else:
            host[2].extend(found)
    return [(cheapest([m.predicate for m in found], stats).layout, found) for _, _, found in merged]


def _pays(host: Sequence[Selective], guests: Sequence[Selective], stats: Statistics) -> bool:
    mine, theirs = [m.predicate for m in host], [m.predicate for m in guests]
    apart = cheapest(mine, stats).nanoseconds + cheapest(theirs, stats).nanoseconds
    return cheapest([*mine, *theirs], stats).nanoseconds < apart


__all__ = ["Cost", "Layout", "Selective", "Statistics", "cheapest", "costs", "group", "select"]
