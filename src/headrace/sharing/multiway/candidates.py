"""What there is to choose from: joins worth keeping, probe orders that make a join, and how stores may be partitioned.

All candidate orders of all queries form a forest: a tree for each input whose rows start, a node for each *step*, and the way
from a root to a node is an order, or the beginning of one. Two orders have a step in common where they begin alike: the same
input starts, the same stores were visited, partitioned alike, and the same predicates hold for what was made. A node at which
a query is complete ends an order of that query; one at which a join is complete that may be kept ends an order of that join.
So one walk for each query finds the orders of its parts as well.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, product

from headrace.sharing.multiway.cost import Figures, Order
from headrace.sharing.multiway.relations import Attribute, Join, input_relation
from headrace.sharing.multiway.strategy import ProbeOrder, Store

STORAGE_WEIGHT = 1.0  # a row that is sent to be kept costs as much as one that is sent to be probed
MOST_STEPS = 2000  # of the orders of a query; partitionings not counted
MOST_PARTITIONINGS = 32  # of the stores of an order
_AS_MUCH = 1 - 1e-9  # figures are rounded: this part of a cost is all of it
_SMALL = 4  # a query of so many inputs never has too many
Target = tuple[Join, str]  # what an order is wanted for: a join, and the input whose rows start


def intermediates(query: Join) -> tuple[Join, ...]:
    """Return the joins that may be kept for a query: connected parts of at least two inputs, but not all; small ones first."""
    return tuple(part for part in _Shape.of(query).parts.values() if 1 < len(part.relations) < len(query.relations))


def orders(query: Join, start: str, *, keeping: bool = True) -> Iterator[Order]:
    """Yield all probe orders for rows of an input: every step joins, and no input is visited twice (Algorithm 4).

    With `keeping`, a step may visit a join that is kept instead of its inputs one by one.
    """
    shape = _Shape.of(query)

    def extended(head: Order, covered: int) -> Iterator[Order]:
        if covered == shape.everything:
            yield head
        for mask in shape.joinable(covered):
            if keeping or shape.parts[mask].is_input:
                yield from extended((*head, shape.parts[mask]), covered | mask)

    yield from extended((input_relation(start),), 1 << shape.names.index(start))


def partitionings(queries: Iterable[Join]) -> dict[Join, tuple[Attribute | None, ...]]:
    """Return how the store of each input, and of each join that may be kept, can be partitioned so that somebody gains.

    Those are its attributes in equalities that lead out of it, in any query it is a part of; if there are none, rows lie in
    any partition.
    """
    return _partitionings(map(_Shape.of, queries))


def _partitionings(shapes: Iterable[_Shape]) -> dict[Join, tuple[Attribute | None, ...]]:
    found: dict[Join, set[Attribute]] = {}
    for shape in shapes:
        for mask, part in shape.parts.items():
            if mask != shape.everything:
                known = found.setdefault(part, set())
                known.update(_leading_out(shape.query, part))
    return {part: tuple(sorted(known)) or (None,) for part, known in found.items()}


def _leading_out(query: Join, part: Join) -> Iterator[Attribute]:
    for one in query.predicates:
        inside = [side for side in one.sides if side.relation in part.relations]
        if len(inside) == 1:
            yield from inside


def decorated(order: Order, by: Mapping[Join, tuple[Attribute | None, ...]]) -> Iterator[tuple[Store, ...]]:
    """Yield the stores that an order visits, in all ways they can be partitioned."""
    yield from product(*([Store(relation, each) for each in by[relation]] for relation in order[1:]))


@dataclass(frozen=True, slots=True)
class Step:
    """Rows of an input, joined with what they met in the steps before, come to a store; what they find makes them `made`.

    `before` is the number of the previous step, `cost` the rows sent, all copies counted.
    """

    start: str
    before: int | None
    store: Store
    made: Join
    cost: float


@dataclass(frozen=True, slots=True)
class Candidates:
    """All steps that orders can be made of, and what they cost; steps and stores go by their numbers.

    `endings` has the last steps of all orders for a target, `paths` for each step all steps from the start on, itself included,
    `visited` for each step the number of its store, and `storing` what it costs to keep each store. `complete` tells that
    nothing was left out which might be missed.
    """

    queries: tuple[Join, ...]
    steps: tuple[Step, ...]
    paths: tuple[tuple[int, ...], ...]
    endings: Mapping[Target, tuple[int, ...]]
    stores: tuple[Store, ...]
    visited: tuple[int, ...]
    storing: tuple[float, ...]
    complete: bool

    def order(self, ending: int) -> ProbeOrder:
        """Return the order with this last step."""
        path = [self.steps[number] for number in self.paths[ending]]
        return ProbeOrder(path[0].start, tuple(step.store for step in path))


def targets(join: Join) -> list[Target]:
    """Return what orders are wanted for to work off a join: one for each input, by name."""
    return [] if join.is_input else [(join, start) for start in sorted(join.relations)]


def candidates(
    queries: Sequence[Join],
    figures: Figures,
    tasks: int,
    *,
    storage_weight: float = STORAGE_WEIGHT,
    keepable: Container[Join] | None = None,
    prune: bool = True,
) -> Candidates:
    """Return the candidate orders of all queries and of all joins that may be kept (those in `keepable`, if given).

    What `prune` leaves out is never missed, whatever else is chosen. With one task, partitionings do not differ, so there is
    one. With more, a step that sends copies to all partitions of a store is left out if the rows could also tell the partition
    of another store of that relation, and the copies saved are no fewer than the rows to keep that other store: moving the step,
    and all that follow it, over to that store is no dearer, even when the store is kept for that alone.

    What it leaves out of large queries may be missed. Where orders have more than `MOST_STEPS` steps, which begins with six
    inputs or so, they visit only parts as large as that number allows; if inputs alone are too many, only the cheapest goes on
    of all prefixes that join rows of an input with the same others. There, and where the stores of an order can be partitioned
    in more than `MOST_PARTITIONINGS` ways, copies go to all partitions only if rows cannot tell one.
    """
    different = tuple(dict.fromkeys(queries))
    for query in different:
        if not query.is_connected():
            raise ValueError(f"the join of {query} has a cross product: a predicate has to lead to every input")
    shapes = [_Shape.of(query) for query in different]
    by = _partitionings(shapes)
    if prune and tasks == 1:
        by = dict.fromkeys(by, (None,))
    grown = _Forest(figures, tasks, storage_weight, keepable, prune)
    grown.partition(by)
    for shape in shapes:
        grown.grow(shape, MOST_STEPS if prune else math.inf)
    endings = {target: tuple(found) for target, found in grown.endings.items()}
    stores, storing = tuple(grown.storing), tuple(grown.storing.values())
    return Candidates(
        different, tuple(grown.steps), tuple(grown.paths), endings, stores, tuple(grown.visited), storing, not grown.thinned
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    """The graph of a query; its inputs are bits, by name, and connected parts of it are masks, small ones first."""

    query: Join
    names: tuple[str, ...]
    parts: dict[int, Join]
    neighbours: dict[int, int]

    @staticmethod
    def of(query: Join) -> _Shape:
        names = tuple(sorted(query.relations))
        number = {name: 1 << position for position, name in enumerate(names)}
        neighbours = dict.fromkeys(number.values(), 0)
        for one in query.predicates:
            first, second = number[one.relations[0]], number[one.relations[1]]
            neighbours[first] |= second
            neighbours[second] |= first
        layer = list(neighbours)
        while layer:
            layer = _larger(layer, neighbours)
        parts = {mask: query.within(name for name in names if number[name] & mask) for mask in neighbours}
        return _Shape(query, names, parts, neighbours)

    @property
    def everything(self) -> int:
        return (1 << len(self.names)) - 1

    def joinable(self, covered: int) -> list[int]:
        """Return the parts that a predicate leads to from what is covered, and that have nothing of it."""
        border = self.neighbours[covered]
        return [mask for mask in self.parts if mask & border and not mask & covered]

    def steps(self, size: int) -> int:
        """Return how many steps all orders have that visit parts of so many inputs at most, without partitionings."""
        follow = dict.fromkeys(self.parts, 0)
        for covered in reversed(self.parts):
            follow[covered] = sum(1 + follow[covered | mask] for mask in self.joinable(covered) if mask.bit_count() <= size)
        return sum(follow[1 << position] for position in range(len(self.names)))

    def size_within(self, most: float) -> int:
        """Return how many inputs the parts that orders visit may have, so that there are not too many steps; one at least."""
        whole = len(self.names)
        if whole <= _SMALL:
            return whole
        return next((size for size in range(whole, 1, -1) if self.steps(size) <= most), 1)


def _larger(layer: list[int], neighbours: dict[int, int]) -> list[int]:
    """Return the connected masks with one input more, and note their neighbours."""
    found = []
    for mask in layer:
        border = neighbours[mask]
        while border:
            bit = border & -border
            border ^= bit
            if mask | bit not in neighbours:
                neighbours[mask | bit] = (neighbours[mask] | neighbours[bit]) & ~(mask | bit)
                found.append(mask | bit)
    return found


@dataclass(frozen=True, slots=True)
class _Way:
    """A step that can follow wherever the same inputs are covered: to which stores, in how many copies.

    Stores and what is made have numbers besides, since tables of steps are looked up by them very often.
    """

    mask: int
    relation: Join
    made: Join
    made_number: int
    stores: tuple[tuple[int, Store, int], ...]  # number, store, copies
    keeping: float  # what another store of the relation costs

    def worthwhile(self, saved: float) -> Sequence[tuple[int, Store, int]]:
        """Return the stores to be considered if a copy less for each other partition saves so many rows."""
        if saved < self.keeping * _AS_MUCH:
            return self.stores
        return [one for one in self.stores if one[2] == 1] or self.stores


def _steady(figure: float) -> float:
    """Return a figure without its last digits.

    They differ with the order in which the same numbers are multiplied, which is that of a set in memory: what costs the same
    has to be equal, or equal queries would not give equal plans.
    """
    return float(f"{figure:.12g}")


@dataclass(frozen=True, slots=True)
class _Prefix:
    """The beginning of an order; `heads` are its last steps, one for each way its stores are partitioned (the start, if none)."""

    order: Order
    heads: tuple[int | str, ...]
    cost: float


@dataclass(frozen=True, slots=True)
class _Forest:
    """The steps found so far; `numbers` has that of a step by the one before it (or the start), its store and what it makes.

    `thinned` are the queries that were not looked at in full.
    """

    figures: Figures
    tasks: int
    weight: float
    keepable: Container[Join] | None
    prune: bool
    steps: list[Step] = field(default_factory=list)
    paths: list[tuple[int, ...]] = field(default_factory=list)
    visited: list[int] = field(default_factory=list)
    endings: dict[Target, list[int]] = field(default_factory=dict)
    storing: dict[Store, float] = field(default_factory=dict)
    thinned: set[Join] = field(default_factory=set)
    numbers: dict[tuple[int | str, int, int], int] = field(default_factory=dict)
    made: dict[Join, int] = field(default_factory=dict)
    stores: dict[Join, tuple[tuple[int, Store], ...]] = field(default_factory=dict)

    def partition(self, by: Mapping[Join, tuple[Attribute | None, ...]]) -> None:
        """Say how relations can be partitioned."""
        number = count()
        for relation, attributes in by.items():
            if relation.is_input or self.keepable is None or relation in self.keepable:
                cost = _steady(self.weight * self.figures.arriving(relation))
                self.stores[relation] = tuple((next(number), Store(relation, each)) for each in attributes)
                self.storing.update((store, cost) for _, store in self.stores[relation])

    def grow(self, shape: _Shape, most: float) -> None:
        """Add the orders of a query and of its parts; of so many steps at most, if there is a way to do with fewer."""
        size = shape.size_within(most)
        if size < len(shape.names):
            self.thinned.add(shape.query)
        ways = {covered: list(self._ways(shape, covered, size)) for covered in shape.parts}
        thrifty = size == 1 and shape.steps(size) > most
        for start in shape.names:
            self._grow_from(start, shape, ways, thrifty)

    def _grow_from(self, start: str, shape: _Shape, ways: Mapping[int, Sequence[_Way]], thrifty: bool) -> None:
        prefixes: dict[int, list[_Prefix]] = {covered: [] for covered in shape.parts}
        prefixes[1 << shape.names.index(start)].append(_Prefix((input_relation(start),), (start,), 0.0))
        for covered, found in prefixes.items():  # small ones first, so all prefixes of a set are known when it is its turn
            for prefix in [min(found, key=lambda one: one.cost)] if thrifty and found else found:
                sent = _steady(self.figures.sent(prefix.order, shape.parts[covered])) if ways[covered] else 0.0
                for way in ways[covered]:
                    prefixes[covered | way.mask].append(self._extended(start, shape.query, prefix, way, sent))

    def _extended(self, start: str, query: Join, prefix: _Prefix, way: _Way, sent: float) -> _Prefix:
        stores = self._worthwhile(query, prefix, way, sent)
        heads = tuple(
            self._step(start, head, number, store, way, copies * sent)
            for head in prefix.heads
            for number, store, copies in stores
        )
        cost = prefix.cost + sent * min(copies for _, _, copies in stores)
        return _Prefix((*prefix.order, way.relation), heads, cost)

    def _worthwhile(self, query: Join, prefix: _Prefix, way: _Way, sent: float) -> Sequence[tuple[int, Store, int]]:
        if not self.prune:
            return way.stores
        stores = way.worthwhile((self.tasks - 1) * sent)
        if len(prefix.heads) * len(stores) > (1 if query in self.thinned else MOST_PARTITIONINGS):
            self.thinned.add(query)
            return way.worthwhile(math.inf)
        return stores

    def _ways(self, shape: _Shape, covered: int, size: int) -> Iterator[_Way]:
        for mask in shape.joinable(covered):
            relation, made = shape.parts[mask], shape.parts[covered | mask]
            if mask.bit_count() > size or relation not in self.stores:
                continue
            told = {side for one in shape.query.between(shape.parts[covered].relations, relation.relations) for side in one.sides}
            stores = tuple(
                (number, store, 1 if self.tasks == 1 or store.by in told else self.tasks)
                for number, store in self.stores[relation]
            )
            number = self.made.setdefault(made, len(self.made))
            yield _Way(mask, relation, made, number, stores, self.storing[stores[0][1]])

    def _step(self, start: str, head: int | str, store_number: int, store: Store, way: _Way, cost: float) -> int:
        key = (head, store_number, way.made_number)
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.steps)
            before = head if isinstance(head, int) else None
            self.steps.append(Step(start, before, store, way.made, cost))
            self.visited.append(store_number)
            self.paths.append((number,) if before is None else (*self.paths[before], number))
            self.endings.setdefault((way.made, start), []).append(number)
        return number
