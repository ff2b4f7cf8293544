"""Binds a SELECT that groups rows by window and key.

The binder first binds items over the relation's columns, with placeholders for aggregates and window bounds. It then replaces
each sub-expression that equals a group key by the column of that key. A remaining column is not grouped: an error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from headrace.errors import SqlError
from headrace.model.aggregate import AggregateCall
from headrace.model.expression import TRUE, Call, Column, Expression, Literal, column_names, substitute_columns
from headrace.model.types import TIMESTAMP, Field, Schema
from headrace.model.window import Window
from headrace.plan.derived import HIDDEN_BOUNDS
from headrace.plan.logical import WINDOW_END, WINDOW_START, AggregateBranch, AggregateQuery, agg_column, key_column
from headrace.sql.expressions import bind_condition, bind_expression
from headrace.sql.limits import MAX_GROUP_KEYS, limit_error
from headrace.sql.relation import Relation, RelationBranch, check_event_time
from headrace.sql.scope import END_PLACEHOLDER, START_PLACEHOLDER, AggregateCollector, Scope, WindowJoinScope, display_name
from headrace.sql.select import BindContext, SelectItem, bind_items, bind_where, check_clauses
from headrace.sql.windows import GROUP_WINDOW_FUNCTIONS, parse_window

_BOUND_COLUMNS = {START_PLACEHOLDER: WINDOW_START, END_PLACEHOLDER: WINDOW_END}
_BOUND_PLACEHOLDERS = frozenset(bound.name for bound in _BOUND_COLUMNS)


@dataclass(frozen=True, slots=True)
class GroupByClause:
    """A GROUP BY clause: its window, the syntax nodes of its other keys, and whether it is GROUP BY ALL."""

    window: Window
    key_nodes: tuple[exp.Expr, ...]
    is_all: bool


@dataclass(frozen=True, slots=True)
class BoundGrouping:
    """A bound grouping: `keys` and `calls` over the relation's columns, the rest over the columns of an aggregation."""

    window: Window
    keys: tuple[Expression, ...]
    calls: tuple[AggregateCall, ...]
    having: Expression
    output: tuple[Expression, ...]
    schema: Schema


def bind_grouping(context: BindContext, select: exp.Select, relation: Relation | WindowJoinScope) -> BoundGrouping:
    """Bind the grouping of a SELECT over a relation."""
    grouping = _read_group_by(context, select, relation)
    collector = AggregateCollector()
    scope = Scope(context.source, relation, "SELECT", collector, grouping.window)
    items = bind_items(context, select, scope)
    keys = _bind_keys(scope, grouping, items)
    output = tuple(_rewrite_over_groups(scope, keys, item.value, item.node) for item in items)
    having = _bind_having(scope, select, items, keys)
    schema = Schema(tuple(Field(item.name, value.type) for item, value in zip(items, output, strict=True)))
    return BoundGrouping(grouping.window, tuple(keys), tuple(collector.calls), having, output, schema)


def bind_aggregation(context: BindContext, select: exp.Select, relation: Relation) -> AggregateQuery:
    """Bind the aggregation of a SELECT over a relation."""
    groups = bind_grouping(context, select, relation)
    if groups.window == relation.inherited_window:
        groups = _group_by_result_window(groups)
    filtered = relation.with_filter(bind_where(context, select, relation))
    branches = tuple(_build_branch(filtered, branch, groups) for branch in filtered.branches)
    return AggregateQuery(groups.window, branches, groups.output, groups.schema, groups.having)


def _group_by_result_window(groups: BoundGrouping) -> BoundGrouping:
    """Add the bounds of the window that produced each result to the keys."""
    count = len(groups.keys)
    bound_keys = {WINDOW_START.name: key_column(count, TIMESTAMP), WINDOW_END.name: key_column(count + 1, TIMESTAMP)}
    return replace(
        groups,
        keys=(*groups.keys, *HIDDEN_BOUNDS),
        output=tuple(substitute_columns(output, bound_keys) for output in groups.output),
        having=substitute_columns(groups.having, bound_keys),
    )


def _build_branch(relation: Relation, branch: RelationBranch, groups: BoundGrouping) -> AggregateBranch:
    def pushed(call: AggregateCall) -> AggregateCall:
        return replace(call, args=tuple(relation.push_down(arg, branch) for arg in call.args))

    pushed_keys = tuple(relation.push_down(key, branch) for key in groups.keys)
    return AggregateBranch(branch.stream.name, pushed_keys, tuple(map(pushed, groups.calls)), branch.predicate)


def _read_group_by(context: BindContext, select: exp.Select, relation: Relation | WindowJoinScope) -> GroupByClause:
    """Split the GROUP BY clause into window and keys; exactly one window must be in GROUP BY or FROM."""
    clause = select.args.get("group")
    nodes: list[exp.Expr] = []
    window: Window | None = relation.window
    if clause is not None:
        check_clauses(context, clause, frozenset({"expressions", "all"}))
    for node in clause.expressions if clause is not None else []:
        if not isinstance(node, exp.Anonymous) or node.name.lower() not in GROUP_WINDOW_FUNCTIONS:
            nodes.append(node)
        elif window is not None:
            raise context.source.error_at_node(node, "query has two windows", hint="give one, in FROM or in GROUP BY")
        else:
            assert isinstance(relation, Relation)  # the windows of a join are in FROM, so `window` is set
            window = _bind_window_call(context, node, relation)
    if window is None and isinstance(relation, Relation):
        window = relation.inherited_window
    if window is None:
        raise _missing_window_error(context, select)
    return GroupByClause(window, tuple(nodes), clause is not None and bool(clause.args.get("all")))


