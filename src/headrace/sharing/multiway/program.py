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

from headrace.sharing.multiway.candidates import CandidateOrders, OrderTarget, list_targets
from headrace.sharing.multiway.choice import OrderChoice, collect_steps_and_stores
from headrace.sharing.multiway.relations import JoinGraph

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
_ZERO_TOLERANCE = 1e-6  # tolerance of the solver


@dataclass(frozen=True, slots=True)
class ProgramConstraint:
    """A constraint: the sum of terms, each a coefficient and a variable number, is within bounds."""

    lower: float
    upper: float
    terms: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class IntegerProgram:
    """Variables, costs and rows; row k has the terms from `row_starts[k]` up to `row_starts[k + 1]`."""

    order_variables: tuple[tuple[OrderTarget, int], ...]
    step_variables: tuple[int, ...]
    store_variables: tuple[int, ...]
    costs: FloatArray
    lower: FloatArray
    upper: FloatArray
    row_starts: IntArray
    columns: IntArray
    coefficients: FloatArray

    @property
    def variable_count(self) -> int:
        """The number of variables."""
        return len(self.costs)

    @property
    def constraint_count(self) -> int:
        """The number of rows."""
        return len(self.lower)

    def iter_constraints(self) -> Iterator[ProgramConstraint]:
        """Yield the rows one by one, for inspection."""
        for k in range(self.constraint_count):
            part = slice(self.row_starts[k], self.row_starts[k + 1])
            terms = zip(self.coefficients[part].tolist(), self.columns[part].tolist(), strict=True)
            yield ProgramConstraint(float(self.lower[k]), float(self.upper[k]), tuple(terms))

    def encode_choice(self, candidate_orders: CandidateOrders, choice: OrderChoice) -> FloatArray:
        """Return the values of the variables for a choice."""
        steps, stores = collect_steps_and_stores(candidate_orders, choice)
        orders = [choice.get(target) == ending for target, ending in self.order_variables]
        kept_stores = [number in stores for number in self.store_variables]
        return np.array([*orders, *(number in steps for number in self.step_variables), *kept_stores], dtype=np.float64)

    def decode_choice(self, values: FloatArray) -> OrderChoice:
        """Return, for each target, the order whose variable is largest, if that exceeds zero."""
        largest: dict[OrderTarget, tuple[float, int]] = {}
        for (target, ending), value in zip(self.order_variables, values[: len(self.order_variables)].tolist(), strict=True):
            if value > _ZERO_TOLERANCE and (target not in largest or value > largest[target][0]):
                largest[target] = value, ending
        return {target: ending for target, (_, ending) in largest.items()}


@dataclass(frozen=True, slots=True)
class _ConstraintBuilder:
    """Rows under construction."""

    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    row_starts: list[int] = field(default_factory=lambda: [0])
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
        self.row_starts.append(len(self.columns))


@dataclass(frozen=True, slots=True)
class _TargetVariables:
    """The orders of a target, by number, and those that share each step and each store."""

    target: OrderTarget
    orders: list[int]
    steps: dict[int, list[int]]
    stores: dict[int, list[int]]


def build_program(candidate_orders: CandidateOrders) -> IntegerProgram:
    """Return the program whose solutions are the choices among these candidates, and whose least cost is theirs."""
    inner_steps = {step.previous for step in candidate_orders.steps}
    free_stores = {
        number
        for number, store in enumerate(candidate_orders.stores)
        if store.relation.is_input and not candidate_orders.storage_costs[number]
    }
    orders: list[tuple[OrderTarget, int]] = []
    meetings = []
    for target in _list_all_targets(candidate_orders):
        meetings.append(_collect_target_variables(candidate_orders, target, len(orders), inner_steps, free_stores))
        orders += [(target, ending) for ending in candidate_orders.last_steps[target]]
    steps = list(dict.fromkeys(number for meeting in meetings for number in meeting.steps))
    stores = list(dict.fromkeys(number for meeting in meetings for number in meeting.stores))
    rows = _build_constraints(
        candidate_orders, meetings, _number_columns(steps, len(orders)), _number_columns(stores, len(orders) + len(steps))
    )
    costs = [0.0 if ending in inner_steps else candidate_orders.steps[ending].cost for _, ending in orders]
    costs += [candidate_orders.steps[number].cost for number in steps]
    costs += [candidate_orders.storage_costs[number] for number in stores]
    return IntegerProgram(
        tuple(orders),
        tuple(steps),
        tuple(stores),
        np.array(costs),
        np.array(rows.lower),
        np.array(rows.upper),
        np.array(rows.row_starts, dtype=np.int32),
        np.array(rows.columns, dtype=np.int32),
        np.array(rows.coefficients),
    )


def _number_columns(numbers: list[int], first: int) -> dict[int, int]:
    return {number: column for column, number in enumerate(numbers, first)}


def _list_all_targets(candidate_orders: CandidateOrders) -> list[OrderTarget]:
    """Return all targets: of queries, then of materializable joins."""
    queries = {target: None for query in candidate_orders.queries for target in list_targets(query)}
    materializable = {candidate_orders.stores[number].relation: None for number in candidate_orders.step_stores}
    return list(queries | {target: None for join in materializable for target in list_targets(join)})


def _collect_target_variables(
    candidate_orders: CandidateOrders, target: OrderTarget, first: int, inner_steps: set[int | None], free_stores: set[int]
) -> _TargetVariables:
    """Return where orders of a target, numbered from `first`, share steps and stores; unshared last steps are left out."""
    steps: dict[int, list[int]] = {}
    stores: dict[int, list[int]] = {}
    endings = candidate_orders.last_steps[target]
    for column, ending in enumerate(endings, first):
        for number in candidate_orders.paths[ending]:
            if number in inner_steps:
                steps.setdefault(number, []).append(column)
            if (store := candidate_orders.step_stores[number]) not in free_stores:
                stores.setdefault(store, []).append(column)
    return _TargetVariables(target, list(range(first, first + len(endings))), steps, stores)


def _build_constraints(
    candidate_orders: CandidateOrders, meetings: list[_TargetVariables], steps: dict[int, int], stores: dict[int, int]
) -> _ConstraintBuilder:
    """Return all rows; `steps` and `stores` map numbers to the columns of their variables."""
    rows = _ConstraintBuilder()
    queries = set(candidate_orders.queries)
    columns_by_join: dict[JoinGraph, list[int]] = {}
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
