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

`solve_program` is the only function that depends on the solver, HiGHS: one thread, no output, within a time limit. First the
relaxation is solved, which is quick, bounds the cost from below, and is rounded to a first solution. Then the program is
restricted to the variables that the relaxation and the incumbent use: a small program with good solutions. The full program is
solved only if that result may still be too expensive, starting from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import highspy
import numpy as np
import numpy.typing as npt

from headrace.planner.join.candidates import (
    CandidateOrders,
    OrderChoice,
    OrderTarget,
    collect_steps_and_stores,
    list_targets,
    price_choice,
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


SolverOption = float | str

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
) -> tuple[OrderChoice, SolverReport]:
    """Return the best choice found within `time_limit` seconds, no more expensive than the known one, and the solver report.

    The search ends early once the solution is known to be within `gap` (relative to its cost) of the optimum.
    """
    max_gap = max(gap, _MIN_RELATIVE_GAIN)
    incumbent = _search_program(
        integer_program,
        candidate_orders,
        _Incumbent(
            integer_program.encode_choice(candidate_orders, known_choice),
            sum(price_choice(candidate_orders, known_choice)),
            time_limit,
        ),
        max_gap,
    )
    solved_status = "optimal" if candidate_orders.is_complete else "restricted"
    status = solved_status if incumbent.gap <= max_gap else "time limit" if incumbent.is_improved else "greedy"
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
        return max(0.0, self.cost - self.lower_bound) / self.cost if self.cost > 0 else 0.0

    def has_work_left(self, gap: float) -> bool:
        """Return whether an improvement is possible and time remains."""
        return self.gap > gap and self.seconds_left > 0

    def add_solver_time(self, solver: highspy.Highs) -> _Incumbent:
        """Return the incumbent with the run time of the solver added."""
        return replace(self, seconds_spent=self.seconds_spent + solver.getRunTime())

    def keep_better(self, values: FloatArray, costs: FloatArray) -> _Incumbent:
        """Return the incumbent with the given values, if they are integral and cheaper."""
        integers = np.round(values)
        cost = float(costs @ integers)
        if np.abs(values - integers).max(initial=0.0) < _INTEGRALITY_TOLERANCE and cost < self.cost * (1 - _MIN_RELATIVE_GAIN):
            return replace(self, values=integers, cost=cost, is_improved=True)
        return self


def _search_program(
    integer_program: IntegerProgram, candidate_orders: CandidateOrders, incumbent: _Incumbent, gap: float
) -> _Incumbent:
    """Search for better values until the gap is small enough or the time is spent."""
    if not incumbent.has_work_left(gap):
        return incumbent
    all_variables = np.ones(integer_program.variable_count)
    relaxed = _run_solver(_build_model(integer_program, all_variables, integer=False), incumbent.seconds_left, {}, None)
    incumbent = incumbent.add_solver_time(relaxed)
    if relaxed.getModelStatus() == highspy.HighsModelStatus.kOptimal:
        fractions = np.array(relaxed.getSolution().col_value)
        incumbent = replace(incumbent, lower_bound=relaxed.getInfo().objective_function_value).keep_better(
            fractions, integer_program.costs
        )
        if incumbent.has_work_left(gap):
            incumbent = incumbent.keep_better(
                integer_program.encode_choice(
                    candidate_orders, improve_choice(candidate_orders, integer_program.decode_choice(fractions))
                ),
                integer_program.costs,
            )
        if incumbent.has_work_left(gap):
            used = (fractions > _USED_TOLERANCE).astype(np.float64)
            incumbent = _solve_integer(integer_program, incumbent, np.maximum(used, incumbent.values), gap, is_full=False)
    return (
        _solve_integer(integer_program, incumbent, all_variables, gap, is_full=True)
        if incumbent.has_work_left(gap)
        else incumbent
    )


def _solve_integer(
    integer_program: IntegerProgram, incumbent: _Incumbent, upper_bounds: FloatArray, gap: float, *, is_full: bool
) -> _Incumbent:
    """Solve the program from the incumbent; `upper_bounds` restricts its variables, `is_full` says that none is excluded."""
    options: dict[str, SolverOption] = {"mip_rel_gap": gap, "mip_abs_gap": 0.0}
    if is_full:
        options["presolve"] = "off"  # removes little that candidate pruning left, and takes as long as the search
    solver = _run_solver(
        _build_model(integer_program, upper_bounds, integer=True),
        incumbent.seconds_left if is_full else incumbent.seconds_left * _RESTRICTED_TIME_SHARE,
        options,
        incumbent.values,
    )
    incumbent, info = incumbent.add_solver_time(solver), solver.getInfo()
    if is_full:
        incumbent = replace(incumbent, lower_bound=max(incumbent.lower_bound, min(incumbent.cost, info.mip_dual_bound)))
    if info.primal_solution_status == highspy.kSolutionStatusFeasible:
        incumbent = incumbent.keep_better(np.array(solver.getSolution().col_value), integer_program.costs)
    return incumbent


def _run_solver(
    model: highspy.HighsLp, seconds: float, options: dict[str, SolverOption], initial_values: FloatArray | None
) -> highspy.Highs:
    """Return the solver after a run of at most about `seconds` seconds."""
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)  # first, before any call that prints
    limits: dict[str, SolverOption] = {"threads": 1, "parallel": "off", "time_limit": seconds}
    for name, value in {**limits, **options}.items():
        solver.setOptionValue(name, value)
    solver.passModel(model)
    if initial_values is not None:
        solver.setSolution(len(initial_values), np.arange(len(initial_values), dtype=np.int32), initial_values)
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
