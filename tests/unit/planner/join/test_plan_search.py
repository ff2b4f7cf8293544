"""The search for the plan of all sliding joins: every optimizer proposes one, and the best that the options allow is taken."""

from __future__ import annotations

import math
import resource
from itertools import combinations, pairwise
from random import Random

import pytest

from headrace.model.sliding_join_options import PlanSearch, PlanTarget, SlidingJoinOptions
from headrace.planner.join.baselines import merge_common_subplans, optimize_individually
from headrace.planner.join.candidates import MAX_STEPS, generate_candidates, list_targets
from headrace.planner.join.cost import WindowCardinality, estimate_by_default
from headrace.planner.join.join_graph import Attribute, JoinGraph, JoinPredicate
from headrace.planner.join.optimizer import Objective, optimize_jointly
from headrace.planner.join.plan_comparison import PlanComparison, format_comparison
from headrace.planner.join.plan_search import compare_plans, estimate_choice
from headrace.planner.join.tree_plans import TREE_SEARCHES, plan_trees
from support.examples import scale_examples
from support.join_models import make_equality, make_theta_predicate, optimize_sliding_joins
from support.random_join_graphs import draw_workload
from support.sliding_join_plans import make_join

UNBOUNDED = math.inf
CHAIN = "r.b = s.b AND s.c = t.c AND t.a = u.a"


def make_clique(size: int, *, same_key: bool = False) -> tuple[JoinGraph, WindowCardinality]:
    """Return a join in which an equality compares each two inputs; rows find few partners."""
    names = [f"r{number}" for number in range(size)]
    equalities = [
        make_equality(Attribute(a, "k" if same_key else f"to_{b}"), Attribute(b, "k" if same_key else f"to_{a}"))
        for a, b in combinations(names, 2)
    ]
    selectivities = {equality: (1 + k % 7) / 5000 for k, equality in enumerate(equalities)}
    rates, windows = dict.fromkeys(names, 1000.0), dict.fromkeys(names, 5.0)
    return JoinGraph(frozenset(names), frozenset(equalities)), WindowCardinality(rates, windows, selectivities)


def draw_instance(seed: int) -> tuple[list[JoinGraph], WindowCardinality, int]:
    """Draw queries of two to five inputs over a few streams, with equalities, comparisons and cross products."""
    random = Random(seed)
    names = [f"s{number}" for number in range(random.randint(3, 7))]
    predicates: dict[tuple[str, str], JoinPredicate] = {}
    for left, right in combinations(names, 2):
        if random.random() < 0.75:
            predicates[left, right] = make_equality(Attribute(left, random.choice("abc")), Attribute(right, random.choice("abc")))
        else:
            predicates[left, right] = make_theta_predicate(left, right, f"{left}.x < {right}.x")
    queries = []
    for _ in range(random.randint(1, 6)):
        inputs = random.sample(names, random.randint(2, min(5, len(names))))
        pairs = [tuple(sorted(pair)) for pair in pairwise(inputs)]
        pairs += [tuple(sorted(random.sample(inputs, 2))) for _ in range(random.randint(0, 2))]
        chosen = {predicates[pair[0], pair[1]] for pair in pairs if random.random() < 0.95}
        queries.append(JoinGraph(frozenset(inputs), frozenset(chosen)))
    rates = {name: random.choice((1.0, 10.0, 100.0)) for name in names}
    windows = {name: random.choice((1.0, 5.0, 20.0)) for name in names}
    selectivities = {predicate: 10 ** random.uniform(-4, -0.5) for predicate in predicates.values()}
    return queries, WindowCardinality(rates, windows, selectivities), random.choice((1, 2, 4, 8))


@pytest.mark.parametrize("seed", range(scale_examples(200)))  # `make soak`: 10,000
def test_sharing_never_costs_more_than_common_or_individual_plans(seed: int):
    queries, cardinalities, tasks = draw_instance(seed)
    individual = optimize_individually(queries, cardinalities, tasks)
    common = merge_common_subplans(individual, cardinalities, tasks).total_cost
    shared = optimize_sliding_joins(queries, cardinalities, tasks).total_cost
    assert common <= sum(strategy.total_cost for strategy in individual) * (1 + 1e-9)
    assert shared <= common * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(scale_examples(20)))
def test_sharing_never_costs_more_if_the_solver_has_no_time(seed: int):
    queries, cardinalities, tasks = draw_instance(seed)
    individual = optimize_individually(queries, cardinalities, tasks, time_limit=0.0)
    result = optimize_sliding_joins(queries, cardinalities, tasks, Objective(time_limit=0.0))
    assert result.total_cost <= sum(strategy.total_cost for strategy in individual) * (1 + 1e-9)


