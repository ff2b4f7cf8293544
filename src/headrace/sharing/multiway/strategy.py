"""What the optimizer of many joins answers: a probe order for every query and input, and the joins that are kept for them.

Orders that begin alike are walked once. `probe_trees` puts them together: a tree for each input, whose nodes are visits to
stores, with a note of what is complete there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.sharing.multiway.relations import Attribute, Join, input_relation


@dataclass(frozen=True, slots=True)
class Store:
    """A relation as it is kept: all its rows, partitioned by an attribute; by none, a row may be in any partition."""

    relation: Join
    by: Attribute | None = None

    def __str__(self) -> str:
        """Return it as it is labelled in drawings of probe trees."""
        return f"{self.relation}[{'' if self.by is None else self.by}]"


@dataclass(frozen=True, slots=True)
class ProbeOrder:
    """The stores that rows of an input visit, one after the other, until a join is complete."""

    start: str
    stores: tuple[Store, ...]

    def __str__(self) -> str:
        """Return it in angle brackets."""
        return f"⟨{', '.join([self.start, *map(str, self.stores)])}⟩"

    @property
    def covers(self) -> frozenset[str]:
        """Return the inputs that rows are made of at its end."""
        return frozenset({self.start}).union(*(store.relation.relations for store in self.stores))


@dataclass(frozen=True, slots=True)
class Plan:
    """How a join is worked off: one probe order for each of its inputs, by name of the input."""

    join: Join
    orders: tuple[ProbeOrder, ...]

    def __post_init__(self) -> None:
        """Check that every input has one order that makes the whole join and goes nowhere twice."""
        if [one.start for one in self.orders] != sorted(self.join.relations):
            raise ValueError("a plan has one probe order for each input of its join, in order")
        for one in self.orders:
            visited = 1 + sum(len(store.relation.relations) for store in one.stores)
            if one.covers != self.join.relations or visited != len(self.join.relations):
                raise ValueError(f"the probe order {one} does not visit every other input of {self.join} once")

    @property
    def stores(self) -> tuple[Store, ...]:
        """Return the stores that are visited, as often as they are."""
        return tuple(store for one in self.orders for store in one.stores)

    def order(self, start: str) -> ProbeOrder:
        """Return the order of an input's rows."""
        return next(one for one in self.orders if one.start == start)


@dataclass(frozen=True, slots=True)
class Solved:
    """How an answer was found. `gap` is the part of its cost that a better one might save at most; 1 if nobody knows.

    `status` is one of
    "optimal": nothing is better by more than the gap;
    "restricted": the same, of what was looked at, which for large queries is not everything; the gap says nothing of the rest;
    "time limit": the best that was found in time;
    "greedy": nothing better than the greedy answer was found in time, or nobody looked.
    """

    status: str
    gap: float
    seconds: float = 0.0
    variables: int = 0
    constraints: int = 0


@dataclass(frozen=True, slots=True)
class Strategy:
    """Plans for all queries and for the joins kept on their behalf.

    `probing` are the rows sent to be probed, `storing` those sent to be kept, weighted as the optimizer was told; every step
    and every store counts once, however many share it.
    """

    queries: tuple[Plan, ...]
    kept: tuple[Plan, ...]
    probing: float
    storing: float
    solved: Solved = field(compare=False)

    def __post_init__(self) -> None:
        """Check that every join that is probed as a whole is worked off."""
        missing = {store.relation for store in self.stores if not store.relation.is_input} - {one.join for one in self.kept}
        if missing:
            raise ValueError(f"nobody works off {', '.join(sorted(map(str, missing)))}, which is probed")

    @property
    def cost(self) -> float:
        """Return what was minimized: rows sent, to be probed or to be kept."""
        return self.probing + self.storing

    @property
    def stores(self) -> frozenset[Store]:
        """Return every store that is visited, and so has to be kept."""
        return frozenset(store for plan in (*self.queries, *self.kept) for store in plan.stores)

    def plan(self, join: Join) -> Plan:
        """Return how a query or a kept join is worked off."""
        return next(one for one in (*self.queries, *self.kept) if one.join == join)


@dataclass(frozen=True, slots=True)
class Visit:
    """A node of a probe tree: rows come to a store and, joined with what they find, are `made`.

    `answers` tells that they are results of the query `made`; `fills` names the stores they are put into. Equal rows may be
    made elsewhere in the tree as well, on the way to something else; they answer and fill in one place only.
    """

    store: Store
    made: Join
    children: tuple[Visit, ...]
    answers: bool
    fills: tuple[Store, ...]

    def walk(self) -> Iterator[Visit]:
        """Yield this node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class ProbeTree:
    """Everything that rows of an input set off: the stores of the input that they go into, and the visits they begin with."""

    start: str
    fills: tuple[Store, ...]
    children: tuple[Visit, ...]

    def walk(self) -> Iterator[Visit]:
        """Yield all visits, parents first."""
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class _Growing:
    children: dict[tuple[Store, Join], _Growing] = field(default_factory=dict)
    ends: set[bool] = field(default_factory=set)  # True for a query, False for a join that is kept


def probe_trees(strategy: Strategy) -> tuple[ProbeTree, ...]:
    """Return the orders of a strategy, put together where they begin alike; one tree for each input, by name."""
    roots: dict[str, _Growing] = {}
    for plan, answers in (*((one, True) for one in strategy.queries), *((one, False) for one in strategy.kept)):
        for order in plan.orders:
            node, made = roots.setdefault(order.start, _Growing()), frozenset({order.start})
            for store in order.stores:
                made |= store.relation.relations
                node = node.children.setdefault((store, plan.join.within(made)), _Growing())
            node.ends.add(answers)
    stores = _by_relation(strategy.stores)
    found = []
    for start, root in sorted(roots.items()):
        found.append(ProbeTree(start, stores.get(input_relation(start), ()), _visits(root, stores)))
    return tuple(found)


def _visits(node: _Growing, stores: dict[Join, tuple[Store, ...]]) -> tuple[Visit, ...]:
    found = []
    for (store, made), child in node.children.items():
        fills = stores.get(made, ()) if False in child.ends else ()
        found.append(Visit(store, made, _visits(child, stores), True in child.ends, fills))
    return tuple(found)


def _by_relation(stores: frozenset[Store]) -> dict[Join, tuple[Store, ...]]:
    found: dict[Join, tuple[Store, ...]] = {}
    for store in sorted(stores, key=str):
        found[store.relation] = (*found.get(store.relation, ()), store)
    return found
