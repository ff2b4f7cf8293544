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
MATERIALIZED = {ST: {"s": "t[c]", "t": "s[b]"}}


def plan_joins(
    chosen: ProbeOrderChoice,
    *queries: NormalizedJoin,
    batch: int = 0,
    partitions: int = 4,
    born: Mapping[int, int] | None = None,
    previous: SlidingJoinPlan | None = None,
    oldest: Mapping[str, int] | None = None,
) -> SlidingJoinPlan:
    """Plan joins; `oldest` has the oldest batch of each store of the previous plan, `born` the first batch of each query."""
    known = {format_store(store): store.number for store in previous.stores} if previous is not None else {}
    oldest_batches = {known[name]: first for name, first in (oldest or {}).items()}
    births = {query.id: (born or {}).get(query.id, 0) for query in queries}
    return plan_sliding_joins(queries, chosen, batch, partitions, births, previous, oldest_batches)


# -------------------------------------------------------------------------------------------------------------------------- edges


def test_rows_are_routed_by_key_or_to_all_partitions():
    #   r ─b─ s ─c─ t        s is stored by s.b: rows of r have this value, rows of t do not
    plan = plan_joins(parse_choice((CHAIN, FLAT)), CHAIN)
    assert format_probe_tree(plan, "r") == [
        "stored s[b]",
        "  key s.c t[c] !0",
    ]  # r is stored by r.b = s.b: its rows are in the right partition
    assert format_probe_tree(plan, "s") == ["stored r[b]", "  key s.c t[c] !0"]
    assert format_probe_tree(plan, "t") == ["all s[b]", "  local r[b] !0"]  # rows found in s[b] are partitioned by s.b = r.b
    assert format_stores(plan) == ["s[b] since 0", "t[c] since 0", "r[b] since 0"]


def test_new_rows_are_routed_by_the_probed_key_if_no_store_has_it():
    plan = plan_joins(parse_choice((CHAIN, {"r": "s[b] t[c]", "s": "t[c] r[b]", "t": "s[c] r[b]"})), CHAIN)
    assert format_probe_tree(plan, "s") == [
        "stored t[c]",
        "  key s.b r[b] !0",
    ]  # s is stored twice; the store s[c] has the rows in the right partition
    assert {format_store(store) for store in plan.find_filled_stores("s")} == {"s[b]", "s[c]"}
    alone = plan_joins(parse_choice((CHAIN, {"r": "s[b] t[c]", "s": "t[c] r[b]", "t": "s[b] r[b]"})), CHAIN)
    assert format_probe_tree(alone, "s") == ["key s.c t[c]", "  key s.b r[b] !0"]


def test_equal_keys_of_different_relations_have_the_same_partition():
    #   r.b = s.b = t.b: rows routed by one of them need no further routing
    query = make_join(0, "r.b = s.b AND s.b = t.b")
    plan = plan_joins(parse_choice((query, {"r": "s[b] t[b]", "s": "r[b] t[b]", "t": "s[b] r[b]"})), query)
    assert format_probe_tree(plan, "r") == ["stored s[b]", "  local t[b] !0"]
    assert format_probe_tree(plan, "t") == ["stored s[b]", "  local r[b] !0"]
    assert plan.last_level == 0


def test_an_unpartitioned_store_is_probed_in_all_partitions():
    plan = plan_joins(parse_choice((CHAIN, {"r": "s[] t[c]", "s": "r[b] t[c]", "t": "s[] r[b]"})), CHAIN)
    assert format_probe_tree(plan, "r") == ["all s[]", "  key s.c t[c] !0"]
    assert format_probe_tree(plan, "t") == ["all s[]", "  key s.b r[b] !0"]


def test_broadcast_rows_are_partitioned_by_the_key_of_the_probed_store():
    #   t ─all▶ s[b]: a row found there is partitioned by s.b, no longer by s.c
    query = make_join(0, "r.b = s.b AND s.c = t.c AND t.c = u.c")
    plan = plan_joins(
        parse_choice((query, {"r": "s[b] t[c] u[c]", "s": "r[b] t[c] u[c]", "t": "s[b] u[c] r[b]", "u": "t[c] s[b] r[b]"})), query
    )
    assert format_probe_tree(plan, "t") == ["all s[b]", "  key t.c u[c]", "    key s.b r[b] !0"]
    assert format_probe_tree(plan, "u") == ["stored t[c]", "  all s[b]", "    local r[b] !0"]


