"""Calls of user functions over columns: types, lengths, and the failed rows if a call raises."""

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


def make_call(code, *args, result: pa.DataType = pa.int64(), tag: str = "f@0"):  # noqa: B008
    register_udf_code(tag, code)
    return Call(tag, args or (X,), result)


def test_a_call_can_be_nested_in_expressions() -> None:
    double = make_call(lambda x: pc.multiply(x, 2))
    evaluate_all = Evaluator({"x": pa.array([1, None, 3])}, 3)
    assert evaluate_all(Call("add", (double, Literal(1, pa.int64())), pa.int64())).to_pylist() == [3, None, 7]
    assert evaluate_all.errors(double) is None
    assert str(double) == "f@0(x)"
    assert double == Call("f@0", (X,), pa.int64()) != Call("f@1", (X,), pa.int64())


def test_equal_calls_are_evaluated_once() -> None:
    lengths = []
    code = make_call(lambda x: lengths.append(len(x)) or x)
    evaluate_all = Evaluator({"x": pa.array([1, 2])}, 2)
    for value in (1, 2, 3):
        evaluate_all(Call("gt", (code, Literal(value, pa.int64())), pa.bool_()))
    assert lengths == [2]


def test_constants_become_columns_and_empty_batches_are_not_passed() -> None:
    code = make_call(
        lambda x, y: pa.array([a + b for a, b in zip(x.to_pylist(), y.to_pylist(), strict=True)]), X, Literal(5, pa.int64())
    )
    assert Evaluator({"x": pa.array([1, 2])}, 2)(code).to_pylist() == [6, 7]
    never = make_call(lambda x: 1 / 0)
    assert Evaluator({"x": pa.array([], pa.int64())}, 0)(never).to_pylist() == []


@pytest.mark.parametrize("returned", [pa.array([1, 2], pa.int8()), [1, 2], pa.chunked_array([[1], [2]]), (1, 2)])
def test_functions_may_return_arrays_lists_and_tuples(returned) -> None:
    result = Evaluator({"x": pa.array([7, 8])}, 2)(make_call(lambda x: returned))
    assert result.type == pa.int64()
    assert result.to_pylist() == [1, 2]


@given(st.lists(st.integers(-3, 3) | st.none(), max_size=40))
def test_only_the_failing_rows_are_errors(values: list[int | None]) -> None:
    def fail_on_zero(x):
        if 0 in x.to_pylist():
            raise ValueError("zero")
        return pc.add(x, 1)

    code = make_call(fail_on_zero)
    evaluate_all = Evaluator({"x": pa.array(values, pa.int64())}, len(values))
    errors = evaluate_all.errors(code)
    assert ([False] * len(values) if errors is None else errors.to_pylist()) == [value == 0 for value in values]
    assert evaluate_all(code).to_pylist() == [None if value in (0, None) else value + 1 for value in values]
    assert evaluate_all.message(code) == ("function 'f' failed: ValueError: zero" if 0 in values else "")
    for value in values:  # the reference agrees
        if value == 0:
            with pytest.raises(EvaluationError, match="function 'f' failed: ValueError: zero"):
                evaluate(code, {"x": value})
        else:
            assert evaluate(code, {"x": value}) == (None if value is None else value + 1)


def test_a_function_that_always_fails_is_called_few_times() -> None:
    lengths = []
    code = make_call(lambda x: lengths.append(len(x)) or 1 / 0)
    evaluate_all = Evaluator({"x": pa.array(range(100_000))}, 100_000)
    assert pc.all(evaluate_all.errors(code)).as_py()
    assert evaluate_all(code).null_count == 100_000
    assert len(lengths) < 500


@pytest.mark.parametrize("returned", [[1], 1, "ab", pa.scalar(1)])
def test_an_invalid_return_value_is_an_error_for_all_rows(returned) -> None:
    code = make_call(lambda x: returned)
    evaluate_all = Evaluator({"x": pa.array([1, 2])}, 2)
    assert evaluate_all.errors(code).to_pylist() == [True, True]
    assert evaluate_all.message(code).startswith("function 'f' failed: it ")


def test_a_function_that_is_not_loaded_is_an_error() -> None:
    with pytest.raises(EvaluationError, match="function 'nobody' is not loaded in this process"):
        Evaluator({"x": pa.array([1])}, 1)(Call("nobody@9", (X,), pa.int64()))


def test_a_user_function_survives_the_round_trip_through_json() -> None:
    for arguments in ((pa.float64(), None), (pa.decimal128(10, 2),)):
        function = UserFunction("f", "abc", arguments, pa.string())
        assert UserFunction.from_json(function.to_json()) == function
        assert function.tag == "f@abc"
