"""The choice among candidate orders as an integer program (Algorithm 5), as a plain value.

Variables are 0 or 1, in this order: an order is *taken* for a target (x); a step is made that several orders may have in
common (y); a store is *kept* (w). The last step of an order that no other order has needs no variable: x stands for it.
Costs are on steps and stores. For each target, that is a join and an input whose rows start, there are rows

    choose    Σ x = 1                for a query: one order is taken
    compute   Σ x − w ≥ 0            for a join that may be kept: if a store of it is, an order that makes it is taken
    step      y − Σ x' ≥ 0           for every step, x' those of the target's orders that make it
    store     w − Σ x' ≥ 0           for every store, x' those of the target's orders that visit it

Of the orders of one target at most one need be taken, so those that meet in a step or a store are held by one row: together
they are no more than it. That says more about fractions than a row for each order does, or one that weighs an order's whole
cost against that of its steps, and leaves the same whole numbers; most programs are solved without branching.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.sharing.multiway.candidates import Candidates, Target, targets
from headrace.sharing.multiway.choice import Choice, taken
from headrace.sharing.multiway.relations import Join

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int32]
_NOTHING = 1e-6  # the solver's zeros may be a little more


@dataclass(frozen=True, slots=True)
class Row:
    """A constraint: the sum of terms, each a coefficient and the number of a variable, is within bounds."""

    lower: float
    upper: float
    terms: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Variables, costs and rows; row k has the terms from `starts[k]` up to `starts[k + 1]`."""

    orders: tuple[tuple[Target, int], ...]
    steps: tuple[int, ...]
    stores: tuple[int, ...]
    costs: Floats
    lower: Floats
    upper: Floats
    starts: Integers
    columns: Integers
    coefficients: Floats

    @property
    def variables(self) -> int:
        """Return how many there are."""
        return len(self.costs)

    @property
    def constraints(self) -> int:
        """Return how many rows there are."""
        return len(self.lower)

    def rows(self) -> Iterator[Row]:
        """Yield the rows one by one, to be looked at."""
        for k in range(self.constraints):
            part = slice(self.starts[k], self.starts[k + 1])
            terms = zip(self.coefficients[part].tolist(), self.columns[part].tolist(), strict=True)
            yield Row(float(self.lower[k]), float(self.upper[k]), tuple(terms))

    def values(self, among: Candidates, choice: Choice) -> Floats:
        """Return the variables as a choice sets them."""
        steps, stores = taken(among, choice)
        orders = [choice.get(target) == ending for target, ending in self.orders]
        kept = [number in stores for number in self.stores]
        return np.array([*orders, *(number in steps for number in self.steps), *kept], dtype=np.float64)

    def choice(self, values: Floats) -> Choice:
        """Return for each target the order whose variable is largest, if it is more than nothing."""
        found: dict[Target, tuple[float, int]] = {}
        for (target, ending), value in zip(self.orders, values[: len(self.orders)].tolist(), strict=True):
            if value > _NOTHING and (target not in found or value > found[target][0]):
                found[target] = value, ending
        return {target: ending for target, (_, ending) in found.items()}


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows as they are put together."""

    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    coefficients: list[float] = field(default_factory=list)

    def add(self, lower: float, upper: float, alike: list[int], coefficient: float, other: int | None = None) -> None:
        """Add a row: variables with the same coefficient, and perhaps one with the opposite."""
        self.lower.append(lower)
        self.upper.append(upper)
        self.columns.extend(alike)
        self.coefficients.extend([coefficient] * len(alike))
        if other is not None:
            self.columns.append(other)
            self.coefficients.append(-coefficient)
        self.starts.append(len(self.columns))


@dataclass(frozen=True, slots=True)
class _Meeting:
    """The orders of a target, by number, and which of them meet: in steps, by number, and in stores."""

    target: Target
    orders: list[int]
    steps: dict[int, list[int]]
    stores: dict[int, list[int]]


def program(among: Candidates) -> Program:
    """Return the program whose solutions are the choices among these candidates, and whose least cost is theirs."""
    inner = {step.before for step in among.steps}
    free = {number for number, store in enumerate(among.stores) if store.relation.is_input and not among.storing[number]}
    orders: list[tuple[Target, int]] = []
    meetings = []
    for target in _wanted(among):
        meetings.append(_meeting(among, target, len(orders), inner, free))
        orders += [(target, ending) for ending in among.endings[target]]
    steps = list(dict.fromkeys(number for one in meetings for number in one.steps))
    stores = list(dict.fromkeys(number for one in meetings for number in one.stores))
    rows = _rows(among, meetings, _numbered(steps, len(orders)), _numbered(stores, len(orders) + len(steps)))
    costs = [0.0 if ending in inner else among.steps[ending].cost for _, ending in orders]
    costs += [among.steps[number].cost for number in steps]
    costs += [among.storing[number] for number in stores]
    return Program(
        tuple(orders),
        tuple(steps),
        tuple(stores),
        np.array(costs),
        np.array(rows.lower),
        np.array(rows.upper),
        np.array(rows.starts, dtype=np.int32),
        np.array(rows.columns, dtype=np.int32),
        np.array(rows.coefficients),
    )


def _numbered(what: list[int], first: int) -> dict[int, int]:
    return {each: column for column, each in enumerate(what, first)}


def _wanted(among: Candidates) -> list[Target]:
    """Return all targets: of queries, then of joins that may be kept."""
    queries = {target: None for query in among.queries for target in targets(query)}
    kept = {among.stores[number].relation: None for number in among.visited}
    return list(queries | {target: None for join in kept for target in targets(join)})


def _meeting(among: Candidates, target: Target, first: int, inner: set[int | None], free: set[int]) -> _Meeting:
    """Return where orders of a target meet, which are numbered from `first`; last steps that only one has are left out."""
    steps: dict[int, list[int]] = {}
    stores: dict[int, list[int]] = {}
    endings = among.endings[target]
    for column, ending in enumerate(endings, first):
        for number in among.paths[ending]:
            if number in inner:
                steps.setdefault(number, []).append(column)
            if (store := among.visited[number]) not in free:
                stores.setdefault(store, []).append(column)
    return _Meeting(target, list(range(first, first + len(endings))), steps, stores)


def _rows(among: Candidates, meetings: list[_Meeting], steps: dict[int, int], stores: dict[int, int]) -> _Rows:
    """Return all rows; `steps` and `stores` give the columns of their variables."""
    found = _Rows()
    queries = set(among.queries)
    keeping: dict[Join, list[int]] = {}
    for number, column in stores.items():
        keeping.setdefault(among.stores[number].relation, []).append(column)
    for one in meetings:
        join, _ = one.target
        if join in queries:
            found.add(1.0, 1.0, one.orders, 1.0)
        else:
            for kept in keeping.get(join, ()):
                found.add(0.0, np.inf, one.orders, 1.0, kept)
        for number, orders in one.steps.items():
            found.add(0.0, np.inf, orders, -1.0, steps[number])
        for number, orders in one.stores.items():
            found.add(0.0, np.inf, orders, -1.0, stores[number])
    return found