def _missing_window_error(context: BindContext, select: exp.Select) -> SqlError:
    return context.source.error_at_node(
        select.args.get("group") or select.expressions[0],
        "an aggregation over a stream needs a window",
        hint="read FROM TUMBLE(stream, '8 seconds'), or add window(time, '8 seconds') to GROUP BY",
    )


def _bind_window_call(context: BindContext, node: exp.Anonymous, relation: Relation) -> Window:
    try:
        window = parse_window(node.name, node.expressions[1:])
        time = bind_expression(Scope(context.source, relation, "GROUP BY"), node.expressions[0])
        check_event_time(relation, time)
    except SqlError as problem:
        raise context.source.with_location(problem, node) from None
    return window


def _bind_keys(scope: Scope, grouping: GroupByClause, items: list[SelectItem]) -> list[Expression]:
    """Return the distinct group keys; window bounds, and expressions over them only, need no key."""
    keys: list[Expression] = []
    if grouping.is_all:
        candidates = [(item.value, item.node) for item in items if not _contains_aggregate(item.value)]
    else:
        candidates = [(_bind_key(scope, node, items), node) for node in grouping.key_nodes]
    if len(candidates) > MAX_GROUP_KEYS:
        problem = limit_error(len(candidates), MAX_GROUP_KEYS, "keys to group by", "put several into one: concat(…)")
        raise scope.source.with_location(problem, candidates[MAX_GROUP_KEYS][1])
    for key, node in candidates:
        names = column_names(key)
        if names & _BOUND_PLACEHOLDERS and names - _BOUND_PLACEHOLDERS:
            raise scope.source.error_at_node(
                node, "a key cannot mix columns with bounds of the window", hint="group by the columns alone"
            )
        if not names & _BOUND_PLACEHOLDERS and key not in keys:
            keys.append(key)
    return keys


def _contains_aggregate(value: Expression) -> bool:
    return any(name.startswith("\0agg") for name in column_names(value))


def _bind_key(scope: Scope, node: exp.Expr, items: list[SelectItem]) -> Expression:
    """Bind one GROUP BY expression: an ordinal, a column, an alias of SELECT, or any other expression."""
    item = _resolve_item_reference(scope, node, items)
    if item is None:
        return bind_expression(replace(scope, clause="GROUP BY", collector=None), node)
    if _contains_aggregate(item.value):
        raise scope.source.error_at_node(node, f"'{item.name}' is an aggregate and cannot be grouped by", hint="group by columns")
    return item.value


def _resolve_item_reference(scope: Scope, node: exp.Expr, items: list[SelectItem]) -> SelectItem | None:
    if isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdigit():
        ordinal = int(node.this) if len(node.this) < 10 else 0
        if not 1 <= ordinal <= len(items):
            raise scope.source.error_at_node(
                node, f"GROUP BY {node.this[:20]} names no item", detail=f"SELECT has {len(items)} items"
            )
        return items[ordinal - 1]
    if isinstance(node, exp.Column) and not node.table and scope.relation.lookup_column("", node.name) is None:
        return next((item for item in items if item.name.lower() == node.name.lower()), None)
    return None


def _bind_having(scope: Scope, select: exp.Select, items: list[SelectItem], keys: list[Expression]) -> Expression:
    """Bind HAVING over the columns of the aggregation; output aliases take precedence over columns."""
    clause = select.args.get("having")
    if clause is None:
        return TRUE
    aliases = {item.name.lower(): item.value for item in items if isinstance(item.node, exp.Alias)}
    condition = bind_condition(replace(scope, clause="HAVING", aliases=aliases), clause.this)
    return _rewrite_over_groups(scope, keys, condition, clause.this)


def _rewrite_over_groups(scope: Scope, keys: list[Expression], value: Expression, node: exp.Expr) -> Expression:
    """Rewrite an expression over rows as an expression over groups."""
    if value in keys:
        return key_column(keys.index(value), value.type)
    if isinstance(value, Literal):
        return value
    if isinstance(value, Call):
        return Call(value.function, tuple(_rewrite_over_groups(scope, keys, arg, node) for arg in value.args), value.type)
    if value in _BOUND_COLUMNS:
        return _BOUND_COLUMNS[value]
    if value.name.startswith("\0agg"):
        return agg_column(int(value.name.removeprefix("\0agg")), value.type)
    raise _not_grouped_error(scope, value, node)


def _not_grouped_error(scope: Scope, column: Column, node: exp.Expr) -> SqlError:
    name = display_name(column.name)
    named = (part for part in node.find_all(exp.Column) if part.name.lower() == name.lower())
    return scope.source.error_at_node(
        next(named, node),
        f"column '{name}' is neither grouped nor aggregated",
        hint=f"add it to GROUP BY, or aggregate it: MAX({name})",
    )
