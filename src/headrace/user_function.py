"""Functions of users, for queries in SQL and for flows.

    @hr.function("DOUBLE", arguments="DOUBLE")
    def vat(price):
        return pc.multiply(price, 1.19)

    session.register_function(vat)
    session.add("SELECT vat(price) AS gross FROM purchases")
    session.stream("purchases").map(gross=vat("price"))

A function gets whole columns, as Arrow arrays with NULLs in them, and returns as many values: an Arrow array, a NumPy array or a
list. A value must follow from the arguments in its own row alone, and be the same whenever it is asked for: rows come in batches
of any size, and after a crash a batch is run again. One that knows single values only is wrapped by `rowwise`.

A function that returns a list for each row, `@hr.function("ARRAY<STRING>")`, is for `flat_map`, and in SQL for `LATERAL VIEW
explode(words(text)) AS word`: there is a row for each element.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.builder_expression import Expression, call
from headrace.errors import SchemaError, SqlError
from headrace.model.function import Code, result_type
from headrace.model.schema import parse_type

Types: TypeAlias = str | Sequence[str] | None

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_COMMA = re.compile(r",(?![^(]*\))")


@dataclass(frozen=True, slots=True)
class Function:
    """A function ready to be registered; called with columns, SQL or expressions it gives an expression."""

    name: str
    code: Code
    result: pa.DataType
    arguments: tuple[pa.DataType | None, ...]

    def __call__(self, *arguments: Any) -> Expression:
        """Return the call, for queries that are made of calls: `vat("price")`."""
        if len(arguments) != len(self.arguments):
            raise SqlError(f"function '{self.name}' takes {len(self.arguments)} arguments, not {len(arguments)}")
        return call(self.name, *arguments)


@dataclass(frozen=True, slots=True)
class Rowwise:
    """A function of single values as one of columns; NULL where an argument is NULL."""

    code: Code

    def __call__(self, *columns: pa.Array) -> list[Any]:
        """Call it for every row."""
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return [None if None in row else self.code(*row) for row in rows]


def rowwise(code: Code) -> Code:
    """Make a function of columns of one of single values: row by row, which is slow."""
    return Rowwise(code)


def function(returns: str, *, arguments: Types = None, name: str | None = None) -> Callable[[Code], Function]:
    """Make a function ready to be registered, under its own name or another: a decorator."""
    return lambda code: function_of(name or str(getattr(code, "__name__", "")), code, returns, arguments)


def function_of(name: str, code: Any, returns: str, arguments: Types = None) -> Function:
    """Return a function with the types it returns and takes; without `arguments` it takes whatever types columns have."""
    if not callable(code):
        raise SchemaError(f"function '{name}' cannot be called", detail=f"it is {code!r}")
    if not isinstance(returns, str):
        raise SchemaError(f"function '{name}' needs the type it returns", hint='write @hr.function("DOUBLE")')
    taken = _parameters(name, code) if arguments is None else _types(arguments)
    if not taken:
        raise SchemaError(f"function '{name}' needs at least one argument", hint="a value without any is a literal")
    return Function(name, code, result_type(returns), taken)


def _types(arguments: str | Sequence[str]) -> tuple[pa.DataType, ...]:
    return tuple(map(parse_type, _COMMA.split(arguments) if isinstance(arguments, str) else arguments))


def _parameters(name: str, code: Code) -> tuple[None, ...]:
    """Return as many arguments of any type as must be given."""
    try:
        given = inspect.signature(code.code if isinstance(code, Rowwise) else code).parameters.values()
    except (TypeError, ValueError):
        raise SchemaError(f"function '{name}' does not say what it takes", hint='give arguments="DOUBLE, INT"') from None
    return tuple(None for one in given if one.kind in _POSITIONAL and one.default is one.empty)
