"""Bound plans of window joins: placement of conditions and resolution of names."""

# ruff: noqa: E501 – a query reads best on one line

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.model.window import HopWindow, WindowEnds
from headrace.plan.logical import LogicalQuery
from headrace.plan.window_join import JoinKind, JoinNode, WindowJoinQuery, iter_inputs, iter_join_nodes

Bind = Callable[[str], LogicalQuery]
P, A = "TUMBLE(purchases, '5 s') p", "TUMBLE(ads, '5 s') a"


def bind_join(bind: Bind, text: str) -> WindowJoinQuery:
    plan = bind(text)
    assert isinstance(plan, WindowJoinQuery)
    return plan


def list_conditions(plan: WindowJoinQuery) -> dict[str, list[str]]:
    """Return all conditions of a plan by the place where they are evaluated."""
    by_place = {f"input {i}": [str(side.predicate)] for i, side in enumerate(plan.inputs)}
    for i, node in enumerate(iter_join_nodes(plan.tree), 1):
        by_place[f"step {i}"] = [*(f"{e.left} = {e.right}" for e in node.equalities), str(node.residual)]
    return {**by_place, "where": [str(plan.predicate)]}


def test_conditions_of_an_inner_join_are_pushed_down(bind: Bind) -> None:
    plan = bind_join(
        bind, f"SELECT p.price FROM {P} JOIN {A} ON a.user_id = p.big AND p.price > 1 AND p.gem_pack < a.ad_id WHERE a.ad_id = 7"
    )
    assert list_conditions(plan) == {
        "input 0": ["price > 1.0"],
        "input 1": ["ad_id = 7"],
        "step 1": ["0.big = 1.user_id", "0.gem_pack < 1.ad_id"],
        "where": ["True"],
    }


def test_on_and_where_conditions_of_a_left_join_are_placed_differently(bind: Bind) -> None:
    plan = bind_join(
        bind,
        f"SELECT p.price FROM {P} LEFT JOIN {A} ON a.user_id = p.big AND p.tiny = 1 AND a.ad_id = 2 WHERE p.gem_pack = 3 AND a.ad_id > 4",
    )
    assert list_conditions(plan) == {
        "input 0": ["gem_pack = 3"],  # from WHERE: drops left rows
        "input 1": ["ad_id = 2"],  # from ON: drops right rows
        "step 1": ["0.big = 1.user_id", "0.tiny = 1"],  # from ON: without a match the left row stays
        "where": ["1.ad_id > 4"],  # from WHERE: evaluated after the join
    }


def test_a_comma_join_equals_an_inner_join(bind: Bind) -> None:
    comma_join = bind_join(bind, f"SELECT p.price FROM {P}, {A} WHERE p.big = a.user_id")
    assert comma_join == bind_join(bind, f"SELECT p.price FROM {P} JOIN {A} ON p.big = a.user_id")


def test_inner_joins_are_reordered_so_that_each_has_an_equality(bind: Bind) -> None:
    plan = bind_join(
        bind, f"SELECT p.price FROM {P}, {A}, TUMBLE(purchases, '5 s') q WHERE p.name = q.name AND q.big = a.user_id"
    )
    assert [str(node.right) for node in iter_join_nodes(plan.tree)] == ["2", "1"]
    assert list_conditions(plan)["step 2"] == ["2.big = 1.user_id", "True"]


def test_a_join_without_an_equality_has_a_residual_predicate(bind: Bind) -> None:
    plan = bind_join(
        bind,
        f"SELECT p.price FROM {P} LEFT JOIN {A} ON p.gem_pack BETWEEN a.ad_id - 1 AND a.ad_id AND p.tiny = 1 AND a.ad_id > 2",
    )
    assert list_conditions(plan) == {
        "input 0": ["True"],
        "input 1": ["ad_id > 2"],
        "step 1": ["((0.gem_pack >= (1.ad_id - 1)) AND (0.gem_pack <= 1.ad_id)) AND (0.tiny = 1)"],
        "where": ["True"],
    }


@pytest.mark.parametrize(
    "text", [f"{P}, {A}", f"{P} CROSS JOIN {A}", f"{P} JOIN {A}", f"{P} FULL JOIN {A}", f"{P} JOIN {A} ON TRUE"]
)
def test_a_join_without_conditions_is_a_cross_join(bind: Bind, text: str) -> None:
    plan = bind_join(bind, f"SELECT COUNT(*) AS n FROM {text}")
    assert list_conditions(plan)["step 1"] == ["True"]
    assert not plan.joined_columns


