"""Operator grouping: which query branches share one selection, and in which cell layout, decided by cost.

Subscribers with equal keys are first clustered by the expressions in their predicates. A cluster whose expressions are a subset
of another's joins that one where this is cheaper than a pass of its own; so do windows of another granularity, because fine
slices cost every query that shares them. Each group then takes the cheapest layout. Costs are nanoseconds per second of event
time, from measurements on one core (docs/performance.md) and the statistics of the stream; only their ratios matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic

from headrace.model.expression import Expression
from headrace.model.window import HopWindow
from headrace.planner.group_members import Cluster, GroupableT, GroupMember, SharedPredicate
from headrace.planner.predicate_index import CellLayout, Dimension, combine_dimensions, derive_dimensions
from headrace.planner.slicing import derive_progressions
from headrace.planner.statistics import OperatorLoad, StreamStatistics, estimate_progression_load

MAX_GRID_CELLS = 1 << 16
MAX_SIGNATURE_CELLS = 1 << 62


@dataclass(frozen=True, slots=True)
class LayoutCost:
    """Nanoseconds per second of event time under a layout; infinite where the layout does not apply."""

    layout: CellLayout
    nanoseconds: float


def estimate_layout_costs(predicates: Sequence[Expression], work: OperatorLoad) -> tuple[LayoutCost, ...]:
    """Return the cost of every layout for a set of predicates."""
    distinct = tuple(dict.fromkeys(predicates))
    return _estimate_costs(len(distinct), derive_dimensions(distinct), work)


def _estimate_costs(predicates: int, dims: Sequence[Dimension], work: OperatorLoad) -> tuple[LayoutCost, ...]:
    """Return the cost of every layout for a number of distinct predicates with these dimensions."""
    size = math.prod(d.segment_count for d in dims)
    rows = work.rows / work.slices  # per slice
    partials = min(rows, work.keys * size)
    grid = rows * (4 + 2 * len(dims)) + partials * 20 + work.keys * size if size <= MAX_GRID_CELLS else math.inf
    signatures = rows * (40 + 2 * len(dims)) + partials * 30 + size.bit_length() * predicates * 1_000
    per_query = predicates * (rows * 8 + min(rows, work.keys) * 20)
    return (
        LayoutCost(CellLayout.GRID, grid * work.slices),
        LayoutCost(CellLayout.SIGNATURES, signatures * work.slices if size <= MAX_SIGNATURE_CELLS else math.inf),
        LayoutCost(CellLayout.PER_QUERY, per_query * work.slices),
    )


def choose_layout(predicates: Sequence[Expression], work: OperatorLoad) -> LayoutCost:
    """Return the cheapest layout for a set of predicates."""
    return _find_cheapest(estimate_layout_costs(predicates, work))


def _find_cheapest(costs: Iterable[LayoutCost]) -> LayoutCost:
    return min(costs, key=lambda cost: cost.nanoseconds)


@dataclass(frozen=True, slots=True)
class MemberGroup(Generic[GroupableT]):
    """Branches that share a selection, in the order of their queries, and what the selection consists of.

    `cluster` is the one that the others have joined: no two groups of a plan have the same.
    """

    cluster: Cluster
    layout: CellLayout
    members: list[GroupMember[GroupableT]]


def group_members(members: Iterable[GroupMember[GroupableT]], stats: StreamStatistics) -> list[MemberGroup[GroupableT]]:
    """Split branches into groups that share a selection; the result depends on the set of branches, not on their order."""
    clusters: dict[Cluster, list[GroupMember[GroupableT]]] = {}
    for member in members:
        clusters.setdefault(member.cluster, []).append(member)
    hosts: list[tuple[Cluster, list[list[GroupMember[GroupableT]]], _SharedSelection]] = []
    for cluster in sorted(clusters, key=attrgetter("order")):
        selection = _summarize(clusters[cluster], cluster, stats)
        for number, (host, parts, host_selection) in enumerate(hosts):
            if host.sharing_key == cluster.sharing_key and cluster.expressions <= host.expressions:
                merged = _merge(host_selection, selection, host, stats)
                if merged.cost.nanoseconds < host_selection.cost.nanoseconds + selection.cost.nanoseconds:
                    hosts[number] = host, [*parts, clusters[cluster]], merged
                    break
        else:
            hosts.append((cluster, [clusters[cluster]], selection))
    return [
        MemberGroup(
            host, selection.cost.layout, sorted((member for part in parts for member in part), key=attrgetter("position"))
        )
        for host, parts, selection in hosts
    ]


@dataclass(frozen=True, slots=True)
class _SharedSelection:
    """What the costs of a shared selection depend on, and the cheapest layout."""

    predicates: frozenset[SharedPredicate]
    dimensions: tuple[Dimension, ...]
    windows: frozenset[HopWindow]
    cost: LayoutCost


def _make_selection(
    predicates: frozenset[SharedPredicate],
    dimensions: tuple[Dimension, ...],
    windows: frozenset[HopWindow],
    cluster: Cluster,
    stats: StreamStatistics,
) -> _SharedSelection:
    load = estimate_progression_load(derive_progressions(windows), cluster.keys, stats)
    cost = _find_cheapest(_estimate_costs(len(predicates), dimensions, load))
    return _SharedSelection(predicates, dimensions, windows, cost)


def _merge(one: _SharedSelection, other: _SharedSelection, host: Cluster, stats: StreamStatistics) -> _SharedSelection:
    """Return the selection that both share."""
    dimensions = combine_dimensions((one.dimensions, other.dimensions))
    return _make_selection(one.predicates | other.predicates, dimensions, one.windows | other.windows, host, stats)


def _summarize(members: Sequence[GroupMember[GroupableT]], cluster: Cluster, stats: StreamStatistics) -> _SharedSelection:
    predicates = frozenset(member.predicate for member in members)
    windows = {id(window): window for member in members if isinstance(window := member.subscriber.window, HopWindow)}
    dimensions = combine_dimensions(predicate.dimensions for predicate in predicates)
    return _make_selection(predicates, dimensions, frozenset(windows.values()), cluster, stats)
