"""Solution of the integer program of shared probe orders with HiGHS; the only module that depends on the solver.

One thread, no output, within a time limit. First the relaxation is solved, which is quick, bounds the cost from below, and is
rounded to a first solution. Then the program is restricted to the variables that the relaxation and the incumbent use: a small
program with good solutions. The full program is solved only if that result may still be too expensive, starting from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import highspy
import numpy as np

from headrace.sharing.multiway.candidates import Candidates
from headrace.sharing.multiway.choice import Choice, priced
from headrace.sharing.multiway.greedy import improved
from headrace.sharing.multiway.program import Floats, Program
from headrace.sharing.multiway.strategy import Solved

Option = float | str

_USED = 1e-6  # variables of the relaxation above this are used
_WHOLE = 1e-5  # values this close to integers are integers
_FIRST = 2 / 3  # fraction of the remaining time for the restricted program
_LESS = 1e-9  # costs with a smaller relative difference are equal


def solve(
    integer_program: Program, candidate_orders: Candidates, known_choice: Choice, *, time_limit: float, gap: float
) -> tuple[Choice, Solved]:
    """Return the best choice found within `time_limit` seconds, no more expensive than the known one, and the solver report.

    The search ends early once the solution is known to be within `gap` (relative to its cost) of the optimum.
    """
    max_gap = max(gap, _LESS)
    incumbent = _search(
        integer_program,
        candidate_orders,
        _Found(integer_program.values(candidate_orders, known_choice), sum(priced(candidate_orders, known_choice)), time_limit),
        max_gap,
    )
    solved_status = "optimal" if candidate_orders.complete else "restricted"
    status = solved_status if incumbent.gap <= max_gap else "time limit" if incumbent.is_new else "greedy"
    solved = Solved(status, incumbent.gap, incumbent.spent, integer_program.variables, integer_program.constraints)
    return (integer_program.choice(incumbent.values) if incumbent.is_new else known_choice), solved


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """The best values so far with their cost, the time limit and the time spent, and a lower bound of the cost."""

    values: Floats
    cost: float
    time_limit: float
    spent: float = 0.0
    bound: float = 0.0
    is_new: bool = False

    @property
    def left(self) -> float:
        """The remaining seconds."""
        return self.time_limit - self.spent

    @property
    def gap(self) -> float:
        """The fraction of the cost that a better solution might save."""
        return max(0.0, self.cost - self.bound) / self.cost if self.cost > 0 else 0.0

    def goes_on(self, gap: float) -> bool:
        """Return whether an improvement is possible and time remains."""
        return self.gap > gap and self.left > 0

    def after(self, solver: highspy.Highs) -> _Found:
        """Return the incumbent with the run time of the solver added."""
        return replace(self, spent=self.spent + solver.getRunTime())

    def or_better(self, values: Floats, costs: Floats) -> _Found:
        """Return the incumbent with the given values, if they are integral and cheaper."""
        integers = np.round(values)
        cost = float(costs @ integers)
        if np.abs(values - integers).max(initial=0.0) < _WHOLE and cost < self.cost * (1 - _LESS):
            return replace(self, values=integers, cost=cost, is_new=True)
        return self


def _search(integer_program: Program, candidate_orders: Candidates, incumbent: _Found, gap: float) -> _Found:
    """Search for better values until the gap is small enough or the time is spent."""
    if not incumbent.goes_on(gap):
        return incumbent
    all_variables = np.ones(integer_program.variables)
    relaxed = _run(_model(integer_program, all_variables, integer=False), incumbent.left, {}, None)
    incumbent = incumbent.after(relaxed)
    if relaxed.getModelStatus() == highspy.HighsModelStatus.kOptimal:
        fractions = np.array(relaxed.getSolution().col_value)
        incumbent = replace(incumbent, bound=relaxed.getInfo().objective_function_value).or_better(
            fractions, integer_program.costs
        )
        if incumbent.goes_on(gap):
            incumbent = incumbent.or_better(
                integer_program.values(candidate_orders, improved(candidate_orders, integer_program.choice(fractions))),
                integer_program.costs,
            )
        if incumbent.goes_on(gap):
            used = (fractions > _USED).astype(np.float64)
            incumbent = _improved(integer_program, incumbent, np.maximum(used, incumbent.values), gap, whole=False)
    return _improved(integer_program, incumbent, all_variables, gap, whole=True) if incumbent.goes_on(gap) else incumbent


def _improved(integer_program: Program, incumbent: _Found, upper_bounds: Floats, gap: float, *, whole: bool) -> _Found:
    """Solve the program from the incumbent; `upper_bounds` restricts its variables, `is_full` says that none is excluded."""
    options: dict[str, Option] = {"mip_rel_gap": gap, "mip_abs_gap": 0.0}
    if whole:
        options["presolve"] = "off"  # removes little that candidate pruning left, and takes as long as the search
    solver = _run(
        _model(integer_program, upper_bounds, integer=True),
        incumbent.left if whole else incumbent.left * _FIRST,
        options,
        incumbent.values,
    )
    incumbent, info = incumbent.after(solver), solver.getInfo()
    if whole:
        incumbent = replace(incumbent, bound=max(incumbent.bound, min(incumbent.cost, info.mip_dual_bound)))
    if info.primal_solution_status == highspy.kSolutionStatusFeasible:
        incumbent = incumbent.or_better(np.array(solver.getSolution().col_value), integer_program.costs)
    return incumbent


def _run(model: highspy.HighsLp, seconds: float, options: dict[str, Option], initial_values: Floats | None) -> highspy.Highs:
    """Return the solver after a run of at most about `seconds` seconds."""
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)  # first, before any call that prints
    limits: dict[str, Option] = {"threads": 1, "parallel": "off", "time_limit": seconds}
    for name, value in {**limits, **options}.items():
        solver.setOptionValue(name, value)
    solver.passModel(model)
    if initial_values is not None:
        solver.setSolution(len(initial_values), np.arange(len(initial_values), dtype=np.int32), initial_values)
    solver.run()
    return solver


def _model(integer_program: Program, upper_bounds: Floats, *, integer: bool) -> highspy.HighsLp:
    """Return the program in the form of the solver; variables are between 0 and `upper_bounds`."""
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = integer_program.variables, integer_program.constraints
    model.col_cost_, model.col_lower_, model.col_upper_ = integer_program.costs, np.zeros(integer_program.variables), upper_bounds
    model.row_lower_, model.row_upper_ = integer_program.lower, integer_program.upper
    matrix = model.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.num_col_, matrix.num_row_ = integer_program.variables, integer_program.constraints
    matrix.start_, matrix.index_, matrix.value_ = integer_program.starts, integer_program.columns, integer_program.coefficients
    if integer:
        model.integrality_ = [highspy.HighsVarType.kInteger] * integer_program.variables
    return model
