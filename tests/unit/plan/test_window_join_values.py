"""Window joins as values: what they refuse, and what they derive from their inputs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.model.aggregate import AggregateCall
from headrace.model.expression import Call, Column
from headrace.model.types import Field, Schema
from headrace.model.window import HopWindow
from headrace.plan.window_join import (
    JoinEquality,
    JoinGrouping,
    JoinInput,
    JoinKind,
    JoinNode,
    WindowJoinQuery,
    to_stream_columns,
)

INT = pa.int32()
TREE = JoinNode(JoinKind.INNER, JoinNode(JoinKind.INNER, 0, 1, ()), 2, ())
INPUTS = (JoinInput("r", HopWindow(4, 4)), JoinInput("s", HopWindow(8, 4)), JoinInput("r", HopWindow(4, 4), span=12))


def make_join(**changes: Any) -> WindowJoinQuery:
    fields = {"inputs": INPUTS, "tree": TREE, "output": (Column("0.a", INT),), "schema": Schema((Field("a", INT),))}
    return WindowJoinQuery(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": INPUTS[:2]}, "must contain every input exactly once"),
        ({"tree": JoinNode(JoinKind.INNER, 0, 1, ())}, "must contain every input exactly once"),
        ({"inputs": (JoinInput("r", HopWindow(3, 4)), JoinInput("s", HopWindow(4, 4)), INPUTS[2])}, "no common end"),
        ({"output": (Column("0.b", pa.string()),)}, "do not match its schema"),
        ({"output": ()}, "do not match its schema"),
    ],
)
def test_what_is_not_a_join_is_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        make_join(**changes)


def test_inputs_of_a_self_join_are_counted():
    join = make_join()
    assert join.streams == ("r", "s")
    assert [join.stream_occurrence(index) for index in range(3)] == [0, 0, 1]


def test_spans_include_inner_windows():
    assert (make_join().longest_window, make_join().longest_span) == (8, 12)
    assert make_join(inputs=(*INPUTS[:2], JoinInput("r", HopWindow(4, 4)))).longest_span == 8


def test_joined_columns_are_those_of_inputs_wherever_they_occur():
    equality = JoinEquality(Column("0.k", INT), Column("1.k", INT))
    residual = Call("lt", (Column("0.v", INT), Column("12.v", INT)), pa.bool_())
    tree = JoinNode(JoinKind.INNER, JoinNode(JoinKind.INNER, 0, 1, (equality,), residual), 2, ())
    join = make_join(tree=tree, output=(Column("window_start", INT),), predicate=Column("2.p", pa.bool_()))
    assert {column.name for column in join.joined_columns} == {"0.k", "1.k", "0.v", "12.v", "2.p"}
    grouping = JoinGrouping((Column("1.g", INT),), (AggregateCall("sum", (Column("2.w", INT),), INT),))
    grouped = make_join(output=(Column("key 0", INT),), grouping=grouping)
    assert {column.name for column in grouped.joined_columns} == {"1.g", "2.w"}


def test_columns_of_an_input_become_those_of_its_stream():
    assert to_stream_columns(Call("neg", (Column("3.v.w", INT),), INT)) == Call("neg", (Column("v.w", INT),), INT)
