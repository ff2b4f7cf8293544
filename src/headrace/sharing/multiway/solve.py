"""The integer program of shared probe orders, handed to HiGHS; the only module that knows the solver.

One thread, no output, and time as it is given. The relaxation is solved first, which is quick, bounds the cost from below, and
is rounded to a first answer. Then the program is restricted to what the relaxation uses and the best answer so far: that is a
small program with good answers. Only if that one may still be too dear is the whole program solved, beginning with it.
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

_USED = 1e-6  # a variable of the relaxation above this is one that it uses
_WHOLE = 1e-5  # values this near to whole numbers are
_FIRST = 2 / 3  # of the time left, for the restricted program
_LESS = 1e-9  # costs that differ by a smaller part are the same


def solve(what: Program, among: Candidates, known: Choice, *, time_limit: float, gap: float) -> tuple[Choice, Solved]:
    """Return the best choice found in the time given (seconds), at least as good as the one that is known, and how it was found.

    The search ends early when the answer is known to be within `gap` (a part of its cost) of the best one.
    """
    enough = max(gap, _LESS)
    found = _search(what, among, _Found(what.values(among, known), sum(priced(among, known)), time_limit), enough)
    best = "optimal" if among.complete else "restricted"
    status = best if found.gap <= enough else "time limit" if found.is_new else "greedy"
    solved = Solved(status, found.gap, found.spent, what.variables, what.constraints)
    return (what.choice(found.values) if found.is_new else known), solved


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """The best values so far, what they cost, the time that there is and that is spent, and a bound of what any values cost."""

    values: Floats
    cost: float
    time_limit: float
    spent: float = 0.0
    bound: float = 0.0
    is_new: bool = False

    @property
    def left(self) -> float:
        """Return the time that is left."""
        return self.time_limit - self.spent

    @property
    def gap(self) -> float:
        """Return the part of the cost that might be saved."""
        return max(0.0, self.cost - self.bound) / self.cost if self.cost > 0 else 0.0

    def goes_on(self, gap: float) -> bool:
        """Tell whether there is something to be found, and time to find it."""
        return self.gap > gap and self.left > 0

    def after(self, solver: highspy.Highs) -> _Found:
        """Return the same, with the time that the solver took."""
        return replace(self, spent=self.spent + solver.getRunTime())

    def or_better(self, values: Floats, costs: Floats) -> _Found:
        """Return the other values, if they are whole and cost less."""
        whole = np.round(values)
        cost = float(costs @ whole)
        if np.abs(values - whole).max(initial=0.0) < _WHOLE and cost < self.cost * (1 - _LESS):
            return replace(self, values=whole, cost=cost, is_new=True)
        return self


def _search(what: Program, among: Candidates, found: _Found, gap: float) -> _Found:
    """Look for better values, until the gap is small enough or time is up."""
    if not found.goes_on(gap):
        return found
    everything = np.ones(what.variables)
    relaxed = _run(_model(what, everything, integer=False), found.left, {}, None)
    found = found.after(relaxed)
    if relaxed.getModelStatus() == highspy.HighsModelStatus.kOptimal:
        fractions = np.array(relaxed.getSolution().col_value)
        found = replace(found, bound=relaxed.getInfo().objective_function_value).or_better(fractions, what.costs)
        if found.goes_on(gap):
            found = found.or_better(what.values(among, improved(among, what.choice(fractions))), what.costs)
        if found.goes_on(gap):
            used = (fractions > _USED).astype(np.float64)
            found = _improved(what, found, np.maximum(used, found.values), gap, whole=False)
    return _improved(what, found, everything, gap, whole=True) if found.goes_on(gap) else found


def _improved(what: Program, found: _Found, most: Floats, gap: float, *, whole: bool) -> _Found:
    """Solve the program, beginning with the best values; what it may use is in `most`, the `whole` of it or less."""
    options: dict[str, Option] = {"mip_rel_gap": gap, "mip_abs_gap": 0.0}
    if whole:
        options["presolve"] = "off"  # finds little that candidates do not leave out, and takes as long as the search
    solver = _run(_model(what, most, integer=True), found.left if whole else found.left * _FIRST, options, found.values)
    found, about = found.after(solver), solver.getInfo()
    if whole:
        found = replace(found, bound=max(found.bound, min(found.cost, about.mip_dual_bound)))
    if about.primal_solution_status == highspy.kSolutionStatusFeasible:
        found = found.or_better(np.array(solver.getSolution().col_value), what.costs)
    return found


def _run(model: highspy.HighsLp, seconds: float, options: dict[str, Option], begin: Floats | None) -> highspy.Highs:
    """Return the solver after it has run, for about so many seconds at most."""
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)  # before anything that it might want to say something about
    limits: dict[str, Option] = {"threads": 1, "parallel": "off", "time_limit": seconds}
    for name, value in {**limits, **options}.items():
        solver.setOptionValue(name, value)
    solver.passModel(model)
    if begin is not None:
        solver.setSolution(len(begin), np.arange(len(begin), dtype=np.int32), begin)
    solver.run()
    return solver


def _model(what: Program, most: Floats, *, integer: bool) -> highspy.HighsLp:
    """Return the program as the solver takes it; variables are between 0 and `most`."""
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = what.variables, what.constraints
    model.col_cost_, model.col_lower_, model.col_upper_ = what.costs, np.zeros(what.variables), most
    model.row_lower_, model.row_upper_ = what.lower, what.upper
    matrix = model.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.num_col_, matrix.num_row_ = what.variables, what.constraints
    matrix.start_, matrix.index_, matrix.value_ = what.starts, what.columns, what.coefficients
    if integer:
        model.integrality_ = [highspy.HighsVarType.kInteger] * what.variables
    return model
