"""Solution of the integer program of shared probe orders with HiGHS; the only module that depends on the solver.

One thread, no output, within a time limit. First the relaxation is solved, which is quick, bounds the cost from below, and is
rounded to a first solution. Then the program is restricted to the variables that the relaxation and the incumbent use: a small
program with good solutions. The full program is solved only if that result may still be too expensive, starting from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import highspy
import numpy as np

from headrace.sharing.multiway.candidates import CandidateOrders
from headrace.sharing.multiway.choice import OrderChoice, price_choice
from headrace.sharing.multiway.greedy import improve_choice
from headrace.sharing.multiway.program import FloatArray, IntegerProgram
from headrace.sharing.multiway.strategy import SolverReport

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