def test_a_comparison_probes_all_partitions():
    query = make_join(0, "r.b < s.b")
    plan = plan_joins(parse_choice((query, {"r": "s[]", "s": "r[]"})), query)
    assert format_probe_tree(plan, "r") == ["all s[] !0"]
    assert format_probe_tree(plan, "s") == ["all r[] !0"]


def test_with_one_partition_all_probes_are_local():
    plan = plan_joins(parse_choice((CHAIN, FLAT)), CHAIN, partitions=1)
    assert format_probe_tree(plan, "r") == ["stored s[b]", "  local t[c] !0"]
    assert format_probe_tree(plan, "t") == ["stored s[b]", "  local r[b] !0"]
    assert plan.last_level == 0


# ------------------------------------------------------------------------------------------------------------------------- levels


def test_every_shuffle_adds_a_level():
    #   r ─▶ s ─shuffle─▶ t ─shuffle─▶ u
    query = make_join(0, "r.b = s.b AND s.c = t.c AND t.d = u.d")
    plan = plan_joins(
        parse_choice((query, {"r": "s[b] t[c] u[d]", "s": "r[b] t[c] u[d]", "t": "u[d] s[b] r[b]", "u": "t[c] s[b] r[b]"})), query
    )
    (root,) = plan.root_probes["r"]
    assert [probe.level for probe in root.walk()] == [0, 1, 2]
    (other,) = plan.root_probes["u"]
    assert [(probe.routing.kind.value, probe.level) for probe in other.walk()] == [("all", 0), ("all", 1), ("local", 1)]
    assert plan.last_level == 2


def test_a_materialized_join_is_fed_one_level_after_its_probe():
    plan = plan_joins(parse_choice((CHAIN, BY_ST), materialized=MATERIALIZED), CHAIN)
    assert format_probe_tree(plan, "r") == ["stored st[s.b] !0"]
    assert format_probe_tree(plan, "s") == ["key s.c t[c] →st[s.b]", "  key s.b r[b] !0"]
    assert format_probe_tree(plan, "t") == ["all s[b] →st[s.b]", "  local r[b] !0"]
    feeds = [(name, feed.routing.kind.value, feed.level) for name, probe in plan.probes for feed in probe.feeds]
    assert feeds == [("s", "key", 1), ("t", "local", 1)]  # rows that t found in s[b] are partitioned by s.b already
    assert plan.last_level == 1


# ---------------------------------------------------------------------------------------------------------------- several queries


def test_orders_with_equal_prefixes_share_a_probe():
    #   r ──▶ s[b] ──▶ t[c]  query 0
    #             └──▶ u[d]  query 1
    other = make_join(1, "r.b = s.b AND s.d = u.d")
    orders = {"r": "s[b] u[d]", "s": "r[b] u[d]", "u": "s[b] r[b]"}
    plan = plan_joins(parse_choice((CHAIN, FLAT), (other, orders)), CHAIN, other)
    assert format_probe_tree(plan, "r") == ["stored s[b]", "  key s.c t[c] !0", "  key s.d u[d] !1"]
    (root,) = plan.root_probes["r"]
    assert root.query_ids == {0, 1}
    assert [child.query_ids for child in root.children] == [{0}, {1}]
    assert len(format_stores(plan)) == 4


def test_equal_queries_share_all_probes():
    other = make_join(1, "s.c = t.c AND r.b = s.b", {"r": "1 s"})  # windows are checked for each query
    plan = plan_joins(parse_choice((CHAIN, FLAT), (other, FLAT)), CHAIN, other)
    assert format_probe_tree(plan, "r") == ["stored s[b]", "  key s.c t[c] !0 !1"]


def test_probes_with_different_equalities_are_not_shared():
    plain, strict = make_join(0, "r.b = s.b"), make_join(1, "r.b = s.b AND r.d = s.d")
    plan = plan_joins(parse_choice((plain, {"r": "s[b]", "s": "r[b]"}), (strict, {"r": "s[b]", "s": "r[b]"})), plain, strict)
    assert format_probe_tree(plan, "r") == ["stored s[b] !0", "stored s[b] !1"]
    assert [len(root.keys) for root in plan.root_probes["r"]] == [1, 2]


