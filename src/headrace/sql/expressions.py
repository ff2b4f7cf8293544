"""Binds syntax trees of scalar expressions to checked, typed expressions.

`bind` looks up the handler of a node type in a table and rejects node types that the table lacks. It also adds the location
to errors: the innermost node with a known position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import exp

from headrace.errors import SqlError
from headrace.model.expression import TRUE, Call, Expression, Literal
from headrace.model.schema import TIMESTAMP
from headrace.sql import functions, patterns
from headrace.sql.aggregates import AGGREGATES, ORDERED, UNSUPPORTED, Written, aggregate
from headrace.sql.casts import cast, implicit
from headrace.sql.coerce import BIGINT, BOOLEAN, DATE, INT, NULL, STRING, is_integer
from headrace.sql.datatypes import data_type, number
from headrace.sql.operators import (
    arithmetic,
    both,
    case,
    compare,
    condition,
    contained,
    either,
    is_null,
    negated,
    negative,
)
from headrace.sql.scope import END as WINDOW_END
from headrace.sql.scope import START as WINDOW_START
from headrace.sql.scope import WINDOW_NAMES, Scope, resolve, unknown, window_part
from headrace.sql.user_functions import apply, user_function
from headrace.sql.windows import TABLE_FUNCTIONS, Interval, interval, window_of

_CLOCKS = frozenset({"current_timestamp", "current_date", "now", "rand", "random", "uuid", "localtimestamp"})
Handler = Callable[[Scope, Any], Expression]


def bind(scope: Scope, node: exp.Expr) -> Expression:
    """Bind an expression; every SqlError has a location."""
    handler = _HANDLERS.get(type(node))
    if handler is None:
        raise scope.source.error(node, f"{_what(node)} is not supported", hint=_HINTS.get(type(node), ""))
    for key, value in node.args.items():
        if value and key not in _PLAIN and key not in _ARGS.get(type(node), ()):
            raise scope.source.error(node, f"{key.strip('_').upper()} in {_what(node)} is not supported")
    try:
        return handler(scope, node)
    except SqlError as problem:
        if problem.place:
            raise
        raise scope.source.placed(problem, node) from None


def bind_condition(scope: Scope, node: exp.Expr) -> Expression:
    """Bind an expression that must be a BOOLEAN."""
    try:
        return condition(bind(scope, node), scope.clause)
    except SqlError as problem:
        raise scope.source.placed(problem, node) from None


def _what(node: exp.Expr) -> str:
    if type(node) in _WHAT:
        return _WHAT[type(node)]
    words = "".join(f" {char}" if char.isupper() else char for char in type(node).__name__)
    return words.strip().upper()


def _literal(_: Scope, node: exp.Literal) -> Expression:
    return Literal(node.this, STRING) if node.is_string else number(node.this)


def _negative(scope: Scope, node: exp.Neg) -> Expression:
    """Parse sign and number together, so that a query can contain the least BIGINT."""
    if isinstance(node.this, exp.Literal) and not node.this.is_string:
        return number(f"-{node.this.this}")
    return negative(bind(scope, node.this))


def _strings(scope: Scope, node: exp.Concat) -> Expression:
    """Concatenate adjacent string literals."""
    parts = [bind(scope, part) for part in node.expressions]
    return Literal("".join(patterns.constant_text(part, "each part") for part in parts), STRING)


def _cast(scope: Scope, node: exp.Cast) -> Expression:
    """Bind CAST and `::`; a typed literal (DATE '…'), which sqlglot parses as a plain Cast, must parse without loss."""
    convert = implicit if type(node) is exp.Cast else cast
    return convert(bind(scope, node.this), data_type(node.to))


def _binary(build: Callable[[Expression, Expression], Expression]) -> Handler:
    return lambda scope, node: build(bind(scope, node.this), bind(scope, node.expression))


def _comparison(function: str) -> Handler:
    return _binary(lambda left, right: compare(function, left, right))


def _arithmetic(function: str) -> Handler:
    return _binary(lambda left, right: arithmetic(function, left, right))


def _sum(sign: int) -> Handler:
    """Return the handler of + or -: numbers, a time and an interval, or a date and days."""
    function = "add" if sign > 0 else "sub"

    def handler(scope: Scope, node: exp.Binary) -> Expression:
        length, other = interval(node.expression), node.this
        if length is None and sign > 0:
            length, other = interval(node.this), node.expression
        if length is not None:
            return _shift(bind(scope, other), Interval(sign * length.micros, length.days_only))
        left, right = bind(scope, node.this), bind(scope, node.expression)
        if left.type == DATE and is_integer(right.type):
            return functions.call("date_add" if sign > 0 else "date_sub", [left, right])
        return arithmetic(function, left, right)

    return handler


def _shift(time: Expression, by: Interval) -> Expression:
    if time.type == DATE and by.days_only:
        return functions.call("date_add", [time, Literal(by.micros // 86_400_000_000, INT)])
    return Call("time_add", (functions.moment(time), Literal(by.micros, BIGINT)), TIMESTAMP)


def _between(scope: Scope, node: exp.Between) -> Expression:
    value = bind(scope, node.this)
    low, high = bind(scope, node.args["low"]), bind(scope, node.args["high"])
    return both(compare("ge", value, low), compare("le", value, high))


def _in(scope: Scope, node: exp.In) -> Expression:
    if not node.expressions or any(isinstance(choice, exp.Query) for choice in node.expressions):
        raise SqlError("IN over a sub-query is not supported", hint="list the values: IN (1, 2, 3)")
    return contained(bind(scope, node.this), [bind(scope, choice) for choice in node.expressions])


def _is(scope: Scope, node: exp.Is) -> Expression:
    value, against = bind(scope, node.this), node.expression
    if isinstance(against, exp.Null):
        return is_null(value)
    if not isinstance(against, exp.Boolean):
        raise SqlError("IS must be followed by NULL, TRUE or FALSE", hint="use = or <=>")
    return compare("eq_null_safe", condition(value, "IS"), Literal(against.this, BOOLEAN))


def _pattern(build: Callable[[Expression, Expression], Expression]) -> Handler:
    def handler(scope: Scope, node: exp.Binary) -> Expression:
        result = build(bind(scope, node.this), bind(scope, node.expression))
        return negated(result) if node.args.get("negate") else result

    return handler


def _escape(scope: Scope, node: exp.Escape) -> Expression:
    """Bind LIKE with an escape character other than the backslash."""
    char = patterns.constant_text(bind(scope, node.expression), "the escape character")
    if len(char) != 1 or not isinstance(node.this, exp.Like):
        raise SqlError("ESCAPE needs LIKE and a single character")
    return _pattern(lambda value, pattern: patterns.like(value, pattern, char))(scope, node.this)


def _case(scope: Scope, node: exp.Case) -> Expression:
    subject = node.this and bind(scope, node.this)
    pairs = []
    for branch in node.args["ifs"]:
        test = bind(scope, branch.this)
        pairs.append((compare("eq", subject, test) if subject else test, bind(scope, branch.args["true"])))
    default = node.args.get("default")
    return case(pairs, bind(scope, default) if default else Literal(None, NULL))


def _dot(scope: Scope, node: exp.Dot) -> Expression:
    """Bind `window(time, '8 seconds').start`, if the query groups by that window."""
    call = node.this
    if not isinstance(call, exp.Anonymous) or call.name.lower() not in WINDOW_NAMES:
        raise SqlError("fields of structures are not supported")
    bounds = {"start": WINDOW_START, "end": WINDOW_END}
    part = window_part(scope, f"{call.name}(…).{node.name}", bounds.get(node.name.lower()))
    if window_of(call.name, call.expressions[1:]) != scope.window:
        raise SqlError("this is not the window the query groups by", hint="write window.start or window.end")
    return part


def _function(scope: Scope, node: exp.Anonymous) -> Expression:
    name = node.name
    if name.lower() in AGGREGATES:
        return _aggregate(scope, node)
    registered = user_function(node)
    if registered is not None:
        return apply(registered, [bind(scope, arg) for arg in node.expressions])
    if name.lower() not in functions.FUNCTIONS:
        raise _no_function(name)
    return functions.call(name, [bind(scope, arg) for arg in node.expressions])


def _no_function(name: str) -> SqlError:
    if name.lower() in TABLE_FUNCTIONS:
        return SqlError(f"{name.upper()} belongs in FROM", hint=f"write FROM {name.upper()}(stream, '8 seconds')")
    if name.lower() in WINDOW_NAMES:
        return SqlError(f"{name} belongs in GROUP BY", hint="select window.start and window.end")
    if name.lower() in _CLOCKS:
        return SqlError(f"function '{name}' is not supported", hint="a query must give the same result whenever it runs")
    if name.lower() in UNSUPPORTED:
        return SqlError(f"aggregate '{name}' is not supported", detail=f"aggregates: {', '.join(sorted(AGGREGATES))}")
    problem = unknown("function", name, sorted({*functions.FUNCTIONS, *AGGREGATES}))
    return SqlError(problem.message, hint=problem.hint)


def _aggregate(scope: Scope, node: exp.Anonymous, ordered: exp.Expr | None = None, where: exp.Expr | None = None) -> Expression:
    name = node.name
    if scope.collector is None:
        hint = "use HAVING" if scope.clause == "WHERE" else ""
        raise SqlError(f"aggregate '{name}' cannot be used in {scope.clause}", hint=hint)
    row_scope = scope.inside_aggregate()
    args, distinct = _aggregate_args(node)
    if (name.lower() in ORDERED) != (ordered is not None):
        raise SqlError(f"aggregate '{name}' needs WITHIN GROUP", hint="write PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY x)")
    bound = [bind(row_scope, arg) for arg in ([ordered, *args] if ordered is not None else args)]
    predicate = TRUE if where is None else bind_condition(row_scope, where)
    return scope.collector.add(aggregate(Written(name, tuple(bound), distinct, predicate)))


def _aggregate_args(node: exp.Anonymous) -> tuple[list[exp.Expr], bool]:
    """Return the argument nodes (none for `*`), and whether they are DISTINCT."""
    args = node.expressions
    distinct = len(args) == 1 and isinstance(args[0], exp.Distinct)
    if distinct:
        args = args[0].expressions
    if len(args) == 1 and isinstance(args[0], exp.Star) and node.name.lower() == "count":
        return [], distinct
    if not args:
        raise SqlError(f"aggregate '{node.name}' needs an argument")
    return args, distinct


def _filter(scope: Scope, node: exp.Filter) -> Expression:
    inner, where = node.this, node.expression.this
    if isinstance(inner, exp.WithinGroup):
        return _within(scope, inner, where)
    if not isinstance(inner, exp.Anonymous) or inner.name.lower() not in AGGREGATES:
        raise SqlError("FILTER needs an aggregate before it")
    return _aggregate(scope, inner, where=where)


def _within(scope: Scope, node: exp.WithinGroup, where: exp.Expr | None = None) -> Expression:
    order = node.expression.expressions if isinstance(node.expression, exp.Order) else []
    if len(order) != 1 or order[0].args.get("desc") or not isinstance(node.this, exp.Anonymous):
        raise SqlError("WITHIN GROUP needs one ascending order", hint="write WITHIN GROUP (ORDER BY x)")
    if node.this.name.lower() not in ORDERED:
        raise SqlError(f"WITHIN GROUP does not go with '{node.this.name}'", hint="write PERCENTILE_CONT(0.5) WITHIN GROUP (…)")
    return _aggregate(scope, node.this, ordered=order[0].this, where=where)


def _extract(scope: Scope, node: exp.Extract) -> Expression:
    return functions.part(node.name, bind(scope, node.expression))


_HANDLERS: dict[type[exp.Expr], Handler] = {
    exp.Column: resolve, exp.Literal: _literal, exp.RawString: lambda _, node: Literal(node.this, STRING),
    exp.Boolean: lambda _, node: Literal(bool(node.this), BOOLEAN), exp.Null: lambda _, __: Literal(None, NULL),
    exp.Paren: lambda scope, node: bind(scope, node.this), exp.Concat: _strings,
    exp.Cast: _cast, exp.TryCast: _cast, exp.Case: _case, exp.Dot: _dot, exp.Extract: _extract,
    exp.Anonymous: _function, exp.Filter: _filter, exp.WithinGroup: _within,
    exp.And: _binary(both), exp.Or: _binary(either), exp.Not: lambda scope, node: negated(bind(scope, node.this)),
    exp.EQ: _comparison("eq"), exp.NEQ: _comparison("ne"), exp.LT: _comparison("lt"), exp.LTE: _comparison("le"),
    exp.GT: _comparison("gt"), exp.GTE: _comparison("ge"), exp.NullSafeEQ: _comparison("eq_null_safe"),
    exp.NullSafeNEQ: _binary(lambda a, b: negated(compare("eq_null_safe", a, b))),
    exp.Is: _is, exp.In: _in, exp.Between: _between,
    exp.Like: _pattern(patterns.like), exp.ILike: _pattern(patterns.ilike), exp.RegexpLike: _pattern(patterns.rlike),
    exp.Escape: _escape,
    exp.Add: _sum(1), exp.Sub: _sum(-1), exp.Mul: _arithmetic("mul"), exp.Div: _arithmetic("div"),
    exp.IntDiv: _arithmetic("int_div"), exp.Mod: _arithmetic("mod"),
    exp.Neg: _negative,
    exp.DPipe: _binary(lambda a, b: functions.call("concat", [a, b])),
}  # fmt: skip

_PLAIN = frozenset({"this", "expression", "expressions", "safe"})
_ARGS: dict[type[exp.Expr], tuple[str, ...]] = {  # args that the handler reads, or that have no effect
    exp.Column: ("table", "db", "catalog"), exp.Literal: ("is_string",), exp.Cast: ("to",),
    exp.TryCast: ("to", "requires_string"), exp.Case: ("ifs", "default"),
    exp.Like: ("negate",), exp.ILike: ("negate",), exp.RegexpLike: ("negate",),
    exp.In: ("query",), exp.Between: ("low", "high"), exp.Div: ("typed",), exp.Concat: ("coalesce",),
}  # fmt: skip
_WHAT: dict[type[exp.Expr], str] = {
    exp.Window: "a window function (OVER …)", exp.Subquery: "a sub-query as a value", exp.Exists: "EXISTS",
    exp.Star: "* as a value", exp.Tuple: "a list of values", exp.Interval: "an interval as a value",
}  # fmt: skip
_HINTS: dict[type[exp.Expr], str] = {
    exp.Window: "aggregate over a window of time instead: GROUP BY window(time, '8 seconds')",
    exp.Subquery: "only a sub-query in FROM is possible", exp.Exists: "only a sub-query in FROM is possible",
    exp.CurrentDate: "a query must give the same result whenever it runs", exp.Interval: "add it to a TIMESTAMP",
    exp.CurrentTimestamp: "a query must give the same result whenever it runs",
    exp.Star: "name the columns",
}  # fmt: skip
