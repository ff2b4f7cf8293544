"""Scalar expressions as validated values.

There are three kinds of nodes: a column, a literal, and a call of a named function. The binder inserts every cast, so the
arguments of a comparison or of arithmetic always have the same type, and an evaluator never has to promote. Structural
equality is the sharing test: equal expressions are computed once, no matter which query contains them.

`BUILTIN_FUNCTIONS` lists all function names that an evaluator must support; a `Call` accepts only these and the tags of UDFs
(`headrace.model.function`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from headrace.model.record import record

LOGIC_FUNCTIONS = frozenset({"and", "or", "not", "is_null"})
COMPARISON_FUNCTIONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
ARITHMETIC_FUNCTIONS = frozenset({"add", "sub", "mul", "div", "int_div", "mod", "neg"})
OTHER_FUNCTIONS = frozenset({
    "eq_null_safe", "in", "like", "rlike", "case", "coalesce", "cast", "try_cast",
    "abs", "ceil", "floor", "round", "sqrt", "exp", "ln", "log10", "log2", "pow", "sign", "greatest", "least",
    "upper", "lower", "length", "trim", "ltrim", "rtrim", "substring", "concat", "replace",
    "starts_with", "ends_with", "contains", "reverse",
    "year", "quarter", "month", "day", "dayofweek", "dayofyear", "hour", "minute", "second", "second_with_fraction",
    "date_trunc", "date_add", "date_diff", "time_add", "unix_seconds",
})  # fmt: skip
BUILTIN_FUNCTIONS = LOGIC_FUNCTIONS | COMPARISON_FUNCTIONS | ARITHMETIC_FUNCTIONS | OTHER_FUNCTIONS


@record("column")
@dataclass(frozen=True, slots=True)
class Column:
    """A column of the current row, by its declared name."""

    name: str
    type: pa.DataType

    def __str__(self) -> str:
        """Return the name."""
        return self.name


@record("literal")
@dataclass(frozen=True, slots=True)
class Literal:
    """A constant: int, float, Decimal, bool, str, date, aware UTC datetime, or None."""

    value: object
    type: pa.DataType

    def __str__(self) -> str:
        """Return the constant in SQL syntax."""
        if self.value is None:
            return "NULL"
        return f"'{self.value}'" if not isinstance(self.value, bool | int | float) else str(self.value)

    def __eq__(self, other: object) -> bool:
        """Compare types first, so that 1, 1.0 and TRUE differ."""
        if not isinstance(other, Literal):
            return False
        same = bool(self.type == other.type) and type(self.value) is type(other.value)
        return same and repr(self.value) == repr(other.value)  # so NaN equals itself, and 0.0 is not -0.0

    def __hash__(self) -> int:
        """Hash the same parts that `__eq__` compares."""
        return hash((repr(self.value), self.type))


@record("call")
@dataclass(frozen=True, slots=True)
class Call:
    """A function of `BUILTIN_FUNCTIONS`, or a UDF, applied to arguments; `type` is the type of the result."""

    function: str
    args: tuple[Expression, ...]
    type: pa.DataType

    def __post_init__(self) -> None:
        """Reject function names that no evaluator supports."""
        if self.function not in BUILTIN_FUNCTIONS and "@" not in self.function:
            raise ValueError(f"unknown function '{self.function}'")

    def __str__(self) -> str:
        """Return a readable form, infix for the usual operators."""
        return _render_call(self)


Expression: TypeAlias = Column | Literal | Call

TRUE = Literal(True, pa.bool_())

_INFIX_OPERATORS = {
    "and": "AND", "or": "OR", "eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "add": "+", "sub": "-", "mul": "*", "div": "/", "int_div": "DIV", "mod": "%", "like": "LIKE",
}  # fmt: skip


def _render_call(call: Call) -> str:
    args = [f"({a})" if isinstance(a, Call) and a.function in _INFIX_OPERATORS else str(a) for a in call.args]
    if call.function in _INFIX_OPERATORS and len(args) == 2:
        return f"{args[0]} {_INFIX_OPERATORS[call.function]} {args[1]}"
    if call.function == "not":
        return f"NOT {args[0]}"
    if call.function == "is_null":
        return f"{args[0]} IS NULL"
    if call.function == "cast":
        return f"CAST({call.args[0]} AS {call.type})"
    return f"{call.function}({', '.join(map(str, call.args))})"


def walk_expression(expression: Expression) -> Iterator[Expression]:
    """Yield the expression and all its descendants."""
    yield expression
    if isinstance(expression, Call):
        for arg in expression.args:
            yield from walk_expression(arg)


def column_names(expression: Expression) -> frozenset[str]:
    """Return the names of all columns that the expression reads."""
    return frozenset(node.name for node in walk_expression(expression) if isinstance(node, Column))


def substitute_columns(expression: Expression, replacements: Mapping[str, Expression]) -> Expression:
    """Replace columns by expressions, by name; columns without a replacement stay."""
    if isinstance(expression, Column):
        return replacements.get(expression.name, expression)
    if isinstance(expression, Call):
        return Call(expression.function, tuple(substitute_columns(a, replacements) for a in expression.args), expression.type)
    return expression


def is_always_null(expression: Expression) -> bool:
    """Return whether the expression is the constant NULL, possibly inside casts."""
    if isinstance(expression, Call) and expression.function == "cast":
        return is_always_null(expression.args[0])
    return isinstance(expression, Literal) and expression.value is None


def split_conjuncts(condition: Expression) -> list[Expression]:
    """Return the operands of a chain of ANDs."""
    if isinstance(condition, Call) and condition.function == "and":
        return [part for arg in condition.args for part in split_conjuncts(arg)]
    return [condition]


def combine_conjuncts(parts: list[Expression]) -> Expression:
    """AND the conditions together; return TRUE if there are none."""
    conditions = [part for part in parts if part != TRUE]
    if not conditions:
        return TRUE
    result = conditions[0]
    for part in conditions[1:]:
        result = Call("and", (result, part), pa.bool_())
    return result