def test_queries_that_differ_in_comparisons_share_probes():
    #   comparisons are checked for each pair and query
    other = make_join(1, "r.b = s.b AND r.d < s.d")
    plain = make_join(0, "r.b = s.b")
    plan = plan_joins(parse_choice((plain, {"r": "s[b]", "s": "r[b]"}), (other, {"r": "s[b]", "s": "r[b]"})), plain, other)
    assert format_probe_tree(plan, "r") == ["stored s[b] !0 !1"]


def test_materialized_joins_with_different_conditions_have_different_stores():
    strict = make_join(1, "r.b = s.b AND s.c = t.c AND s.d < t.d")
    materialized = {**MATERIALIZED, strict.join_graph.subgraph("st"): MATERIALIZED[ST]}
    plan = plan_joins(parse_choice((CHAIN, BY_ST), (strict, BY_ST), materialized=materialized), CHAIN, strict)
    assert [format_store(store) for store in plan.stores].count("st[s.b]") == 2
    assert len({store.relation for store in plan.stores if not store.relation.is_input}) == 2


def test_isolated_queries_have_separate_stores():
    first, second = (make_join(number, "r.b = s.b", isolated=True) for number in range(2))
    chosen = choose_orders((first, second), None, None)
    plan = plan_sliding_joins((first, second), chosen, 0, 4, {0: 0, 1: 0})
    assert sorted(plan.ranked_relations) == ["r@0", "r@1", "s@0", "s@1"]
    assert plan.streams == {"r@0": "r", "s@0": "s", "r@1": "r", "s@1": "s"}
    assert len(plan.stores) == 4
    assert all(len(probe.query_ids) == 1 for _, probe in plan.probes)


# -------------------------------------------------------------------------------------------------------------------------- ranks


def test_relations_that_probe_materialized_joins_rank_before_their_inputs():
    #   u probes r⋈s before the batch changes it; no probe has to wait
    query = make_join(0, "r.b = s.b AND s.c = u.c")
    rs = query.join_graph.subgraph("rs")
    chosen = parse_choice(
        (query, {"r": "s[b] u[c]", "s": "r[b] u[c]", "u": "rs[s.c]"}), materialized={rs: {"r": "s[b]", "s": "r[b]"}}
    )
    plan = plan_joins(chosen, query)
    assert plan.ranked_relations == ("u", "r", "s")
    visible = [plan.find_visible_relations(name, frozenset({"r", "s"})) for name in plan.ranked_relations]
    assert visible == [frozenset(), frozenset(), {"r"}]
    assert plan.assign_delta_bits() == {"u": 0, "r": 1, "s": 2}
    (root,) = plan.root_probes["u"]
    assert root.level == 0


def test_without_materialized_joins_relations_are_ranked_by_name():
    assert plan_joins(parse_choice((CHAIN, FLAT)), CHAIN).ranked_relations == ("r", "s", "t")


def test_probes_of_mutually_dependent_joins_wait_for_relations_ranked_first():
    #   r probes s⋈t, t probes r⋈s: r ranks first, and t must see the pairs that new rows of r add in this batch
    rs = CHAIN.join_graph.subgraph("rs")
    chosen = parse_choice(
        (CHAIN, {"r": "st[s.b]", "s": "r[b] t[c]", "t": "rs[s.c]"}), materialized={**MATERIALIZED, rs: {"r": "s[b]", "s": "r[b]"}}
    )
    plan = plan_joins(chosen, CHAIN)
    assert plan.ranked_relations == ("r", "t", "s")
    assert_probes_follow_feeds(plan)
    assert format_probe_tree(plan, "t") == ["stored rs[s.c] !0", "all s[b] →st[s.b]"]
    assert [probe.level for probe in plan.root_probes["t"]] == [1, 0]
    assert [probe.level for probe in plan.root_probes["r"]] == [0, 0]


def assert_probes_follow_feeds(plan: SlidingJoinPlan) -> None:
    """Assert that a probe of a materialized join runs after all feeds whose rows it may see."""
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


# ----------------------------------------------------------------------------------------------------------------- changed stores


