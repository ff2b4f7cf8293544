"""Binds a SELECT that joins streams in SLIDING windows, spelled or implied by conditions on the times of rows."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from headrace.errors import SqlError
from headrace.model.expression import TRUE, Call, Expression, combine_conjuncts, split_conjuncts
from headrace.model.types import TIMESTAMP, Field, Schema
from headrace.plan.sliding_join import MAX_SLIDING_JOIN_INPUTS, SlidingJoinQuery
from headrace.plan.window_join import JoinKind, joined_column
from headrace.sql.expressions import bind_condition
from headrace.sql.interval_join import derive_ranges
from headrace.sql.operators import make_comparison
from headrace.sql.relation import check_event_time
from headrace.sql.scope import Scope, ScopeTable, SlidingJoinScope, make_window_scope
from headrace.sql.select import (
    BindContext,
    SelectItem,
    bind_from_item,
    bind_items,
    bind_where,
    bind_window_input,
    check_clauses,
    get_from_item,
    has_aggregation,
    with_ctes,
)
from headrace.sql.window_join import resolve_join_kind
from headrace.sql.windows import parse_sliding_window

_SUPPORTED_CLAUSES = frozenset({"expressions", "from_", "where", "with_", "joins"})


def is_sliding_join(context: BindContext, node: exp.Expr | None) -> bool:
    """Tell whether a query, or an item of FROM, reads streams in SLIDING windows."""
    if isinstance(node, exp.Subquery):
        return is_sliding_join(context, node.this)
    if isinstance(node, exp.Table):
        if isinstance(node.this, exp.Anonymous):
            return bool(node.this.name.lower() == "sliding")
        return not node.args.get("db") and node.name.lower() in context.sliding_ctes
    if not isinstance(node, exp.Select) or node.args.get("from_") is None:
        return False
    clause = node.args.get("with_")
    ctes = {cte.alias.lower(): cte.this for cte in clause.expressions} if clause is not None else {}
    sources = [node.args["from_"].this, *(join.this for join in node.args.get("joins") or [])]
    return any(
        is_sliding_join(context, ctes.get(source.name.lower(), source) if isinstance(source, exp.Table) else source)
        for source in sources
    )


def is_interval_join(context: BindContext, select: exp.Select) -> bool:
    """Tell whether a query joins streams of which none has a window; conditions may bound the times of their rows."""
    joins = select.args.get("joins") or []
    if not joins or has_aggregation(select) or select.args.get("from_") is None:
        return False
    context = with_ctes(context, select)
    return all(_has_no_window(context, source) for source in (select.args["from_"].this, *(join.this for join in joins)))


def _has_no_window(context: BindContext, node: exp.Expr) -> bool:
    """Tell whether an item of FROM is a stream, or a sub-query that only filters, projects and unites streams."""
    if isinstance(node, exp.Table):
        if isinstance(node.this, exp.Anonymous) or node.args.get("db") or node.name.lower() in context.sliding_ctes:
            return False
        known = context.ctes.get(node.name.lower())
        if known is not None:
            streams = {branch.stream.name for branch in known.branches}
            return known.window is None and streams.isdisjoint(context.derived_tables.derived_streams)
        return context.catalog.find_stream(node.name) is not None
    if isinstance(node, exp.Subquery):
        return _has_no_window(context, node.this)
    if isinstance(node, exp.Union):
        return _has_no_window(context, node.left) and _has_no_window(context, node.right)
    if not isinstance(node, exp.Select) or node.args.get("joins") or node.args.get("with_") or has_aggregation(node):
        return False
    return node.args.get("from_") is not None and _has_no_window(context, node.args["from_"].this)


def bind_interval_join(context: BindContext, select: exp.Select) -> SlidingJoinQuery:
    """Bind a join of streams without windows whose conditions bound the times of rows."""
    return bind_sliding_join(context, select, interval=True)


def bind_sliding_join(context: BindContext, select: exp.Select, *, interval: bool = False) -> SlidingJoinQuery:
    """Bind the join of a SELECT; of streams without windows if `interval`."""
    scope, items = _bind_select(context, select, interval=interval)
    if len(scope.inputs) < 2:
        raise context.source.error_at_node(
            get_from_item(context, select),
            "SLIDING windows are for joins, and there is nothing to join here",
            hint="JOIN SLIDING(other, '8 seconds') ON …, or read the stream without a window",
        )
    if len(scope.inputs) > MAX_SLIDING_JOIN_INPUTS:
        raise context.source.error_at_node(select, f"a join of more than {MAX_SLIDING_JOIN_INPUTS} streams is not supported")
    if interval:
        try:
            times = [context.derived_tables.get_time_column(join_input.stream, context.catalog) for join_input in scope.inputs]
            scope = derive_ranges(scope, [table.name for table in scope.tables], times)
        except SqlError as problem:
            raise context.source.with_location(problem, get_from_item(context, select)) from None
    output = tuple(item.value for item in items)
    schema = Schema(tuple(Field(item.name, item.value.type) for item in items))
    return scope.to_plan(output, schema)


def bind_sliding_subquery(context: BindContext, node: exp.Expr, name: str) -> SlidingJoinScope:
    """Bind a sub-query that joins in SLIDING windows to a scope with a single table of that name."""
    select = node
    while isinstance(select, exp.Subquery):
        select = select.this
    assert isinstance(select, exp.Select)
    scope, items = _bind_select(context, select)
    fields = tuple(Field(item.name, item.value.type) for item in items)
    return replace(scope, tables=(ScopeTable(name, fields, tuple(item.value for item in items)),), using_columns={})


def _bind_select(
    context: BindContext, select: exp.Select, *, interval: bool = False
) -> tuple[SlidingJoinScope, list[SelectItem]]:
    """Bind a SELECT: return the filtered scope of its FROM clause, and its outputs."""
    context = with_ctes(context, select)
    if has_aggregation(select):
        raise context.source.error_at_node(
            select,
            "rows joined in SLIDING windows cannot be aggregated",
            hint="put a window around them: FROM TUMBLE((SELECT …), '8 seconds')",
        )
    check_clauses(context, select, _SUPPORTED_CLAUSES)
    scope = _bind_side(context, get_from_item(context, select), SlidingJoinScope(), interval=interval)
    for join in select.args.get("joins") or []:
        check_clauses(context, join, frozenset({"this", "side", "kind", "on", "using"}))
        scope = _add_join(context, join, scope, _bind_side(context, join.this, scope, interval=interval))
    scope = scope.with_filter(bind_where(context, select, scope))
    return scope, bind_items(context, select, Scope(context.source, scope, "SELECT of a join in SLIDING windows"))


_OUTER_INPUTS = {JoinKind.INNER: (), JoinKind.LEFT: (0,), JoinKind.RIGHT: (1,), JoinKind.FULL: (0, 1), JoinKind.ANTI: (0,)}


def _add_join(context: BindContext, join: exp.Join, before: SlidingJoinScope, side: SlidingJoinScope) -> SlidingJoinScope:
    kind = resolve_join_kind(context, join)
    _check_join_kind(context, join, kind, before, side)
    extended = before.concat_scope(side)
    using_columns: dict[str, Expression] = dict(before.using_columns)
    condition: Expression = TRUE
    if join.args.get("on") is not None:
        condition = bind_condition(Scope(context.source, extended, "ON"), join.args["on"])
    for node in join.args.get("using") or []:
        name = node.name
        try:
            left, right = before.lookup_column("", name), extended.tables[-1].find_column(name)
            equal = None if left is None or right is None else make_comparison("eq", left, right)
        except SqlError as problem:
            raise context.source.with_location(problem, node) from None
        if left is None or equal is None:
            raise context.source.error_at_node(
                node, f"column '{name}' of USING is not on both sides", hint="write ON with two columns"
            )
        condition = combine_conjuncts([*split_conjuncts(condition), equal])
        using_columns[name.lower()] = left
    if kind is JoinKind.INNER:
        return replace(extended.with_filter(condition), using_columns=using_columns)
    outer = extended.with_outer_join(_OUTER_INPUTS[kind], condition, emits_matches=kind is not JoinKind.ANTI)
    times = [
        joined_column(index, context.derived_tables.get_time_column(each.stream, context.catalog), TIMESTAMP)
        for index, each in enumerate(outer.inputs)
    ]
    tables = tuple(
        table.make_nullable(time) if 1 - index in outer.outer_inputs else table
        for index, (table, time) in enumerate(zip(outer.tables, times, strict=True))
    )
    for name in using_columns:
        left, right = (table.find_column(name) for table in tables)
        assert left is not None
        assert right is not None
        either = Call("coalesce", (left, right), left.type)
        using_columns[name] = either if kind is JoinKind.FULL else right if kind is JoinKind.RIGHT else left
    return replace(outer, tables=tables if kind.has_both_sides else tables[:1], using_columns=using_columns)


def _check_join_kind(
    context: BindContext, join: exp.Join, kind: JoinKind, before: SlidingJoinScope, side: SlidingJoinScope
) -> None:
    """Reject a SEMI join, and an outer or anti join of more than two inputs."""
    if kind is JoinKind.SEMI:
        raise context.source.error_at_node(
            join, "a SEMI JOIN of SLIDING windows is not supported", hint="use an inner join, or TUMBLE or HOP windows"
        )
    if before.outer_inputs or side.outer_inputs or (kind is not JoinKind.INNER and len(before.inputs) + len(side.inputs) > 2):
        raise context.source.error_at_node(
            join,
            "an outer or anti join of SLIDING windows joins two streams, and nothing else",
            hint="use inner joins, or TUMBLE or HOP windows",
        )


def _bind_side(context: BindContext, node: exp.Expr, before: SlidingJoinScope, *, interval: bool) -> SlidingJoinScope:
    """Bind one side of a join under its alias."""
    alias = node.args.get("alias")
    name = alias.name if alias is not None and alias.name else ""
    scope = _bind_plain_side(context, node, name) if interval else _bind_unaliased_side(context, node, name)
    names = [column.name for column in alias.columns] if alias is not None else []
    table = scope.tables[0]
    if names and len(names) != len(table.fields):
        raise context.source.error_at_node(
            node, f"alias '{table.name}' names {len(names)} columns, but there are {len(table.fields)}"
        )
    if names:
        table = replace(table, fields=tuple(Field(new, old.type) for new, old in zip(names, table.fields, strict=True)))
    if not table.name or any(other.name.lower() == table.name.lower() for other in before.tables):
        fault = f"repeats the name '{table.name}' of an earlier side" if table.name else "has no name"
        raise context.source.error_at_node(node, f"this side of the join {fault}", hint="give it an alias: SLIDING(…) AS t")
    return replace(scope, tables=(table,))


def _bind_plain_side(context: BindContext, node: exp.Expr, alias: str) -> SlidingJoinScope:
    """Bind a stream without a window, whose range is not known yet."""
    named = node.copy()
    named.set("alias", None)
    relation = bind_from_item(context, named)
    try:
        check_event_time(relation, None)
        relation = context.derived_tables.unite(relation)
    except SqlError as problem:
        raise context.source.with_location(problem, node) from None
    return make_window_scope(relation, 0, 0, alias or relation.name or "")


def _bind_unaliased_side(context: BindContext, node: exp.Expr, alias: str) -> SlidingJoinScope:
    if isinstance(node, exp.Table):
        check_clauses(context, node, frozenset({"this", "alias", "db", "catalog"}))
        if isinstance(node.this, exp.Anonymous) and node.this.name.lower() == "sliding":
            return _bind_sliding_window(context, node.this, alias)
        cte_scope = context.sliding_ctes.get(node.name.lower()) if not node.args.get("db") else None
        if cte_scope is not None:
            return replace(cte_scope, tables=(replace(cte_scope.tables[0], name=alias or cte_scope.tables[0].name),))
    elif isinstance(node, exp.Subquery) and is_sliding_join(context, node):
        check_clauses(context, node, frozenset({"this", "alias", "with_"}))
        return bind_sliding_subquery(with_ctes(context, node), node, alias)
    raise context.source.error_at_node(
        node,
        "either all sides of a join are in SLIDING windows, or none is",
        hint="write SLIDING(stream, '8 seconds') here, too, or TUMBLE on all sides",
    )


def _bind_sliding_window(context: BindContext, node: exp.Anonymous, alias: str) -> SlidingJoinScope:
    """Bind SLIDING(stream, range[, lateness])."""
    source, args = context.source, node.expressions
    if not args:
        raise source.error_at_node(node, "a window needs a stream", hint="write SLIDING(stream, '8 seconds')")
    relation = bind_window_input(context, args[0])
    if relation.window is not None:
        raise source.error_at_node(args[0], "a window over a window is not supported", hint="window the stream once")
    if relation.branches[0].stream.name in context.derived_tables.derived_streams:
        raise source.error_at_node(
            args[0], "results of windows cannot be joined in SLIDING windows", hint="join them in TUMBLE windows"
        )
    try:
        window = parse_sliding_window(args[1:])
        check_event_time(relation, None)
        relation = context.derived_tables.unite(relation)
    except SqlError as problem:
        raise source.with_location(problem, node) from None
    return make_window_scope(relation, window.length, window.lateness, alias or relation.name or "")
