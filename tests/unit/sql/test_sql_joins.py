"""Joins to plans: where every condition goes, and what names mean."""

# ruff: noqa: E501 – a query reads best on one line

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.model.window import HopWindow, WindowEnds
from headrace.plan.logical import LogicalQuery
from headrace.plan.window_join import JoinKind, JoinNode, WindowJoinQuery, iter_inputs, iter_join_nodes

Bind = Callable[[str], LogicalQuery]
P, A = "TUMBLE(purchases, '5 s') p", "TUMBLE(ads, '5 s') a"


def bound(bind: Bind, text: str) -> WindowJoinQuery:
    found = bind(text)
    assert isinstance(found, WindowJoinQuery)
    return found


def conditions(plan: WindowJoinQuery) -> dict[str, list[str]]:
    """Everything that is asked of rows, by where it is asked."""
    found = {f"input {i}": [str(each.predicate)] for i, each in enumerate(plan.inputs)}
    for i, node in enumerate(iter_join_nodes(plan.tree), 1):
        found[f"step {i}"] = [*(f"{e.left} = {e.right}" for e in node.equalities), str(node.residual)]
    return {**found, "where": [str(plan.predicate)]}


def test_conditions_of_an_inner_join_go_as_deep_as_they_can(bind: Bind) -> None:
    plan = bound(
        bind, f"SELECT p.price FROM {P} JOIN {A} ON a.user_id = p.big AND p.price > 1 AND p.gem_pack < a.ad_id WHERE a.ad_id = 7"
    )
    assert conditions(plan) == {
        "input 0": ["price > 1.0"],
        "input 1": ["ad_id = 7"],
        "step 1": ["0.big = 1.user_id", "0.gem_pack < 1.ad_id"],
        "where": ["True"],
    }


def test_on_and_where_differ_for_the_side_that_is_kept(bind: Bind) -> None:
    plan = bound(
        bind,
        f"SELECT p.price FROM {P} LEFT JOIN {A} ON a.user_id = p.big AND p.tiny = 1 AND a.ad_id = 2 WHERE p.gem_pack = 3 AND a.ad_id > 4",
    )
    assert conditions(plan) == {
        "input 0": ["gem_pack = 3"],  # of WHERE: rows that are not wanted at all
        "input 1": ["ad_id = 2"],  # of ON: no partner for anybody
        "step 1": ["0.big = 1.user_id", "0.tiny = 1"],  # of ON: no partner, and the row stays
        "where": ["1.ad_id > 4"],  # looked at when it is known whether there is a partner
    }


def test_a_comma_is_an_inner_join_by_the_conditions_of_where(bind: Bind) -> None:
    written = bound(bind, f"SELECT p.price FROM {P}, {A} WHERE p.big = a.user_id")
    assert written == bound(bind, f"SELECT p.price FROM {P} JOIN {A} ON p.big = a.user_id")


def test_inner_joins_are_ordered_so_that_each_has_an_equality(bind: Bind) -> None:
    plan = bound(bind, f"SELECT p.price FROM {P}, {A}, TUMBLE(purchases, '5 s') q WHERE p.name = q.name AND q.big = a.user_id")
    assert [str(node.right) for node in iter_join_nodes(plan.tree)] == ["2", "1"]
    assert conditions(plan)["step 2"] == ["2.big = 1.user_id", "True"]


def test_without_an_equality_conditions_alone_tell(bind: Bind) -> None:
    plan = bound(
        bind,
        f"SELECT p.price FROM {P} LEFT JOIN {A} ON p.gem_pack BETWEEN a.ad_id - 1 AND a.ad_id AND p.tiny = 1 AND a.ad_id > 2",
    )
    assert conditions(plan) == {
        "input 0": ["True"],
        "input 1": ["ad_id > 2"],
        "step 1": ["((0.gem_pack >= (1.ad_id - 1)) AND (0.gem_pack <= 1.ad_id)) AND (0.tiny = 1)"],
        "where": ["True"],
    }


@pytest.mark.parametrize(
    "text", [f"{P}, {A}", f"{P} CROSS JOIN {A}", f"{P} JOIN {A}", f"{P} FULL JOIN {A}", f"{P} JOIN {A} ON TRUE"]
)
def test_everything_is_joined_with_everything_where_nothing_is_asked(bind: Bind, text: str) -> None:
    plan = bound(bind, f"SELECT COUNT(*) AS n FROM {text}")
    assert conditions(plan)["step 1"] == ["True"]
    assert not plan.joined_columns