def test_an_equal_choice_gives_the_same_plan():
    chosen = parse_choice((CHAIN, BY_ST), materialized=MATERIALIZED)
    plan = plan_joins(chosen, CHAIN)
    later = plan_joins(chosen, CHAIN, batch=9, previous=plan, oldest={"r[b]": 1, "s[b]": 1, "t[c]": 1, "st[s.b]": 2})
    assert later == plan
    assert not later.is_transitional


def test_a_repartitioned_store_is_replaced_by_a_new_store():
    #   batch    0 ── 1 ── … ── 6 │ 7 ── 8 ──
    #   s[b]     ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓ │                  no longer filled, still probed
    #   s[c]                      │ ▓▓▓▓▓▓▓▓
    before = plan_joins(parse_choice((CHAIN, {"r": "s[b] t[c]", "s": "r[b] t[c]", "t": "s[b] r[b]"})), CHAIN)
    after = {"r": "s[c] t[c]", "s": "r[b] t[c]", "t": "s[c] r[b]"}
    old = {"s[b]": 3, "r[b]": 3, "t[c]": 3}
    plan = plan_joins(parse_choice((CHAIN, after)), CHAIN, batch=7, previous=before, oldest=old)
    assert format_stores(plan) == ["s[b] since 0 until 7", "t[c] since 0", "r[b] since 0", "s[c] since 7"]
    assert [format_store(store) for store in plan.find_filled_stores("s")] == ["s[c]"]
    assert format_probe_tree(plan, "t") == ["stored s[c]", "  key s.b r[b] !0", "all s[b]*<7", "  local r[b] !0"]
    assert plan.is_transitional
    # the plan stays while the old store has rows
    assert plan_joins(parse_choice((CHAIN, after)), CHAIN, batch=8, previous=plan, oldest={**old, "s[c]": 7}) == plan
    # then the old store is dropped
    clean = plan_joins(parse_choice((CHAIN, after)), CHAIN, batch=12, previous=plan, oldest={"s[c]": 7, "r[b]": 8, "t[c]": 8})
    assert format_stores(clean) == ["t[c] since 0", "r[b] since 0", "s[c] since 7"]
    assert format_probe_tree(clean, "t") == ["stored s[c]", "  key s.b r[b] !0"]
    assert not clean.is_transitional
    assert clean.next_store_number == plan.next_store_number


def test_an_empty_old_store_is_dropped_at_once():
    before = plan_joins(parse_choice((CHAIN, FLAT)), CHAIN)
    after = parse_choice((CHAIN, {"r": "s[c] t[c]", "s": "r[b] t[c]", "t": "s[c] r[b]"}))
    plan = plan_joins(after, CHAIN, batch=7, previous=before, oldest={"r[b]": 6})
    assert "s[b] since 0 until 7" not in format_stores(plan)
    assert not plan.is_transitional


def test_a_store_that_returns_to_its_old_partitioning_is_a_new_store():
    #   batch    0 ──── 4 │ 5 ──── 8 │ 9 ──
    #   s[b]     ▓▓▓▓▓▓▓▓ │          │ ▓▓▓▓     two stores: rows of 5 … 8 are in neither
    #   s[c]              │ ▓▓▓▓▓▓▓▓ │
    other = parse_choice((CHAIN, {"r": "s[c] t[c]", "s": "r[b] t[c]", "t": "s[c] r[b]"}))
    first = plan_joins(parse_choice((CHAIN, FLAT)), CHAIN)
    second = plan_joins(other, CHAIN, batch=5, previous=first, oldest={"s[b]": 0, "r[b]": 0, "t[c]": 0})
    oldest = {"s[b]": 0, "s[c]": 5, "r[b]": 0, "t[c]": 0}
    third = plan_joins(parse_choice((CHAIN, FLAT)), CHAIN, batch=9, previous=second, oldest=oldest)
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


def test_a_new_query_does_not_probe_stores_that_ended_before_it():
    #   s[b] ends in batch 5, query 1 starts in batch 5
    other = make_join(1, "s.c = u.c")
    first = plan_joins(parse_choice((CHAIN, FLAT)), CHAIN)
    chosen = parse_choice((CHAIN, {"r": "s[c] t[c]", "s": "r[b] t[c]", "t": "s[c] r[b]"}), (other, {"s": "u[c]", "u": "s[c]"}))
    oldest = {"s[b]": 0, "r[b]": 0, "t[c]": 0}
    plan = plan_joins(chosen, CHAIN, other, batch=5, born={1: 5}, previous=first, oldest=oldest)
    assert format_probe_tree(plan, "u") == ["stored s[c] !1"]
    assert format_probe_tree(plan, "t")[2] == "all s[b]*<5"


