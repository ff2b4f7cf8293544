"""Join strategies: validation of plans, and probe orders merged into trees.

R ── S[b] ── T[c]      answers q1
      └───── V[e]      answers q3
"""

from __future__ import annotations

from collections import Counter

import pytest
from two_queries import FIGURES, Q1, Q2, RB, RS, SB, SC, ST, TC, labels

from headrace.planner.join.join_graph import Attribute, JoinGraph, input_relation
from headrace.planner.join.optimizer import Objective
from headrace.planner.join.strategy import JoinProbePlan, JoinStrategy, PartitionedStore, ProbeOrder, SolverReport
from support.join_models import build_probe_trees, make_equality, optimize_sliding_joins
from support.random_join_graphs import draw_workload

R, S, T = (input_relation(name) for name in "RST")
VE, SE = Attribute("V", "e"), Attribute("S", "e")
Q3 = JoinGraph(frozenset("RSV"), frozenset({RS, make_equality(SE, VE)}))
NO_REPORT = SolverReport("greedy", 1.0)


def make_plan(join, **orders):
    return JoinProbePlan(join, tuple(ProbeOrder(start, stores) for start, stores in sorted(orders.items())))


PLAN_1 = make_plan(
    Q1,
    R=(PartitionedStore(S, SB), PartitionedStore(T, TC)),
    S=(PartitionedStore(R, RB), PartitionedStore(T, TC)),
    T=(PartitionedStore(S, SC), PartitionedStore(R, RB)),
)
V = PartitionedStore(input_relation("V"), VE)
PLAN_3 = make_plan(
    Q3, R=(PartitionedStore(S, SB), V), S=(PartitionedStore(R, RB), V), V=(PartitionedStore(S, SE), PartitionedStore(R, RB))
)


def list_visits(tree):
    return [f"{labels([visit.store])}{' !' if visit.is_query_result else ''}" for visit in tree.walk()]


def test_orders_with_equal_prefixes_share_visits():
    trees = {tree.start: tree for tree in build_probe_trees(JoinStrategy((PLAN_1, PLAN_3), (), 0.0, 0.0, NO_REPORT))}
    assert sorted(trees) == ["R", "S", "T", "V"]
    assert list_visits(trees["R"]) == ["S[b]", "T[c] !", "V[e] !"]
    (first,) = trees["R"].children
    assert (first.result, first.is_query_result, first.filled_stores) == (Q1.subgraph("RS"), False, ())
    assert [visit.result for visit in first.children] == [Q1, Q3]
    assert [labels([store]) for store in trees["S"].filled_stores] == ["S[b]", "S[c]", "S[e]"]


def test_a_materialized_join_is_filled_where_its_rows_are_produced():
    materialized = make_plan(Q1.subgraph("ST"), S=(PartitionedStore(T, TC),), T=(PartitionedStore(S, SC),))
    probing = make_plan(
        Q1,
        R=(PartitionedStore(materialized.join_graph, SB),),
        S=(PartitionedStore(T, TC), PartitionedStore(R, RB)),
        T=(PartitionedStore(S, SC), PartitionedStore(R, RB)),
    )
    trees = {tree.start: tree for tree in build_probe_trees(JoinStrategy((probing,), (materialized,), 0.0, 0.0, NO_REPORT))}
    assert list_visits(trees["R"]) == ["ST[b] !"]
    (visit,) = trees["S"].children
    assert (visit.is_query_result, visit.filled_stores) == (False, (PartitionedStore(materialized.join_graph, SB),))
    assert [below.is_query_result for below in visit.children] == [True]


def test_probes_with_different_predicates_are_different_visits():
    strict = JoinGraph(frozenset("RS"), frozenset({RS, make_equality(Attribute("R", "f"), Attribute("S", "f"))}))
    plans = tuple(
        make_plan(join, R=(PartitionedStore(S, SB),), S=(PartitionedStore(R, RB),)) for join in (Q1.subgraph("RS"), strict)
    )
    tree = build_probe_trees(JoinStrategy(plans, (), 0.0, 0.0, NO_REPORT))[0]
    assert list_visits(tree) == ["S[b] !", "S[b] !"]


def test_a_plan_without_an_order_for_each_input_is_refused():
    with pytest.raises(ValueError, match="one probe order for each input"):
        JoinProbePlan(Q1, PLAN_1.probe_orders[:2])


def test_an_order_that_does_not_visit_every_other_input_once_is_refused():
    with pytest.raises(ValueError, match="does not visit every other input"):
        make_plan(Q1, R=(PartitionedStore(S, SB),), S=PLAN_1.get_order("S").stores, T=PLAN_1.get_order("T").stores)
    twice = (PartitionedStore(S, SB), PartitionedStore(JoinGraph(frozenset("ST"), frozenset({ST})), SB))
    with pytest.raises(ValueError, match="does not visit every other input"):
        make_plan(Q1, R=twice, S=PLAN_1.get_order("S").stores, T=PLAN_1.get_order("T").stores)


def test_a_probe_of_a_join_without_a_plan_is_refused():
    probing = make_plan(
        Q1, R=(PartitionedStore(Q1.subgraph("ST"), SB),), S=PLAN_1.get_order("S").stores, T=PLAN_1.get_order("T").stores
    )
    with pytest.raises(ValueError, match="no plan for the materialized join S⋈T"):
        JoinStrategy((probing,), (), 0.0, 0.0, NO_REPORT)


def test_orders_and_stores_as_text():
    assert str(PLAN_1.get_order("R")) == "⟨R, S[S.b], T[T.c]⟩"
    assert str(PartitionedStore(Q1.subgraph("ST"))) == "S⋈T[]"


@pytest.mark.parametrize("seed", range(3))
def test_probe_trees_produce_every_query_once_per_input(seed):
    queries, figures = draw_workload(seed, 10, 12, 4)
    strategy = optimize_sliding_joins(queries, figures, 4)
    trees = build_probe_trees(strategy)
    query_results = [(tree.start, visit.result) for tree in trees for visit in tree.walk() if visit.is_query_result]
    assert Counter(query_results) == Counter((name, query) for query in queries for name in query.relations)
    filled = [(tree.start, store) for tree in trees for visit in tree.walk() for store in visit.filled_stores]
    joins = [store for store in strategy.stores if not store.relation.is_input]
    assert Counter(filled) == Counter((name, store) for store in joins for name in store.relation.relations)
    assert {store for tree in trees for store in tree.filled_stores} | set(joins) == strategy.stores


def test_get_plan_returns_the_plan_of_a_join():
    strategy = optimize_sliding_joins([Q1, Q2], FIGURES, 4)
    assert strategy.get_plan(Q2).join_graph == Q2
    assert strategy.get_plan(Q2).get_order("U").start == "U"


def test_a_query_can_be_materialized_for_another_query():
    part = Q1.subgraph("ST")
    strategy = optimize_sliding_joins([Q1, part], FIGURES, 1, Objective(storage_weight=0.1))
    assert [plan.join_graph for plan in strategy.materialized_plans] == [part]
    assert strategy.materialized_plans[0] == strategy.query_plans[1]
    tree = next(tree for tree in build_probe_trees(strategy) if tree.start == "S")
    (visit,) = (visit for visit in tree.walk() if visit.result == part)
    assert visit.is_query_result
    assert visit.filled_stores == (PartitionedStore(part),)
