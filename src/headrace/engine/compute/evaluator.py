"""The vectorized evaluator: expressions over a batch of Arrow columns.

Every built-in function has a kernel in one table, name → function; UDFs share a single kernel. A kernel works on whole
columns; Python runs per row, or per distinct value, only where the docstring of a kernel module says so. AND, OR, CASE and
COALESCE are here, not in the table, because they decide which errors of their arguments matter: an error in an operand that
is not needed does not occur. A guarded evaluator turns an exception that a kernel does not expect into an error of the
expression on all rows, so that it fails the queries that evaluate the expression, and no others.

Errors are rare, so they cost nothing until they happen: a kernel computes with overflow checks on, and only if these fail
does it search for the rows that failed. Such a row is NULL in the result and set in `Evaluator.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.compute import arithmetic, cast, comparison, text, time, udf
from headrace.engine.compute.columns import EvaluationResult, Kernel, Value, broadcast_value, is_scalar, set_null
from headrace.errors import describe_exception
from headrace.model.expression import Call, Column, Expression, Literal
from headrace.model.function import is_udf_tag

KERNELS: dict[str, Kernel] = {
    **arithmetic.KERNELS,
    **comparison.KERNELS,
    **text.KERNELS,
    **time.KERNELS,
    **cast.KERNELS,
}
_MAX_EXPRESSION_TEXT = 200  # characters of an expression in an error
_ROW_ARGUMENTS = {"date_trunc": 1}  # the argument to broadcast in a call of constants; the first, if not listed


class Evaluator:
    """Evaluates expressions over one batch of rows; computes equal (sub-)expressions of all queries once."""

    def __init__(
        self, table: pa.Table | Mapping[str, pa.Array | pa.ChunkedArray], rows: int, *, is_guarded: bool = False
    ) -> None:
        """Bind the rows: `table` has every column that the expressions name, each of `rows` entries; it is never modified.

        The caller of a guarded evaluator must ask for the `errors` of every expression: without them, an expression that
        raised is indistinguishable from NULL.
        """
        self._table, self._rows, self._is_guarded = table, rows, is_guarded
        self._results: dict[Expression, EvaluationResult] = {}

    def __call__(self, expression: Expression) -> Any:
        """Return the values, an array of `expression.type`, NULL on rows with an error; columns are not copied."""
        if isinstance(expression, Column):
            return self._table[expression.name]
        return broadcast_value(self._evaluate(expression).value, self._rows)

    def errors(self, expression: Expression) -> pa.Array | None:
        """Return a boolean array that is true on rows where evaluation failed; None if there are none."""
        return self._evaluate(expression).errors

    def message(self, expression: Expression) -> str:
        """Return the error message for the rows of `errors`; empty if there are none."""
        result = self._evaluate(expression)
        return result.message if result.errors is not None else ""

    def _evaluate(self, expression: Expression) -> EvaluationResult:
        if isinstance(expression, Literal):  # cheaper to build than to look up
            return EvaluationResult(pa.scalar(expression.value, type=expression.type))
        result = self._results.get(expression)
        if result is None:
            compute = self._compute_guarded if self._is_guarded else self._compute
            result = self._results[expression] = compute(expression)
        return result

    def _compute_guarded(self, expression: Column | Call) -> EvaluationResult:
        try:
            return self._compute(expression)
        except MemoryError:  # another expression may hold the memory
            raise
        except (Exception, SystemExit) as problem:  # noqa: BLE001  whatever a kernel raises belongs to its expression
            message = f"internal error in {_abbreviate(str(expression))}: {describe_exception(problem)}"
            return EvaluationResult(pa.nulls(self._rows, expression.type), pa.repeat(True, self._rows), message)

    def _compute(self, expression: Column | Call) -> EvaluationResult:
        if isinstance(expression, Column):
            return EvaluationResult(_combine_chunks(self._table[expression.name]))
        args = [self._evaluate(arg) for arg in expression.args]
        if expression.function in _SHORT_CIRCUIT_KERNELS:
            return _SHORT_CIRCUIT_KERNELS[expression.function](expression, args)
        if all(is_scalar(arg.value) for arg in args):
            return self._evaluate_constant(expression, args)
        return _add_argument_errors(_apply_kernel(expression, [arg.value for arg in args]), args)

    def _evaluate_constant(self, call: Call, args: Sequence[EvaluationResult]) -> EvaluationResult:
        """Evaluate a call of constants once, on a single row, and return the result as a constant."""
        values = [arg.value for arg in args]
        row_argument = _ROW_ARGUMENTS.get(call.function, 0)
        values[row_argument] = broadcast_value(values[row_argument], 1)
        single = _apply_kernel(call, values)
        errors = None if single.errors is None or not self._rows else pa.repeat(single.errors[0], self._rows)
        return _add_argument_errors(EvaluationResult(single.value[0], errors, single.message), args)


def _abbreviate(text: str) -> str:
    return text if len(text) <= _MAX_EXPRESSION_TEXT else f"{text[:_MAX_EXPRESSION_TEXT]}…"


def _combine_chunks(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as a single array; a single chunk is not copied."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _apply_kernel(call: Call, values: Sequence[Value]) -> EvaluationResult:
    kernel = udf.call_udf if is_udf_tag(call.function) else KERNELS[call.function]
    result = kernel(call, values)
    return result if isinstance(result, EvaluationResult) else EvaluationResult(result)


# --- which errors matter -----------------------------------------------------------------------------------------------


def _add_argument_errors(result: EvaluationResult, args: Sequence[EvaluationResult]) -> EvaluationResult:
    """Add the errors of the arguments of a function that needs all of them."""
    if _has_no_errors(args):
        return result
    return _merge_errors(result.value, [(part.errors, part.message) for part in (*args, result)])


def _has_no_errors(args: Sequence[EvaluationResult]) -> bool:
    return all(arg.errors is None for arg in args)


def _merge_errors(value: Value, parts: Sequence[tuple[pa.Array | None, str]]) -> EvaluationResult:
    """Merge error rows into one mask; the message is that of the first part with errors."""
    failing = [(rows, message) for rows, message in parts if rows is not None and pc.any(rows).as_py()]
    if not failing:
        return EvaluationResult(value)
    errors = failing[0][0]
    for rows, _ in failing[1:]:
        errors = pc.or_(errors, rows)
    return EvaluationResult(set_null(broadcast_value(value, len(errors)), errors), errors, failing[0][1])


def _intersect_errors(rows: Value, errors: pa.Array | None) -> pa.Array | None:
    return None if errors is None else pc.and_(rows, errors)


def _make_junction(
    kleene: Callable[[Value, Value], Value], deciding: bool
) -> Callable[[Call, Sequence[EvaluationResult]], EvaluationResult]:
    """Make AND or OR: an error on one side does not matter where the other side alone decides the result."""

    def kernel(_: Call, args: Sequence[EvaluationResult]) -> EvaluationResult:
        result = args[0]
        for arg in args[1:]:
            sides = ((result, arg), (arg, result))
            parts = [
                (_intersect_errors(_undecided_rows(other.value, deciding), side.errors), side.message)
                for side, other in sides
                if side.errors is not None
            ]
            result = _merge_errors(kleene(result.value, arg.value), parts)
        return result

    return kernel


def _undecided_rows(value: Value, deciding: bool) -> Value:
    return pc.invert(pc.fill_null(pc.equal(value, deciding), False))


def _evaluate_case(call: Call, args: Sequence[EvaluationResult]) -> EvaluationResult:
    """Evaluate pairs of condition and value, then the default (NULL if omitted); a NULL condition is not taken."""
    default = args[-1] if len(args) % 2 else EvaluationResult(pa.scalar(None, call.type))
    branches = [(pc.fill_null(args[index].value, False), args[index], args[index + 1]) for index in range(0, len(args) - 1, 2)]
    value = default.value
    for holds, _, result in reversed(branches):
        value = pc.if_else(holds, result.value, value)
    return EvaluationResult(value) if _has_no_errors(args) else _merge_errors(value, _collect_case_errors(branches, default))


def _collect_case_errors(
    branches: Sequence[tuple[Value, EvaluationResult, EvaluationResult]], default: EvaluationResult
) -> list[tuple[pa.Array | None, str]]:
    """Collect the errors of conditions that are evaluated and of values that are taken."""
    reached: Value = pa.scalar(True)
    parts = []
    for holds, condition, result in branches:
        parts.append((_intersect_errors(reached, condition.errors), condition.message))
        parts.append((_intersect_errors(pc.and_(reached, holds), result.errors), result.message))
        reached = pc.and_(reached, pc.invert(holds))
    return [*parts, (_intersect_errors(reached, default.errors), default.message)]


def _evaluate_coalesce(_: Call, args: Sequence[EvaluationResult]) -> EvaluationResult:
    """Return the first value that is not NULL; errors of later arguments do not matter."""
    value = pc.coalesce(*(arg.value for arg in args))
    if _has_no_errors(args):
        return EvaluationResult(value)
    reached: Value = pa.scalar(True)
    parts = []
    for arg in args:
        parts.append((_intersect_errors(reached, arg.errors), arg.message))
        reached = pc.and_(reached, pc.is_null(arg.value))
    return _merge_errors(value, parts)


_SHORT_CIRCUIT_KERNELS: dict[str, Callable[[Call, Sequence[EvaluationResult]], EvaluationResult]] = {
    "and": _make_junction(pc.and_kleene, deciding=False),
    "or": _make_junction(pc.or_kleene, deciding=True),
    "case": _evaluate_case,
    "coalesce": _evaluate_coalesce,
}

SUPPORTED_FUNCTIONS = frozenset(KERNELS) | frozenset(_SHORT_CIRCUIT_KERNELS)
"""Functions that this evaluator supports; a test requires it to equal `BUILTIN_FUNCTIONS`."""