def test_a_second_store_of_a_relation_suffices_after_old_rows_expired():
    #   batch    0 ── … ── 6 │ 7 ── 8 ── … ── 12
    #   s[b]     ▓▓▓▓▓▓▓▓▓▓▓ │ ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓      r still probes it
    #   s[c]                 │ ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓      t probes it, and s[b] for older rows
    first = plan_joins(parse_choice((CHAIN, FLAT)), CHAIN)
    both = parse_choice((CHAIN, {**FLAT, "t": "s[c] r[b]"}))
    second = plan_joins(both, CHAIN, batch=7, previous=first, oldest={"s[b]": 3, "r[b]": 3, "t[c]": 3})
    assert format_probe_tree(second, "t") == ["stored s[c]", "  key s.b r[b] !0", "all s[b]<7", "  local r[b] !0"]
    assert [format_store(store) for store in second.find_filled_stores("s")] == ["s[b]", "s[c]"]
    third = plan_joins(both, CHAIN, batch=12, previous=second, oldest={"s[b]": 7, "s[c]": 7, "r[b]": 7, "t[c]": 7})
    assert format_probe_tree(third, "t") == ["stored s[c]", "  key s.b r[b] !0"]
    assert not third.is_transitional


def test_relations_without_probes_are_stored():
    #   later orders may probe them
    plan = plan_joins(ProbeOrderChoice({}), CHAIN)
    assert format_stores(plan) == ["r[] since 0", "s[] since 0", "t[] since 0"]
    assert format_probe_tree(plan, "r") == []
    before = plan_joins(parse_choice((CHAIN, FLAT)), CHAIN)
    later = plan_joins(ProbeOrderChoice({}), CHAIN, batch=3, previous=before, oldest={"r[b]": 0, "s[b]": 0, "t[c]": 0})
    assert sorted(format_stores(later)) == ["r[b] since 0", "s[b] since 0", "t[c] since 0"]


def test_a_store_partitioned_by_an_attribute_of_removed_queries_is_replaced():
    #   query 0 (s.c = t.c) is removed; query 1 also used the store s[c], whose rows are not partitioned by s.b
    first, other = make_join(0, "s.c = t.c"), make_join(1, "r.b = s.b")
    both = parse_choice((first, {"s": "t[c]", "t": "s[c]"}), (other, {"r": "s[c]", "s": "r[b]"}))
    before = plan_joins(both, first, other)
    assert format_probe_tree(before, "r") == ["all s[c] !1"]
    chosen = choose_orders((other,), before, None)
    plan = plan_joins(chosen, other, batch=4, previous=before, oldest={"s[c]": 1, "r[b]": 1, "t[c]": 1})
    assert format_stores(plan) == ["s[c] since 0 until 4", "r[b] since 0", "s[b] since 4"]  # t is dropped with its query
    assert format_probe_tree(plan, "r") == ["stored s[b] !1", "all s[c]*<4 !1"]


# ------------------------------------------------------------------------------------------------------------- materialized joins


def plan_materialization(batch: int = 7) -> SlidingJoinPlan:
    """Return a plan in which query 0 starts to probe s⋈t in `batch`."""
    before = plan_joins(parse_choice((CHAIN, FLAT)), CHAIN)
    old = {"s[b]": 2, "t[c]": 2, "r[b]": 2}
    return plan_joins(parse_choice((CHAIN, BY_ST), materialized=MATERIALIZED), CHAIN, batch=batch, previous=before, oldest=old)


def test_a_join_can_be_materialized_while_queries_run():
    #   batch    … 5 ── 6 │ 7 ── 8 ──
    #   s        ▓▓▓▓▓▓▓▓ │ ▓▓▓▓▓▓▓▓
    #   t        ▓▓▓▓▓▓▓▓ │ ▓▓▓▓▓▓▓▓
    #   s⋈t               │ ▓▓▓▓▓▓▓▓   all pairs except those of two older rows
    plan = plan_materialization()
    assert format_probe_tree(plan, "r") == ["stored st[s.b] !0", "stored s[b]<7", "  key s.c t[c]<7 !0"]
    assert format_probe_tree(plan, "s") == [
        "key s.c t[c] →st[s.b]",
        "  key s.b r[b] !0",
    ]  # pairs of old rows of t and new rows of s are fed into s⋈t
    assert plan.used_since == {3: {0: 7}}
    assert plan.is_transitional


