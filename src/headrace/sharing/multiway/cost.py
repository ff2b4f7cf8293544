"""What a way of working off multi-way joins costs: rows kept, rows sent to be probed, hops until a result is there.

A probe order is a tuple of relations, the first of which is the one whose rows start. Step j sends the rows made of the first
j relations to the store of the next: as one copy where the rows tell the store's partition, as one copy for each partition
otherwise. Two sets of figures say how many such rows there are: over the whole history of relations of known sizes, or per
second where relations have rates and windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.sharing.multiway.relations import Attribute, Join, Predicate

Order = tuple[Join, ...]


class Figures(Protocol):
    """How many rows there are of what."""

    def stored(self, relation: Join) -> float:
        """Return how many rows a store of a relation holds."""

    def arriving(self, relation: Join) -> float:
        """Return how many rows there are to be sent to a store of a relation; counted in the time that `sent` counts in."""

    def sent(self, prefix: Sequence[Join], within: Join) -> float:
        """Return how many rows made of these relations, first that which starts, there are to be sent on."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Relations of known sizes, over their whole history; a predicate without selectivity holds for all pairs.

    Of the rows made of j relations, the j-th part has the row of the starting relation as its last: `last_only` counts those;
    without it all are counted, whichever arrived last.
    """

    sizes: Mapping[str, float]
    selectivities: Mapping[Predicate, float] = field(default_factory=dict)
    last_only: bool = True

    def stored(self, relation: Join) -> float:
        """Return the size of a relation: the product of sizes and selectivities."""
        size = math.prod(self.sizes[name] for name in relation.relations)
        return size * math.prod(self.selectivities.get(one, 1.0) for one in relation.predicates)

    def arriving(self, relation: Join) -> float:
        """Return the size of a relation: each of its rows is made once and kept."""
        return self.stored(relation)

    def sent(self, prefix: Sequence[Join], within: Join) -> float:
        """Return how many rows of the prefix there are in all, whose last is of the first relation."""
        rows = self.stored(within.within(_inputs(prefix)))
        return rows / len(prefix) if self.last_only else rows


@dataclass(frozen=True, slots=True)
class Windowed:
    """Streams with rates (rows a second) and windows (seconds); the figures are rows a second, and rows kept at a time."""

    rates: Mapping[str, float]
    windows: Mapping[str, float]
    selectivities: Mapping[Predicate, float] = field(default_factory=dict)

    def stored(self, relation: Join) -> float:
        """Return how many rows lie in all windows at a time."""
        contents = math.prod(self.rates[name] * self.windows[name] for name in relation.relations)
        return contents * math.prod(self.selectivities.get(one, 1.0) for one in relation.predicates)

    def arriving(self, relation: Join) -> float:
        """Return how many rows of a relation are made a second, by a new row of whichever input."""
        kept = self.stored(relation)
        return sum(kept / self.windows[name] for name in relation.relations)

    def sent(self, prefix: Sequence[Join], within: Join) -> float:
        """Return how many rows of the prefix a second are made by a new row of the first relation."""
        whole = within.within(_inputs(prefix))
        return sum(self.stored(whole) / self.windows[name] for name in prefix[0].relations)


def _inputs(relations: Iterable[Join]) -> Iterator[str]:
    for one in relations:
        yield from one.relations


def copies(store: Join, partitioned_by: Attribute | None, prefix: Iterable[Join], within: Join, tasks: int) -> int:
    """Return χ: how many partitions of a store a row of the prefix goes to. One, if it knows the attribute's value.

    It does when an equality of the join ties the attribute to one of an input it is made of.
    """
    if tasks == 1:
        return 1
    if partitioned_by is None:
        return tasks
    known = frozenset(_inputs(prefix))
    for one in within.between(store.relations, known):
        if partitioned_by in one.sides and any(side.relation in known for side in one.sides):
            return 1
    return tasks


def step_costs(
    order: Order,
    within: Join,
    figures: Figures,
    tasks: Mapping[Join, int],
    partitioning: Mapping[Join, Attribute | None] | None = None,
) -> list[float]:
    """Return for each step of a probe order how many rows it sends, all copies counted."""
    found = []
    for j in range(1, len(order)):
        by = None if partitioning is None else partitioning.get(order[j])
        sent = figures.sent(order[:j], within)
        found.append(sent * copies(order[j], by, order[:j], within, tasks.get(order[j], 1)))
    return found


def tasks_for(relations: Iterable[Join], figures: Figures, capacity: float) -> dict[Join, int]:
    """Return how many tasks a store of each relation needs when one task holds so many rows."""
    # sizes are products of fractions: a thousand and a trifle of tasks are a thousand
    return {one: max(1, math.ceil(round(figures.stored(one) / capacity, 6))) for one in relations}
