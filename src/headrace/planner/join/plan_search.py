"""Search for the plan of all sliding joins: every optimizer proposes one, and the best that the user's options allow is taken.

Queries that differ in a few conditions share their joins if these are residual predicates (`normalized_join`). Queries are
planned together both ways, with and without residual predicates. All plans are compared by the same figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from headrace.model.sliding_join_options import PlanSearch, PlanTarget, SlidingJoinOptions
from headrace.planner.join.baselines import merge_common_subplans
from headrace.planner.join.candidates import weigh_inputs
from headrace.planner.join.cost import WindowCardinality
from headrace.planner.join.join_graph import JoinGraph
from headrace.planner.join.normalized_join import NormalizedJoin, find_residual_predicates
from headrace.planner.join.optimizer import DEFAULT_OBJECTIVE, JointOptimization, Objective, optimize_jointly
from headrace.planner.join.plan_comparison import PlanCandidate, PlanComparison, PlanFigures
from headrace.planner.join.sliding_join_plan import OrdersByRelation, ProbeOrderChoice, ProbeTarget
from headrace.planner.join.strategy import JoinProbePlan, JoinStrategy, PartitionedStore, ProbeOrder, SolverReport
from headrace.planner.join.tree_plans import TREE_SEARCHES, plan_trees

_JOINT_SEARCHES = (PlanSearch.ILP, PlanSearch.GREEDY, PlanSearch.COMMON)


def compare_plans(
    queries: Sequence[NormalizedJoin],
    cardinalities: WindowCardinality,
    tasks: int,
    options: SlidingJoinOptions,
    time_limit: float = DEFAULT_OBJECTIVE.time_limit,
) -> PlanComparison:
    """Return the plans of all optimizers, and the best one; deterministic but for the time limit of the solver."""
    plain = [replace(query, residual_texts=frozenset()) for query in queries]
    candidates: list[PlanCandidate] = []
    proposals: list[JoinStrategy] = []
    for search in TREE_SEARCHES:
        strategies = plan_trees(
            [query.join_graph for query in plain], cardinalities, tasks, search, options.target, options.budget
        )
        if strategies is not None:
            proposals.append(merge_common_subplans(strategies, cardinalities, tasks))
            candidates.append(_to_candidate(search, plain, proposals[-1], cardinalities))
    individual_cost = None
    if options.search not in TREE_SEARCHES:
        hop_weight = _weigh_hop(candidates) if options.target is PlanTarget.LATENCY else 0.0
        budget = 0.0 if options.target is PlanTarget.STORAGE else options.budget
        objective = Objective(hop_weight=hop_weight, budget=budget, time_limit=time_limit)
        joint = _plan_jointly(plain, cardinalities, tasks, objective, options, proposals)
        candidates += joint[0]
        individual_cost = joint[1]
    taken = min(_list_allowed(candidates, options), key=lambda candidate: candidate.figures.rank(options))
    return PlanComparison(options, tuple(candidates), taken, individual_cost)


def _weigh_hop(candidates: Sequence[PlanCandidate]) -> float:
    """Return a cost of a hop above which no saving of rows is worth one."""
    return 10 * max(candidate.figures.cost for candidate in candidates)


def _plan_jointly(
    plain: Sequence[NormalizedJoin],
    cardinalities: WindowCardinality,
    tasks: int,
    objective: Objective,
    options: SlidingJoinOptions,
    proposals: Sequence[JoinStrategy],
) -> tuple[list[PlanCandidate], float | None]:
    """Return the plans for all queries together, and the cost without sharing."""
    graphs = [query.join_graph for query in plain]
    joint = optimize_jointly(graphs, cardinalities, tasks, objective, compare=True, proposals=proposals)
    variants: list[tuple[Sequence[NormalizedJoin], JointOptimization]] = [(plain, joint)]
    residual = find_residual_predicates(plain, cardinalities.selectivities) if options.is_shared else frozenset()
    if residual:
        reduced = [replace(query, residual_texts=residual) for query in plain]
        graphs = [query.join_graph for query in reduced]
        variants.append((reduced, optimize_jointly(graphs, cardinalities, tasks, objective)))
    candidates = []
    for search in _JOINT_SEARCHES:
        proposed = [
            _to_candidate(search, queries, result.strategies[search], cardinalities)
            for queries, result in variants
            if search in result.strategies
        ]
        candidates.append(min(proposed, key=lambda candidate: candidate.figures.rank(options)))
    return candidates, joint.individual_cost


def _list_allowed(candidates: Sequence[PlanCandidate], options: SlidingJoinOptions) -> Sequence[PlanCandidate]:
    """Return the candidates of the optimizers that the options name; all of them if these have none."""
    allowed = {PlanSearch.AUTO: tuple(PlanSearch), PlanSearch.ILP: _JOINT_SEARCHES}.get(options.search, (options.search,))
    named = [candidate for candidate in candidates if candidate.search in allowed]
    return named or [candidate for candidate in candidates if candidate.search is PlanSearch.FLAT]


def _to_candidate(
    search: PlanSearch, queries: Sequence[NormalizedJoin], strategy: JoinStrategy, cardinalities: WindowCardinality
) -> PlanCandidate:
    return PlanCandidate(
        search, strategy_to_choice(queries, strategy), estimate_figures(strategy, cardinalities), strategy.solver_report
    )


def estimate_figures(strategy: JoinStrategy, cardinalities: WindowCardinality) -> PlanFigures:
    """Return the figures of a strategy whose costs are known."""
    stored_rows = math.fsum(cardinalities.estimate_stored(store.relation) for store in strategy.stores)
    hops = [
        sum(share * len(plan.get_order(name).stores) for name, share in weigh_inputs(plan.join_graph, cardinalities).items())
        for plan in strategy.query_plans
    ]
    return PlanFigures(strategy.probe_cost, strategy.storage_cost, stored_rows, math.fsum(hops) / max(1, len(hops)))


def estimate_choice(
    queries: Sequence[NormalizedJoin], choice: ProbeOrderChoice, cardinalities: WindowCardinality, tasks: int
) -> PlanFigures:
    """Return the figures of a choice that is in force."""
    plans = {query.join_graph: _to_probe_plan(query.join_graph, choice.queries[query.id]) for query in queries}
    intermediates = tuple(_to_probe_plan(join, orders) for join, orders in choice.materialized.items())
    strategy = JoinStrategy(tuple(plans.values()), intermediates, 0.0, 0.0, SolverReport("greedy", 1.0))
    return estimate_figures(merge_common_subplans([strategy], cardinalities, tasks), cardinalities)


def _to_probe_plan(join: JoinGraph, orders: OrdersByRelation) -> JoinProbePlan:
    converted = (
        ProbeOrder(start, tuple(PartitionedStore(target.relation, target.partitioned_by) for target in orders[start]))
        for start in sorted(orders)
    )
    return JoinProbePlan(join, tuple(converted))


def strategy_to_choice(queries: Sequence[NormalizedJoin], strategy: JoinStrategy) -> ProbeOrderChoice:
    """Return a strategy as the choice of probe orders of queries that all have the same residual predicates."""
    orders = {plan.join_graph: _to_orders(plan) for plan in (*strategy.query_plans, *strategy.materialized_plans)}
    intermediates: Mapping[JoinGraph, OrdersByRelation] = {
        plan.join_graph: orders[plan.join_graph] for plan in strategy.materialized_plans
    }
    return ProbeOrderChoice({query.id: orders[query.join_graph] for query in queries}, intermediates, queries[0].residual_texts)


def _to_orders(plan: JoinProbePlan) -> OrdersByRelation:
    return {
        order.start: tuple(ProbeTarget(store.relation, store.partitioned_by) for store in order.stores)
        for order in plan.probe_orders
    }
