"""Operator grouping: which query branches share one selection, and in which cell layout, decided by cost.

Subscribers with equal keys are first clustered by the expressions in their predicates. A cluster whose expressions are a subset
of another's joins that one where this is cheaper than a pass of its own; so do windows of another granularity, because fine
slices cost every query that shares them. Each group then takes the cheapest layout. Costs are nanoseconds per second of event
time, from measurements on one core (docs/performance.md) and the statistics of the stream; only their ratios matter.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from headrace.model.expression import Expression
from headrace.model.window import HopWindow, Window
from headrace.sharing.selection import Layout, dimensions
from headrace.sharing.statistics import Load, Statistics, load

MAX_GRID = 1 << 16
MAX_SIGNATURES = 1 << 62


class Selective(Protocol):
    """A query branch with a predicate that can share a selection with others of the same `sharing_key`."""

    @property
    def predicate(self) -> Expression:
        """The rows that it selects."""

    @property
    def window(self) -> Window | None:
        """The window that decides its slices, if any."""

    @property
    def keys(self) -> tuple[Expression, ...]:
        """The group keys."""

    @property
    def sharing_key(self) -> Hashable:
        """Only branches with equal sharing keys may share."""


M = TypeVar("M", bound=Selective)


@dataclass(frozen=True, slots=True)
class Cost:
    """Nanoseconds per second of event time under a layout; infinite where the layout does not apply."""

    layout: Layout
    nanoseconds: float


def costs(predicates: Sequence[Expression], work: Load) -> tuple[Cost, ...]:
    """Return the cost of every layout for a set of predicates."""
    distinct = tuple(dict.fromkeys(predicates))
    dims = dimensions(distinct)
    size = math.prod(d.size for d in dims)
    rows = work.rows / work.slices  # per slice
    partials = min(rows, work.keys * size)
    grid = rows * (4 + 2 * len(dims)) + partials * 20 + work.keys * size if size <= MAX_GRID else math.inf
    signatures = rows * (40 + 2 * len(dims)) + partials * 30 + size.bit_length() * len(distinct) * 1_000
    per_query = len(distinct) * (rows * 8 + min(rows, work.keys) * 20)
    return (
        Cost(Layout.GRID, grid * work.slices),
        Cost(Layout.SIGNATURES, signatures * work.slices if size <= MAX_SIGNATURES else math.inf),
        Cost(Layout.PER_QUERY, per_query * work.slices),
    )


def cheapest(predicates: Sequence[Expression], work: Load) -> Cost:
    """Return the cheapest layout for a set of predicates."""
    return min(costs(predicates, work), key=lambda cost: cost.nanoseconds)


def group(members: Iterable[M], stats: Statistics) -> list[tuple[Layout, list[M]]]:
    """Split branches into groups that share a selection; the result depends on the set of branches, not on their order."""
    clusters: dict[tuple[Hashable, frozenset[Expression], int], list[M]] = {}
    for member in members:
        expressions = frozenset(d.expression for d in dimensions([member.predicate]))
        clusters.setdefault((member.sharing_key, expressions, _granularity(member.window)), []).append(member)
    merged: list[tuple[Hashable, frozenset[Expression], list[M]]] = []
    for (key, expressions, _), cluster in sorted(clusters.items(), key=lambda item: (-len(item[0][1]), str(item[0]))):
        host = next((m for m in merged if m[0] == key and expressions <= m[1] and _pays(m[2], cluster, stats)), None)
        if host is None:
            merged.append((key, expressions, list(cluster)))
        else:
            host[2].extend(cluster)
    return [(_best(cluster, stats).layout, cluster) for _, _, cluster in merged]


def _granularity(window: Window | None) -> int:
    """Return a granularity class: within one class, slice lengths differ so little that slices are always shared."""
    return math.gcd(window.size, window.slide).bit_length() // 3 if isinstance(window, HopWindow) else 0


def _pays(host: Sequence[Selective], others: Sequence[Selective], stats: Statistics) -> bool:
    """Return whether one shared selection is cheaper than two."""
    separate = _best(host, stats).nanoseconds + _best(others, stats).nanoseconds
    return _best([*host, *others], stats).nanoseconds < separate


def _best(members: Sequence[Selective], stats: Statistics) -> Cost:
    return cheapest([m.predicate for m in members], load((m.window for m in members), members[0].keys, stats))
