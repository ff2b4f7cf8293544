"""Optimizer of all sliding joins together (CLASH): the cheapest of several choices among the same candidates.

- *individual*: the best plan for each query alone, without sharing. A figure to compare with: equal parts are always shared.
- *common*: the same plans, where equal parts of them are executed once.
- *greedy*: a choice that counts what is shared.
- *ilp*: the integer program, which starts from the cheapest of the others.

Where the relaxation of the program proves that a plan is optimal, no other can cost less, and the plans of single queries are
computed only on request. Otherwise the cheapest is taken: where the effort ends early, sharing never costs more than none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.planner.join.baselines import merge_common_subplans, optimize_individually
from headrace.planner.join.candidates import (
    STORAGE_WEIGHT,
    OrderChoice,
    build_strategy,
    find_choice,
    generate_candidates,
    price_objective,
)
from headrace.planner.join.cost import CardinalityModel
from headrace.planner.join.greedy import choose_greedily
from headrace.planner.join.ilp import build_program, solve_program
from headrace.planner.join.join_graph import JoinGraph
from headrace.planner.join.strategy import JoinStrategy, SolverReport


@dataclass(frozen=True, slots=True)
class Objective:
    """What the optimizers minimize: rows sent to probe, each shared step once, and to be stored, and the hops of a row.

    A row sent to be stored counts `storage_weight` times; `hop_weight` is the cost of one more step that the average row takes
    until a result is complete. All stores together have at most `budget` rows. The solver stops within `gap` of the least cost,
    when its effort is spent, or after `time_limit` seconds of its own clock.
    """

    storage_weight: float = STORAGE_WEIGHT
    hop_weight: float = 0.0
    budget: float = math.inf
    gap: float = 1e-3
    time_limit: float = 1.5


DEFAULT_OBJECTIVE = Objective()
_PROVEN_GAP = 1e-9  # gaps up to this are rounding errors


@dataclass(frozen=True, slots=True)
class JointOptimization:
    """The strategies by the name of their optimizer; `individual_cost` is the cost without sharing, None if not computed."""

    strategies: Mapping[str, JoinStrategy]
    individual_cost: float | None


def optimize_jointly(
    queries: Sequence[JoinGraph],
    cardinalities: CardinalityModel,
    tasks: int,
    objective: Objective = DEFAULT_OBJECTIVE,
    *,
    compare: bool = False,
    proposals: Sequence[JoinStrategy] = (),
) -> JointOptimization:
    """Return the strategies "greedy", "ilp" and, if `compare` or the relaxation has not proven its optimum, "common".

    Every store is partitioned over `tasks` tasks. A relation may have several stores with different partitionings; its rows are
    then sent to each of them. Equal queries count once. The integer program may start from one of the `proposals`, too.
    """
    candidate_orders = generate_candidates(
        queries,
        cardinalities,
        tasks,
        storage_weight=objective.storage_weight,
        budget=objective.budget,
        hop_weight=objective.hop_weight,
    )
    known = [choose_greedily(candidate_orders), *([] if objective.budget == math.inf else [choose_greedily(candidate_orders, 0)])]
    greedy = min(known, key=lambda choice: price_objective(candidate_orders, choice))
    separate = _SeparatePlans(queries, cardinalities, tasks, objective)
    is_single = len(candidate_orders.queries) == 1

    def find_another() -> OrderChoice | None:
        others = (*proposals, *(() if is_single else (separate.merge(),)))
        choices = [choice for choice in (find_choice(candidate_orders, strategy) for strategy in others) if choice is not None]
        return min(choices, key=lambda choice: price_objective(candidate_orders, choice), default=None)

    choice, report = solve_program(
        build_program(candidate_orders),
        candidate_orders,
        greedy,
        time_limit=objective.time_limit,
        gap=0.0 if is_single else objective.gap,  # as for the single queries that all plans are compared with
        find_another=find_another,
    )
    strategies = {
        "greedy": build_strategy(candidate_orders, greedy, SolverReport("greedy", 1.0)),
        "ilp": build_strategy(candidate_orders, choice, report),
    }
    if is_single:
        return JointOptimization({**strategies, "common": strategies["ilp"]}, strategies["ilp"].total_cost)
    if compare or separate.strategies or report.gap > _PROVEN_GAP:
        strategies["common"] = separate.merge()
    return JointOptimization(strategies, math.fsum(plan.total_cost for plan in separate.strategies) or None)


@dataclass(frozen=True, slots=True)
class _SeparatePlans:
    """The best plans of single queries, computed on first use."""

    queries: Sequence[JoinGraph]
    cardinalities: CardinalityModel
    tasks: int
    objective: Objective
    strategies: list[JoinStrategy] = field(default_factory=list, init=False)

    def merge(self) -> JoinStrategy:
        """Return the union of the plans; equal parts are executed once."""
        objective = self.objective
        if not self.strategies:
            alone = optimize_individually(
                self.queries,
                self.cardinalities,
                self.tasks,
                storage_weight=objective.storage_weight,
                budget=objective.budget,
                hop_weight=objective.hop_weight,
                time_limit=objective.time_limit,
            )
            self.strategies.extend(alone)
        return merge_common_subplans(self.strategies, self.cardinalities, self.tasks, storage_weight=objective.storage_weight)
