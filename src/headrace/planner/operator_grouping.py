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
from headrace.planner.predicate_index import CellLayout, derive_dimensions
from headrace.planner.statistics import OperatorLoad, StreamStatistics, estimate_load

MAX_GRID_CELLS = 1 << 16
MAX_SIGNATURE_CELLS = 1 << 62


class Groupable(Protocol):
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


GroupableT = TypeVar("GroupableT", bound=Groupable)


@dataclass(frozen=True, slots=True)
class LayoutCost:
    """Nanoseconds per second of event time under a layout; infinite where the layout does not apply."""

    layout: CellLayout
    nanoseconds: float


def estimate_layout_costs(predicates: Sequence[Expression], work: OperatorLoad) -> tuple[LayoutCost, ...]:
    """Return the cost of every layout for a set of predicates."""
    distinct = tuple(dict.fromkeys(predicates))
    dims = derive_dimensions(distinct)
    size = math.prod(d.segment_count for d in dims)
    rows = work.rows / work.slices  # per slice
    partials = min(rows, work.keys * size)
    grid = rows * (4 + 2 * len(dims)) + partials * 20 + work.keys * size if size <= MAX_GRID_CELLS else math.inf
    signatures = rows * (40 + 2 * len(dims)) + partials * 30 + size.bit_length() * len(distinct) * 1_000
    per_query = len(distinct) * (rows * 8 + min(rows, work.keys) * 20)
    return (
        LayoutCost(CellLayout.GRID, grid * work.slices),
        LayoutCost(CellLayout.SIGNATURES, signatures * work.slices if size <= MAX_SIGNATURE_CELLS else math.inf),
        LayoutCost(CellLayout.PER_QUERY, per_query * work.slices),
    )


def choose_layout(predicates: Sequence[Expression], work: OperatorLoad) -> LayoutCost:
    """Return the cheapest layout for a set of predicates."""
    return min(estimate_layout_costs(predicates, work), key=lambda cost: cost.nanoseconds)


def group_subscribers(members: Iterable[GroupableT], stats: StreamStatistics) -> list[tuple[CellLayout, list[GroupableT]]]:
    """Split branches into groups that share a selection; the result depends on the set of branches, not on their order."""
    clusters: dict[tuple[Hashable, frozenset[Expression], int], list[GroupableT]] = {}
    for member in members:
        expressions = frozenset(d.expression for d in derive_dimensions([member.predicate]))
        clusters.setdefault((member.sharing_key, expressions, _classify_granularity(member.window)), []).append(member)
    merged: list[tuple[Hashable, frozenset[Expression], list[GroupableT]]] = []
    for (key, expressions, _), cluster in sorted(clusters.items(), key=lambda item: (-len(item[0][1]), str(item[0]))):
        host = next((m for m in merged if m[0] == key and expressions <= m[1] and _is_merge_cheaper(m[2], cluster, stats)), None)
        if host is None:
            merged.append((key, expressions, list(cluster)))
        else:
            host[2].extend(cluster)
    return [(_choose_group_layout(cluster, stats).layout, cluster) for _, _, cluster in merged]


def _classify_granularity(window: Window | None) -> int:
    """Return a granularity class: within one class, slice lengths differ so little that slices are always shared."""
    return math.gcd(window.size, window.slide).bit_length() // 3 if isinstance(window, HopWindow) else 0


def _is_merge_cheaper(host: Sequence[Groupable], others: Sequence[Groupable], stats: StreamStatistics) -> bool:
    """Return whether one shared selection is cheaper than two."""
    separate = _choose_group_layout(host, stats).nanoseconds + _choose_group_layout(others, stats).nanoseconds
    return _choose_group_layout([*host, *others], stats).nanoseconds < separate


def _choose_group_layout(members: Sequence[Groupable], stats: StreamStatistics) -> LayoutCost:
    return choose_layout([m.predicate for m in members], estimate_load((m.window for m in members), members[0].keys, stats))
