"""Functions that users registered: found in a query right after it is parsed, called like those of SQL."""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

from headrace.errors import SqlError
from headrace.model.expression import Call, Expression, columns
from headrace.model.function import UserFunction
from headrace.model.schema import type_name
from headrace.sql.aggregates import AGGREGATES, UNSUPPORTED
from headrace.sql.casts import cast, implicit
from headrace.sql.catalog import Catalog
from headrace.sql.coerce import NULL, common_type, is_string_literal
from headrace.sql.functions import FUNCTIONS
from headrace.sql.parse import Source, parse
from headrace.sql.quoting import identifier
from headrace.sql.windows import GROUP_FUNCTIONS, TABLE_FUNCTIONS

_KEY = "user function"
_OTHERS = ("sliding", "cast", "extract", "explode")
_TAKEN = frozenset({*FUNCTIONS, *AGGREGATES, *UNSUPPORTED, *TABLE_FUNCTIONS, *GROUP_FUNCTIONS, *_OTHERS})


def note_user_functions(tree: exp.Expr, catalog: Catalog) -> None:
    """Remember at each call of a registered function which it is."""
    if catalog.functions:
        for node in tree.find_all(exp.Anonymous):
            found = catalog.function(node.name)
            if found is not None:
                node.meta[_KEY] = found


def user_function(node: exp.Expr) -> UserFunction | None:
    """Return the registered function that a node calls, if it does."""
    found: UserFunction | None = node.meta.get(_KEY)
    return found


def apply(function: UserFunction, args: list[Expression], *, lists: bool = False) -> Expression:
    """Return the call, arguments brought to the types the function takes; SqlError without place if they cannot be.

    Lists may stand nowhere but where `lists` says so.
    """
    if pa.types.is_list(function.result) and not lists:
        raise SqlError(
            f"function '{function.name}' returns lists", hint=f"write FROM … LATERAL VIEW explode({function.name}(…)) AS element"
        )
    if len(args) != len(function.arguments):
        raise SqlError(f"function '{function.name}' takes {len(function.arguments)} arguments, not {len(args)}")
    if not any(map(columns, args)):
        raise SqlError(f"function '{function.name}' needs a column among its arguments", hint="write the value itself")
    given = (_argument(function, n, arg, kind) for n, (arg, kind) in enumerate(zip(args, function.arguments, strict=True)))
    return Call(function.tag, tuple(given), function.result)


def _argument(function: UserFunction, index: int, value: Expression, kind: pa.DataType | None) -> Expression:
    if kind is None and value.type != NULL:
        return value
    if kind is not None and is_string_literal(value):
        return implicit(value, kind)
    if kind is None or common_type(value.type, kind) != kind:
        wanted, given = "a type" if kind is None else type_name(kind), type_name(value.type)
        raise SqlError(
            f"argument {index + 1} of function '{function.name}' must have {wanted}, not {given}", hint="cast it: CAST(… AS type)"
        )
    return cast(value, kind)


def called(text: str) -> frozenset[str]:
    """Return the names of all functions that a query calls, in lower case."""
    return frozenset(node.name.lower() for node in parse(Source(text)).find_all(exp.Anonymous))


def check_name(name: str) -> None:
    """Refuse a name that a function cannot have: what SQL has, or could not read."""
    if not isinstance(name, str) or identifier(name) != name:
        raise SqlError(f"{name!r} cannot be the name of a function", hint="use letters, digits and '_', and no word of SQL")
    if name.lower() in _TAKEN:
        raise SqlError(f"function '{name.lower()}' is one of SQL's", hint="choose another name")
