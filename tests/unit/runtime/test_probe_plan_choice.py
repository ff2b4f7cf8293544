"""Probe orders of a batch: those of the last plan, those the optimizer chose, or initial orders for new queries."""

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
OTHER_ORDERS = {"s": "t[c] u[d]", "t": "s[c] u[d]", "u": "st[t.d]"}
MATERIALIZED = {ST: {"s": "t[c]", "t": "s[b]"}}
BOTH = parse_choice((CHAIN, BY_ST), (OTHER, OTHER_ORDERS), materialized=MATERIALIZED)


def write_and_read_choice(chosen: ProbeOrderChoice, *queries) -> ProbeOrderChoice:
    return choice_from_json(json.loads(json.dumps(choice_to_json(chosen))), queries)


def plan_queries(chosen: ProbeOrderChoice, *queries) -> SlidingJoinPlan:
    return plan_sliding_joins(queries, chosen, 0, 4, {query.id: 0 for query in queries})


# --------------------------------------------------------------------------------------------------------------- JSON of a choice


@pytest.mark.parametrize(
    "chosen",
    [ProbeOrderChoice({}), parse_choice((CHAIN, FLAT)), BOTH, parse_choice((CHAIN, {**FLAT, "r": "s[] t[]"}))],
    ids=["empty", "inputs", "materialized joins", "unpartitioned stores"],
)
def test_a_choice_survives_the_round_trip_through_json(chosen: ProbeOrderChoice):
    assert write_and_read_choice(chosen, CHAIN, OTHER) == chosen


def test_materialized_joins_of_equal_inputs_are_distinguished_by_their_predicates():
    strict = make_join(2, "r.b = s.b AND s.c = t.c AND s.d < t.d")
    materialized = {ST: MATERIALIZED[ST], strict.join_graph.subgraph("st"): {"s": "t[]", "t": "s[]"}}
    chosen = parse_choice((CHAIN, BY_ST), (strict, BY_ST), materialized=materialized)
    choice = write_and_read_choice(chosen, CHAIN, strict)
    assert choice == chosen
    assert choice.queries[0]["r"][0].relation != choice.queries[2]["r"][0].relation


def test_expression_attributes_survive_the_round_trip_through_json():
    query = make_join(0, "r.b + 1 = s.b * 2")
    chosen = ProbeOrderChoice({0: choose_initial_orders(query.join_graph, {})})
    (target,) = chosen.queries[0]["r"]
    assert target.partitioned_by == Attribute("s", "b * 2")
    assert write_and_read_choice(chosen, query) == chosen


def test_removed_queries_are_dropped_from_a_choice():
    #   query 1 is removed in the batch for which the choice was made
    choice = write_and_read_choice(BOTH, CHAIN)
    assert set(choice.queries) == {0}
    assert choice.materialized == BOTH.materialized  # query 0 also contains s⋈t


def test_materialized_joins_of_no_live_query_are_dropped_from_a_choice():
    tu = OTHER.join_graph.subgraph("tu")
    chosen = parse_choice(
        (CHAIN, FLAT), (OTHER, {**OTHER_ORDERS, "s": "tu[t.c]"}), materialized={**MATERIALIZED, tu: {"t": "u[d]", "u": "t[d]"}}
    )
    choice = write_and_read_choice(chosen, CHAIN)
    assert set(choice.materialized) == {ST}
    assert choice.queries == {0: parse_orders(CHAIN.join_graph, **FLAT)}


# -------------------------------------------------------------------------------------------------------------- orders of a batch


def test_initial_orders_follow_equalities_and_partition_by_the_most_used_attribute():
    #   r ─b─ s ─c─ t and s ─c─ u: two equalities use s.c
    query = make_join(0, "r.b = s.b AND s.c = t.c AND s.c = u.c AND r.a < u.a")
    choice = choose_orders((query,), None, None)
    assert choice.queries[0] == parse_orders(
        query.join_graph, r="s[c] t[c] u[c]", s="r[b] t[c] u[c]", t="s[c] r[b] u[c]", u="s[c] r[b] t[c]"
    )
    assert choice.materialized == {}


