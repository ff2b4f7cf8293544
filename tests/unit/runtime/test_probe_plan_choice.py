"""How queries are worked off from batch to batch: as it was, as was decided, or by the first orders that serve."""

from __future__ import annotations

import json

import pytest

from headrace.planner.join.join_graph import Attribute
from headrace.planner.join.sliding_join_plan import ProbeOrderChoice, SlidingJoinPlan
from headrace.planner.join.sliding_join_planner import choose_initial_orders, plan_sliding_joins
from headrace.runtime.sliding_join_epochs import choice_from_json, choice_to_json, choose_orders
from support.sliding_join_plans import make_join, parse_choice, parse_orders, parse_targets

CHAIN = make_join(0, "r.b = s.b AND s.c = t.c")
ST = CHAIN.join_graph.subgraph("st")
OTHER = make_join(1, "s.c = t.c AND t.d = u.d")
FLAT = {"r": "s[b] t[c]", "s": "r[b] t[c]", "t": "s[b] r[b]"}
BY_ST = {"r": "st[s.b]", "s": "t[c] r[b]", "t": "s[b] r[b]"}
MINE = {"s": "t[c] u[d]", "t": "s[c] u[d]", "u": "st[t.d]"}
KEPT = {ST: {"s": "t[c]", "t": "s[b]"}}
BOTH = parse_choice((CHAIN, BY_ST), (OTHER, MINE), materialized=KEPT)


def through_the_log(chosen: ProbeOrderChoice, *queries) -> ProbeOrderChoice:
    return choice_from_json(json.loads(json.dumps(choice_to_json(chosen))), queries)


def plan_of(chosen: ProbeOrderChoice, *queries) -> SlidingJoinPlan:
    return plan_sliding_joins(queries, chosen, 0, 4, {one.id: 0 for one in queries})


# -------------------------------------------------------------------------------------------------------------------- in the log


@pytest.mark.parametrize(
    "chosen",
    [ProbeOrderChoice({}), parse_choice((CHAIN, FLAT)), BOTH, parse_choice((CHAIN, {**FLAT, "r": "s[] t[]"}))],
    ids=["nothing", "inputs", "kept joins", "stores by nothing"],
)
def test_a_choice_is_read_as_it_was_written(chosen: ProbeOrderChoice):
    assert through_the_log(chosen, CHAIN, OTHER) == chosen


def test_kept_joins_of_equal_inputs_are_told_apart_by_their_conditions():
    strict = make_join(2, "r.b = s.b AND s.c = t.c AND s.d < t.d")
    both = {ST: KEPT[ST], strict.join_graph.subgraph("st"): {"s": "t[]", "t": "s[]"}}
    chosen = parse_choice((CHAIN, BY_ST), (strict, BY_ST), materialized=both)
    found = through_the_log(chosen, CHAIN, strict)
    assert found == chosen
    assert found.queries[0]["r"][0].relation != found.queries[2]["r"][0].relation


def test_attributes_that_are_expressions_are_read_as_they_were_written():
    query = make_join(0, "r.b + 1 = s.b * 2")
    chosen = ProbeOrderChoice({0: choose_initial_orders(query.join_graph, {})})
    (target,) = chosen.queries[0]["r"]
    assert target.partitioned_by == Attribute("s", "b * 2")
    assert through_the_log(chosen, query) == chosen


def test_what_is_about_removed_queries_is_left_out():
    #   query 1 is removed in the batch for which something was decided about it
    found = through_the_log(BOTH, CHAIN)
    assert set(found.queries) == {0}
    assert found.materialized == BOTH.materialized  # query 0 has s⋈t as well


def test_kept_joins_that_no_live_query_has_are_left_out():
    tu = OTHER.join_graph.subgraph("tu")
    chosen = parse_choice((CHAIN, FLAT), (OTHER, {**MINE, "s": "tu[t.c]"}), materialized={**KEPT, tu: {"t": "u[d]", "u": "t[d]"}})
    found = through_the_log(chosen, CHAIN)
    assert set(found.materialized) == {ST}
    assert found.queries == {0: parse_orders(CHAIN.join_graph, **FLAT)}


# --------------------------------------------------------------------------------------------------------------- what is in force


