"""User-defined functions (UDFs), for SQL queries and for stream flows.

    @hr.function("DOUBLE", arguments="DOUBLE")
    def vat(price):
        return pc.multiply(price, 1.19)

    session.register_function(vat)
    session.add("SELECT vat(price) AS gross FROM purchases")
    session.stream("purchases").map(gross=vat("price"))

A function receives whole columns, as Arrow arrays that may contain NULLs, and returns as many values: an Arrow array, a NumPy
array or a list. Each value must depend only on the arguments in its row and be deterministic: rows arrive in batches of any size,
and after a crash a batch is run again. `rowwise` wraps a function of single values.

A function that returns a list for each row, `@hr.function("ARRAY<STRING>")`, is for `flat_map`, and in SQL for `LATERAL VIEW
explode(words(text)) AS word`: the result has a row for each element.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.dsl.expression import SqlExpression, call
from headrace.errors import SchemaError, SqlError
from headrace.model.function import UdfCode, parse_result_type
from headrace.model.types import parse_type

ArgumentTypes: TypeAlias = str | Sequence[str] | None

_POSITIONAL_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_TYPE_SEPARATOR = re.compile(r",(?![^(]*\))")


@dataclass(frozen=True, slots=True)
class Function:
    """A function with its types, from `hr.function`; `Session.register_function` makes it available to queries.

    A call with columns, SQL texts or expressions returns an expression: `vat("price")`.
    """

    name: str
    code: UdfCode
    result: pa.DataType
    arguments: tuple[pa.DataType | None, ...]

    def __call__(self, *arguments: Any) -> SqlExpression:
        """Return a call of the function as an expression; raises SqlError for a wrong number of arguments."""
        if len(arguments) != len(self.arguments):
            raise SqlError(f"function '{self.name}' takes {len(self.arguments)} arguments, not {len(arguments)}")
        return call(self.name, *arguments)


@dataclass(frozen=True, slots=True)
class RowwiseCode:
    """Applies a function of single values to columns; the result is NULL where an argument is NULL."""

    code: UdfCode

    def __call__(self, *columns: pa.Array) -> list[Any]:
        """Call the function once for each row without NULLs."""
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return [None if None in row else self.code(*row) for row in rows]


def rowwise(code: UdfCode) -> UdfCode:
    """Wrap a function of single values as a function of columns; it is called row by row, which is slow."""
    return RowwiseCode(code)


def function(returns: str, *, arguments: ArgumentTypes = None, name: str | None = None) -> Callable[[UdfCode], Function]:
    """Return a decorator that makes a Python function a `Function` for `Session.register_function`.

    - `returns`: the SQL type of the result, such as "DOUBLE".
    - `arguments`: the SQL types of the arguments, such as "DOUBLE, INT"; by default the function takes columns of any type.
    - `name`: the name in queries; by default that of the Python function.

    The decorator raises SchemaError for an invalid type, or if the function has no arguments.
    """
    return lambda code: build_function(name or str(getattr(code, "__name__", "")), code, returns, arguments)


def build_function(name: str, code: Any, returns: str, arguments: ArgumentTypes = None) -> Function:
    """Return a function with its result and argument types; without `arguments` it takes columns of any type.

    Raises SchemaError if the code is not callable, a type is invalid, or the function has no arguments.
    """
    if not callable(code):
        raise SchemaError(f"function '{name}' is not callable", detail=f"it is {code!r}")
    if not isinstance(returns, str):
        raise SchemaError(f"function '{name}' needs the type it returns", hint='write @hr.function("DOUBLE")')
    argument_types = _infer_arguments(name, code) if arguments is None else _parse_types(arguments)
    if not argument_types:
        raise SchemaError(f"function '{name}' needs at least one argument", hint="use a literal for a constant value")
    return Function(name, code, parse_result_type(returns), argument_types)


def _parse_types(arguments: str | Sequence[str]) -> tuple[pa.DataType, ...]:
    return tuple(map(parse_type, _TYPE_SEPARATOR.split(arguments) if isinstance(arguments, str) else arguments))


def _infer_arguments(name: str, code: UdfCode) -> tuple[None, ...]:
    """Return an argument of any type for each required positional parameter."""
    try:
        parameters = inspect.signature(code.code if isinstance(code, RowwiseCode) else code).parameters.values()
    except (TypeError, ValueError):
        raise SchemaError(f"function '{name}' has no known parameters", hint='give arguments="DOUBLE, INT"') from None
    return tuple(None for p in parameters if p.kind in _POSITIONAL_KINDS and p.default is p.empty)