def test_equality_joins_precede_residual_joins_and_cross_joins(bind: Bind) -> None:
    q, r = "TUMBLE(purchases, '5 s') q", "TUMBLE(purchases, '5 s') r"
    plan = bind_join(bind, f"SELECT p.price FROM {P}, {A}, {q}, {r} WHERE q.big = r.big AND p.price < r.price")
    assert [str(index) for index in iter_inputs(plan.tree)] == ["2", "3", "0", "1"]
    assert [len(node.equalities) for node in iter_join_nodes(plan.tree)] == [1, 0, 0]
    by_place = list_conditions(plan)
    assert [by_place[f"step {i}"] for i in (1, 2, 3)] == [["2.big = 3.big", "True"], ["0.price < 3.price"], ["True"]]


def test_the_last_input_of_a_cycle_is_joined_on_two_equalities(bind: Bind) -> None:
    plan = bind_join(
        bind,
        f"SELECT p.price FROM {P} JOIN {A} ON p.big = a.user_id JOIN TUMBLE(purchases, '5 s') q ON q.gem_pack = a.ad_id AND q.name = p.name",
    )
    assert list_conditions(plan)["step 2"] == ["1.ad_id = 2.gem_pack", "0.name = 2.name", "True"]


def test_using_outputs_one_column_of_the_preserved_side(bind: Bind) -> None:
    for kind, output in (("JOIN", "CAST(0.user_id AS int64)"), ("RIGHT JOIN", "1.user_id")):
        plan = bind_join(bind, f"SELECT user_id + 0 AS u FROM {P} {kind} {A} USING (user_id)")
        assert output.replace("CAST(0.user_id AS int64)", "0.user_id") in str(plan.output[0])
    full = bind_join(bind, f"SELECT user_id FROM TUMBLE(ads, '5 s') p FULL JOIN {A} USING (user_id)")
    assert str(full.output[0]) == "coalesce(0.user_id, 1.user_id)"


def test_a_star_expands_to_columns_in_order(bind: Bind) -> None:
    plan = bind_join(bind, f"SELECT a.*, p.price AS paid FROM {P} JOIN {A} ON p.big = a.user_id")
    assert plan.schema.names == ("user_id", "ad_id", "price", "ts", "paid")
    everything = bind_join(bind, f"SELECT * FROM {A} JOIN TUMBLE(`my stream`, '5 s') m ON a.ad_id = m.a")
    assert everything.schema.names == ("user_id", "ad_id", "price", "ts", "a", "window_start")


def test_computed_columns_of_a_sub_query_are_null_without_a_match(bind: Bind) -> None:
    plan = bind_join(
        bind,
        f"SELECT a.one, a.ad_id FROM {P} LEFT JOIN (SELECT user_id, ad_id, coalesce(ad_id, 1) AS one FROM {A}) a ON p.big = a.user_id",
    )
    assert str(plan.output[0]).startswith("case(1., coalesce(")
    assert str(plan.output[1]) == "1.ad_id"


def test_different_windows_are_joined_at_common_window_ends(bind: Bind) -> None:
    plan = bind_join(bind, f"SELECT window_start, p.price FROM {P} JOIN HOP(ads, '9 s', '3 s') a ON p.big = a.user_id")
    assert [side.window for side in plan.inputs] == [HopWindow(5_000_000, 5_000_000), HopWindow(9_000_000, 3_000_000)]
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
def test_join_kinds_have_alternative_spellings(bind: Bind, text: str, kind: JoinKind) -> None:
    plan = bind_join(bind, f"SELECT p.price FROM {P} {text} {A} ON p.big = a.user_id")
    assert isinstance(plan.tree, JoinNode)
    assert plan.tree.kind is kind


def test_an_aggregation_over_a_join_groups_joined_columns(bind: Bind) -> None:
    plan = bind_join(
        bind, f"SELECT p.name, SUM(a.price) AS total FROM {P} JOIN {A} ON p.big = a.user_id GROUP BY p.name HAVING COUNT(*) > 1"
    )
    assert plan.grouping is not None
    assert [str(key) for key in plan.grouping.keys] == ["0.name"]
    assert [str(call) for call in plan.grouping.aggregates] == ["sum(1.price)", "count(*)"]
    assert [str(output) for output in plan.output] == ["key0", "agg0"]