def test_initial_orders_visit_equalities_then_comparisons_then_cross_products():
    query = make_join(0, "r.b < s.b AND r.c = u.c AND t.d = t.d AND s.a < t.a")
    assert [min(target.relation.relations) for target in choose_initial_orders(query.join_graph, {})["r"]] == ["u", "s", "t"]


def test_new_queries_use_existing_stores():
    #   s is stored by s.c; query 1 joins by s.b and probes all partitions instead of storing s twice
    first = make_join(0, "s.c = t.c")
    plan = plan_queries(parse_choice((first, {"s": "t[c]", "t": "s[c]"})), first)
    new = make_join(1, "r.b = s.b")
    choice = choose_orders((first, new), plan, None)
    assert choice.queries[1] == parse_orders(new.join_graph, r="s[b]", s="r[b]") | {"r": parse_targets(new.join_graph, "s[c]")}


def test_queries_added_in_the_same_batch_share_stores():
    first, second = make_join(0, "s.c = t.c"), make_join(1, "r.b = s.b")
    choice = choose_orders((first, second), None, None)
    assert choice.queries[0]["t"] == parse_targets(first.join_graph, "s[c]")
    assert choice.queries[1]["r"] == parse_targets(second.join_graph, "s[c]")


def test_orders_stay_without_a_new_choice():
    plan = plan_queries(BOTH, CHAIN, OTHER)
    assert choose_orders((CHAIN, OTHER), plan, None) == BOTH


def test_a_new_choice_replaces_the_orders_of_its_queries_only():
    plan = plan_queries(parse_choice((CHAIN, FLAT), (OTHER, OTHER_ORDERS), materialized=MATERIALIZED), CHAIN, OTHER)
    choice = choose_orders((CHAIN, OTHER), plan, parse_choice((CHAIN, {**BY_ST, "r": "st[]"}), materialized=MATERIALIZED))
    assert choice == parse_choice((CHAIN, {**BY_ST, "r": "st[]"}), (OTHER, OTHER_ORDERS), materialized=MATERIALIZED)


def test_a_new_choice_replaces_the_orders_of_a_materialized_join():
    plan = plan_queries(BOTH, CHAIN, OTHER)
    new_orders = {ST: {"s": "t[]", "t": "s[c]"}}
    choice = choose_orders((CHAIN, OTHER), plan, parse_choice((CHAIN, BY_ST), materialized=new_orders))
    assert choice.materialized == parse_choice(materialized=new_orders).materialized
    assert choice.queries == BOTH.queries


def test_materialized_joins_without_probes_are_dropped():
    plan = plan_queries(BOTH, CHAIN, OTHER)
    flat = parse_choice((CHAIN, FLAT), (OTHER, {**OTHER_ORDERS, "u": "t[d] s[c]"}))
    assert choose_orders((CHAIN, OTHER), plan, flat).materialized == {}
    assert set(choose_orders((CHAIN,), plan, None).materialized) == {ST}
    assert choose_orders((CHAIN,), plan, parse_choice((CHAIN, FLAT))).materialized == {}


def test_removed_queries_have_no_orders():
    plan = plan_queries(BOTH, CHAIN, OTHER)
    choice = choose_orders((CHAIN,), plan, None)
    assert set(choice.queries) == {0}


def test_stores_partitioned_by_an_attribute_of_removed_queries_are_repartitioned():
    #   query 0 (s.c = t.c) is removed: no query uses s.c any more
    first, other, lone = make_join(0, "s.c = t.c"), make_join(1, "r.b = s.b"), make_join(2, "s.a < u.a")
    chosen = parse_choice(
        (first, {"s": "t[c]", "t": "s[c]"}), (other, {"r": "s[c]", "s": "r[b]"}), (lone, {"s": "u[]", "u": "s[c]"})
    )
    plan = plan_queries(chosen, first, other, lone)
    assert choose_orders((first, other, lone), plan, None) == chosen
    choice = choose_orders((other, lone), plan, None)
    assert choice.queries[1] == parse_orders(other.join_graph, r="s[b]", s="r[b]")
    assert choice.queries[2] == parse_orders(lone.join_graph, s="u[]", u="s[]")