@pytest.mark.parametrize("expired", ["s[b]", "t[c]"])
def test_bypass_probes_end_when_the_old_rows_of_an_input_have_expired(expired: str):
    plan = plan_materialization()
    oldest = {"s[b]": 5, "t[c]": 5, "r[b]": 5, "st[s.b]": 7, expired: 7}
    clean = plan_joins(parse_choice((CHAIN, BY_ST), materialized=MATERIALIZED), CHAIN, batch=9, previous=plan, oldest=oldest)
    assert format_probe_tree(clean, "r") == ["stored st[s.b] !0"]
    assert clean.used_since == plan.used_since
    assert not clean.is_transitional


def test_a_query_added_with_the_materialization_needs_no_bypass_probes():
    #   query 1 is added in the batch in which s⋈t is materialized: it does not see older rows
    other = make_join(1, "r.b = s.b AND s.c = t.c AND r.d < t.d")
    before = plan_joins(parse_choice((CHAIN, FLAT)), CHAIN)
    old = {"s[b]": 2, "t[c]": 2, "r[b]": 2}
    chosen = parse_choice((CHAIN, BY_ST), (other, BY_ST), materialized=MATERIALIZED)
    plan = plan_joins(chosen, CHAIN, other, batch=7, born={1: 7}, previous=before, oldest=old)
    (materialized,) = (store for store in plan.stores if not store.relation.is_input)
    assert plan.used_since == {materialized.number: {0: 7, 1: 7}}
    assert format_probe_tree(plan, "r") == ["stored st[s.b] !0 !1", "stored s[b]<7", "  key s.c t[c]<7 !0"]


def test_a_query_that_returns_to_a_materialized_join_uses_only_its_new_rows():
    #   batch     0 ─── 3 │ 4 ─── 7 │ 8 ──
    #   query 0   ▓▓▓▓▓▓▓ │         │ ▓▓▓▓▓   rows of s⋈t from 4 … 7 lack the bit of query 0: it uses rows from 8 on
    #   query 1   ▓▓▓▓▓▓▓ │ ▓▓▓▓▓▓▓ │ ▓▓▓▓▓
    other = make_join(1, "r.b = s.b AND s.c = t.c AND r.d < t.d")
    both = parse_choice((CHAIN, BY_ST), (other, BY_ST), materialized=MATERIALIZED)
    first = plan_joins(both, CHAIN, other)
    (number,) = (store.number for store in first.stores if not store.relation.is_input)
    assert first.used_since == {number: {0: 0, 1: 0}}
    oldest = {"s[b]": 0, "t[c]": 0, "r[b]": 0, "st[s.b]": 0}
    second = plan_joins(
        parse_choice((CHAIN, FLAT), (other, BY_ST), materialized=MATERIALIZED),
        CHAIN,
        other,
        batch=4,
        previous=first,
        oldest=oldest,
    )
    assert second.used_since == {number: {1: 0}}
    assert format_probe_tree(second, "r") == ["stored s[b]", "  key s.c t[c] !0", "stored st[s.b] !1"]
    third = plan_joins(both, CHAIN, other, batch=8, previous=second, oldest=oldest)
    assert third.used_since == {number: {0: 8, 1: 0}}
    assert format_probe_tree(third, "r") == ["stored st[s.b] !0 !1", "stored s[b]<8", "  key s.c t[c]<8 !0"]


def test_an_unused_materialized_join_is_dropped_at_once():
    #   the stores of its inputs have all its rows
    plan = plan_joins(parse_choice((CHAIN, BY_ST), materialized=MATERIALIZED), CHAIN)
    oldest = {"s[b]": 0, "t[c]": 0, "r[b]": 0, "st[s.b]": 0}
    later = plan_joins(parse_choice((CHAIN, FLAT), materialized=MATERIALIZED), CHAIN, batch=4, previous=plan, oldest=oldest)
    assert sorted(map(format_store, later.stores)) == ["r[b]", "s[b]", "t[c]"]
    assert later.used_since == {}
    assert not later.is_transitional


