"""Which branches of which queries share one selection, and in which layout: decided by cost.

Members with equal keys are first put together by the expressions their predicates look at. A set of expressions that is
part of another one joins it where that is cheaper than a pass of its own, and so do windows of another granularity: fine
slices cost everybody who shares them. Then each group takes the cheapest layout. Costs are nanoseconds for one second of
event time, from measurements on one core (docs/performance.md) and the statistics of the stream; only their ratios matter.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from headrace.model.expression import Expression
from headrace.model.window import Sliding, Window
from headrace.sharing.selection import Layout, dimensions
from headrace.sharing.statistics import Load, Statistics, load

MAX_GRID = 1 << 16
MAX_SIGNATURES = 1 << 62


class Selective(Protocol):
    """Anything with a predicate that can share a selection with others of the same `sharing_key`."""

    @property
    def predicate(self) -> Expression:
        """Which rows it wants."""

    @property
    def window(self) -> Window | None:
        """What it slices for, if anything."""

    @property
    def keys(self) -> tuple[Expression, ...]:
        """What it groups by."""

    @property
    def sharing_key(self) -> Hashable:
        """Only members with equal keys may share."""


M = TypeVar("M", bound=Selective)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a second of event time costs under a layout, in nanoseconds; infinite when the layout cannot be used."""

    layout: Layout
    nanoseconds: float


def costs(predicates: Sequence[Expression], work: Load) -> tuple[Cost, ...]:
    """Return the cost of every layout for a set of predicates."""
    distinct = tuple(dict.fromkeys(predicates))
    dims = dimensions(distinct)
    size = math.prod(d.size for d in dims)
    rows = work.rows / work.slices  # in one slice
    kept = min(rows, work.keys * size)
    grid = rows * (4 + 2 * len(dims)) + kept * 20 + work.keys * size if size <= MAX_GRID else math.inf
    signatures = rows * (40 + 2 * len(dims)) + kept * 30 + size.bit_length() * len(distinct) * 1_000
    each = len(distinct) * (rows * 8 + min(rows, work.keys) * 20)
    return (
        Cost(Layout.GRID, grid * work.slices),
        Cost(Layout.SIGNATURES, signatures * work.slices if size <= MAX_SIGNATURES else math.inf),
        Cost(Layout.PER_QUERY, each * work.slices),
    )


def cheapest(predicates: Sequence[Expression], work: Load) -> Cost:
    """Return the layout to use for a set of predicates."""
    return min(costs(predicates, work), key=lambda cost: cost.nanoseconds)


def group(members: Iterable[M], stats: Statistics) -> list[tuple[Layout, list[M]]]:
    """Split members into groups that share a selection; the result depends on the set of members, not on their order."""
    clusters: dict[tuple[Hashable, frozenset[Expression], int], list[M]] = {}
    for member in members:
        looked_at = frozenset(d.expression for d in dimensions([member.predicate]))
        clusters.setdefault((member.sharing_key, looked_at, _granularity(member.window)), []).append(member)
    merged: list[tuple[Hashable, frozenset[Expression], list[M]]] = []
    for (key, looked_at, _), found in sorted(clusters.items(), key=lambda item: (-len(item[0][1]), str(item[0]))):
        host = next((m for m in merged if m[0] == key and looked_at <= m[1] and _pays(m[2], found, stats)), None)
        if host is None:
            merged.append((key, looked_at, list(found)))
        else:
            host[2].extend(found)
    return [(_best(found, stats).layout, found) for _, _, found in merged]


def _granularity(window: Window | None) -> int:
    """Return a class of step: within one, slices differ by so little that they are always shared."""
    return math.gcd(window.size, window.slide).bit_length() // 3 if isinstance(window, Sliding) else 0


def _pays(host: Sequence[Selective], guests: Sequence[Selective], stats: Statistics) -> bool:
    apart = _best(host, stats).nanoseconds + _best(guests, stats).nanoseconds
    return _best([*host, *guests], stats).nanoseconds < apart


def _best(members: Sequence[Selective], stats: Statistics) -> Cost:
    return cheapest([m.predicate for m in members], load((m.window for m in members), members[0].keys, stats))
