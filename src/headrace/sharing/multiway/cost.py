"""Cost model of sliding joins: stored rows, rows sent to probe, and hops until a result is complete.

A probe order is a tuple of relations; rows of the first relation start. Step j sends the rows joined from the first j relations
to the store of the next: one copy if the rows determine the partition of the store, otherwise one copy for each partition. Two
cardinality models count these rows: over the complete history of relations of known sizes, or per second for relations with rates
and windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.sharing.multiway.relations import Attribute, JoinGraph, JoinPredicate

RelationOrder = tuple[JoinGraph, ...]


class CardinalityModel(Protocol):
    """Cardinalities of relations and of probe order prefixes."""

    def estimate_stored(self, relation: JoinGraph) -> float:
        """Return the number of rows that a store of a relation holds."""

    def estimate_arrivals(self, relation: JoinGraph) -> float:
        """Return the number of rows sent to a store of a relation, in the time unit of `estimate_sent`."""

    def estimate_sent(self, prefix: Sequence[JoinGraph], within: JoinGraph) -> float:
        """Return the number of rows joined from these relations, the starting one first, that are sent on."""


@dataclass(frozen=True, slots=True)
class HistoryCardinality:
    """Relations of known sizes, over their complete history; a predicate without selectivity passes all pairs.

    Of the rows joined from j relations, one in j has the row of the starting relation as its latest. `last_only` counts only
    these; otherwise all rows count, whichever arrived last.
    """

    sizes: Mapping[str, float]
    selectivities: Mapping[JoinPredicate, float] = field(default_factory=dict)
    last_only: bool = True

    def estimate_stored(self, relation: JoinGraph) -> float:
        """Return the size of a relation: the product of sizes and selectivities."""
        size = math.prod(self.sizes[name] for name in relation.relations)
        return size * math.prod(self.selectivities.get(predicate, 1.0) for predicate in relation.predicates)

    def estimate_arrivals(self, relation: JoinGraph) -> float:
        """Return the size of a relation: each of its rows is computed and stored once."""
        return self.estimate_stored(relation)

    def estimate_sent(self, prefix: Sequence[JoinGraph], within: JoinGraph) -> float:
        """Return the total number of rows of the prefix whose latest row is of the first relation."""
        rows = self.estimate_stored(within.subgraph(_iter_inputs(prefix)))
        return rows / len(prefix) if self.last_only else rows


@dataclass(frozen=True, slots=True)
class WindowCardinality:
    """Streams with rates (rows per second) and windows (seconds); results are rows per second, and rows stored at a time."""

    rates: Mapping[str, float]
    windows: Mapping[str, float]
    selectivities: Mapping[JoinPredicate, float] = field(default_factory=dict)

    def estimate_stored(self, relation: JoinGraph) -> float:
        """Return the number of rows in the windows at any time."""
        contents = math.prod(self.rates[name] * self.windows[name] for name in relation.relations)
        return contents * math.prod(self.selectivities.get(predicate, 1.0) for predicate in relation.predicates)

    def estimate_arrivals(self, relation: JoinGraph) -> float:
        """Return the number of rows of a relation that are computed per second, by new rows of any of its inputs."""
        stored_rows = self.estimate_stored(relation)
        return sum(stored_rows / self.windows[name] for name in relation.relations)

    def estimate_sent(self, prefix: Sequence[JoinGraph], within: JoinGraph) -> float:
        """Return the number of rows of the prefix per second that new rows of the first relation produce."""
        joined = within.subgraph(_iter_inputs(prefix))
        return sum(self.estimate_stored(joined) / self.windows[name] for name in prefix[0].relations)


def _iter_inputs(relations: Iterable[JoinGraph]) -> Iterator[str]:
    for relation in relations:
        yield from relation.relations


def count_copies(
    store: JoinGraph, partitioned_by: Attribute | None, prefix: Iterable[JoinGraph], within: JoinGraph, tasks: int
) -> int:
    """Return χ: the number of partitions of a store that a row of the prefix is sent to. One if it determines the partition.

    It does if an equality of the join relates the partition attribute to an attribute of an input in the prefix.
    """
    if tasks == 1:
        return 1
    if partitioned_by is None:
        return tasks
    known = frozenset(_iter_inputs(prefix))
    for predicate in within.predicates_between(store.relations, known):
        if partitioned_by in predicate.sides and any(side.relation in known for side in predicate.sides):
            return 1
    return tasks


def estimate_step_costs(
    order: RelationOrder,
    within: JoinGraph,
    cardinalities: CardinalityModel,
    tasks: Mapping[JoinGraph, int],
    partitioning: Mapping[JoinGraph, Attribute | None] | None = None,
) -> list[float]:
    """Return the number of rows that each step of a probe order sends, including all copies."""
    costs = []
    for j in range(1, len(order)):
        by = None if partitioning is None else partitioning.get(order[j])
        sent = cardinalities.estimate_sent(order[:j], within)
        costs.append(sent * count_copies(order[j], by, order[:j], within, tasks.get(order[j], 1)))
    return costs


def estimate_task_counts(
    relations: Iterable[JoinGraph], cardinalities: CardinalityModel, capacity: float
) -> dict[JoinGraph, int]:
    """Return the number of tasks that a store of each relation needs if one task holds `capacity` rows."""
    # sizes are products of fractions: round before the ceiling, or rounding errors add a task
    return {relation: max(1, math.ceil(round(cardinalities.estimate_stored(relation) / capacity, 6))) for relation in relations}