def test_a_join_is_materialized_over_repartitioned_stores():
    #   batch    … 3 │ 4 … 6 │ 7 …
    #   s[b]     ▓▓▓ │       │             r probes pairs of old rows of s and t,
    #   s[c]         │ ▓▓▓▓▓ │ ▓▓▓▓        in both stores of s
    #   s⋈t          │       │ ▓▓▓▓
    first = plan_joins(parse_choice((CHAIN, FLAT)), CHAIN)
    moved = {"r": "s[c] t[c]", "s": "r[b] t[c]", "t": "s[c] r[b]"}
    second = plan_joins(parse_choice((CHAIN, moved)), CHAIN, batch=4, previous=first, oldest={"s[b]": 1, "t[c]": 1, "r[b]": 1})
    chosen = parse_choice((CHAIN, {**moved, "r": "st[s.b]"}), materialized={ST: {"s": "t[c]", "t": "s[c]"}})
    oldest = {"s[b]": 1, "s[c]": 4, "t[c]": 1, "r[b]": 1}
    third = plan_joins(chosen, CHAIN, batch=7, previous=second, oldest=oldest)
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


def test_stores_are_repartitioned_after_a_join_was_materialized():
    #   batch    … 3 │ 4 … 6 │ 7 …
    #   s[b]     ▓▓▓ │ ▓▓▓▓▓ │             bypass probes find only rows before 4, though s[c] starts with 7
    #   s[c]         │       │ ▓▓▓▓
    #   s⋈t          │ ▓▓▓▓▓ │ ▓▓▓▓
    first = plan_joins(parse_choice((CHAIN, FLAT)), CHAIN)
    second = plan_joins(
        parse_choice((CHAIN, BY_ST), materialized=MATERIALIZED),
        CHAIN,
        batch=4,
        previous=first,
        oldest={"s[b]": 1, "t[c]": 1, "r[b]": 1},
    )
    chosen = parse_choice((CHAIN, {**BY_ST, "t": "s[c] r[b]"}), materialized={ST: {"s": "t[c]", "t": "s[c]"}})
    oldest = {"s[b]": 1, "t[c]": 1, "r[b]": 1, "st[s.b]": 4}
    third = plan_joins(chosen, CHAIN, batch=7, previous=second, oldest=oldest)
    assert format_probe_tree(third, "r") == ["stored st[s.b] !0", "stored s[b]*<4", "  key s.c t[c]<4 !0"]


def test_joins_needed_by_a_materialized_join_are_materialized_too():
    #   u probes r⋈s⋈t, whose rows come from s⋈t
    query = make_join(0, "r.b = s.b AND s.c = t.c AND t.d = u.d")
    st, rst = query.join_graph.subgraph("st"), query.join_graph.subgraph("rst")
    materialized = {st: {"s": "t[c]", "t": "s[b]"}, rst: {"r": "st[s.b]", "s": "t[c] r[b]", "t": "s[b] r[b]"}}
    orders = {"r": "s[b] t[c] u[d]", "s": "r[b] t[c] u[d]", "t": "u[d] s[b] r[b]", "u": "rst[t.d]"}
    plan = plan_joins(parse_choice((query, orders), materialized=materialized), query)
    assert {format_store(store) for store in plan.stores if not store.relation.is_input} == {"st[s.b]", "rst[t.d]"}
    assert all(since == {0: 0} for since in plan.used_since.values())
    assert plan.ranked_relations == ("u", "r", "s", "t")
    assert_probes_follow_feeds(plan)


# ------------------------------------------------------------------------------------ every match once, under random plan changes


RETENTION = 4  # rows expire after this number of batches