def test_where_the_program_is_too_large_the_plans_of_single_queries_are_compared(monkeypatch: pytest.MonkeyPatch):
    #   each query alone is solved, all of them together are not: the greedy choice alone would cost more than no sharing
    queries, cardinalities = draw_workload(1, 100, 10, 4)
    monkeypatch.setattr("headrace.planner.join.ilp.MAX_TERMS", 600)
    individual = optimize_individually(queries, cardinalities, 4)
    common = merge_common_subplans(individual, cardinalities, 4).total_cost
    joint = optimize_jointly(queries, cardinalities, 4)
    assert joint.strategies["greedy"].total_cost > common
    assert joint.strategies["ilp"].total_cost <= common * (1 + 1e-9)
    assert joint.strategies["ilp"].solver_report.gap == 1.0


@pytest.mark.parametrize("same_key", [False, True])
def test_a_clique_of_eight_inputs_is_planned_with_bounded_effort(same_key: bool):
    query, cardinalities = make_clique(8, same_key=same_key)
    candidates = generate_candidates([query], cardinalities, 4)
    assert len(candidates.steps) <= MAX_STEPS
    assert all(candidates.last_steps[target] for target in list_targets(query))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    joint = optimize_jointly([query], cardinalities, 4)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB
    assert joint.strategies["ilp"].solver_report.variable_count < MAX_STEPS


@pytest.mark.parametrize("number", [1, 10, 100])
def test_all_queries_share_the_steps_of_the_candidates(number: int):
    query, cardinalities = make_clique(8)
    queries = [query.subgraph(names) for names in list(combinations(sorted(query.relations), 5))[:number]]
    assert len(generate_candidates(queries, cardinalities, 4).steps) <= max(MAX_STEPS, 300 * number)


def test_trees_beat_a_restricted_program():
    query, cardinalities = make_clique(8)
    trees = {}
    for search in TREE_SEARCHES:
        strategies = plan_trees([query], cardinalities, 4, search, PlanTarget.PROBES, UNBOUNDED)
        assert strategies is not None
        trees[search] = merge_common_subplans(strategies, cardinalities, 4).total_cost
    assert min(trees.values()) < optimize_jointly([query], cardinalities, 4).strategies["ilp"].total_cost


# ----------------------------------------------------------------------------------------------------------------------- options


def compare(*texts: str, **options) -> PlanComparison:
    joins = [make_join(number, text) for number, text in enumerate(texts)]
    return compare_plans(joins, estimate_by_default(joins), 4, SlidingJoinOptions.parse(**options))


def test_the_best_of_all_plans_is_taken():
    comparison = compare(CHAIN, "r.b = s.b AND s.c = t.c")
    assert [str(candidate.search) for candidate in comparison.candidates] == [
        "flat", "left_deep", "chain", "merging", "ilp", "greedy", "common",
    ]  # fmt: skip
    assert comparison.taken.figures.cost == min(candidate.figures.cost for candidate in comparison.candidates)
    assert comparison.individual_cost is not None
    assert comparison.individual_cost > comparison.taken.figures.cost
    assert comparison.explain_choice() == "fewest rows sent"


@pytest.mark.parametrize("search", [search for search in PlanSearch if search not in (PlanSearch.AUTO, PlanSearch.ILP)])
def test_the_plan_of_the_search_that_the_user_names_is_taken(search: PlanSearch):
    comparison = compare(CHAIN, search=search)
    assert comparison.taken.search is search
    assert comparison.explain_choice() == f"sliding_plan = '{search}'"


def test_a_star_has_no_plan_by_chain():
    comparison = compare("r.b = s.b AND r.c = t.c AND r.a = u.a", search="chain")
    assert comparison.taken.search is PlanSearch.FLAT
    assert comparison.explain_choice() == "'chain' has no plan for these joins"


def test_a_flat_plan_materializes_nothing_and_a_left_deep_plan_all_but_the_last():
    assert compare(CHAIN, search="flat").taken.choice.materialized == {}
    left_deep = compare(CHAIN, search="left_deep", target="latency").taken
    assert sorted(len(join.relations) for join in left_deep.choice.materialized) == [2, 3]
    orders = left_deep.choice.queries[0]
    assert sorted(len(order) for order in orders.values()) == [1, 2, 3, 3]  # hops, from the last input to the first


def test_fewest_hops_cost_more_rows():
    probes, latency = (compare(CHAIN, target=target).taken.figures for target in ("probes", "latency"))
    assert latency.hops < probes.hops
    assert latency.cost > probes.cost


def test_all_plans_are_within_the_storage_budget_or_say_that_none_is():
    unlimited = compare(CHAIN, target="latency").taken.figures
    inputs = 4 * 1_000 * 10  # rows a second, seconds
    bounded = compare(CHAIN, target="latency", budget=round(unlimited.stored_rows - 1))
    assert bounded.taken.figures.stored_rows < unlimited.stored_rows
    assert bounded.taken.figures.hops > unlimited.hops
    assert bounded.explain_choice().startswith("fewest hops within the budget of ")
    least = compare(CHAIN, target="storage").taken
    assert (least.figures.stored_rows, least.choice.materialized) == (inputs, {})
    too_small = compare(CHAIN, budget=inputs - 1)
    assert too_small.taken.figures.stored_rows == inputs
    assert too_small.explain_choice().endswith("no plan is within the budget of 39,999 stored rows")


