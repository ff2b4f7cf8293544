"""Types, schemas, streams and expressions: what is valid, what is equal, and how they are written."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import EvaluationError, SchemaError
from headrace.model.aggregate import AggregateCall
from headrace.model.expression import (
    TRUE,
    Call,
    Column,
    Literal,
    column_names,
    combine_conjuncts,
    is_always_null,
    split_conjuncts,
    substitute_columns,
    walk_expression,
)
from headrace.model.function import UserFunction, get_udf_code, is_udf_tag, register_udf_code, udf_name
from headrace.model.stream import Stream
from headrace.model.types import TIMESTAMP, Field, Schema, normalize_type, parse_type, type_name

INT, BOOL, TEXT = pa.int32(), pa.bool_(), pa.string()
A, B, ONE = Column("a", INT), Column("b", INT), Literal(1, INT)


def less(left: Any, right: Any) -> Call:
    return Call("lt", (left, right), BOOL)


def both(*parts: Any) -> Call:
    return Call("and", parts, BOOL)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (" int ", pa.int32()), ("Long", pa.int64()), ("DECIMAL", pa.decimal128(10, 0)), ("dec(5)", pa.decimal128(5, 0)),
        ("NUMERIC ( 38 , 38 )", pa.decimal128(38, 38)), ("decimal(1,0)", pa.decimal128(1, 0)), ("timestamp", TIMESTAMP),
    ],
)  # fmt: skip
def test_names_of_types(text: str, kind: pa.DataType):
    assert parse_type(text) == kind


@pytest.mark.parametrize("text", ["DECIMAL(0)", "DECIMAL(39, 1)", "DECIMAL(3, 4)"])
def test_decimals_that_are_out_of_range(text: str):
    with pytest.raises(SchemaError, match="out of range"):
        parse_type(text)


@pytest.mark.parametrize("text", ["", "BLOB", "DECIMAL(1", "DECIMAL(1,2,3)", "xDECIMAL"])
def test_unknown_types(text: str):
    with pytest.raises(SchemaError, match="unknown type"):
        parse_type(text)


def test_the_name_of_a_type_is_the_usual_one():
    kinds = (pa.int8(), pa.int32(), pa.string(), pa.bool_(), pa.decimal128(5, 2), pa.null(), TIMESTAMP)
    assert [type_name(kind) for kind in kinds] == ["TINYINT", "INT", "STRING", "BOOLEAN", "DECIMAL(5,2)", "VOID", "TIMESTAMP"]


@pytest.mark.parametrize(
    ("external", "kind"),
    [
        (pa.timestamp("ns"), TIMESTAMP), (pa.large_string(), pa.string()), (pa.string_view(), pa.string()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()), (pa.date64(), pa.date32()), (pa.uint8(), pa.int16()),
        (pa.decimal256(20, 3), pa.decimal128(20, 3)), (pa.uint32(), pa.int64()), (pa.float16(), pa.float32()), (INT, INT),
    ],
)  # fmt: skip
def test_external_types_become_those_that_queries_know(external: pa.DataType, kind: pa.DataType):
    assert normalize_type(external) == kind


def test_types_that_no_query_can_read():
    for kind in (pa.uint64(), pa.binary(), pa.list_(INT)):
        with pytest.raises(SchemaError, match="is not supported"):
            normalize_type(kind)


def test_a_schema_comes_back_from_its_declaration():
    schema = Schema.parse(" id:  INT, `a, ``b``(` DECIMAL(10, 2),\ntime TIMESTAMP ")
    assert schema.fields == (Field("id", INT), Field("a, `b`(", pa.decimal128(10, 2)), Field("time", TIMESTAMP))
    assert Schema.parse(schema.to_ddl()) == schema
    assert Schema.from_arrow(schema.to_arrow()) == schema
    assert (len(schema), schema.names) == (3, ("id", "a, `b`(", "time"))


@pytest.mark.parametrize("ddl", ["", "a", "a INT,", "a INT,, b INT", "a INT b INT"])
def test_declarations_that_are_refused(ddl: str):
    with pytest.raises(SchemaError):
        Schema.parse(ddl)


def test_columns_are_found_in_any_case_and_declared_once():
    schema = Schema.parse("Id INT, b STRING")
    assert (schema.find("iD"), schema.find("B"), schema.find("c")) == (Field("Id", INT), Field("b", TEXT), None)
    with pytest.raises(SchemaError, match="'ID' is declared twice"):
        Schema.parse("Id INT, b STRING, ID INT")


def make_stream(**changes: Any) -> Stream:
    return Stream(**{"name": "s", "schema": Schema.parse("id INT, Time TIMESTAMP"), "time": "time", **changes})


def test_a_stream_names_its_event_time_as_it_is_declared():
    assert make_stream(delay=0, idle=1, watermark_by="partition").time == "Time"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time": "at"}, "'at' of stream 's' is not declared"),
        ({"time": "id"}, "is INT, not TIMESTAMP"),
        ({"watermark_by": "row"}, "unknown watermark_by 'row'"),
        ({"idle": 0}, "not positive"),
        ({"delay": -1}, "is negative"),
    ],
)
def test_streams_that_are_refused(changes: dict[str, Any], message: str):
    with pytest.raises(SchemaError, match=message):
        make_stream(**changes)


def test_literals_are_equal_with_their_types_only():
    assert Literal(1, INT) == Literal(1, INT)
    assert hash(Literal(1, INT)) == hash(Literal(1, INT))
    assert Literal(math.nan, pa.float64()) == Literal(math.nan, pa.float64())
    others = [Literal(1, pa.int64()), Literal(1.0, INT), Literal(True, INT), Literal(2, INT), Column("1", INT), 1]
    assert all(other != ONE for other in others)
    assert Literal(0.0, pa.float64()) != Literal(-0.0, pa.float64())


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (Literal(None, INT), "NULL"), (Literal("x", TEXT), "'x'"), (Literal(1.5, pa.float64()), "1.5"), (TRUE, "True"),
        (less(A, ONE), "a < 1"), (both(less(A, B), less(B, ONE)), "(a < b) AND (b < 1)"), (Call("neg", (A,), INT), "neg(a)"),
        (Call("sub", (Call("sub", (A, B), INT), ONE), INT), "(a - b) - 1"), (Call("not", (less(A, B),), BOOL), "NOT (a < b)"),
        (Call("is_null", (A,), BOOL), "a IS NULL"), (Call("cast", (A,), TEXT), "CAST(a AS string)"),
        (Call("and", (A, B, A), BOOL), "and(a, b, a)"), (Call("abs", (Call("sub", (A, B), INT),), INT), "abs(a - b)"),
    ],
)  # fmt: skip
def test_expressions_are_written_as_in_sql(expression: Any, text: str):
    assert str(expression) == text


def test_calls_name_functions_that_exist():
    with pytest.raises(ValueError, match="unknown function 'frobnicate'"):
        Call("frobnicate", (A,), INT)
    assert Call("frobnicate@12", (A,), INT).function == "frobnicate@12"


def test_aggregates_name_functions_that_exist_and_have_arguments():
    for function, message in (("total", "unknown aggregate 'total'"), ("sum", "'sum' needs an argument")):
        with pytest.raises(ValueError, match=message):
            AggregateCall(function, (), INT)
    calls = (AggregateCall("count", (), INT), AggregateCall("percentile", (A,), INT, 0.5), AggregateCall("sum", (A,), INT))
    assert list(map(str, calls)) == ["count(*)", "percentile(a, 0.5)", "sum(a)"]


def test_the_columns_of_an_expression():
    expression = both(less(A, ONE), less(A, B))
    assert [str(part) for part in walk_expression(expression)][1:] == ["a < 1", "a", "1", "a < b", "a", "b"]
    assert column_names(expression) == {"a", "b"}
    assert str(substitute_columns(expression, {"a": Call("neg", (B,), INT)})) == "(neg(b) < 1) AND (neg(b) < b)"


def test_the_constant_null_may_be_inside_casts():
    null = Literal(None, INT)
    cast = Call("cast", (Call("cast", (null,), TEXT),), INT)
    assert [is_always_null(part) for part in (null, cast, ONE, A, Call("cast", (A,), TEXT), Call("neg", (null,), INT))] == [
        True, True, False, False, False, False,
    ]  # fmt: skip


def test_conditions_are_split_and_combined():
    first, second, third = less(A, B), less(B, ONE), less(A, ONE)
    either = Call("or", (first, second), BOOL)
    assert split_conjuncts(both(both(first, second), third)) == [first, second, third]
    assert split_conjuncts(either) == [either]
    assert combine_conjuncts([first, TRUE, second, third]) == both(both(first, second), third)
    assert combine_conjuncts([second]) == second
    assert combine_conjuncts([]) == combine_conjuncts([TRUE]) == TRUE


def test_a_function_comes_back_from_json():
    function = UserFunction("split", "12ab", (None, INT, TEXT), pa.list_(TEXT))
    assert UserFunction.from_json(function.to_json()) == function
    assert function.to_json()[3] == "ARRAY<STRING>"
    assert (function.tag, udf_name(function.tag)) == ("split@12ab", "split")
    assert (is_udf_tag("split@12ab"), is_udf_tag("split")) == (True, False)


def test_the_code_of_a_function_is_that_of_its_tag():
    register_udf_code("of_this_test@1", len)
    assert get_udf_code("of_this_test@1") is len
    with pytest.raises(EvaluationError, match="'of_this_test' is not loaded"):
        get_udf_code("of_this_test@2")
