"""Optimizer of all sliding joins together (CLASH): candidates, a greedy choice, and the integer program that improves on it."""

from __future__ import annotations

from collections.abc import Container, Sequence

from headrace.planner.join.candidates import STORAGE_WEIGHT, build_strategy, generate_candidates
from headrace.planner.join.cost import CardinalityModel
from headrace.planner.join.greedy import choose_greedily
from headrace.planner.join.ilp import build_program, solve_program
from headrace.planner.join.join_graph import JoinGraph
from headrace.planner.join.strategy import JoinStrategy


def optimize_sliding_joins(
    queries: Sequence[JoinGraph],
    cardinalities: CardinalityModel,
    tasks: int,
    *,
    time_limit: float = 2.0,
    storage_weight: float = STORAGE_WEIGHT,
    gap: float = 1e-3,
    materializable: Container[JoinGraph] | None = None,
) -> JoinStrategy:
    """Return the cheapest strategy found for all queries together, with every store partitioned over `tasks` tasks.

    The objective is the number of rows sent: to probe, each shared step once, and to be stored, `storage_weight` times for each
    row that arrives at a store. A relation may have several stores with different partitionings; its rows are then sent to each
    of them. The solver stops within `gap` of the least cost or after `time_limit` seconds of its own clock; with no time, or
    without an improvement, the result is the greedy choice. `JoinStrategy.solver_report` tells which.

    Only joins in `materializable` are materialized, if it is given. Equal queries count once; cross products are not supported.
    """
    candidate_orders = generate_candidates(
        queries, cardinalities, tasks, storage_weight=storage_weight, materializable=materializable
    )
    choice, solved = solve_program(
        build_program(candidate_orders), candidate_orders, choose_greedily(candidate_orders), time_limit=time_limit, gap=gap
    )
    return build_strategy(candidate_orders, choice, solved)
