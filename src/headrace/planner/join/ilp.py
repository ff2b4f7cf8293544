"""The choice among candidate orders as an integer program (CLASH, Algorithm 5), as a plain value.

Variables are 0 or 1, in this order: x, an order is *taken* for a target; y, a step that several orders may share is executed; w,
a store is *kept*. The last step of an order, if no other order has it, needs no variable: x stands for it. Costs are on steps and
stores. Each target, that is a join and a starting input, has the rows

    choose    Σ x = 1                for a query: one order is taken
    compute   Σ x − w ≥ 0            for a materializable join: if a store of it is kept, an order that computes it is taken
    step      y − Σ x' ≥ 0           for every step, x' those of the target's orders that execute it
    store     w − Σ x' ≥ 0           for every store, x' those of the target's orders that visit it

and, under a storage budget, all rows of the kept stores are at most the budget: Σ rows · w ≤ budget.

At most one order of a target need be taken, so one row bounds all orders that share a step or a store: their sum is at most that
variable. This gives a tighter relaxation than one row for each order, or a row that weighs the cost of an order against that of
its steps, with the same integer solutions; most programs are solved without branching.

`solve_program` is the only function that depends on the solver, HiGHS: one thread, no output. First the relaxation is solved,
which is quick, bounds the cost from below, and is rounded to a first solution. Then the program is restricted to the variables
that the relaxation and the incumbent use: a small program with good solutions. The full program is solved only if that result may
still be too expensive, starting from it. A small program is solved at once.

The effort is bounded by work, so that equal programs have equal solutions on every machine: `MAX_TERMS` terms of a program,
simplex iterations of the relaxation, and checks of the solver, which are a few for each round of its search and weigh as much as
the program has terms. The time limit is for what these do not foresee.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import highspy
import numpy as np
import numpy.typing as npt

from headrace.planner.join.candidates import (
    CandidateOrders,
    OrderChoice,
    OrderTarget,
    collect_steps_and_stores,
    list_targets,
    price_objective,
)
from headrace.planner.join.greedy import improve_choice
from headrace.planner.join.join_graph import JoinGraph
from headrace.planner.join.strategy import SolverReport

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
    stored_rows: FloatArray  # of the store variables
    budget: float = math.inf

    def fits_budget(self, values: FloatArray) -> bool:
        """Return whether the stores that the variables keep are within the storage budget."""
        return self.budget == math.inf or float(self.stored_rows @ values[-len(self.stored_rows) :]) <= self.budget

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

    def add_weighted(self, upper: float, weights: Mapping[int, float]) -> None:
        """Add a row: the weighted sum of variables is at most `upper`."""
        self.lower.append(-np.inf)
        self.upper.append(upper)
        self.columns.extend(weights)
        self.coefficients.extend(weights.values())
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
        if store.relation.is_input and not candidate_orders.storage_costs[number] and candidate_orders.budget == math.inf
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
    costs = [
        (0.0 if ending in inner_steps else candidate_orders.steps[ending].cost) + candidate_orders.price_hops(target, ending)
        for target, ending in orders
    ]
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
        np.array([candidate_orders.stored_rows[number] for number in stores]),
        candidate_orders.budget,
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
    if candidate_orders.budget != math.inf:
        rows.add_weighted(candidate_orders.budget, {stores[number]: candidate_orders.stored_rows[number] for number in stores})
    return rows


SolverOption = float | str

MAX_TERMS = 60_000  # of a program that the solver gets
_MAX_ITERATION_TERMS = 500_000_000  # simplex iterations of the relaxation, times terms: about half a second
_MAX_CHECK_TERMS = 100_000  # checks of a search, times terms: about a second
_MIN_CHECKS = 4
_MAX_CHECKS = 100
_SMALL_PROGRAM_VARIABLES = 500  # solved without the restricted program
_USED_TOLERANCE = 1e-6  # variables of the relaxation above this are used
_INTEGRALITY_TOLERANCE = 1e-5  # values this close to integers are integers
_RESTRICTED_TIME_SHARE = 2 / 3  # fraction of the remaining time for the restricted program
_MIN_RELATIVE_GAIN = 1e-9  # costs with a smaller relative difference are equal


def solve_program(
    integer_program: IntegerProgram,
    candidate_orders: CandidateOrders,
    known_choice: OrderChoice,
    *,
    time_limit: float,
    gap: float,
    is_bounded: bool = True,
    find_another: Callable[[], OrderChoice | None] | None = None,
) -> tuple[OrderChoice, SolverReport]:
    """Return the best choice found, no more expensive than the known one, and the solver report.

    The search ends early once the solution is known to be within `gap` (relative to its cost) of the optimum, with the effort
    that `is_bounded` allows, or after `time_limit` seconds of the solver. Where the relaxation leaves a gap, `find_another` is
    asked for one more choice to start from.
    """
    max_gap = max(gap, _MIN_RELATIVE_GAIN)
    initial = _Incumbent(
        integer_program.encode_choice(candidate_orders, known_choice), price_objective(candidate_orders, known_choice), time_limit
    )
    search = _Search(integer_program, candidate_orders, max_gap, is_bounded, find_another)
    incumbent = search.run(initial)
    solved_status = "optimal" if candidate_orders.is_complete else "restricted"
    status = solved_status if incumbent.gap <= max_gap else "effort limit" if incumbent.is_improved else "greedy"
    solved = SolverReport(
        status, incumbent.gap, incumbent.seconds_spent, integer_program.variable_count, integer_program.constraint_count
    )
    return (integer_program.decode_choice(incumbent.values) if incumbent.is_improved else known_choice), solved


@dataclass(frozen=True, slots=True, eq=False)
class _Incumbent:
    """The best values so far with their cost, the time limit and the time spent, and a lower bound of the cost."""

    values: FloatArray
    cost: float
    time_limit: float
    seconds_spent: float = 0.0
    lower_bound: float = 0.0
    is_improved: bool = False

    @property
    def seconds_left(self) -> float:
        """The remaining seconds."""
        return self.time_limit - self.seconds_spent

    @property
    def gap(self) -> float:
        """The fraction of the cost that a better solution might save."""
        if self.cost == math.inf:
            return 1.0
        return max(0.0, self.cost - self.lower_bound) / self.cost if self.cost > 0 else 0.0

    def has_work_left(self, gap: float) -> bool:
        """Return whether an improvement is possible and time remains."""
        return self.gap > gap and self.seconds_left > 0

    def add_solver_time(self, solver: highspy.Highs) -> _Incumbent:
        """Return the incumbent with the run time of the solver added."""
        return replace(self, seconds_spent=self.seconds_spent + solver.getRunTime())

    def keep_better(self, values: FloatArray, integer_program: IntegerProgram) -> _Incumbent:
        """Return the incumbent with the given values, if they are integral, within the budget and cheaper."""
        integers = np.round(values)
        cost = float(integer_program.costs @ integers)
        is_integral = np.abs(values - integers).max(initial=0.0) < _INTEGRALITY_TOLERANCE
        if is_integral and cost < self.cost * (1 - _MIN_RELATIVE_GAIN) and integer_program.fits_budget(integers):
            return replace(self, values=integers, cost=cost, is_improved=True)
        return self


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """A search for better values until the gap is small enough or the effort is spent."""

    integer_program: IntegerProgram
    candidate_orders: CandidateOrders
    gap: float
    is_bounded: bool
    find_another: Callable[[], OrderChoice | None] | None

    def run(self, incumbent: _Incumbent) -> _Incumbent:
        """Return the best values found."""
        program, everything = self.integer_program, np.ones(self.integer_program.variable_count)
        is_large = self.is_bounded and len(program.columns) > MAX_TERMS
        relaxed, incumbent = (None, incumbent) if is_large else self._relax(incumbent, everything)
        if relaxed is not None and incumbent.has_work_left(self.gap):
            rounded = improve_choice(self.candidate_orders, program.decode_choice(relaxed))
            incumbent = incumbent.keep_better(program.encode_choice(self.candidate_orders, rounded), program)
        if self.find_another is not None and incumbent.has_work_left(_MIN_RELATIVE_GAIN):
            another = self.find_another()
            if another is not None:
                incumbent = incumbent.keep_better(program.encode_choice(self.candidate_orders, another), program)
        is_small = program.variable_count <= _SMALL_PROGRAM_VARIABLES
        if relaxed is not None and incumbent.has_work_left(self.gap) and not is_small:
            used = (relaxed > _USED_TOLERANCE).astype(np.float64)
            incumbent = self._solve_integer(incumbent, np.maximum(used, incumbent.values), is_full=False)
        if incumbent.has_work_left(self.gap) and not is_large:
            incumbent = self._solve_integer(incumbent, everything, is_full=True, presolve=is_small)
        return incumbent

    def _relax(self, incumbent: _Incumbent, upper_bounds: FloatArray) -> tuple[FloatArray | None, _Incumbent]:
        """Return the solution of the relaxation, if it was found, and the incumbent with its bound."""
        limit = _MAX_ITERATION_TERMS // max(1, len(self.integer_program.columns))
        options: dict[str, SolverOption] = {"simplex_iteration_limit": limit} if self.is_bounded else {}
        model = _build_model(self.integer_program, upper_bounds, integer=False)
        solver = _run_solver(model, incumbent.seconds_left, options, None)
        incumbent = incumbent.add_solver_time(solver)
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None, incumbent
        fractions = np.array(solver.getSolution().col_value)
        bounded = replace(incumbent, lower_bound=solver.getInfo().objective_function_value)
        return fractions, bounded.keep_better(fractions, self.integer_program)

    def _solve_integer(
        self, incumbent: _Incumbent, upper_bounds: FloatArray, *, is_full: bool, presolve: bool = True
    ) -> _Incumbent:
        """Solve the program from the incumbent; `upper_bounds` restricts its variables, `is_full` says that none is excluded."""
        program = self.integer_program
        options: dict[str, SolverOption] = {"mip_rel_gap": self.gap, "mip_abs_gap": 0.0}
        if is_full and not presolve:
            options["presolve"] = "off"  # removes little that candidate pruning left, and takes as long as the search
        seconds = incumbent.seconds_left if is_full else incumbent.seconds_left * _RESTRICTED_TIME_SHARE
        used_terms = len(program.columns) if is_full else int(np.count_nonzero(upper_bounds[program.columns]))
        checks = min(_MAX_CHECKS, max(_MIN_CHECKS, _MAX_CHECK_TERMS // max(1, used_terms))) if self.is_bounded else None
        solver = _run_solver(
            _build_model(program, upper_bounds, integer=True), seconds, options, incumbent.values, max_checks=checks
        )
        incumbent, info = incumbent.add_solver_time(solver), solver.getInfo()
        if is_full and info.mip_dual_bound > -math.inf:
            incumbent = replace(incumbent, lower_bound=max(incumbent.lower_bound, min(incumbent.cost, info.mip_dual_bound)))
        if info.primal_solution_status == highspy.kSolutionStatusFeasible:
            incumbent = incumbent.keep_better(np.array(solver.getSolution().col_value), program)
        return incumbent


def _run_solver(
    model: highspy.HighsLp,
    seconds: float,
    options: dict[str, SolverOption],
    initial_values: FloatArray | None,
    *,
    max_checks: int | None = None,
) -> highspy.Highs:
    """Return the solver after a run of at most about `seconds` seconds, and of `max_checks` checks whether to stop."""
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)  # first, before any call that prints
    limits: dict[str, SolverOption] = {"threads": 1, "parallel": "off", "time_limit": seconds}
    for name, value in {**limits, **options}.items():
        solver.setOptionValue(name, value)
    solver.passModel(model)
    if initial_values is not None:
        solver.setSolution(len(initial_values), np.arange(len(initial_values), dtype=np.int32), initial_values)
    if max_checks is not None:
        checks = count(1)

        def stop_after_checks(event: Any) -> None:
            if next(checks) >= max_checks:
                event.interrupt()

        solver.cbMipInterrupt += stop_after_checks
    solver.run()
    return solver


def _build_model(integer_program: IntegerProgram, upper_bounds: FloatArray, *, integer: bool) -> highspy.HighsLp:
    """Return the program in the form of the solver; variables are between 0 and `upper_bounds`."""
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = integer_program.variable_count, integer_program.constraint_count
    model.col_cost_, model.col_lower_, model.col_upper_ = (
        integer_program.costs,
        np.zeros(integer_program.variable_count),
        upper_bounds,
    )
    model.row_lower_, model.row_upper_ = integer_program.lower, integer_program.upper
    matrix = model.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.num_col_, matrix.num_row_ = integer_program.variable_count, integer_program.constraint_count
    matrix.start_, matrix.index_, matrix.value_ = (
        integer_program.row_starts,
        integer_program.columns,
        integer_program.coefficients,
    )
    if integer:
        model.integrality_ = [highspy.HighsVarType.kInteger] * integer_program.variable_count
    return model
