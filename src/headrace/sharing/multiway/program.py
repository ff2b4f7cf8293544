"""The choice among candidate orders as an integer program (CLASH, Algorithm 5), as a plain value.

Variables are 0 or 1, in this order: x, an order is *taken* for a target; y, a step that several orders may share is executed; w,
a store is *kept*. The last step of an order, if no other order has it, needs no variable: x stands for it. Costs are on steps and
stores. Each target, that is a join and a starting input, has the rows

    choose    Σ x = 1                for a query: one order is taken
    compute   Σ x − w ≥ 0            for a materializable join: if a store of it is kept, an order that computes it is taken
    step      y − Σ x' ≥ 0           for every step, x' those of the target's orders that execute it
    store     w − Σ x' ≥ 0           for every store, x' those of the target's orders that visit it

At most one order of a target need be taken, so one row bounds all orders that share a step or a store: their sum is at most that
variable. This gives a tighter relaxation than one row for each order, or a row that weighs the cost of an order against that of
its steps, with the same integer solutions; most programs are solved without branching.
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
_NOTHING = 1e-6  # tolerance of the solver


@dataclass(frozen=True, slots=True)
class Row:
    """A constraint: the sum of terms, each a coefficient and a variable number, is within bounds."""

    lower: float
    upper: float
    terms: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Variables, costs and rows; row k has the terms from `row_starts[k]` up to `row_starts[k + 1]`."""

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
        """The number of variables."""
        return len(self.costs)

    @property
    def constraints(self) -> int:
        """The number of rows."""
        return len(self.lower)

    def rows(self) -> Iterator[Row]:
        """Yield the rows one by one, for inspection."""
        for k in range(self.constraints):
            part = slice(self.starts[k], self.starts[k + 1])
            terms = zip(self.coefficients[part].tolist(), self.columns[part].tolist(), strict=True)
            yield Row(float(self.lower[k]), float(self.upper[k]), tuple(terms))

    def values(self, candidate_orders: Candidates, choice: Choice) -> Floats:
        """Return the values of the variables for a choice."""
        steps, stores = taken(candidate_orders, choice)
        orders = [choice.get(target) == ending for target, ending in self.orders]
        kept_stores = [number in stores for number in self.stores]
        return np.array([*orders, *(number in steps for number in self.steps), *kept_stores], dtype=np.float64)

    def choice(self, values: Floats) -> Choice:
        """Return, for each target, the order whose variable is largest, if that exceeds zero."""
        largest: dict[Target, tuple[float, int]] = {}
        for (target, ending), value in zip(self.orders, values[: len(self.orders)].tolist(), strict=True):
            if value > _NOTHING and (target not in largest or value > largest[target][0]):
                largest[target] = value, ending
        return {target: ending for target, (_, ending) in largest.items()}


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows under construction."""

    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    coefficients: list[float] = field(default_factory=list)

    def add(self, lower: float, upper: float, variables: list[int], coefficient: float, opposite: int | None = None) -> None:
        """Add a row: variables with the same coefficient, and optionally one with the opposite."""
        self.lower.append(lower)
        self.upper.append(upper)
        self.columns.extend(variables)
        self.coefficients.extend([coefficient] * len(variables))
        if opposite is not None:
            self.columns.append(opposite)
            self.coefficients.append(-coefficient)
        self.starts.append(len(self.columns))


@dataclass(frozen=True, slots=True)
class _Meeting:
    """The orders of a target, by number, and those that share each step and each store."""

    target: Target
    orders: list[int]
    steps: dict[int, list[int]]
    stores: dict[int, list[int]]


def program(candidate_orders: Candidates) -> Program:
    """Return the program whose solutions are the choices among these candidates, and whose least cost is theirs."""
    inner_steps = {step.before for step in candidate_orders.steps}
    free_stores = {
        number
        for number, store in enumerate(candidate_orders.stores)
        if store.relation.is_input and not candidate_orders.storing[number]
    }
    orders: list[tuple[Target, int]] = []
    meetings = []
    for target in _wanted(candidate_orders):
        meetings.append(_meeting(candidate_orders, target, len(orders), inner_steps, free_stores))
        orders += [(target, ending) for ending in candidate_orders.endings[target]]
    steps = list(dict.fromkeys(number for meeting in meetings for number in meeting.steps))
    stores = list(dict.fromkeys(number for meeting in meetings for number in meeting.stores))
    rows = _rows(candidate_orders, meetings, _numbered(steps, len(orders)), _numbered(stores, len(orders) + len(steps)))
    costs = [0.0 if ending in inner_steps else candidate_orders.steps[ending].cost for _, ending in orders]
    costs += [candidate_orders.steps[number].cost for number in steps]
    costs += [candidate_orders.storing[number] for number in stores]
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


def _numbered(numbers: list[int], first: int) -> dict[int, int]:
    return {number: column for column, number in enumerate(numbers, first)}


def _wanted(candidate_orders: Candidates) -> list[Target]:
    """Return all targets: of queries, then of materializable joins."""
    queries = {target: None for query in candidate_orders.queries for target in targets(query)}
    materializable = {candidate_orders.stores[number].relation: None for number in candidate_orders.visited}
    return list(queries | {target: None for join in materializable for target in targets(join)})


def _meeting(
    candidate_orders: Candidates, target: Target, first: int, inner_steps: set[int | None], free_stores: set[int]
) -> _Meeting:
    """Return where orders of a target, numbered from `first`, share steps and stores; unshared last steps are left out."""
    steps: dict[int, list[int]] = {}
    stores: dict[int, list[int]] = {}
    endings = candidate_orders.endings[target]
    for column, ending in enumerate(endings, first):
        for number in candidate_orders.paths[ending]:
            if number in inner_steps:
                steps.setdefault(number, []).append(column)
            if (store := candidate_orders.visited[number]) not in free_stores:
                stores.setdefault(store, []).append(column)
    return _Meeting(target, list(range(first, first + len(endings))), steps, stores)


def _rows(candidate_orders: Candidates, meetings: list[_Meeting], steps: dict[int, int], stores: dict[int, int]) -> _Rows:
    """Return all rows; `steps` and `stores` map numbers to the columns of their variables."""
    rows = _Rows()
    queries = set(candidate_orders.queries)
    columns_by_join: dict[Join, list[int]] = {}
    for number, column in stores.items():
        columns_by_join.setdefault(candidate_orders.stores[number].relation, []).append(column)
    for meeting in meetings:
        join, _ = meeting.target
        if join in queries:
            rows.add(1.0, 1.0, meeting.orders, 1.0)
        else:
            for store_column in columns_by_join.get(join, ()):
                rows.add(0.0, np.inf, meeting.orders, 1.0, store_column)
        for number, orders in meeting.steps.items():
            rows.add(0.0, np.inf, orders, -1.0, steps[number])
        for number, orders in meeting.stores.items():
            rows.add(0.0, np.inf, orders, -1.0, stores[number])
    return rows
