"""Plans that cannot be wrong, and probe orders put together into trees.

R ── S[b] ── T[c]      answers q1
      └───── V[e]      answers q3
"""

from __future__ import annotations

from collections import Counter

import pytest
from two_queries import FIGURES, Q1, Q2, RB, RS, SB, SC, ST, TC, labels

from headrace.planner.join.join_graph import Attribute, JoinGraph, input_relation, make_equality
from headrace.planner.join.optimizer import optimize_sliding_joins
from headrace.planner.join.strategy import (
    JoinProbePlan,
    JoinStrategy,
    PartitionedStore,
    ProbeOrder,
    SolverReport,
    build_probe_trees,
)
from support.random_join_graphs import draw_workload

R, S, T = (input_relation(name) for name in "RST")
VE, SE = Attribute("V", "e"), Attribute("S", "e")
Q3 = JoinGraph(frozenset("RSV"), frozenset({RS, make_equality(SE, VE)}))
NOBODY = SolverReport("greedy", 1.0)


def plan(join, **orders):
    return JoinProbePlan(join, tuple(ProbeOrder(start, stores) for start, stores in sorted(orders.items())))


PLAN_1 = plan(
    Q1,
    R=(PartitionedStore(S, SB), PartitionedStore(T, TC)),
    S=(PartitionedStore(R, RB), PartitionedStore(T, TC)),
    T=(PartitionedStore(S, SC), PartitionedStore(R, RB)),
)
V = PartitionedStore(input_relation("V"), VE)
PLAN_3 = plan(
    Q3, R=(PartitionedStore(S, SB), V), S=(PartitionedStore(R, RB), V), V=(PartitionedStore(S, SE), PartitionedStore(R, RB))
)


def drawn(tree):
    return [f"{labels([visit.store])}{' !' if visit.is_query_result else ''}" for visit in tree.walk()]


def test_orders_that_begin_alike_are_walked_once():
    trees = {tree.start: tree for tree in build_probe_trees(JoinStrategy((PLAN_1, PLAN_3), (), 0.0, 0.0, NOBODY))}
    assert sorted(trees) == ["R", "S", "T", "V"]
    assert drawn(trees["R"]) == ["S[b]", "T[c] !", "V[e] !"]
    (first,) = trees["R"].children
    assert (first.result, first.is_query_result, first.filled_stores) == (Q1.subgraph("RS"), False, ())
    assert [visit.result for visit in first.children] == [Q1, Q3]
    assert [labels([store]) for store in trees["S"].filled_stores] == ["S[b]", "S[c]", "S[e]"]


def test_what_is_kept_is_filled_where_it_is_made():
    kept = plan(Q1.subgraph("ST"), S=(PartitionedStore(T, TC),), T=(PartitionedStore(S, SC),))
    probing = plan(
        Q1,
        R=(PartitionedStore(kept.join_graph, SB),),
        S=(PartitionedStore(T, TC), PartitionedStore(R, RB)),
        T=(PartitionedStore(S, SC), PartitionedStore(R, RB)),
    )
    trees = {tree.start: tree for tree in build_probe_trees(JoinStrategy((probing,), (kept,), 0.0, 0.0, NOBODY))}
    assert drawn(trees["R"]) == ["ST[b] !"]
    (visit,) = trees["S"].children
    assert (visit.is_query_result, visit.filled_stores) == (False, (PartitionedStore(kept.join_graph, SB),))
    assert [below.is_query_result for below in visit.children] == [True]


def test_the_same_store_under_other_predicates_is_another_visit():
    strict = JoinGraph(frozenset("RS"), frozenset({RS, make_equality(Attribute("R", "f"), Attribute("S", "f"))}))
    plans = tuple(plan(join, R=(PartitionedStore(S, SB),), S=(PartitionedStore(R, RB),)) for join in (Q1.subgraph("RS"), strict))
    tree = build_probe_trees(JoinStrategy(plans, (), 0.0, 0.0, NOBODY))[0]
    assert drawn(tree) == ["S[b] !", "S[b] !"]


def test_a_plan_has_an_order_for_each_input():
    with pytest.raises(ValueError, match="one probe order for each input"):
        JoinProbePlan(Q1, PLAN_1.probe_orders[:2])


def test_an_order_visits_every_other_input_once():
    with pytest.raises(ValueError, match="does not visit every other input"):
        plan(Q1, R=(PartitionedStore(S, SB),), S=PLAN_1.get_order("S").stores, T=PLAN_1.get_order("T").stores)
    twice = (PartitionedStore(S, SB), PartitionedStore(JoinGraph(frozenset("ST"), frozenset({ST})), SB))
    with pytest.raises(ValueError, match="does not visit every other input"):
        plan(Q1, R=twice, S=PLAN_1.get_order("S").stores, T=PLAN_1.get_order("T").stores)


def test_what_is_probed_is_worked_off():
    probing = plan(
        Q1, R=(PartitionedStore(Q1.subgraph("ST"), SB),), S=PLAN_1.get_order("S").stores, T=PLAN_1.get_order("T").stores
    )
    with pytest.raises(ValueError, match="no plan for the materialized join S⋈T"):
        JoinStrategy((probing,), (), 0.0, 0.0, NOBODY)


def test_texts():
    assert str(PLAN_1.get_order("R")) == "⟨R, S[S.b], T[T.c]⟩"
    assert str(PartitionedStore(Q1.subgraph("ST"))) == "S⋈T[]"


@pytest.mark.parametrize("seed", range(3))
def test_trees_answer_every_query_from_every_input_once(seed):
    queries, figures = draw_workload(seed, 10, 12, 4)
    found = optimize_sliding_joins(queries, figures, 4)
    trees = build_probe_trees(found)
    answered = [(tree.start, visit.result) for tree in trees for visit in tree.walk() if visit.is_query_result]
    assert Counter(answered) == Counter((name, query) for query in queries for name in query.relations)
    filled = [(tree.start, store) for tree in trees for visit in tree.walk() for store in visit.filled_stores]
    joins = [store for store in found.stores if not store.relation.is_input]
    assert Counter(filled) == Counter((name, store) for store in joins for name in store.relation.relations)
    assert {store for tree in trees for store in tree.filled_stores} | set(joins) == found.stores


def test_plans_are_found_by_their_join():
    found = optimize_sliding_joins([Q1, Q2], FIGURES, 4)
    assert found.get_plan(Q2).join_graph == Q2
    assert found.get_plan(Q2).get_order("U").start == "U"


def test_a_query_can_be_kept_for_another():
    part = Q1.subgraph("ST")
    found = optimize_sliding_joins([Q1, part], FIGURES, 1, storage_weight=0.1)
    assert [one.join_graph for one in found.materialized_plans] == [part]
    assert found.materialized_plans[0] == found.query_plans[1]
    tree = next(tree for tree in build_probe_trees(found) if tree.start == "S")
    (visit,) = (visit for visit in tree.walk() if visit.result == part)
    assert visit.is_query_result
    assert visit.filled_stores == (PartitionedStore(part),)