def test_new_queries_begin_along_equalities_by_the_attributes_that_tie_them_most():
    #   r ─b─ s ─c─ t and s ─c─ u: s is tied twice by c
    query = make_join(0, "r.b = s.b AND s.c = t.c AND s.c = u.c AND r.a < u.a")
    found = choose_orders((query,), None, None)
    assert found.queries[0] == parse_orders(
        query.join_graph, r="s[c] t[c] u[c]", s="r[b] t[c] u[c]", t="s[c] r[b] u[c]", u="s[c] r[b] t[c]"
    )
    assert found.materialized == {}


def test_equalities_come_before_comparisons_and_those_before_nothing():
    query = make_join(0, "r.b < s.b AND r.c = u.c AND t.d = t.d AND s.a < t.a")
    assert [min(one.relation.relations) for one in choose_initial_orders(query.join_graph, {})["r"]] == ["u", "s", "t"]


def test_new_queries_use_stores_that_are_there():
    #   s is stored by s.c; query 1 is tied to it by s.b, and asks everywhere rather than to store it again
    first = make_join(0, "s.c = t.c")
    plan = plan_of(parse_choice((first, {"s": "t[c]", "t": "s[c]"})), first)
    new = make_join(1, "r.b = s.b")
    found = choose_orders((first, new), plan, None)
    assert found.queries[1] == parse_orders(new.join_graph, r="s[b]", s="r[b]") | {"r": parse_targets(new.join_graph, "s[c]")}


def test_queries_that_come_together_use_stores_of_each_other():
    one, two = make_join(0, "s.c = t.c"), make_join(1, "r.b = s.b")
    found = choose_orders((one, two), None, None)
    assert found.queries[0]["t"] == parse_targets(one.join_graph, "s[c]")
    assert found.queries[1]["r"] == parse_targets(two.join_graph, "s[c]")


def test_what_was_stays():
    plan = plan_of(BOTH, CHAIN, OTHER)
    assert choose_orders((CHAIN, OTHER), plan, None) == BOTH


def test_what_was_decided_is_taken_and_the_rest_stays():
    plan = plan_of(parse_choice((CHAIN, FLAT), (OTHER, MINE), materialized=KEPT), CHAIN, OTHER)
    found = choose_orders((CHAIN, OTHER), plan, parse_choice((CHAIN, {**BY_ST, "r": "st[]"}), materialized=KEPT))
    assert found == parse_choice((CHAIN, {**BY_ST, "r": "st[]"}), (OTHER, MINE), materialized=KEPT)


def test_a_kept_join_is_made_as_was_decided_last():
    plan = plan_of(BOTH, CHAIN, OTHER)
    other_way = {ST: {"s": "t[]", "t": "s[c]"}}
    found = choose_orders((CHAIN, OTHER), plan, parse_choice((CHAIN, BY_ST), materialized=other_way))
    assert found.materialized == parse_choice(materialized=other_way).materialized
    assert found.queries == BOTH.queries


def test_kept_joins_that_nobody_looks_into_are_forgotten():
    plan = plan_of(BOTH, CHAIN, OTHER)
    flat = parse_choice((CHAIN, FLAT), (OTHER, {**MINE, "u": "t[d] s[c]"}))
    assert choose_orders((CHAIN, OTHER), plan, flat).materialized == {}
    assert set(choose_orders((CHAIN,), plan, None).materialized) == {ST}
    assert choose_orders((CHAIN,), plan, parse_choice((CHAIN, FLAT))).materialized == {}


def test_a_query_that_is_gone_is_forgotten():
    plan = plan_of(BOTH, CHAIN, OTHER)
    found = choose_orders((CHAIN,), plan, None)
    assert set(found.queries) == {0}


def test_stores_by_what_only_removed_queries_look_at_are_by_something_else():
    #   query 0 (s.c = t.c) goes: nobody says s.c any more
    first, other, lone = make_join(0, "s.c = t.c"), make_join(1, "r.b = s.b"), make_join(2, "s.a < u.a")
    chosen = parse_choice(
        (first, {"s": "t[c]", "t": "s[c]"}), (other, {"r": "s[c]", "s": "r[b]"}), (lone, {"s": "u[]", "u": "s[c]"})
    )
    plan = plan_of(chosen, first, other, lone)
    assert choose_orders((first, other, lone), plan, None) == chosen
    found = choose_orders((other, lone), plan, None)
    assert found.queries[1] == parse_orders(other.join_graph, r="s[b]", s="r[b]")
    assert found.queries[2] == parse_orders(lone.join_graph, s="u[]", u="s[]")
