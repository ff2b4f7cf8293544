"""Calls of user functions over columns: types, lengths, and which rows are wrong when one raises."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.backends.reference.evaluate import evaluate
from headrace.engine.compute.evaluator import Evaluator
from headrace.errors import EvaluationError
from headrace.model.expression import Call, Column, Literal
from headrace.model.function import UserFunction, register_udf_code

X = Column("x", pa.int64())


def called(code, *args, result: pa.DataType = pa.int64(), tag: str = "f@0"):  # noqa: B008
    register_udf_code(tag, code)
    return Call(tag, args or (X,), result)


def test_a_call_is_an_expression_like_any_other() -> None:
    double = called(lambda x: pc.multiply(x, 2))
    evaluate_all = Evaluator({"x": pa.array([1, None, 3])}, 3)
    assert evaluate_all(Call("add", (double, Literal(1, pa.int64())), pa.int64())).to_pylist() == [3, None, 7]
    assert evaluate_all.errors(double) is None
    assert str(double) == "f@0(x)"
    assert double == Call("f@0", (X,), pa.int64()) != Call("f@1", (X,), pa.int64())


def test_it_is_called_once_for_all_who_ask() -> None:
    seen = []
    code = called(lambda x: seen.append(len(x)) or x)
    evaluate_all = Evaluator({"x": pa.array([1, 2])}, 2)
    for value in (1, 2, 3):
        evaluate_all(Call("gt", (code, Literal(value, pa.int64())), pa.bool_()))
    assert seen == [2]


def test_constants_become_columns_and_no_rows_no_call() -> None:
    code = called(
        lambda x, y: pa.array([a + b for a, b in zip(x.to_pylist(), y.to_pylist(), strict=True)]), X, Literal(5, pa.int64())
    )
    assert Evaluator({"x": pa.array([1, 2])}, 2)(code).to_pylist() == [6, 7]
    never = called(lambda x: 1 / 0)
    assert Evaluator({"x": pa.array([], pa.int64())}, 0)(never).to_pylist() == []


@pytest.mark.parametrize("found", [pa.array([1, 2], pa.int8()), [1, 2], pa.chunked_array([[1], [2]]), (1, 2)])
def test_columns_of_many_kinds_may_be_returned(found) -> None:
    result = Evaluator({"x": pa.array([7, 8])}, 2)(called(lambda x: found))
    assert result.type == pa.int64()
    assert result.to_pylist() == [1, 2]


@given(st.lists(st.integers(-3, 3) | st.none(), max_size=40))
def test_the_rows_that_are_wrong_are_found_and_no_others(values: list[int | None]) -> None:
    def picky(x):
        if 0 in x.to_pylist():
            raise ValueError("zero")
        return pc.add(x, 1)

    code = called(picky)
    evaluate_all = Evaluator({"x": pa.array(values, pa.int64())}, len(values))
    errors = evaluate_all.errors(code)
    assert ([False] * len(values) if errors is None else errors.to_pylist()) == [value == 0 for value in values]
    assert evaluate_all(code).to_pylist() == [None if value in (0, None) else value + 1 for value in values]
    assert evaluate_all.message(code) == ("function 'f' failed: ValueError: zero" if 0 in values else "")
    for value in values:  # as the reference has it
        if value == 0:
            with pytest.raises(EvaluationError, match="function 'f' failed: ValueError: zero"):
                evaluate(code, {"x": value})
        else:
            assert evaluate(code, {"x": value}) == (None if value is None else value + 1)


def test_a_function_that_always_fails_is_not_asked_for_every_row() -> None:
    asked = []
    code = called(lambda x: asked.append(len(x)) or 1 / 0)
    evaluate_all = Evaluator({"x": pa.array(range(100_000))}, 100_000)
    assert pc.all(evaluate_all.errors(code)).as_py()
    assert evaluate_all(code).null_count == 100_000
    assert len(asked) < 500


@pytest.mark.parametrize("found", [[1], 1, "ab", pa.scalar(1)])
def test_what_is_no_column_is_wrong_for_all_rows(found) -> None:
    code = called(lambda x: found)
    evaluate_all = Evaluator({"x": pa.array([1, 2])}, 2)
    assert evaluate_all.errors(code).to_pylist() == [True, True]
    assert evaluate_all.message(code).startswith("function 'f' failed: it ")


def test_a_function_must_have_been_loaded() -> None:
    with pytest.raises(EvaluationError, match="function 'nobody' is not loaded in this process"):
        Evaluator({"x": pa.array([1])}, 1)(Call("nobody@9", (X,), pa.int64()))


def test_a_function_is_written_and_read() -> None:
    for arguments in ((pa.float64(), None), (pa.decimal128(10, 2),)):
        one = UserFunction("f", "abc", arguments, pa.string())
        assert UserFunction.from_json(one.to_json()) == one
        assert one.tag == "f@abc"
