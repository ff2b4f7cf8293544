"""Physical plans of probe orders: the routing of rows to state stores, and its change when the orders change.

Tests write a plan as a probe tree per relation (`support.sliding_join_plans`): "key s.c t[c] !0" routes rows by the value of s.c
to the store of t by t.c, where query 0 is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from random import Random

import pytest

from headrace.planner.join.join_graph import JoinGraph
from headrace.planner.join.normalized_join import NormalizedJoin
from headrace.planner.join.sliding_join_plan import (
    OrdersByRelation,
    ProbeOrderChoice,
    ProbeStep,
    ProbeTarget,
    SlidingJoinPlan,
    StoreSpec,
)
from headrace.planner.join.sliding_join_planner import plan_sliding_joins
from headrace.runtime.sliding_join_epochs import choose_orders
from support.sliding_join_plans import format_probe_tree, format_store, format_stores, make_join, parse_choice

CHAIN = make_join(0, "r.b = s.b AND s.c = t.c")
ST = CHAIN.join_graph.subgraph("st")
FLAT = {"r": "s[b] t[c]", "s": "r[b] t[c]", "t": "s[b] r[b]"}
BY_ST = {"r": "st[s.b]", "s": "t[c] r[b]", "t": "s[b] r[b]"}
KEPT = {ST: {"s": "t[c]", "t": "s[b]"}}


def planned(
    chosen: ProbeOrderChoice,
    *queries: NormalizedJoin,
    batch: int = 0,
    partitions: int = 4,
    born: Mapping[int, int] | None = None,
    previous: SlidingJoinPlan | None = None,
    oldest: Mapping[str, int] | None = None,
) -> SlidingJoinPlan:
    """Plan; `oldest` has stores of the previous plan by their labels, queries were born in batch 0 if nothing is said."""
    known = {format_store(one): one.number for one in previous.stores} if previous is not None else {}
    there = {known[name]: found for name, found in (oldest or {}).items()}
    births = {one.id: (born or {}).get(one.id, 0) for one in queries}
    return plan_sliding_joins(queries, chosen, batch, partitions, births, previous, there)


# ------------------------------------------------------------------------------------------------------------------------- edges


def test_rows_go_where_a_value_of_theirs_says_and_to_everybody_if_none_does():
    #   r ─b─ s ─c─ t        s is stored by s.b: rows of r know it, those of t do not
    plan = planned(parse_choice((CHAIN, FLAT)), CHAIN)
    assert format_probe_tree(plan, "r") == [
        "stored s[b]",
        "  key s.c t[c] !0",
    ]  # r is stored by r.b = s.b: its rows are there already
    assert format_probe_tree(plan, "s") == ["stored r[b]", "  key s.c t[c] !0"]
    assert format_probe_tree(plan, "t") == ["all s[b]", "  local r[b] !0"]  # what was found in s[b] lies by s.b = r.b
    assert format_stores(plan) == ["s[b] since 0", "t[c] since 0", "r[b] since 0"]


def test_new_rows_that_are_stored_by_another_value_are_sent_by_the_one_that_is_asked_for():
    plan = planned(parse_choice((CHAIN, {"r": "s[b] t[c]", "s": "t[c] r[b]", "t": "s[c] r[b]"})), CHAIN)
    assert format_probe_tree(plan, "s") == [
        "stored t[c]",
        "  key s.b r[b] !0",
    ]  # s is stored twice; the store s[c] has them in place
    assert {format_store(one) for one in plan.find_filled_stores("s")} == {"s[b]", "s[c]"}
    alone = planned(parse_choice((CHAIN, {"r": "s[b] t[c]", "s": "t[c] r[b]", "t": "s[b] r[b]"})), CHAIN)
    assert format_probe_tree(alone, "s") == ["key s.c t[c]", "  key s.b r[b] !0"]


def test_equal_values_of_different_relations_name_the_same_partition():
    #   r.b = s.b = t.b: whoever came by one of them need not go elsewhere
    query = make_join(0, "r.b = s.b AND s.b = t.b")
    plan = planned(parse_choice((query, {"r": "s[b] t[b]", "s": "r[b] t[b]", "t": "s[b] r[b]"})), query)
    assert format_probe_tree(plan, "r") == ["stored s[b]", "  local t[b] !0"]
    assert format_probe_tree(plan, "t") == ["stored s[b]", "  local r[b] !0"]
    assert plan.last_level == 0


def test_a_store_by_nothing_is_asked_everywhere_and_leaves_rows_where_they_are():
    plan = planned(parse_choice((CHAIN, {"r": "s[] t[c]", "s": "r[b] t[c]", "t": "s[] r[b]"})), CHAIN)
    assert format_probe_tree(plan, "r") == ["all s[]", "  key s.c t[c] !0"]
    assert format_probe_tree(plan, "t") == ["all s[]", "  key s.b r[b] !0"]


def test_copies_that_went_everywhere_know_only_the_value_of_the_store_they_met():
    #   t ─all▶ s[b]: a row found there lies by s.b, no longer by s.c
    query = make_join(0, "r.b = s.b AND s.c = t.c AND t.c = u.c")
    plan = planned(
        parse_choice((query, {"r": "s[b] t[c] u[c]", "s": "r[b] t[c] u[c]", "t": "s[b] u[c] r[b]", "u": "t[c] s[b] r[b]"})), query
    )
    assert format_probe_tree(plan, "t") == ["all s[b]", "  key t.c u[c]", "    key s.b r[b] !0"]
    assert format_probe_tree(plan, "u") == ["stored t[c]", "  all s[b]", "    local r[b] !0"]


def test_a_comparison_names_no_partition():
    query = make_join(0, "r.b < s.b")
    plan = planned(parse_choice((query, {"r": "s[]", "s": "r[]"})), query)
    assert format_probe_tree(plan, "r") == ["all s[] !0"]
    assert format_probe_tree(plan, "s") == ["all r[] !0"]


def test_in_one_partition_everything_is_there():
    plan = planned(parse_choice((CHAIN, FLAT)), CHAIN, partitions=1)
    assert format_probe_tree(plan, "r") == ["stored s[b]", "  local t[c] !0"]
    assert format_probe_tree(plan, "t") == ["stored s[b]", "  local r[b] !0"]
    assert plan.last_level == 0


# ------------------------------------------------------------------------------------------------------------------------ levels


def test_every_exchange_is_a_level():
    #   r ─▶ s ─exchange─▶ t ─exchange─▶ u
    query = make_join(0, "r.b = s.b AND s.c = t.c AND t.d = u.d")
    plan = planned(
        parse_choice((query, {"r": "s[b] t[c] u[d]", "s": "r[b] t[c] u[d]", "t": "u[d] s[b] r[b]", "u": "t[c] s[b] r[b]"})), query
    )
    (root,) = plan.root_probes["r"]
    assert [probe.level for probe in root.walk()] == [0, 1, 2]
    (other,) = plan.root_probes["u"]
    assert [(probe.routing.kind.value, probe.level) for probe in other.walk()] == [("all", 0), ("all", 1), ("local", 1)]
    assert plan.last_level == 2


def test_what_is_kept_is_there_one_level_after_it_was_made():
    plan = planned(parse_choice((CHAIN, BY_ST), materialized=KEPT), CHAIN)
    assert format_probe_tree(plan, "r") == ["stored st[s.b] !0"]
    assert format_probe_tree(plan, "s") == ["key s.c t[c] →st[s.b]", "  key s.b r[b] !0"]
    assert format_probe_tree(plan, "t") == ["all s[b] →st[s.b]", "  local r[b] !0"]
    feeds = [(name, feed.routing.kind.value, feed.level) for name, probe in plan.probes for feed in probe.feeds]
    assert feeds == [("s", "key", 1), ("t", "local", 1)]  # what t found in s[b] already lies by s.b
    assert plan.last_level == 1


# --------------------------------------------------------------------------------------------------------------- several queries


def test_orders_that_begin_alike_are_one_probe():
    #   r ──▶ s[b] ──▶ t[c]  query 0
    #             └──▶ u[d]  query 1
    other = make_join(1, "r.b = s.b AND s.d = u.d")
    mine = {"r": "s[b] u[d]", "s": "r[b] u[d]", "u": "s[b] r[b]"}
    plan = planned(parse_choice((CHAIN, FLAT), (other, mine)), CHAIN, other)
    assert format_probe_tree(plan, "r") == ["stored s[b]", "  key s.c t[c] !0", "  key s.d u[d] !1"]
    (root,) = plan.root_probes["r"]
    assert root.query_ids == {0, 1}
    assert [child.query_ids for child in root.children] == [{0}, {1}]
    assert len(format_stores(plan)) == 4


def test_equal_queries_are_worked_off_once():
    other = make_join(1, "s.c = t.c AND r.b = s.b", {"r": "1 s"})  # windows are looked at for each of them
    plan = planned(parse_choice((CHAIN, FLAT), (other, FLAT)), CHAIN, other)
    assert format_probe_tree(plan, "r") == ["stored s[b]", "  key s.c t[c] !0 !1"]


def test_the_same_store_by_other_equalities_is_another_probe():
    plain, strict = make_join(0, "r.b = s.b"), make_join(1, "r.b = s.b AND r.d = s.d")
    plan = planned(parse_choice((plain, {"r": "s[b]", "s": "r[b]"}), (strict, {"r": "s[b]", "s": "r[b]"})), plain, strict)
    assert format_probe_tree(plan, "r") == ["stored s[b] !0", "stored s[b] !1"]
    assert [len(root.keys) for root in plan.root_probes["r"]] == [1, 2]


def test_conditions_other_than_equalities_do_not_keep_queries_apart():
    #   comparisons are checked for each pair, for the queries that have them
    other = make_join(1, "r.b = s.b AND r.d < s.d")
    plain = make_join(0, "r.b = s.b")
    plan = planned(parse_choice((plain, {"r": "s[b]", "s": "r[b]"}), (other, {"r": "s[b]", "s": "r[b]"})), plain, other)
    assert format_probe_tree(plan, "r") == ["stored s[b] !0 !1"]


def test_kept_joins_of_other_conditions_are_other_stores():
    strict = make_join(1, "r.b = s.b AND s.c = t.c AND s.d < t.d")
    kept = {**KEPT, strict.join_graph.subgraph("st"): KEPT[ST]}
    plan = planned(parse_choice((CHAIN, BY_ST), (strict, BY_ST), materialized=kept), CHAIN, strict)
    assert [format_store(one) for one in plan.stores].count("st[s.b]") == 2
    assert len({one.relation for one in plan.stores if not one.relation.is_input}) == 2


def test_queries_that_share_nothing_have_stores_of_their_own():
    one, two = (make_join(number, "r.b = s.b", isolated=True) for number in range(2))
    chosen = choose_orders((one, two), None, None)
    plan = plan_sliding_joins((one, two), chosen, 0, 4, {0: 0, 1: 0})
    assert sorted(plan.ranked_relations) == ["r@0", "r@1", "s@0", "s@1"]
    assert plan.streams == {"r@0": "r", "s@0": "s", "r@1": "r", "s@1": "s"}
    assert len(plan.stores) == 4
    assert all(len(probe.query_ids) == 1 for _, probe in plan.probes)


# ------------------------------------------------------------------------------------------------------------------------- ranks


def test_who_looks_into_kept_joins_comes_before_their_inputs():
    #   u looks into r⋈s and so sees only what was there before; nobody has to wait
    query = make_join(0, "r.b = s.b AND s.c = u.c")
    rs = query.join_graph.subgraph("rs")
    chosen = parse_choice(
        (query, {"r": "s[b] u[c]", "s": "r[b] u[c]", "u": "rs[s.c]"}), materialized={rs: {"r": "s[b]", "s": "r[b]"}}
    )
    plan = planned(chosen, query)
    assert plan.ranked_relations == ("u", "r", "s")
    assert [plan.get_visible_mask(name) for name in plan.ranked_relations] == [0b000, 0b001, 0b011]
    assert [plan.get_delta_bit(name) for name in plan.ranked_relations] == [0b001, 0b010, 0b100]
    (root,) = plan.root_probes["u"]
    assert root.level == 0


def test_without_kept_joins_ranks_are_by_name():
    assert planned(parse_choice((CHAIN, FLAT)), CHAIN).ranked_relations == ("r", "s", "t")


def test_joins_that_use_each_other_wait_for_those_ranked_first():
    #   r looks into s⋈t, t into r⋈s: r comes first, and t must see the pairs that new rows of r have made in this batch
    rs = CHAIN.join_graph.subgraph("rs")
    chosen = parse_choice(
        (CHAIN, {"r": "st[s.b]", "s": "r[b] t[c]", "t": "rs[s.c]"}), materialized={**KEPT, rs: {"r": "s[b]", "s": "r[b]"}}
    )
    plan = planned(chosen, CHAIN)
    assert plan.ranked_relations == ("r", "t", "s")
    waits_for_what_it_sees(plan)
    assert format_probe_tree(plan, "t") == ["stored rs[s.c] !0", "all s[b] →st[s.b]"]
    assert [probe.level for probe in plan.root_probes["t"]] == [1, 0]
    assert [probe.level for probe in plan.root_probes["r"]] == [0, 0]


def waits_for_what_it_sees(plan: SlidingJoinPlan) -> None:
    """Assert that a probe of a kept join comes after everything was fed to it that rows of its start may see."""
    feeds = [(name, feed.store_number, feed.level) for name, probe in plan.probes for feed in probe.feeds]
    for start, probe in plan.probes:
        for name, store, level in feeds:
            if (
                store == probe.store_number
                and probe.before_batch is None
                and plan.ranked_relations.index(name) < plan.ranked_relations.index(start)
            ):
                assert probe.level >= level, (start, name)
    for _, probe in plan.probes:
        for child in probe.children:
            assert child.level >= probe.level + (child.routing.kind.value != "local")


# ------------------------------------------------------------------------------------------------------------------ other stores


def test_nothing_changes_when_nothing_changed():
    chosen = parse_choice((CHAIN, BY_ST), materialized=KEPT)
    plan = planned(chosen, CHAIN)
    later = planned(chosen, CHAIN, batch=9, previous=plan, oldest={"r[b]": 1, "s[b]": 1, "t[c]": 1, "st[s.b]": 2})
    assert later == plan
    assert not later.is_transitional


def test_a_store_that_is_partitioned_otherwise():
    #   batch    0 ── 1 ── … ── 6 │ 7 ── 8 ──
    #   s[b]     ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓ │                  no longer filled, still probed
    #   s[c]                      │ ▓▓▓▓▓▓▓▓
    before = planned(parse_choice((CHAIN, {"r": "s[b] t[c]", "s": "r[b] t[c]", "t": "s[b] r[b]"})), CHAIN)
    after = {"r": "s[c] t[c]", "s": "r[b] t[c]", "t": "s[c] r[b]"}
    old = {"s[b]": 3, "r[b]": 3, "t[c]": 3}
    plan = planned(parse_choice((CHAIN, after)), CHAIN, batch=7, previous=before, oldest=old)
    assert format_stores(plan) == ["s[b] since 0 until 7", "t[c] since 0", "r[b] since 0", "s[c] since 7"]
    assert [format_store(one) for one in plan.find_filled_stores("s")] == ["s[c]"]
    assert format_probe_tree(plan, "t") == ["stored s[c]", "  key s.b r[b] !0", "all s[b]*<7", "  local r[b] !0"]
    assert plan.is_transitional
    # while rows are left, it stays as it is
    assert planned(parse_choice((CHAIN, after)), CHAIN, batch=8, previous=plan, oldest={**old, "s[c]": 7}) == plan
    # then it is gone
    clean = planned(parse_choice((CHAIN, after)), CHAIN, batch=12, previous=plan, oldest={"s[c]": 7, "r[b]": 8, "t[c]": 8})
    assert format_stores(clean) == ["t[c] since 0", "r[b] since 0", "s[c] since 7"]
    assert format_probe_tree(clean, "t") == ["stored s[c]", "  key s.b r[b] !0"]
    assert not clean.is_transitional
    assert clean.next_store_number == plan.next_store_number


def test_a_store_whose_rows_are_gone_is_dropped_at_once():
    before = planned(parse_choice((CHAIN, FLAT)), CHAIN)
    after = parse_choice((CHAIN, {"r": "s[c] t[c]", "s": "r[b] t[c]", "t": "s[c] r[b]"}))
    plan = planned(after, CHAIN, batch=7, previous=before, oldest={"r[b]": 6})
    assert "s[b] since 0 until 7" not in format_stores(plan)
    assert not plan.is_transitional


def test_a_store_that_comes_back_is_a_new_one():
    #   batch    0 ──── 4 │ 5 ──── 8 │ 9 ──
    #   s[b]     ▓▓▓▓▓▓▓▓ │          │ ▓▓▓▓     two stores: rows of 5 … 8 are in neither
    #   s[c]              │ ▓▓▓▓▓▓▓▓ │
    other = parse_choice((CHAIN, {"r": "s[c] t[c]", "s": "r[b] t[c]", "t": "s[c] r[b]"}))
    first = planned(parse_choice((CHAIN, FLAT)), CHAIN)
    second = planned(other, CHAIN, batch=5, previous=first, oldest={"s[b]": 0, "r[b]": 0, "t[c]": 0})
    there = {"s[b]": 0, "s[c]": 5, "r[b]": 0, "t[c]": 0}
    third = planned(parse_choice((CHAIN, FLAT)), CHAIN, batch=9, previous=second, oldest=there)
    assert format_stores(third) == [
        "s[b] since 0 until 5",
        "t[c] since 0",
        "r[b] since 0",
        "s[c] since 5 until 9",
        "s[b] since 9",
    ]
    assert format_probe_tree(third, "t") == [
        "all s[b]",
        "  local r[b] !0",
        "stored s[c]*<9",
        "  key s.b r[b] !0",
        "all s[b]*<5",
        "  local r[b] !0",
    ]


def test_a_query_that_came_later_does_not_look_into_what_was_before_it():
    #   s[b] ran dry in batch 5, query 1 is there since batch 5
    other = make_join(1, "s.c = u.c")
    first = planned(parse_choice((CHAIN, FLAT)), CHAIN)
    chosen = parse_choice((CHAIN, {"r": "s[c] t[c]", "s": "r[b] t[c]", "t": "s[c] r[b]"}), (other, {"s": "u[c]", "u": "s[c]"}))
    oldest = {"s[b]": 0, "r[b]": 0, "t[c]": 0}
    plan = planned(chosen, CHAIN, other, batch=5, born={1: 5}, previous=first, oldest=oldest)
    assert format_probe_tree(plan, "u") == ["stored s[c] !1"]
    assert format_probe_tree(plan, "t")[2] == "all s[b]*<5"


def test_a_store_beside_one_that_is_there_is_enough_when_old_rows_are_gone():
    #   batch    0 ── … ── 6 │ 7 ── 8 ── … ── 12
    #   s[b]     ▓▓▓▓▓▓▓▓▓▓▓ │ ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓      r still probes it
    #   s[c]                 │ ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓      t probes it, and s[b] for what came before
    first = planned(parse_choice((CHAIN, FLAT)), CHAIN)
    both = parse_choice((CHAIN, {**FLAT, "t": "s[c] r[b]"}))
    second = planned(both, CHAIN, batch=7, previous=first, oldest={"s[b]": 3, "r[b]": 3, "t[c]": 3})
    assert format_probe_tree(second, "t") == ["stored s[c]", "  key s.b r[b] !0", "all s[b]<7", "  local r[b] !0"]
    assert [format_store(one) for one in second.find_filled_stores("s")] == ["s[b]", "s[c]"]
    third = planned(both, CHAIN, batch=12, previous=second, oldest={"s[b]": 7, "s[c]": 7, "r[b]": 7, "t[c]": 7})
    assert format_probe_tree(third, "t") == ["stored s[c]", "  key s.b r[b] !0"]
    assert not third.is_transitional


def test_rows_that_nobody_probes_are_stored_all_the_same():
    #   they may have to be found when orders change
    plan = planned(ProbeOrderChoice({}), CHAIN)
    assert format_stores(plan) == ["r[] since 0", "s[] since 0", "t[] since 0"]
    assert format_probe_tree(plan, "r") == []
    before = planned(parse_choice((CHAIN, FLAT)), CHAIN)
    later = planned(ProbeOrderChoice({}), CHAIN, batch=3, previous=before, oldest={"r[b]": 0, "s[b]": 0, "t[c]": 0})
    assert sorted(format_stores(later)) == ["r[b] since 0", "s[b] since 0", "t[c] since 0"]


def test_a_store_by_what_no_live_query_looks_at_is_replaced():
    #   query 0 (s.c = t.c) goes; the store s[c] that query 1 used too has rows that do not lie by s.b
    first, other = make_join(0, "s.c = t.c"), make_join(1, "r.b = s.b")
    both = parse_choice((first, {"s": "t[c]", "t": "s[c]"}), (other, {"r": "s[c]", "s": "r[b]"}))
    before = planned(both, first, other)
    assert format_probe_tree(before, "r") == ["all s[c] !1"]
    chosen = choose_orders((other,), before, None)
    plan = planned(chosen, other, batch=4, previous=before, oldest={"s[c]": 1, "r[b]": 1, "t[c]": 1})
    assert format_stores(plan) == ["s[c] since 0 until 4", "r[b] since 0", "s[b] since 4"]  # t went with its query
    assert format_probe_tree(plan, "r") == ["stored s[b] !1", "all s[c]*<4 !1"]


# ------------------------------------------------------------------------------------------------------------------- kept joins


def begun_later(batch: int = 7) -> SlidingJoinPlan:
    """Query 0 has joined one by one, and looks into s⋈t from a batch on."""
    before = planned(parse_choice((CHAIN, FLAT)), CHAIN)
    old = {"s[b]": 2, "t[c]": 2, "r[b]": 2}
    return planned(parse_choice((CHAIN, BY_ST), materialized=KEPT), CHAIN, batch=batch, previous=before, oldest=old)


def test_a_join_that_is_kept_while_queries_run():
    #   batch    … 5 ── 6 │ 7 ── 8 ──
    #   s        ▓▓▓▓▓▓▓▓ │ ▓▓▓▓▓▓▓▓
    #   t        ▓▓▓▓▓▓▓▓ │ ▓▓▓▓▓▓▓▓
    #   s⋈t               │ ▓▓▓▓▓▓▓▓   all pairs but those of which both rows are older
    plan = begun_later()
    assert format_probe_tree(plan, "r") == ["stored st[s.b] !0", "stored s[b]<7", "  key s.c t[c]<7 !0"]
    assert format_probe_tree(plan, "s") == [
        "key s.c t[c] →st[s.b]",
        "  key s.b r[b] !0",
    ]  # old rows of t go into it with new ones of s
    assert plan.used_since == {3: {0: 7}}
    assert plan.is_transitional


@pytest.mark.parametrize("gone", ["s[b]", "t[c]"])
def test_the_way_around_a_kept_join_ends_with_the_old_rows_of_one_of_its_inputs(gone: str):
    plan = begun_later()
    left = {"s[b]": 5, "t[c]": 5, "r[b]": 5, "st[s.b]": 7, gone: 7}
    clean = planned(parse_choice((CHAIN, BY_ST), materialized=KEPT), CHAIN, batch=9, previous=plan, oldest=left)
    assert format_probe_tree(clean, "r") == ["stored st[s.b] !0"]
    assert clean.used_since == plan.used_since
    assert not clean.is_transitional


def test_a_query_that_is_born_with_a_kept_join_needs_no_way_around_it():
    #   query 1 comes in the batch in which s⋈t is kept: rows of before are none of its business
    other = make_join(1, "r.b = s.b AND s.c = t.c AND r.d < t.d")
    before = planned(parse_choice((CHAIN, FLAT)), CHAIN)
    old = {"s[b]": 2, "t[c]": 2, "r[b]": 2}
    chosen = parse_choice((CHAIN, BY_ST), (other, BY_ST), materialized=KEPT)
    plan = planned(chosen, CHAIN, other, batch=7, born={1: 7}, previous=before, oldest=old)
    (kept,) = (one for one in plan.stores if not one.relation.is_input)
    assert plan.used_since == {kept.number: {0: 7, 1: 7}}
    assert format_probe_tree(plan, "r") == ["stored st[s.b] !0 !1", "stored s[b]<7", "  key s.c t[c]<7 !0"]


def test_a_kept_join_that_a_query_stops_to_use_and_uses_again():
    #   batch     0 ─── 3 │ 4 ─── 7 │ 8 ──
    #   query 0   ▓▓▓▓▓▓▓ │         │ ▓▓▓▓▓   what lies in s⋈t since 0 has no bits of query 0 for 4 … 7, so it begins anew
    #   query 1   ▓▓▓▓▓▓▓ │ ▓▓▓▓▓▓▓ │ ▓▓▓▓▓
    other = make_join(1, "r.b = s.b AND s.c = t.c AND r.d < t.d")
    both = parse_choice((CHAIN, BY_ST), (other, BY_ST), materialized=KEPT)
    first = planned(both, CHAIN, other)
    (kept,) = (one.number for one in first.stores if not one.relation.is_input)
    assert first.used_since == {kept: {0: 0, 1: 0}}
    there = {"s[b]": 0, "t[c]": 0, "r[b]": 0, "st[s.b]": 0}
    second = planned(
        parse_choice((CHAIN, FLAT), (other, BY_ST), materialized=KEPT), CHAIN, other, batch=4, previous=first, oldest=there
    )
    assert second.used_since == {kept: {1: 0}}
    assert format_probe_tree(second, "r") == ["stored s[b]", "  key s.c t[c] !0", "stored st[s.b] !1"]
    third = planned(both, CHAIN, other, batch=8, previous=second, oldest=there)
    assert third.used_since == {kept: {0: 8, 1: 0}}
    assert format_probe_tree(third, "r") == ["stored st[s.b] !0 !1", "stored s[b]<8", "  key s.c t[c]<8 !0"]


def test_a_kept_join_that_nobody_uses_is_gone_at_once():
    #   all it has is in the stores of its inputs
    plan = planned(parse_choice((CHAIN, BY_ST), materialized=KEPT), CHAIN)
    there = {"s[b]": 0, "t[c]": 0, "r[b]": 0, "st[s.b]": 0}
    later = planned(parse_choice((CHAIN, FLAT), materialized=KEPT), CHAIN, batch=4, previous=plan, oldest=there)
    assert sorted(map(format_store, later.stores)) == ["r[b]", "s[b]", "t[c]"]
    assert later.used_since == {}
    assert not later.is_transitional


def test_a_kept_join_over_stores_that_change_too():
    #   batch    … 3 │ 4 … 6 │ 7 …
    #   s[b]     ▓▓▓ │       │             r looks for pairs of old rows of s and t,
    #   s[c]         │ ▓▓▓▓▓ │ ▓▓▓▓        wherever those of s are
    #   s⋈t          │       │ ▓▓▓▓
    first = planned(parse_choice((CHAIN, FLAT)), CHAIN)
    moved = {"r": "s[c] t[c]", "s": "r[b] t[c]", "t": "s[c] r[b]"}
    second = planned(parse_choice((CHAIN, moved)), CHAIN, batch=4, previous=first, oldest={"s[b]": 1, "t[c]": 1, "r[b]": 1})
    chosen = parse_choice((CHAIN, {**moved, "r": "st[s.b]"}), materialized={ST: {"s": "t[c]", "t": "s[c]"}})
    there = {"s[b]": 1, "s[c]": 4, "t[c]": 1, "r[b]": 1}
    third = planned(chosen, CHAIN, batch=7, previous=second, oldest=there)
    assert format_probe_tree(third, "r") == [
        "stored st[s.b] !0",
        "all s[c]<7",
        "  local t[c]<7 !0",
        "stored s[b]*<4",
        "  key s.c t[c]<7 !0",
    ]
    assert format_probe_tree(third, "t") == [
        "stored s[c] →st[s.b]",
        "  key s.b r[b] !0",
        "all s[b]*<4 →st[s.b]",
        "  local r[b] !0",
    ]


def test_stores_that_change_after_a_join_is_kept():
    #   batch    … 3 │ 4 … 6 │ 7 …
    #   s[b]     ▓▓▓ │ ▓▓▓▓▓ │             around s⋈t only rows of before 4 are looked for, though s[c] begins with 7
    #   s[c]         │       │ ▓▓▓▓
    #   s⋈t          │ ▓▓▓▓▓ │ ▓▓▓▓
    first = planned(parse_choice((CHAIN, FLAT)), CHAIN)
    second = planned(
        parse_choice((CHAIN, BY_ST), materialized=KEPT), CHAIN, batch=4, previous=first, oldest={"s[b]": 1, "t[c]": 1, "r[b]": 1}
    )
    chosen = parse_choice((CHAIN, {**BY_ST, "t": "s[c] r[b]"}), materialized={ST: {"s": "t[c]", "t": "s[c]"}})
    there = {"s[b]": 1, "t[c]": 1, "r[b]": 1, "st[s.b]": 4}
    third = planned(chosen, CHAIN, batch=7, previous=second, oldest=there)
    assert format_probe_tree(third, "r") == ["stored st[s.b] !0", "stored s[b]*<4", "  key s.c t[c]<4 !0"]


def test_joins_that_make_other_joins_are_kept_with_them():
    #   u looks into r⋈s⋈t, which is made by way of s⋈t
    query = make_join(0, "r.b = s.b AND s.c = t.c AND t.d = u.d")
    st, rst = query.join_graph.subgraph("st"), query.join_graph.subgraph("rst")
    kept = {st: {"s": "t[c]", "t": "s[b]"}, rst: {"r": "st[s.b]", "s": "t[c] r[b]", "t": "s[b] r[b]"}}
    mine = {"r": "s[b] t[c] u[d]", "s": "r[b] t[c] u[d]", "t": "u[d] s[b] r[b]", "u": "rst[t.d]"}
    plan = planned(parse_choice((query, mine), materialized=kept), query)
    assert {format_store(one) for one in plan.stores if not one.relation.is_input} == {"st[s.b]", "rst[t.d]"}
    assert all(found == {0: 0} for found in plan.used_since.values())
    assert plan.ranked_relations == ("u", "r", "s", "t")
    waits_for_what_it_sees(plan)


# ---------------------------------------------------------------------------------- whatever the changes, each partner once


LIFE = 4  # rows expire after so many batches


@dataclass
class Model:
    """Plans of batch after batch, and where rows would be: rows of each relation are told apart by their batch only."""

    random: Random
    partitions: int
    queries: dict[int, tuple[NormalizedJoin, int]] = field(default_factory=dict)
    plan: SlidingJoinPlan | None = None

    def replan(self, batch: int) -> SlidingJoinPlan:
        queries = tuple(one for one, _ in self.queries.values())
        decided = self._decided(queries) if self.random.random() < 0.6 else None
        chosen = choose_orders(queries, self.plan, decided)
        oldest = {one.number: min(found) for one in (self.plan.stores if self.plan else ()) if (found := self.births(one, batch))}
        born = {number: first for number, (_, first) in self.queries.items()}
        self.plan = plan_sliding_joins(queries, chosen, batch, self.partitions, born, self.plan, oldest)
        return self.plan

    def births(self, store: StoreSpec, batch: int) -> range:
        """The batches of rows that a store has; of joins, those of their newest rows."""
        return range(max(store.from_batch, batch - LIFE), batch if store.until_batch is None else store.until_batch)

    def _decided(self, queries: tuple[NormalizedJoin, ...]) -> ProbeOrderChoice:
        kept: dict[JoinGraph, OrdersByRelation] = {}
        chosen = {one.id: self._orders(one.join_graph, kept) for one in queries if self.random.random() < 0.7}
        return ProbeOrderChoice(chosen, kept)

    def _orders(self, join: JoinGraph, kept: dict[JoinGraph, OrdersByRelation]) -> OrdersByRelation:
        return {start: self._order(join, start, kept) for start in sorted(join.relations)}

    def _order(self, join: JoinGraph, start: str, kept: dict[JoinGraph, OrdersByRelation]) -> tuple[ProbeTarget, ...]:
        rest, found = self.random.sample(sorted(join.relations - {start}), len(join.relations) - 1), []
        while rest:
            names, rest = rest[: (size := self.random.choice((1, 1, 2)))], rest[size:]
            part = join.subgraph(names)
            if len(names) > 1 and part not in kept:
                kept[part] = {}
                kept[part] = self._orders(part, kept)
            sides = {
                s for one in join.predicates_between(names, join.relations - set(names)) for s in one.sides if s.relation in names
            }
            found.append(ProbeTarget(part, self.random.choice([None, *sorted(sides)])))
        return tuple(found)

    def check(self, batch: int) -> None:
        """Every combination of rows that are there, and that a query has seen, is found along exactly one route."""
        assert self.plan is not None
        waits_for_what_it_sees(self.plan)
        stored = {one.number: one for one in self.plan.stores}
        for number, (query, born) in self.queries.items():
            for start, roots in self.plan.root_probes.items():
                if start in query.inputs:
                    others = sorted(set(query.inputs) - {start})
                    for births in product(range(max(born, batch - LIFE), batch), repeat=len(others)):
                        found = self._found(roots, stored, number, dict(zip(others, births, strict=True)))
                        assert found == 1, (batch, number, start, others, births, format_probe_tree(self.plan, start))

    def _found(self, probes: Sequence[ProbeStep], stored: Mapping[int, StoreSpec], query: int, births: Mapping[str, int]) -> int:
        assert self.plan is not None
        count = 0
        for probe in probes:
            store = stored[probe.store_number]
            if query not in probe.query_ids or not store.relation.relations <= births.keys():
                continue
            newest = max(births[name] for name in store.relation.relations)
            since = self.plan.used_since[store.number][query] if store.number in self.plan.used_since else store.from_batch
            until = min(one for one in (store.until_batch, probe.before_batch, 1 << 30) if one is not None)
            if since <= newest < until:
                rest = {name: found for name, found in births.items() if name not in store.relation.relations}
                count += (query in probe.completed_queries) if not rest else self._found(probe.children, stored, query, rest)
        return count


TEXTS = ("r.b = s.b AND s.c = t.c", "s.c = t.c AND t.d = u.d", "r.b = s.b", "r.b = s.b AND s.c = t.c AND t.d = u.d", "r.a < u.a")


@pytest.mark.parametrize("seed", range(5))
def test_each_partner_is_found_once_however_often_plans_change(seed: int):
    random = Random(seed)
    model = Model(random, random.choice((1, 4)))
    for batch in range(16):
        if len(model.queries) < 3 and (random.random() < 0.3 or not model.queries):
            model.queries[batch] = make_join(batch, random.choice(TEXTS)), batch
        elif len(model.queries) > 1 and random.random() < 0.15:
            del model.queries[random.choice(list(model.queries))]
        model.replan(batch)
        model.check(batch)
