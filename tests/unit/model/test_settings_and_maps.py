"""Settings, budgets and names: what is refused; partition maps: which ranges they have after splits and merges."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any

import pytest

from headrace.errors import SchemaError, SessionError
from headrace.model.budget import DEFAULT_BUDGET, QueryBudget, parse_own_budget
from headrace.model.join_slices import JoinSliceOptions, JoinSlices
from headrace.model.late_materialization import LateMaterialization
from headrace.model.names import MAX_NAME_CHARACTERS, check_name
from headrace.model.partition_map import HASH_END, HashRange, PartitionMap
from headrace.model.record import copy_record, find_record_type, get_record_type, record, render_record
from headrace.model.sliding_join_options import PlanSearch, PlanTarget, SlidingJoinOptions
from headrace.model.window_join_options import WindowJoinOptions


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "1"])
def test_a_budget_has_positive_integers(value: Any):
    with pytest.raises(SchemaError, match="budget join_pairs is"):
        QueryBudget(join_pairs=value)


def test_budgets_by_name():
    budget = QueryBudget.parse({"output_rows": 1})
    assert (budget.output_rows, budget.state_bytes) == (1, DEFAULT_BUDGET.state_bytes)
    assert (QueryBudget.parse(None), QueryBudget.parse(budget)) == (DEFAULT_BUDGET, budget)
    assert QueryBudget.parse_texts(["output_rows = 7", "join_pairs=8"]) == QueryBudget(output_rows=7, join_pairs=8)
    assert budget.capped_by(QueryBudget(output_rows=5, join_pairs=9)) == QueryBudget(output_rows=1, join_pairs=9)
    assert parse_own_budget({"join_pairs": 2}, budget) == QueryBudget(output_rows=1, join_pairs=2)
    assert parse_own_budget(None, budget) is None
    with pytest.raises(SchemaError, match="unknown budget 'rows'"):
        QueryBudget.parse({"rows": 1})


@pytest.mark.parametrize("text", ["output_rows", "output_rows=", "output_rows=x", "output_rows=-1", "=1"])
def test_budgets_that_are_no_numbers(text: str):
    with pytest.raises(SchemaError):
        QueryBudget.parse_texts([text])


@pytest.mark.parametrize("value", [-1, True, 1.5])
def test_bytes_of_kept_pairs_are_a_number(value: Any):
    with pytest.raises(SessionError, match="join_slices_bytes"):
        JoinSliceOptions.parse("auto", value)


def test_settings_of_joins_come_back_from_their_arguments():
    assert JoinSliceOptions.parse("kept", 0) == JoinSliceOptions(JoinSlices.KEPT, 0)
    assert JoinSliceOptions.parse() == JoinSliceOptions()
    assert JoinSliceOptions().to_arguments() == {"join_slices": "auto", "join_slices_bytes": 268_435_456}
    options = SlidingJoinOptions.parse("ilp", "storage", 0, is_shared=False)
    assert options == SlidingJoinOptions(PlanSearch.ILP, PlanTarget.STORAGE, 0.0, is_shared=False)
    assert options.to_arguments() == {
        "sliding_plan": "ilp", "sliding_target": "storage", "sliding_budget": 0, "sliding_sharing": False
    }  # fmt: skip
    assert SlidingJoinOptions.parse() == SlidingJoinOptions()
    assert (SlidingJoinOptions().budget, SlidingJoinOptions().to_arguments()["sliding_budget"]) == (math.inf, None)


@pytest.mark.parametrize(
    ("arguments", "sharing", "message"),
    [
        (("best",), True, "sliding_plan='best'"),
        (("auto", "money"), True, "sliding_target='money'"),
        (("auto", "probes", -1), True, "sliding_budget=-1"),
        (("auto", "probes", True), True, "sliding_budget=True"),
        (("auto", "probes", 1.5), True, "sliding_budget=1.5"),
        (("auto",), 1, "sliding_sharing=1"),
    ],
)
def test_settings_of_sliding_joins_that_are_refused(arguments: tuple[Any, ...], sharing: Any, message: str):
    with pytest.raises(SessionError, match=message):
        SlidingJoinOptions.parse(*arguments, is_shared=sharing)


def test_late_materialization_is_a_choice():
    assert LateMaterialization.parse("never") is LateMaterialization.NEVER
    with pytest.raises(SessionError, match="late_materialization='sometimes'"):
        LateMaterialization.parse("sometimes")


@pytest.mark.parametrize(
    ("name", "lowest"),
    [
        ("block_inputs", 2),
        ("interval", 1),
        ("planning_steps", 0),
        ("order_gain", 0),
        ("group_gain", 0),
        ("full_above", 0),
        ("drift", 1),
    ],
)
def test_settings_of_window_joins_have_a_least_value(name: str, lowest: int):
    assert getattr(WindowJoinOptions.parse({name: lowest}), name) == lowest
    for value in (lowest - 1, True, "2", None):
        with pytest.raises(SessionError, match=f"invalid setting {name}="):
            WindowJoinOptions.parse({name: value})


@pytest.mark.parametrize(("name", "value"), [("order_gain", 1.01), ("group_gain", 2), ("interval", 1.5), ("drift", math.nan)])
def test_settings_of_window_joins_that_are_refused(name: str, value: Any):
    with pytest.raises(SessionError, match=f"invalid setting {name}="):
        WindowJoinOptions.parse({name: value})


def test_the_other_settings_of_window_joins():
    highest = {"order_gain": 1, "group_gain": 1.0, "full_above": 9, "drift": 100, "grouping": False, "reordering": False}
    options = WindowJoinOptions.parse(highest)
    assert {name: getattr(options, name) for name in highest} == highest
    assert WindowJoinOptions.parse(options) is options
    assert WindowJoinOptions.parse(None) == WindowJoinOptions()
    for name in ("grouping", "reordering"):
        with pytest.raises(SessionError, match=f"invalid setting {name}=1"):
            WindowJoinOptions.parse({name: 1})
    with pytest.raises(SessionError, match="unknown setting 'speed'"):
        WindowJoinOptions.parse({"speed": 1})


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        (7, "it is no text"), ("", "it is blank"), (" \t", "it is blank"), (" a", "starts or ends"), ("a ", "starts or ends"),
        (".", "a folder"), ("..", "a folder"), ("ab\n.", "character 3 is U\\+000A, a control character"),
        ("x" * (MAX_NAME_CHARACTERS + 1), "it has 201 characters"), ("a\u202eb", "character 2 is U\\+202E, a format character"),
    ],
)  # fmt: skip
def test_names_that_are_refused(name: object, detail: str):
    with pytest.raises(SchemaError, match="invalid query name") as refused:
        check_name("query", name)
    assert refused.match(detail) or detail in str(refused.value.detail).replace("+", "\\+")
    assert len(str(refused.value)) < 300


def test_names_that_are_accepted():
    for name in ("a", "...", "x" * MAX_NAME_CHARACTERS, "größe 1", "a.b"):
        check_name("query", name)


def test_equal_ranges_cover_all_hashes():
    for count in (1, 2, 3, 7, 64):
        ranges = PartitionMap(count).list_ranges()
        assert [item.partition for item in ranges] == list(range(count))
        assert (ranges[0].start, ranges[-1].end) == (0, HASH_END)
        assert all(left.end == right.start for left, right in pairwise(ranges))
        assert max(item.end - item.start for item in ranges) - min(item.end - item.start for item in ranges) <= 1
        # partition p has the hashes h with h · count // HASH_END == p
        assert all(item.start * count // HASH_END == (item.end - 1) * count // HASH_END == item.partition for item in ranges)


def test_a_split_range_keeps_its_lower_part():
    half, quarter = HASH_END // 2, HASH_END // 4
    split = PartitionMap(2).split({0: quarter, 1: 3 * quarter})
    assert split.list_ranges() == (
        HashRange(0, quarter, 0), HashRange(quarter, half, 2),
        HashRange(half, 3 * quarter, 1), HashRange(3 * quarter, HASH_END, 3),
    )  # fmt: skip
    uneven = PartitionMap(2).split({1: 3 * quarter})
    assert (uneven.list_shares(), uneven.count, uneven.is_equal) == ((0.5, 0.25, 0.25), 3, False)
    assert PartitionMap(1).split({0: half}) == PartitionMap(2)
    assert PartitionMap(2).is_equal


def test_merged_ranges_have_the_lower_number_and_the_last_partitions_fill_the_gap():
    quarter = HASH_END // 4
    merged = PartitionMap(4).merge([(1, 0)])
    assert merged.list_ranges() == (
        HashRange(0, 2 * quarter, 0), HashRange(2 * quarter, 3 * quarter, 2), HashRange(3 * quarter, HASH_END, 1)
    )  # fmt: skip
    assert PartitionMap(4).merge([(2, 3)]).list_shares() == (0.25, 0.25, 0.5)
    assert PartitionMap(4).merge([(0, 1), (2, 3)]).list_shares() == (0.5, 0.5)
    assert PartitionMap(2).split({0: quarter}).merge([(0, 2)]) == PartitionMap(2)


@pytest.mark.parametrize(
    ("count", "bounds", "owners"),
    [(0, (), ()), (2, (0,), (0, 1)), (2, (HASH_END,), (0, 1)), (3, (5,), (0, 1, 2)), (2, (5,), (0, 0)), (2, (5,), (1, 2))],
)
def test_every_partition_has_one_range(count: int, bounds: tuple[int, ...], owners: tuple[int, ...]):
    with pytest.raises(AssertionError):
        PartitionMap(count, bounds, owners)


@record("test-model-pair")
@dataclass
class Pair:
    first: Any
    second: Any = 2
    note: str = field(default="", init=False)


@record("test-model-single")
@dataclass(frozen=True)
class Single:
    value: Any


@record("test-model-nothing")
@dataclass(frozen=True)
class Nothing:
    pass


@record("test-model-colour")
class Colour(Enum):
    RED = "red"


def test_records_have_declared_names_and_stored_fields():
    pair, single = get_record_type("test-model-pair"), find_record_type(Single)
    assert (pair.fields, pair.is_value) == (("first", "second"), False)
    assert single is not None
    assert (single.name, single.get_values(Single(3)), single.is_value) == ("test-model-single", (3,), True)
    assert (get_record_type("test-model-colour").is_value, find_record_type(int)) == (True, None)
    assert pair.build_from(("second", "first"))(1, 5) == Pair(5, 1)
    assert pair.build_from(("first",))(1) == Pair(1, 2)
    with pytest.raises(ValueError, match="unknown field 'third'"):
        pair.build_from(("first", "third"))
    with pytest.raises(ValueError, match="unknown record 'test-model-none'"):
        get_record_type("test-model-none")
    with pytest.raises(ValueError, match="'test-model-pair' is declared twice"):
        record("test-model-pair")(Pair)


def test_records_are_rendered_and_copied():
    pair = Pair([Single(1), Colour.RED], frozenset({"b", "a"}))
    text = "test-model-pair(first=[test-model-single(value=1), test-model-colour(value='red')], second={'a', 'b'})"
    assert render_record(pair) == text
    copy = copy_record(pair)
    assert (copy, copy is pair, copy.first is pair.first) == (pair, False, True)
    assert (copy_record(Single((1,))), copy_record(Nothing()), render_record(Nothing())) == (
        Single((1,)), Nothing(), "test-model-nothing()"
    )  # fmt: skip
