"""Plans that cannot be wrong, and probe orders put together into trees.

R ── S[b] ── T[c]      answers q1
      └───── V[e]      answers q3
"""

from __future__ import annotations

from collections import Counter

import pytest
from two_queries import FIGURES, Q1, Q2, RB, RS, SB, SC, ST, TC, labels

from headrace.sharing.multiway.optimize import optimize
from headrace.sharing.multiway.relations import Attribute, Join, equal, input_relation
from headrace.sharing.multiway.strategy import Plan, ProbeOrder, Solved, Store, Strategy, probe_trees
from support.multiway_queries import workload

R, S, T = (input_relation(name) for name in "RST")
VE, SE = Attribute("V", "e"), Attribute("S", "e")
Q3 = Join(frozenset("RSV"), frozenset({RS, equal(SE, VE)}))
NOBODY = Solved("greedy", 1.0)


def plan(join, **orders):
    return Plan(join, tuple(ProbeOrder(start, stores) for start, stores in sorted(orders.items())))


PLAN_1 = plan(Q1, R=(Store(S, SB), Store(T, TC)), S=(Store(R, RB), Store(T, TC)), T=(Store(S, SC), Store(R, RB)))
V = Store(input_relation("V"), VE)
PLAN_3 = plan(Q3, R=(Store(S, SB), V), S=(Store(R, RB), V), V=(Store(S, SE), Store(R, RB)))


def drawn(tree):
    return [f"{labels([visit.store])}{' !' if visit.answers else ''}" for visit in tree.walk()]


def test_orders_that_begin_alike_are_walked_once():
    trees = {tree.start: tree for tree in probe_trees(Strategy((PLAN_1, PLAN_3), (), 0.0, 0.0, NOBODY))}
    assert sorted(trees) == ["R", "S", "T", "V"]
    assert drawn(trees["R"]) == ["S[b]", "T[c] !", "V[e] !"]
    (first,) = trees["R"].children
    assert (first.made, first.answers, first.fills) == (Q1.within("RS"), False, ())
    assert [visit.made for visit in first.children] == [Q1, Q3]
    assert [labels([store]) for store in trees["S"].fills] == ["S[b]", "S[c]", "S[e]"]


def test_what_is_kept_is_filled_where_it_is_made():
    kept = plan(Q1.within("ST"), S=(Store(T, TC),), T=(Store(S, SC),))
    probing = plan(Q1, R=(Store(kept.join, SB),), S=(Store(T, TC), Store(R, RB)), T=(Store(S, SC), Store(R, RB)))
    trees = {tree.start: tree for tree in probe_trees(Strategy((probing,), (kept,), 0.0, 0.0, NOBODY))}
    assert drawn(trees["R"]) == ["ST[b] !"]
    (visit,) = trees["S"].children
    assert (visit.answers, visit.fills) == (False, (Store(kept.join, SB),))
    assert [below.answers for below in visit.children] == [True]


def test_the_same_store_under_other_predicates_is_another_visit():
    strict = Join(frozenset("RS"), frozenset({RS, equal(Attribute("R", "f"), Attribute("S", "f"))}))
    plans = tuple(plan(join, R=(Store(S, SB),), S=(Store(R, RB),)) for join in (Q1.within("RS"), strict))
    tree = probe_trees(Strategy(plans, (), 0.0, 0.0, NOBODY))[0]
    assert drawn(tree) == ["S[b] !", "S[b] !"]


def test_a_plan_has_an_order_for_each_input():
    with pytest.raises(ValueError, match="one probe order for each input"):
        Plan(Q1, PLAN_1.orders[:2])


def test_an_order_visits_every_other_input_once():
    with pytest.raises(ValueError, match="does not visit every other input"):
        plan(Q1, R=(Store(S, SB),), S=PLAN_1.order("S").stores, T=PLAN_1.order("T").stores)
    twice = (Store(S, SB), Store(Join(frozenset("ST"), frozenset({ST})), SB))
    with pytest.raises(ValueError, match="does not visit every other input"):
        plan(Q1, R=twice, S=PLAN_1.order("S").stores, T=PLAN_1.order("T").stores)


def test_what_is_probed_is_worked_off():
    probing = plan(Q1, R=(Store(Q1.within("ST"), SB),), S=PLAN_1.order("S").stores, T=PLAN_1.order("T").stores)
    with pytest.raises(ValueError, match="no plan for the materialized join S⋈T"):
        Strategy((probing,), (), 0.0, 0.0, NOBODY)


def test_texts():
    assert str(PLAN_1.order("R")) == "⟨R, S[S.b], T[T.c]⟩"
    assert str(Store(Q1.within("ST"))) == "S⋈T[]"


@pytest.mark.parametrize("seed", range(3))
def test_trees_answer_every_query_from_every_input_once(seed):
    queries, figures = workload(seed, 10, 12, 4)
    found = optimize(queries, figures, 4)
    trees = probe_trees(found)
    answered = [(tree.start, visit.made) for tree in trees for visit in tree.walk() if visit.answers]
    assert Counter(answered) == Counter((name, query) for query in queries for name in query.relations)
    filled = [(tree.start, store) for tree in trees for visit in tree.walk() for store in visit.fills]
    joins = [store for store in found.stores if not store.relation.is_input]
    assert Counter(filled) == Counter((name, store) for store in joins for name in store.relation.relations)
    assert {store for tree in trees for store in tree.fills} | set(joins) == found.stores


def test_plans_are_found_by_their_join():
    found = optimize([Q1, Q2], FIGURES, 4)
    assert found.plan(Q2).join == Q2
    assert found.plan(Q2).order("U").start == "U"


def test_a_query_can_be_kept_for_another():
    part = Q1.within("ST")
    found = optimize([Q1, part], FIGURES, 1, storage_weight=0.1)
    assert [one.join for one in found.kept] == [part]
    assert found.kept[0] == found.queries[1]
    tree = next(tree for tree in probe_trees(found) if tree.start == "S")
    (visit,) = (visit for visit in tree.walk() if visit.made == part)
    assert visit.answers
    assert visit.fills == (Store(part),)