@dataclass
class PlanModel:
    """Plans of successive batches and the rows in their stores; a row is identified by its relation and batch."""

    random: Random
    partitions: int
    queries: dict[int, tuple[NormalizedJoin, int]] = field(default_factory=dict)
    plan: SlidingJoinPlan | None = None

    def replan(self, batch: int) -> SlidingJoinPlan:
        queries = tuple(query for query, _ in self.queries.values())
        new_choice = self._draw_choice(queries) if self.random.random() < 0.6 else None
        chosen = choose_orders(queries, self.plan, new_choice)
        oldest = {
            s.number: min(batches) for s in (self.plan.stores if self.plan else ()) if (batches := self.list_batches(s, batch))
        }
        born = {number: first for number, (_, first) in self.queries.items()}
        self.plan = plan_sliding_joins(queries, chosen, batch, self.partitions, born, self.plan, oldest)
        return self.plan

    def list_batches(self, store: StoreSpec, batch: int) -> range:
        """Return the batches of the rows in a store; for joins, those of their newest rows."""
        return range(max(store.from_batch, batch - RETENTION), batch if store.until_batch is None else store.until_batch)

    def _draw_choice(self, queries: tuple[NormalizedJoin, ...]) -> ProbeOrderChoice:
        materialized: dict[JoinGraph, OrdersByRelation] = {}
        chosen = {query.id: self._draw_orders(query.join_graph, materialized) for query in queries if self.random.random() < 0.7}
        return ProbeOrderChoice(chosen, materialized)

    def _draw_orders(self, join: JoinGraph, materialized: dict[JoinGraph, OrdersByRelation]) -> OrdersByRelation:
        return {start: self._draw_order(join, start, materialized) for start in sorted(join.relations)}

    def _draw_order(
        self, join: JoinGraph, start: str, materialized: dict[JoinGraph, OrdersByRelation]
    ) -> tuple[ProbeTarget, ...]:
        rest, targets = self.random.sample(sorted(join.relations - {start}), len(join.relations) - 1), []
        while rest:
            names, rest = rest[: (size := self.random.choice((1, 1, 2)))], rest[size:]
            part = join.subgraph(names)
            if len(names) > 1 and part not in materialized:
                materialized[part] = {}
                materialized[part] = self._draw_orders(part, materialized)
            sides = {
                s for p in join.predicates_between(names, join.relations - set(names)) for s in p.sides if s.relation in names
            }
            targets.append(ProbeTarget(part, self.random.choice([None, *sorted(sides)])))
        return tuple(targets)

    def check(self, batch: int) -> None:
        """Check that every combination of stored rows that a query has seen is found along exactly one route."""
        assert self.plan is not None
        assert_probes_follow_feeds(self.plan)
        stores = {store.number: store for store in self.plan.stores}
        for number, (query, born) in self.queries.items():
            for start, roots in self.plan.root_probes.items():
                if start in query.inputs:
                    others = sorted(set(query.inputs) - {start})
                    for births in product(range(max(born, batch - RETENTION), batch), repeat=len(others)):
                        routes = self._count_routes(roots, stores, number, dict(zip(others, births, strict=True)))
                        assert routes == 1, (batch, number, start, others, births, format_probe_tree(self.plan, start))

    def _count_routes(
        self, probes: Sequence[ProbeStep], stores: Mapping[int, StoreSpec], query: int, births: Mapping[str, int]
    ) -> int:
        assert self.plan is not None
        count = 0
        for probe in probes:
            store = stores[probe.store_number]
            if query not in probe.query_ids or not store.relation.relations <= births.keys():
                continue
            newest = max(births[name] for name in store.relation.relations)
            since = self.plan.used_since[store.number][query] if store.number in self.plan.used_since else store.from_batch
            until = min(end for end in (store.until_batch, probe.before_batch, 1 << 30) if end is not None)
            if since <= newest < until:
                rest = {name: batch for name, batch in births.items() if name not in store.relation.relations}
                count += (
                    (query in probe.completed_queries) if not rest else self._count_routes(probe.children, stores, query, rest)
                )
        return count


TEXTS = ("r.b = s.b AND s.c = t.c", "s.c = t.c AND t.d = u.d", "r.b = s.b", "r.b = s.b AND s.c = t.c AND t.d = u.d", "r.a < u.a")


@pytest.mark.parametrize("seed", range(5))
def test_every_match_is_found_once_under_random_plan_changes(seed: int):
    random = Random(seed)
    model = PlanModel(random, random.choice((1, 4)))
    for batch in range(16):
        if len(model.queries) < 3 and (random.random() < 0.3 or not model.queries):
            model.queries[batch] = make_join(batch, random.choice(TEXTS)), batch
        elif len(model.queries) > 1 and random.random() < 0.15:
            del model.queries[random.choice(list(model.queries))]
        model.replan(batch)
        model.check(batch)
