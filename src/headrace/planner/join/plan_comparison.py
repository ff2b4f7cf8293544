"""The plans that the optimizers of sliding joins propose, compared by the same figures, and the one that is taken."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.model.sliding_join_options import PlanSearch, PlanTarget, SlidingJoinOptions
from headrace.planner.join.sliding_join_plan import ProbeOrderChoice
from headrace.planner.join.strategy import SolverReport

_ROUNDING_FACTOR = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """What a plan is estimated to cost, each second: rows sent to probe and to be stored; rows in stores at a time; hops.

    `hops` are the steps of the average row until its results are complete, in the average of all queries.
    """

    probe_cost: float
    storage_cost: float
    stored_rows: float
    hops: float

    @property
    def cost(self) -> float:
        """All rows sent."""
        return self.probe_cost + self.storage_cost

    def rank(self, options: SlidingJoinOptions) -> tuple[float, float, float]:
        """Return the figures in the order in which they count; less is better."""
        excess = max(0.0, self.stored_rows - options.budget * _ROUNDING_FACTOR)
        first = {PlanTarget.PROBES: self.cost, PlanTarget.LATENCY: self.hops, PlanTarget.STORAGE: self.stored_rows}[
            options.target
        ]
        return excess, first, self.cost


@dataclass(frozen=True, slots=True)
class PlanCandidate:
    """A proposed plan: the optimizer that found it, the choice of probe orders, and its figures."""

    search: PlanSearch
    choice: ProbeOrderChoice
    figures: PlanFigures
    report: SolverReport


@dataclass(frozen=True, slots=True)
class PlanComparison:
    """All candidates, the best of those that the options allow, and what all queries would cost without sharing, if known."""

    options: SlidingJoinOptions
    candidates: tuple[PlanCandidate, ...]
    taken: PlanCandidate
    individual_cost: float | None

    def explain_choice(self) -> str:
        """Return why the plan was taken."""
        options, taken = self.options, self.taken
        least = {
            PlanTarget.PROBES: "fewest rows sent",
            PlanTarget.LATENCY: "fewest hops",
            PlanTarget.STORAGE: "fewest rows stored",
        }[options.target]
        if options.search in (PlanSearch.AUTO, PlanSearch.ILP):
            reason = least
        elif options.search is taken.search:
            reason = f"sliding_plan = '{options.search}'"
        else:
            reason = f"'{options.search}' has no plan for these joins"
        if taken.figures.stored_rows > options.budget * _ROUNDING_FACTOR:
            return f"{reason}; no plan is within the budget of {options.budget:,.0f} stored rows"
        return reason if options.budget == math.inf else f"{reason} within the budget of {options.budget:,.0f} stored rows"


def format_comparison(comparison: PlanComparison) -> Iterator[str]:
    """Yield the lines of the table of candidates, the one that was taken marked with an arrow."""
    taken = comparison.taken
    yield f"plans by estimate; taken: {taken.search} ({comparison.explain_choice()})"
    yield f"    {'plan':12}{'rows sent/s':>14}{'to probe':>14}{'to stores':>14}{'rows stored':>14}{'hops':>7}"
    if comparison.individual_cost is not None:
        yield f"    {'individual':12}{comparison.individual_cost:>14,.0f}   without sharing"
    for candidate in comparison.candidates:
        figures = candidate.figures
        mark = "→ " if candidate is taken else "  "
        status = f"   {candidate.report.status}" if candidate.search is PlanSearch.ILP else ""
        yield (
            f"  {mark}{candidate.search:12}{figures.cost:>14,.0f}{figures.probe_cost:>14,.0f}{figures.storage_cost:>14,.0f}"
            f"{figures.stored_rows:>14,.0f}{figures.hops:>7.2f}{status}"
        )


def comparison_to_json(comparison: PlanComparison) -> dict[str, Any]:
    """Return a comparison as JSON."""
    return {
        "taken": str(comparison.taken.search),
        "reason": comparison.explain_choice(),
        "individual": comparison.individual_cost,
        "candidates": {
            str(candidate.search): {
                "rows_sent": candidate.figures.cost,
                "rows_stored": candidate.figures.stored_rows,
                "hops": candidate.figures.hops,
            }
            for candidate in comparison.candidates
        },
    }
