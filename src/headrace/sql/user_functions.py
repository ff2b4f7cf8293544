"""User-defined functions (UDFs): marks their calls in the syntax tree right after parsing, and binds those calls."""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

from headrace.errors import SqlError
from headrace.model.expression import Call, Expression, column_names
from headrace.model.function import UserFunction
from headrace.model.schema import type_name
from headrace.sql.aggregates import AGGREGATES, UNSUPPORTED_AGGREGATES
from headrace.sql.casts import cast_implicitly, cast_to
from headrace.sql.catalog import Catalog
from headrace.sql.coerce import NULL, find_common_type, is_string_literal
from headrace.sql.functions import FUNCTIONS
from headrace.sql.parse import SqlSource, parse_statement
from headrace.sql.quoting import quote_identifier
from headrace.sql.windows import GROUP_WINDOW_FUNCTIONS, TABLE_WINDOW_FUNCTIONS

_META_KEY = "user function"
_OTHER_RESERVED_NAMES = ("sliding", "cast", "extract", "explode")
_RESERVED_NAMES = frozenset(
    {*FUNCTIONS, *AGGREGATES, *UNSUPPORTED_AGGREGATES, *TABLE_WINDOW_FUNCTIONS, *GROUP_WINDOW_FUNCTIONS, *_OTHER_RESERVED_NAMES}
)


def mark_user_functions(tree: exp.Expr, catalog: Catalog) -> None:
    """Store the UDF in the metadata of each node that calls it."""
    if catalog.functions:
        for node in tree.find_all(exp.Anonymous):
            function = catalog.find_function(node.name)
            if function is not None:
                node.meta[_META_KEY] = function


def get_user_function(node: exp.Expr) -> UserFunction | None:
    """Return the UDF that a node calls, or None."""
    function: UserFunction | None = node.meta.get(_META_KEY)
    return function


def call_user_function(function: UserFunction, args: list[Expression], *, lists: bool = False) -> Expression:
    """Return the call with arguments cast to the parameter types; SqlError without a location if it is invalid.

    A function that returns lists is rejected unless `lists` is set.
    """
    if pa.types.is_list(function.result_type) and not lists:
        raise SqlError(
            f"function '{function.name}' returns lists", hint=f"write FROM … LATERAL VIEW explode({function.name}(…)) AS element"
        )
    if len(args) != len(function.argument_types):
        raise SqlError(f"function '{function.name}' takes {len(function.argument_types)} arguments, not {len(args)}")
    if not any(map(column_names, args)):
        raise SqlError(f"function '{function.name}' needs a column among its arguments", hint="write the value itself")
    arguments = (
        _coerce_argument(function, n, arg, kind) for n, (arg, kind) in enumerate(zip(args, function.argument_types, strict=True))
    )
    return Call(function.tag, tuple(arguments), function.result_type)


def _coerce_argument(function: UserFunction, index: int, value: Expression, kind: pa.DataType | None) -> Expression:
    if kind is None and value.type != NULL:
        return value
    if kind is not None and is_string_literal(value):
        return cast_implicitly(value, kind)
    if kind is None or find_common_type(value.type, kind) != kind:
        expected, actual = "a type" if kind is None else type_name(kind), type_name(value.type)
        raise SqlError(
            f"argument {index + 1} of function '{function.name}' must have {expected}, not {actual}",
            hint="cast it: CAST(… AS type)",
        )
    return cast_to(value, kind)


def list_called_functions(text: str) -> frozenset[str]:
    """Return the lower-case names of all functions that a query calls."""
    return frozenset(node.name.lower() for node in parse_statement(SqlSource(text)).find_all(exp.Anonymous))


def check_function_name(name: str) -> None:
    """Reject a function name that SQL has built in, or that does not parse as a plain identifier."""
    if not isinstance(name, str) or quote_identifier(name) != name:
        raise SqlError(f"{name!r} cannot be the name of a function", hint="use letters, digits and '_', and no word of SQL")
    if name.lower() in _RESERVED_NAMES:
        raise SqlError(f"function '{name.lower()}' is built in", hint="choose another name")
