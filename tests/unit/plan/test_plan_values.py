"""Queries as values: what they refuse, which streams they read, and how long a result without a partner takes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.model.aggregate import AggregateCall
from headrace.model.expression import Call, Column, Expression, Literal
from headrace.model.types import Field, Schema
from headrace.model.window import HopWindow
from headrace.plan.logical import AggregateBranch, AggregateQuery, SelectBranch, StatelessQuery, agg_column, key_column
from headrace.plan.sliding_join import SlidingInput, SlidingJoinQuery, canonicalize_join
from headrace.plan.window_join import to_joined_columns, to_stream_columns

INT, TEXT = pa.int32(), pa.string()
SCHEMA = Schema((Field("a", INT),))
A, B = SlidingInput("a", 5, lateness=1), SlidingInput("b", 7, lateness=2)


def select_from(stream: str, kind: pa.DataType = INT) -> SelectBranch:
    return SelectBranch(stream, (Column("a", kind),))


def aggregate(stream: str, key: pa.DataType = INT, function: str = "sum") -> AggregateBranch:
    return AggregateBranch(stream, (Column("k", key),), (AggregateCall(function, (Column("a", INT),), INT),))


def make_aggregation(*branches: AggregateBranch, output: tuple[Expression, ...] = (agg_column(0, INT),)) -> AggregateQuery:
    return AggregateQuery(HopWindow(4, 4), branches, output, SCHEMA)


def make_sliding(*inputs: SlidingInput, **changes: Any) -> SlidingJoinQuery:
    fields = {"conditions": (), "output": (Column("0.a", INT),), "schema": SCHEMA}
    return SlidingJoinQuery(inputs, **{**fields, **changes})


@pytest.mark.parametrize(("streams", "read"), [("r", ("r",)), ("rs", ("r", "s")), ("srs", ("s", "r"))])
def test_a_query_names_each_stream_that_it_reads_once(streams: str, read: tuple[str, ...]):
    assert StatelessQuery(tuple(map(select_from, streams)), SCHEMA).streams == read
    assert make_aggregation(*map(aggregate, streams)).streams == read
    if len(streams) > 1:
        assert make_sliding(*(SlidingInput(name, 5) for name in streams)).streams == read


def test_every_branch_of_a_stateless_query_must_match_its_schema():
    with pytest.raises(ValueError, match="branch over 's' does not match"):
        StatelessQuery((select_from("r"), select_from("s", TEXT)), SCHEMA)


def test_branches_of_an_aggregation_must_agree():
    for other in (aggregate("s", key=TEXT), aggregate("s", function="max")):
        with pytest.raises(ValueError, match="disagree on keys or aggregates"):
            make_aggregation(aggregate("r"), other)
    with pytest.raises(ValueError, match="disagree on keys or aggregates"):
        make_aggregation()


def test_outputs_of_an_aggregation_must_match_its_schema():
    with pytest.raises(ValueError, match="outputs of an aggregation do not match"):
        make_aggregation(aggregate("r"), output=(key_column(0, TEXT),))


@pytest.mark.parametrize(
    ("inputs", "changes", "message"),
    [
        ((A,), {}, "2 to 12 inputs"),
        ((A,) * 13, {}, "2 to 12 inputs"),
        ((A, B, A), {"outer_inputs": (0,)}, "outer sliding join must have two inputs"),
        ((A, B), {"output": (Column("0.a", TEXT),)}, "do not match its schema"),
    ],
)
def test_what_is_not_a_sliding_join_is_refused(inputs: tuple[SlidingInput, ...], changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        make_sliding(*inputs, **changes)


def test_sliding_joins_have_two_to_twelve_inputs():
    assert [len(make_sliding(*inputs).inputs) for inputs in ((A, B), (A,) * 12)] == [2, 12]


@pytest.mark.parametrize(("outer_inputs", "lag"), [((), 0), ((0,), 5 + 2), ((1,), 7 + 1), ((0, 1), 8)])
def test_a_row_without_a_partner_waits_for_late_rows_of_the_other_input(outer_inputs: tuple[int, ...], lag: int):
    join = make_sliding(A, B, outer_inputs=outer_inputs)
    assert (join.lag, join.lateness) == (lag, 2)


def test_the_canonical_form_keeps_which_input_is_outer():
    """It depends neither on the order of the inputs, nor on that of the conditions, nor on the side of a comparison."""

    def compare(function: str, left: str, right: str) -> Call:
        return Call(function, (Column(left, INT), Column(right, INT)), pa.bool_())

    def select(*bounds: int) -> Expression:
        first, second = (Call("lt", (Column("a", INT), Literal(bound, INT)), pa.bool_()) for bound in bounds)
        return Call("and", (first, second), pa.bool_())

    written = make_sliding(
        SlidingInput("a", 5, select(1, 2)),
        B,
        conditions=(compare("lt", "0.a", "1.a"), compare("eq", "0.b", "1.b"), compare("eq", "1.b", "0.b")),
        outer_inputs=(0,),
        predicate=compare("ge", "0.a", "1.c"),
    )
    mirrored = make_sliding(
        B,
        SlidingInput("a", 5, select(2, 1)),
        conditions=(compare("eq", "0.b", "1.b"), compare("gt", "0.a", "1.a")),
        output=(Column("1.a", INT),),
        outer_inputs=(1,),
        predicate=compare("le", "0.c", "1.a"),
    )
    form = canonicalize_join(mirrored)
    assert canonicalize_join(written) == form
    assert [form.inputs[index].stream for index in form.outer_inputs] == ["a"]
    assert list(map(str, form.conditions)) == ["0.a < 1.a", "0.b = 1.b"]
    assert str(form.predicate) == "0.a >= 1.c"


@pytest.mark.parametrize("outer", [0, 1])
def test_of_equal_inputs_the_outer_one_is_the_last(outer: int):
    """Another form would not be shared with the queries of a checkpoint, which have this one."""
    form = canonicalize_join(make_sliding(A, A, output=(Column(f"{outer}.a", INT),), outer_inputs=(outer,)))
    assert (form.outer_inputs, form.output) == ((1,), (Column("1.a", INT),))


def test_columns_of_a_stream_and_of_an_input_are_each_others_inverse():
    own = Call("add", (Column("v.w", INT), Literal(1, INT)), INT)
    joined = Call("add", (Column("3.v.w", INT), Literal(1, INT)), INT)
    assert to_joined_columns(own, 3) == joined
    assert to_stream_columns(joined) == own
