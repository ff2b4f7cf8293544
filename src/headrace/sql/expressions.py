"""Binds syntax trees of scalar expressions to checked, typed expressions.

`bind_expression` looks up the handler of a node type in a table and rejects node types that the table lacks. It also adds the
location to errors: the innermost node with a known position. `derive_output_name` names an output without an alias: the
column's name, else the text of the expression in Spark's format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import exp

from headrace.errors import SqlError
from headrace.model.expression import TRUE, Call, Expression, Literal
from headrace.model.types import TIMESTAMP
from headrace.sql import functions, operators
from headrace.sql.aggregate_functions import (
    AGGREGATES,
    ORDERED_SET_AGGREGATES,
    UNSUPPORTED_AGGREGATES,
    ParsedAggregate,
    build_aggregate,
)
from headrace.sql.casts import cast_implicitly, cast_to, try_cast_to
from headrace.sql.functions import call_user_function, get_user_function
from headrace.sql.operators import (
    make_and,
    make_arithmetic,
    make_case,
    make_comparison,
    make_in,
    make_is_null,
    make_negative,
    make_not,
    make_or,
    require_boolean,
)
from headrace.sql.scope import END_PLACEHOLDER as WINDOW_END
from headrace.sql.scope import START_PLACEHOLDER as WINDOW_START
from headrace.sql.scope import WINDOW_NAMES, Scope, resolve_column, resolve_window_bound, unknown_name_error
from headrace.sql.types import BIGINT, BOOLEAN, DATE, INT, NULL, STRING, is_integer, parse_number, resolve_type
from headrace.sql.windows import TABLE_WINDOW_FUNCTIONS, Interval, parse_interval, parse_window

_NONDETERMINISTIC = frozenset({"current_timestamp", "current_date", "now", "rand", "random", "uuid", "localtimestamp"})
NodeHandler = Callable[[Scope, Any], Expression]


def bind_expression(scope: Scope, node: exp.Expr) -> Expression:
    """Bind an expression; every SqlError has a location."""
    handler = _HANDLERS.get(type(node))
    if handler is None:
        raise scope.source.error_at_node(
            node, f"{_describe_node(node)} is not supported", hint=_UNSUPPORTED_HINTS.get(type(node), "")
        )
    for key, value in node.args.items():
        if value and key not in _COMMON_ARGS and key not in _SUPPORTED_ARGS.get(type(node), ()):
            raise scope.source.error_at_node(node, f"{key.strip('_').upper()} in {_describe_node(node)} is not supported")
    try:
        return handler(scope, node)
    except SqlError as problem:
        if problem.place:
            raise
        raise scope.source.with_location(problem, node) from None


def bind_condition(scope: Scope, node: exp.Expr) -> Expression:
    """Bind an expression that must be a BOOLEAN."""
    try:
        return require_boolean(bind_expression(scope, node), scope.clause)
    except SqlError as problem:
        raise scope.source.with_location(problem, node) from None


def _describe_node(node: exp.Expr) -> str:
    if type(node) in _NODE_DESCRIPTIONS:
        return _NODE_DESCRIPTIONS[type(node)]
    words = "".join(f" {char}" if char.isupper() else char for char in type(node).__name__)
    return words.strip().upper()


def _bind_literal(_: Scope, node: exp.Literal) -> Expression:
    return Literal(node.this, STRING) if node.is_string else parse_number(node.this)


def _bind_negative(scope: Scope, node: exp.Neg) -> Expression:
    """Parse sign and number together, so that a query can contain the least BIGINT."""
    if isinstance(node.this, exp.Literal) and not node.this.is_string:
        return parse_number(f"-{node.this.this}")
    return make_negative(bind_expression(scope, node.this))


def _bind_adjacent_strings(scope: Scope, node: exp.Concat) -> Expression:
    """Concatenate adjacent string literals."""
    parts = [bind_expression(scope, part) for part in node.expressions]
    return Literal("".join(operators.require_string_literal(part, "each part") for part in parts), STRING)


def _bind_cast(scope: Scope, node: exp.Cast) -> Expression:
    """Bind a cast.

    The parser returns a TryCast for CAST, `::` and TRY_CAST, with `safe` for TRY_CAST only, and a Cast for a typed literal
    (DATE '…'), whose text must parse without loss.
    """
    convert = cast_implicitly if type(node) is exp.Cast else try_cast_to if node.args.get("safe") else cast_to
    return convert(bind_expression(scope, node.this), resolve_type(node.to))


def _binary_handler(build: Callable[[Expression, Expression], Expression]) -> NodeHandler:
    return lambda scope, node: build(bind_expression(scope, node.this), bind_expression(scope, node.expression))


def _comparison_handler(function: str) -> NodeHandler:
    return _binary_handler(lambda left, right: make_comparison(function, left, right))


def _arithmetic_handler(function: str) -> NodeHandler:
    return _binary_handler(lambda left, right: make_arithmetic(function, left, right))


def _additive_handler(sign: int) -> NodeHandler:
    """Return the handler of + or -: numbers, a time and an interval, or a date and days."""
    function = "add" if sign > 0 else "sub"

    def handler(scope: Scope, node: exp.Binary) -> Expression:
        length, other = parse_interval(node.expression), node.this
        if length is None and sign > 0:
            length, other = parse_interval(node.this), node.expression
        if length is not None:
            return _shift_time(bind_expression(scope, other), Interval(sign * length.micros, length.days_only))
        left, right = bind_expression(scope, node.this), bind_expression(scope, node.expression)
        if left.type == DATE and is_integer(right.type):
            return functions.build_call("date_add" if sign > 0 else "date_sub", [left, right])
        return make_arithmetic(function, left, right)

    return handler


def _shift_time(time: Expression, by: Interval) -> Expression:
    if time.type == DATE and by.days_only:
        return functions.build_call("date_add", [time, Literal(by.micros // 86_400_000_000, INT)])
    return Call("time_add", (functions.to_timestamp(time), Literal(by.micros, BIGINT)), TIMESTAMP)


def _bind_between(scope: Scope, node: exp.Between) -> Expression:
    value = bind_expression(scope, node.this)
    low, high = bind_expression(scope, node.args["low"]), bind_expression(scope, node.args["high"])
    return make_and(make_comparison("ge", value, low), make_comparison("le", value, high))


def _bind_in(scope: Scope, node: exp.In) -> Expression:
    if not node.expressions or any(isinstance(choice, exp.Query) for choice in node.expressions):
        raise SqlError("IN over a sub-query is not supported", hint="list the values: IN (1, 2, 3)")
    return make_in(bind_expression(scope, node.this), [bind_expression(scope, choice) for choice in node.expressions])


def _bind_is(scope: Scope, node: exp.Is) -> Expression:
    value, against = bind_expression(scope, node.this), node.expression
    if isinstance(against, exp.Null):
        return make_is_null(value)
    if not isinstance(against, exp.Boolean):
        raise SqlError("IS must be followed by NULL, TRUE or FALSE", hint="use = or <=>")
    return make_comparison("eq_null_safe", require_boolean(value, "IS"), Literal(against.this, BOOLEAN))


def _pattern_handler(build: Callable[[Expression, Expression], Expression]) -> NodeHandler:
    def handler(scope: Scope, node: exp.Binary) -> Expression:
        result = build(bind_expression(scope, node.this), bind_expression(scope, node.expression))
        return make_not(result) if node.args.get("negate") else result

    return handler


def _bind_escape(scope: Scope, node: exp.Escape) -> Expression:
    """Bind LIKE with an escape character other than the backslash."""
    char = operators.require_string_literal(bind_expression(scope, node.expression), "the escape character")
    if len(char) != 1 or not isinstance(node.this, exp.Like):
        raise SqlError("ESCAPE needs LIKE and a single character")
    return _pattern_handler(lambda value, pattern: operators.make_like(value, pattern, char))(scope, node.this)


def _bind_case(scope: Scope, node: exp.Case) -> Expression:
    subject = node.this and bind_expression(scope, node.this)
    pairs = []
    for branch in node.args["ifs"]:
        test = bind_expression(scope, branch.this)
        pairs.append((make_comparison("eq", subject, test) if subject else test, bind_expression(scope, branch.args["true"])))
    default = node.args.get("default")
    return make_case(pairs, bind_expression(scope, default) if default else Literal(None, NULL))


def _bind_window_field(scope: Scope, node: exp.Dot) -> Expression:
    """Bind `window(time, '8 seconds').start`, if the query groups by that window."""
    call = node.this
    if not isinstance(call, exp.Anonymous) or call.name.lower() not in WINDOW_NAMES:
        raise SqlError("fields of structures are not supported")
    bounds = {"start": WINDOW_START, "end": WINDOW_END}
    part = resolve_window_bound(scope, f"{call.name}(…).{node.name}", bounds.get(node.name.lower()))
    if parse_window(call.name, call.expressions[1:]) != scope.window:
        raise SqlError("the query groups by another window", hint="write window.start or window.end")
    return part


def _bind_function(scope: Scope, node: exp.Anonymous) -> Expression:
    name = node.name
    if name.lower() in AGGREGATES:
        return _bind_aggregate(scope, node)
    registered = get_user_function(node)
    if registered is not None:
        return call_user_function(registered, [bind_expression(scope, arg) for arg in node.expressions])
    if name.lower() not in functions.FUNCTIONS:
        raise _unknown_function_error(name)
    return functions.build_call(name, [bind_expression(scope, arg) for arg in node.expressions])


def _unknown_function_error(name: str) -> SqlError:
    if name.lower() in TABLE_WINDOW_FUNCTIONS:
        return SqlError(f"{name.upper()} belongs in FROM", hint=f"write FROM {name.upper()}(stream, '8 seconds')")
    if name.lower() in WINDOW_NAMES:
        return SqlError(f"{name} belongs in GROUP BY", hint="select window.start and window.end")
    if name.lower() in _NONDETERMINISTIC:
        return SqlError(f"function '{name}' is not supported", hint="a query must give the same result whenever it runs")
    if name.lower() in UNSUPPORTED_AGGREGATES:
        return SqlError(f"aggregate '{name}' is not supported", detail=f"aggregates: {', '.join(sorted(AGGREGATES))}")
    problem = unknown_name_error("function", name, sorted({*functions.FUNCTIONS, *AGGREGATES}))
    return SqlError(problem.message, hint=problem.hint)


def _bind_aggregate(
    scope: Scope, node: exp.Anonymous, ordered: exp.Expr | None = None, where: exp.Expr | None = None
) -> Expression:
    name = node.name
    if scope.collector is None:
        hint = "use HAVING" if scope.clause == "WHERE" else ""
        raise SqlError(f"aggregate '{name}' cannot be used in {scope.clause}", hint=hint)
    row_scope = scope.for_aggregate_arguments()
    args, distinct = _read_aggregate_args(node)
    if (name.lower() in ORDERED_SET_AGGREGATES) != (ordered is not None):
        raise SqlError(f"aggregate '{name}' needs WITHIN GROUP", hint="write PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY x)")
    bound = [bind_expression(row_scope, arg) for arg in ([ordered, *args] if ordered is not None else args)]
    predicate = TRUE if where is None else bind_condition(row_scope, where)
    return scope.collector.add(build_aggregate(ParsedAggregate(name, tuple(bound), distinct, predicate)))


def _read_aggregate_args(node: exp.Anonymous) -> tuple[list[exp.Expr], bool]:
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


def _bind_filter(scope: Scope, node: exp.Filter) -> Expression:
    inner, where = node.this, node.expression.this
    if isinstance(inner, exp.WithinGroup):
        return _bind_within_group(scope, inner, where)
    if not isinstance(inner, exp.Anonymous) or inner.name.lower() not in AGGREGATES:
        raise SqlError("FILTER needs an aggregate before it")
    return _bind_aggregate(scope, inner, where=where)


def _bind_within_group(scope: Scope, node: exp.WithinGroup, where: exp.Expr | None = None) -> Expression:
    order = node.expression.expressions if isinstance(node.expression, exp.Order) else []
    if len(order) != 1 or order[0].args.get("desc") or not isinstance(node.this, exp.Anonymous):
        raise SqlError("WITHIN GROUP needs one ascending order", hint="write WITHIN GROUP (ORDER BY x)")
    if node.this.name.lower() not in ORDERED_SET_AGGREGATES:
        raise SqlError(f"WITHIN GROUP is for percentiles, not for '{node.this.name}'", hint="leave it out")
    return _bind_aggregate(scope, node.this, ordered=order[0].this, where=where)


def _bind_extract(scope: Scope, node: exp.Extract) -> Expression:
    return functions.build_extract(node.name, bind_expression(scope, node.expression))


_HANDLERS: dict[type[exp.Expr], NodeHandler] = {
    exp.Column: resolve_column,
    exp.Literal: _bind_literal,
    exp.RawString: lambda _, node: Literal(node.this, STRING),
    exp.Boolean: lambda _, node: Literal(bool(node.this), BOOLEAN),
    exp.Null: lambda _, __: Literal(None, NULL),
    exp.Paren: lambda scope, node: bind_expression(scope, node.this),
    exp.Concat: _bind_adjacent_strings,
    exp.Cast: _bind_cast,
    exp.TryCast: _bind_cast,
    exp.Case: _bind_case,
    exp.Dot: _bind_window_field,
    exp.Extract: _bind_extract,
    exp.Anonymous: _bind_function,
    exp.Filter: _bind_filter,
    exp.WithinGroup: _bind_within_group,
    exp.And: _binary_handler(make_and),
    exp.Or: _binary_handler(make_or),
    exp.Not: lambda scope, node: make_not(bind_expression(scope, node.this)),
    exp.EQ: _comparison_handler("eq"),
    exp.NEQ: _comparison_handler("ne"),
    exp.LT: _comparison_handler("lt"),
    exp.LTE: _comparison_handler("le"),
    exp.GT: _comparison_handler("gt"),
    exp.GTE: _comparison_handler("ge"),
    exp.NullSafeEQ: _comparison_handler("eq_null_safe"),
    exp.NullSafeNEQ: _binary_handler(lambda a, b: make_not(make_comparison("eq_null_safe", a, b))),
    exp.Is: _bind_is,
    exp.In: _bind_in,
    exp.Between: _bind_between,
    exp.Like: _pattern_handler(operators.make_like),
    exp.ILike: _pattern_handler(operators.make_ilike),
    exp.RegexpLike: _pattern_handler(operators.make_rlike),
    exp.Escape: _bind_escape,
    exp.Add: _additive_handler(1),
    exp.Sub: _additive_handler(-1),
    exp.Mul: _arithmetic_handler("mul"),
    exp.Div: _arithmetic_handler("div"),
    exp.IntDiv: _arithmetic_handler("int_div"),
    exp.Mod: _arithmetic_handler("mod"),
    exp.Neg: _bind_negative,
    exp.DPipe: _binary_handler(lambda a, b: functions.build_call("concat", [a, b])),
}

_COMMON_ARGS = frozenset({"this", "expression", "expressions", "safe"})
_SUPPORTED_ARGS: dict[type[exp.Expr], tuple[str, ...]] = {  # args that the handler reads, or that have no effect
    exp.Column: ("table", "db", "catalog"),
    exp.Literal: ("is_string",),
    exp.Cast: ("to",),
    exp.TryCast: ("to", "requires_string"),
    exp.Case: ("ifs", "default"),
    exp.Like: ("negate",),
    exp.ILike: ("negate",),
    exp.RegexpLike: ("negate",),
    exp.In: ("query",),
    exp.Between: ("low", "high"),
    exp.Div: ("typed",),
    exp.Concat: ("coalesce",),
}
_NODE_DESCRIPTIONS: dict[type[exp.Expr], str] = {
    exp.Window: "a window function (OVER …)",
    exp.Subquery: "a sub-query as a value",
    exp.Exists: "EXISTS",
    exp.Star: "* as a value",
    exp.Tuple: "a list of values",
    exp.Interval: "an interval as a value",
}
_UNSUPPORTED_HINTS: dict[type[exp.Expr], str] = {
    exp.Window: "aggregate over a window of time instead: GROUP BY window(time, '8 seconds')",
    exp.Subquery: "only a sub-query in FROM is possible",
    exp.Exists: "only a sub-query in FROM is possible",
    exp.CurrentDate: "a query must give the same result whenever it runs",
    exp.Interval: "add it to a TIMESTAMP",
    exp.CurrentTimestamp: "a query must give the same result whenever it runs",
    exp.Star: "name the columns",
}


_OPERATOR_SYMBOLS: dict[type[exp.Expr], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "div",
    exp.EQ: "=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.And: "AND",
    exp.Or: "OR",
    exp.NullSafeEQ: "<=>",
}


def derive_output_name(node: exp.Expr) -> str:
    """Return the name of a SELECT item."""
    if isinstance(node, exp.Alias):
        return str(node.alias)
    if isinstance(node, exp.Column | exp.Dot):
        return str(node.name)
    return _render_node(node)


def _render_node(node: exp.Expr) -> str:
    if isinstance(node, exp.Column):
        return str(node.name)
    if isinstance(node, exp.Literal):
        return str(node.this)
    if isinstance(node, exp.Concat):  # adjacent string literals
        return "".join(_render_node(part) for part in node.expressions)
    if isinstance(node, exp.Paren):
        return _render_node(node.this)
    if isinstance(node, exp.Anonymous):
        return _render_call(node)
    if type(node) in _OPERATOR_SYMBOLS:
        return f"({_render_node(node.this)} {_OPERATOR_SYMBOLS[type(node)]} {_render_node(node.expression)})"
    if isinstance(node, exp.Cast):
        name = "TRY_CAST" if node.args.get("safe") else "CAST"
        return f"{name}({_render_node(node.this)} AS {node.to.sql(dialect='spark').replace(', ', ',')})"
    if isinstance(node, exp.Neg):
        return f"(- {_render_node(node.this)})" if not isinstance(node.this, exp.Literal) else f"-{_render_node(node.this)}"
    return node.sql(dialect="spark")


def _render_call(node: exp.Anonymous) -> str:
    name = node.name.lower()
    args = ", ".join(_render_argument(arg) for arg in node.expressions)
    return f"{name}({'1' if name == 'count' and args == '*' else args})"


def _render_argument(node: exp.Expr) -> str:
    if isinstance(node, exp.Star):
        return "*"
    if isinstance(node, exp.Distinct):
        return f"DISTINCT {', '.join(_render_node(part) for part in node.expressions)}"
    return _render_node(node)