def test_inner_joins_with_an_equality_come_first_then_those_with_a_condition(bind: Bind) -> None:
    q, r = "TUMBLE(purchases, '5 s') q", "TUMBLE(purchases, '5 s') r"
    plan = bound(bind, f"SELECT p.price FROM {P}, {A}, {q}, {r} WHERE q.big = r.big AND p.price < r.price")
    assert [str(index) for index in iter_inputs(plan.tree)] == ["2", "3", "0", "1"]
    assert [len(node.equalities) for node in iter_join_nodes(plan.tree)] == [1, 0, 0]
    asked = conditions(plan)
    assert [asked[f"step {i}"] for i in (1, 2, 3)] == [["2.big = 3.big", "True"], ["0.price < 3.price"], ["True"]]


def test_a_cycle_joins_its_last_side_by_two_equalities(bind: Bind) -> None:
    plan = bound(
        bind,
        f"SELECT p.price FROM {P} JOIN {A} ON p.big = a.user_id JOIN TUMBLE(purchases, '5 s') q ON q.gem_pack = a.ad_id AND q.name = p.name",
    )
    assert conditions(plan)["step 2"] == ["1.ad_id = 2.gem_pack", "0.name = 2.name", "True"]


def test_using_gives_one_column_of_the_side_that_is_there(bind: Bind) -> None:
    for kind, shown in (("JOIN", "CAST(0.user_id AS int64)"), ("RIGHT JOIN", "1.user_id")):
        plan = bound(bind, f"SELECT user_id + 0 AS u FROM {P} {kind} {A} USING (user_id)")
        assert shown.replace("CAST(0.user_id AS int64)", "0.user_id") in str(plan.output[0])
    full = bound(bind, f"SELECT user_id FROM TUMBLE(ads, '5 s') p FULL JOIN {A} USING (user_id)")
    assert str(full.output[0]) == "coalesce(0.user_id, 1.user_id)"


def test_a_star_has_the_columns_of_all_sides_in_order(bind: Bind) -> None:
    plan = bound(bind, f"SELECT a.*, p.price AS paid FROM {P} JOIN {A} ON p.big = a.user_id")
    assert plan.schema.names == ("user_id", "ad_id", "price", "ts", "paid")


def test_what_a_sub_query_computes_is_null_where_there_is_no_row(bind: Bind) -> None:
    plan = bound(
        bind,
        f"SELECT a.one, a.ad_id FROM {P} LEFT JOIN (SELECT user_id, ad_id, coalesce(ad_id, 1) AS one FROM {A}) a ON p.big = a.user_id",
    )
    assert str(plan.output[0]).startswith("case(1., coalesce(")
    assert str(plan.output[1]) == "1.ad_id"


def test_windows_of_different_sides_meet_at_their_ends(bind: Bind) -> None:
    plan = bound(bind, f"SELECT window_start, p.price FROM {P} JOIN HOP(ads, '9 s', '3 s') a ON p.big = a.user_id")
    assert [each.window for each in plan.inputs] == [HopWindow(5_000_000, 5_000_000), HopWindow(9_000_000, 3_000_000)]
    assert (plan.ends, plan.longest_window) == (WindowEnds(0, 15_000_000), 9_000_000)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("LEFT OUTER JOIN", JoinKind.LEFT),
        ("FULL OUTER JOIN", JoinKind.FULL),
        ("SEMI JOIN", JoinKind.SEMI),
        ("ANTI JOIN", JoinKind.ANTI),
    ],
)
def test_kinds_have_more_than_one_spelling(bind: Bind, text: str, kind: JoinKind) -> None:
    plan = bound(bind, f"SELECT p.price FROM {P} {text} {A} ON p.big = a.user_id")
    assert isinstance(plan.tree, JoinNode)
    assert plan.tree.kind is kind


def test_an_aggregation_over_a_join_has_keys_and_arguments_over_joined_columns(bind: Bind) -> None:
    plan = bound(
        bind, f"SELECT p.name, SUM(a.price) AS total FROM {P} JOIN {A} ON p.big = a.user_id GROUP BY p.name HAVING COUNT(*) > 1"
    )
    assert plan.grouping is not None
    assert [str(key) for key in plan.grouping.keys] == ["0.name"]
    assert [str(call) for call in plan.grouping.aggregates] == ["sum(1.price)", "count(*)"]
    assert [str(output) for output in plan.output] == ["key0", "agg0"]