def test_queries_take_from_the_budget_one_after_the_other():
    joins = [make_join(number, text) for number, text in enumerate((CHAIN, "r.b = s.b AND s.c = t.c AND t.a < u.a"))]
    cardinalities = estimate_by_default(joins)
    graphs = [join.join_graph for join in joins]
    inputs = sum(cardinalities.estimate_stored(graphs[0].subgraph([name])) for name in graphs[0].relations)
    pair = cardinalities.estimate_stored(graphs[0].subgraph("rs"))
    for budget, expected in ((inputs, 0), (inputs + pair, 1)):
        strategies = plan_trees(graphs, cardinalities, 1, PlanSearch.LEFT_DEEP, PlanTarget.LATENCY, budget)
        assert strategies is not None
        assert len({plan.join_graph for strategy in strategies for plan in strategy.materialized_plans}) == expected


def test_residual_predicates_are_used_only_if_they_save_rows():
    texts = ("r.b = s.b", "r.b = s.b AND r.a < s.a")
    comparison = compare(*texts)
    assert comparison.taken.choice.residual_texts == {"r.a < s.a"}
    joins = [make_join(number, text) for number, text in enumerate(texts)]
    selective = estimate_by_default(joins)
    rare = {**selective.selectivities, next(p for p in joins[1].predicates if not p.sides): 1e-6}
    changed = compare_plans(joins, WindowCardinality(selective.rates, selective.windows, rare), 4, SlidingJoinOptions.parse())
    assert changed.taken.choice.residual_texts == frozenset()


def test_the_figures_of_a_choice_in_force_are_those_of_its_candidate():
    joins = [make_join(0, CHAIN)]
    cardinalities = estimate_by_default(joins)
    for candidate in compare_plans(joins, cardinalities, 4, SlidingJoinOptions.parse()).candidates:
        found = estimate_choice(joins, candidate.choice, cardinalities, 4)
        assert (found.cost, found.stored_rows, found.hops) == pytest.approx(
            (candidate.figures.cost, candidate.figures.stored_rows, candidate.figures.hops)
        )


def test_the_table_marks_the_plan_that_is_taken():
    comparison = compare(CHAIN, search="left_deep")
    lines = list(format_comparison(comparison))
    assert lines[0] == "plans by estimate; taken: left_deep (sliding_plan = 'left_deep')"
    assert [line.split()[1] for line in lines if line.startswith("  →")] == ["left_deep"]


# ---------------------------------------------------------------------------------------------------------- what probes may cost


def test_pairs_that_a_theta_probe_tries_count():
    #   r ─<─ s, t.b = r.b: without an equality, new rows of s try all rows of r
    comparison = JoinPredicate(("r", "s"), "r.a < s.a", is_range=True)
    other = JoinPredicate(("r", "s"), "r.a <> s.a")
    rates, windows = {"r": 10.0, "s": 10.0}, {"r": 100.0, "s": 100.0}
    costs = {}
    for predicate in (comparison, other):
        query = JoinGraph(frozenset("rs"), frozenset({predicate}))
        cardinalities = WindowCardinality(rates, windows, {predicate: 0.01})
        costs[predicate] = cardinalities.estimate_tried((query.subgraph("s"),), query.subgraph("r"), query)
    assert costs == {comparison: pytest.approx(10 * 1000 * 0.01), other: 10 * 1000}


def test_an_order_avoids_a_probe_that_tries_many_pairs():
    #   r joins s in 50 rows a second, by an expression that no index serves, and t in 80, by a comparison
    by_any, by_range = JoinPredicate(("r", "s"), "r.a % s.a = 1"), JoinPredicate(("r", "t"), "r.a < t.a", is_range=True)
    query = JoinGraph(frozenset("rst"), frozenset({by_any, by_range}))
    figures = WindowCardinality(dict.fromkeys("rst", 100.0), dict.fromkeys("rst", 10.0), {by_any: 5e-4, by_range: 8e-4})
    strategies = plan_trees([query], figures, 1, PlanSearch.FLAT, PlanTarget.PROBES, UNBOUNDED)
    assert strategies is not None
    order = strategies[0].get_plan(query).get_order("r")
    assert [str(store.relation) for store in order.stores] == ["t", "s"]


def test_conditions_on_time_select_other_rows_for_each_direction():
    #   r.time < s.time: a new row of s finds all stored rows of r, one of r next to none of s
    before = make_theta_predicate("r", "s", "r.time < s.time")
    query = JoinGraph(frozenset("rs"), frozenset({before}))
    figures = WindowCardinality(
        {"r": 1.0, "s": 1.0}, {"r": 10.0, "s": 10.0}, {before: 0.5}, {(before, "r"): 0.01, (before, "s"): 0.99}
    )
    r, s = query.subgraph("r"), query.subgraph("s")
    assert figures.estimate_sent((r, s), query) == pytest.approx(10 * 0.01)
    assert figures.estimate_sent((s, r), query) == pytest.approx(10 * 0.99)
    assert figures.estimate_arrivals(query) == pytest.approx(10)
