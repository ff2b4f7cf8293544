"""Flattens FROM clauses, sub-queries, CTEs, LATERAL VIEWs and UNION ALL to one `Relation`, and binds SELECT lists.

The binder inlines a sub-query that only filters and projects: it substitutes the expressions and ANDs the predicate. A
sub-query that aggregates or joins becomes a derived stream of its results, which the outer query reads like any other stream.
LATERAL VIEW explode(…) unnests the list that a UDF returns: one row per element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
from sqlglot import exp

from headrace.errors import SqlError
from headrace.model.expression import Column, Expression
from headrace.model.types import Field, Schema
from headrace.plan.derived import (
    MAX_INNER_QUERIES,
    DerivedStream,
    InnerQuery,
    RowStream,
    UnionBranch,
    WindowedQuery,
    derive_joined_stream,
    derive_stream,
    has_inner_window_keys,
    unite_streams,
    unnest_stream,
)
from headrace.plan.sliding_join import SlidingJoinQuery
from headrace.sql.aggregate_functions import AGGREGATES, UNSUPPORTED_AGGREGATES
from headrace.sql.expressions import bind_condition, bind_expression, derive_output_name
from headrace.sql.functions import call_user_function, get_user_function
from headrace.sql.limits import MAX_OUTPUTS, MAX_UNION_BRANCHES, check_plan_size, limit_error
from headrace.sql.parser import SqlSource
from headrace.sql.relation import (
    Relation,
    RelationBranch,
    ResultWindows,
    check_event_time,
    event_time_column,
    find_result_windows,
    relation_of_results,
    relation_of_stream,
    union_all,
)
from headrace.sql.scope import AggregateCollector, Catalog, Scope, SlidingJoinScope, WindowJoinScope, unknown_name_error
from headrace.sql.types import NULL
from headrace.sql.windows import TABLE_WINDOW_FUNCTIONS, parse_window

_SUPPORTED_CLAUSES = frozenset({"expressions", "from_", "where", "group", "having", "with_", "laterals"})
_UNSUPPORTED_CLAUSES = {
    "distinct": ("SELECT DISTINCT", "GROUP BY the columns in a window"),
    "order": ("ORDER BY", "results come in the order windows close; sort them where they are read"),
    "sort": ("SORT BY", "sort results where they are read"),
    "limit": ("LIMIT", "a stream has no end to count from; leave it out"),
    "offset": ("OFFSET", "leave it out"),
    "laterals": ("LATERAL VIEW of joined rows", "put it into a sub-query of one side"),
    "windows": ("the WINDOW clause", "GROUP BY window(time, '8 seconds') groups by time"),
    "qualify": ("QUALIFY", "filter with WHERE or HAVING"),
    "sample": ("TABLESAMPLE", "filter with WHERE"),
    "pivots": ("PIVOT", "use CASE or FILTER inside aggregates"),
    "joins": ("a join", ""),
    "method": ("a NATURAL join", "name the columns: USING (…)"),
    "by_name": ("UNION BY NAME", "list the columns in one order"),
}


@dataclass(slots=True)
class DerivedTables:
    """The derived and unnested streams of a query, collected while it is bound; inner ones first.

    The first callback binds a SELECT that aggregates or joins. The second returns the scope of a query that joins in SLIDING
    windows, and None for any other query; the third binds such a query. They are passed in because they live in modules that
    import this one.
    """

    bind_windowed: Callable[[BindContext, exp.Select], WindowedQuery]
    bind_sliding: Callable[[BindContext, exp.Expr, str], SlidingJoinScope | None]
    bind_sliding_join: Callable[[BindContext, exp.Select], SlidingJoinQuery]
    derived_streams: dict[str, DerivedStream] = field(default_factory=dict)
    unnested_streams: dict[str, RowStream] = field(default_factory=dict)  # and united ones
    _result_windows: dict[str, ResultWindows | None] = field(default_factory=dict)

    def add(self, plan: InnerQuery, catalog: Catalog) -> Relation:
        """Add an inner query, unless an equal one exists; return its results as a relation."""
        if isinstance(plan, SlidingJoinQuery):
            times = [self.get_time_column(join_input.stream, catalog) for join_input in plan.inputs]
            stream, windows = derive_joined_stream(plan, times), None
        else:
            read = (self.derived_streams.get(name) for name in plan.streams)
            stream = derive_stream(plan, max((source.stream.lag for source in read if source is not None), default=0))
            windows = self._result_windows[plan.branches[0].stream] if has_inner_window_keys(plan) else find_result_windows(plan)
        self.derived_streams.setdefault(stream.name, stream)
        self._result_windows[stream.name] = windows
        return relation_of_results(stream, windows)

    def get_time_column(self, name: str, catalog: Catalog) -> str:
        """Return the event-time column of a declared, unnested or united stream."""
        derived = self.unnested_streams.get(name)
        stream = catalog.find_stream(name) if derived is None else derived.stream
        assert stream is not None
        return stream.time

    def unite(self, relation: Relation) -> Relation:
        """Return a side of a join that reads several streams as one that reads their union; any other side unchanged.

        Raises SqlError for a union of results.
        """
        if len(relation.branches) == 1:
            return relation
        if any(branch.stream.name in self.derived_streams for branch in relation.branches):
            raise SqlError("a UNION ALL of results of windows cannot be joined", hint="join the results one by one")
        branches = [UnionBranch(branch.stream.name, branch.columns, branch.predicate) for branch in relation.branches]
        united = unite_streams(relation.fields, [event_time_column(branch.stream) for branch in relation.branches], branches)
        self.unnested_streams[united.name] = united
        columns = tuple(Column(item.name, item.type) for item in relation.fields)
        return replace(relation, branches=(RelationBranch(united.stream, columns),), result_windows=None)


@dataclass(frozen=True, slots=True)
class BindContext:
    """The environment of binding: text, catalog, visible CTEs, and the collected derived tables."""

    source: SqlSource
    catalog: Catalog
    derived_tables: DerivedTables
    ctes: Mapping[str, Relation] = field(default_factory=dict)
    sliding_ctes: Mapping[str, SlidingJoinScope] = field(default_factory=dict)  # CTEs that join in SLIDING windows


@dataclass(frozen=True, slots=True)
class SelectItem:
    """One bound item of a SELECT list."""

    name: str
    value: Expression
    node: exp.Expr


def flatten_query(context: BindContext, node: exp.Expr) -> Relation:
    """Flatten a sub-query, a SELECT or a UNION ALL to a relation."""
    if isinstance(node, exp.Subquery):
        return _bind_subquery(context, node)
    if isinstance(node, exp.Select):
        return _bind_inner_select(context, node)
    if isinstance(node, exp.Union):
        return _bind_union(context, node)
    raise context.source.error_at_node(
        node, f"{type(node).__name__.upper()} is not supported", hint="write SELECT … FROM …, or UNION ALL of such"
    )


def check_clauses(context: BindContext, node: exp.Expr, allowed: frozenset[str]) -> None:
    """Reject every clause that the parser accepts and the binder does not support."""
    for key, value in node.args.items():
        if not value or key in allowed:
            continue
        clause, hint = _UNSUPPORTED_CLAUSES.get(key, (key.strip("_").replace("_", " ").upper(), ""))
        first = value[0] if isinstance(value, list) else value
        raise context.source.error_at_node(
            first if isinstance(first, exp.Expr) else node, f"{clause} is not supported", hint=hint
        )


def with_ctes(context: BindContext, node: exp.Expr) -> BindContext:
    """Return the context with the CTEs of a query added; each CTE may read those before it."""
    clause = node.args.get("with_")
    if clause is None:
        return context
    if clause.args.get("recursive"):
        raise context.source.error_at_node(clause, "WITH RECURSIVE is not supported")
    for cte in clause.expressions:
        name, columns = cte.alias, [column.name for column in cte.args["alias"].columns]
        sliding_scope = context.derived_tables.bind_sliding(context, cte, name)
        if sliding_scope is not None:
            context = replace(context, sliding_ctes={**context.sliding_ctes, name.lower(): sliding_scope})
            continue
        relation = _apply_alias(context, cte, flatten_query(context, cte.this), name, columns)
        context = replace(context, ctes={**context.ctes, name.lower(): relation})
    return context


def _apply_alias(context: BindContext, node: exp.Expr, relation: Relation, name: str | None, columns: list[str]) -> Relation:
    try:
        return relation.with_alias(name, columns)
    except SqlError as problem:
        raise context.source.with_location(problem, node) from None


def bind_from(context: BindContext, select: exp.Select) -> Relation:
    """Bind the FROM clause of a SELECT without joins."""
    check_clauses(context, select, _SUPPORTED_CLAUSES)
    relation = bind_from_item(context, get_from_item(context, select))
    for view in select.args.get("laterals") or []:
        relation = bind_lateral_view(context.source, relation, view, context.derived_tables.unnested_streams)
    return relation


def get_from_item(context: BindContext, select: exp.Select) -> exp.Expr:
    """Return the syntax node after FROM, before any join."""
    clause = select.args.get("from_")
    if clause is None:
        raise context.source.error_at_node(
            select, "query reads no stream", detail=_list_streams(context), hint="write SELECT … FROM stream"
        )
    item: exp.Expr = clause.this
    return item


def _list_streams(context: BindContext) -> str:
    return f"streams: {', '.join(context.catalog.stream_names) or 'none'}"


def bind_from_item(context: BindContext, node: exp.Expr) -> Relation:
    """Bind one stream, window or sub-query of a FROM clause."""
    if isinstance(node, exp.Subquery):
        return _bind_subquery(context, node)
    if not isinstance(node, exp.Table):
        raise context.source.error_at_node(node, f"{type(node).__name__.upper()} in FROM is not supported", hint="name a stream")
    check_clauses(context, node, frozenset({"this", "alias", "db", "catalog"}))
    relation = _bind_window_function(context, node.this) if isinstance(node.this, exp.Anonymous) else _bind_name(context, node)
    return _bind_alias(context, node, relation)


def _bind_alias(context: BindContext, node: exp.Expr, relation: Relation) -> Relation:
    alias = node.args.get("alias")
    if alias is None:
        return relation
    return _apply_alias(context, node, relation, alias.name or None, [column.name for column in alias.columns])


def _bind_subquery(context: BindContext, node: exp.Subquery) -> Relation:
    check_clauses(context, node, frozenset({"this", "alias", "with_"}))
    context = with_ctes(context, node)
    relation = bind_from_item(context, node.this) if isinstance(node.this, exp.Table) else flatten_query(context, node.this)
    return _bind_alias(context, node, relation)


def _bind_name(context: BindContext, node: exp.Table | exp.Column | exp.Literal) -> Relation:
    """Bind the name of a stream or CTE."""
    name = node.name
    joined = context.sliding_ctes.get(name.lower())
    if joined is not None and len(joined.inputs) > 1:
        table = joined.tables[0]
        plan = joined.to_plan(table.values, Schema(table.fields))
        return replace(context.derived_tables.add(plan, context.catalog), name=name)
    if joined is not None:
        raise context.source.error_at_node(
            node,
            f"'{name}' is in a SLIDING window, and cannot be read here",
            hint="join it with SLIDING windows",
        )
    if isinstance(node, exp.Literal) or not (node.args.get("db") or node.args.get("table")):
        if name.lower() in context.ctes:
            return context.ctes[name.lower()]
        if (stream := context.catalog.find_stream(name)) is not None:
            return relation_of_stream(stream)
    full_name = node.sql(dialect="spark") if node.args.get("db") else name
    raise context.source.with_location(unknown_name_error("stream", full_name, context.catalog.stream_names), node)


def _bind_window_function(context: BindContext, node: exp.Anonymous) -> Relation:
    """Bind TUMBLE, HOP or SESSION over a stream, a CTE or a sub-query."""
    source, name, args = context.source, node.name, node.expressions
    if name.lower() == "sliding":
        raise source.error_at_node(
            node, "SLIDING windows are for joins of SLIDING windows only", hint="use TUMBLE or HOP windows here, or on no side"
        )
    if name.lower() not in TABLE_WINDOW_FUNCTIONS or not args:
        raise source.error_at_node(
            node, f"unknown table function '{name}'", hint="windows are TUMBLE, HOP and SESSION: TUMBLE(stream, '8 seconds')"
        )
    relation = bind_window_input(context, args[0])
    if relation.window is not None:
        raise source.error_at_node(args[0], "a window over a window is not supported", hint="window the stream once")
    try:
        window = parse_window(name, args[1:])
        check_event_time(relation, None)
    except SqlError as problem:
        raise source.with_location(problem, node) from None
    return replace(relation, window=window)


def bind_window_input(context: BindContext, node: exp.Expr) -> Relation:
    """Bind the first argument of a window: a stream, a CTE or a sub-query."""
    if isinstance(node, exp.Subquery):
        return _bind_subquery(context, node)
    if isinstance(node, exp.Select | exp.Union):
        return flatten_query(context, node)
    if isinstance(node, exp.Column) or (isinstance(node, exp.Literal) and node.is_string):
        return _bind_name(context, node)
    raise context.source.error_at_node(node, "a window needs a stream", hint="write TUMBLE(stream, '8 seconds')")


def _bind_union(context: BindContext, node: exp.Union) -> Relation:
    check_clauses(context, node, frozenset({"this", "expression", "with_", "distinct"}))
    if node.args.get("distinct"):
        raise context.source.error_at_node(node.expression, "UNION without ALL is not supported", hint="write UNION ALL")
    context = with_ctes(context, node)
    left, right = flatten_query(context, node.this), flatten_query(context, node.expression)
    branch_count = len(left.branches) + len(right.branches)
    try:
        if branch_count > MAX_UNION_BRANCHES:
            raise limit_error(branch_count, MAX_UNION_BRANCHES, "SELECTs in UNION ALL", "add several queries")
        return union_all(left, right)
    except SqlError as problem:
        raise context.source.with_location(problem, node.expression) from None


def has_aggregation(select: exp.Select) -> bool:
    """Tell whether a SELECT itself, without its sub-queries, groups or aggregates."""
    if select.args.get("group") or select.args.get("having"):
        return True
    return any(_contains_aggregate(item) for item in select.expressions)


def _contains_aggregate(item: exp.Expr) -> bool:
    nodes = item.walk(prune=lambda node: isinstance(node, exp.Query | exp.Window))
    names = (node.name.lower() for node in nodes if isinstance(node, exp.Anonymous))
    return any(name in AGGREGATES or name in UNSUPPORTED_AGGREGATES for name in names)


def _bind_inner_select(context: BindContext, select: exp.Select) -> Relation:
    """Bind a SELECT nested in another query."""
    is_sliding_join = context.derived_tables.bind_sliding(context, select, "") is not None
    if is_sliding_join or select.args.get("joins") or has_aggregation(select):
        return _bind_derived_table(context, select, is_sliding_join=is_sliding_join)
    context = with_ctes(context, select)
    return bind_projection(context, select, bind_from(context, select))


def _bind_derived_table(context: BindContext, select: exp.Select, *, is_sliding_join: bool) -> Relation:
    """Bind a nested SELECT that aggregates or joins as a derived table."""
    tables = context.derived_tables
    plan = tables.bind_sliding_join(context, select) if is_sliding_join else tables.bind_windowed(context, select)
    reserved = next((name for name in plan.schema.names if name.startswith("#")), None)
    if reserved is not None:
        raise context.source.error_at_node(
            select, f"an output of a sub-query cannot be called '{reserved}'", hint="leave out the '#'"
        )
    _check_size(context, select, plan)
    relation = tables.add(plan, context.catalog)
    if len(tables.derived_streams) > MAX_INNER_QUERIES:
        raise context.source.error_at_node(
            select, f"a query of more than {MAX_INNER_QUERIES} windowed sub-queries is not supported"
        )
    return relation


def bind_projection(context: BindContext, select: exp.Select, relation: Relation) -> Relation:
    """Apply WHERE and the SELECT list to a relation."""
    items = bind_items(context, select, Scope(context.source, relation, "SELECT of a query without window"))
    fields = tuple(Field(item.name, item.value.type) for item in items)
    filtered = relation.with_filter(bind_where(context, select, relation))
    projected = filtered.with_projection(fields, tuple(item.value for item in items))
    _check_size(context, select, projected.branches)
    return projected


def _check_size(context: BindContext, select: exp.Select, plan: object) -> None:
    """Reject an oversized plan before any code traverses it in full."""
    try:
        check_plan_size(plan)
    except SqlError as problem:
        raise context.source.with_location(problem, select) from None


def bind_where(context: BindContext, select: exp.Select, relation: Relation | WindowJoinScope | SlidingJoinScope) -> Expression:
    """Bind the WHERE condition over the relation's columns; TRUE without a WHERE clause."""
    clause = select.args.get("where")
    scope = Scope(context.source, relation, "WHERE")
    return bind_condition(scope, clause.this if clause else exp.true())


def bind_items(context: BindContext, select: exp.Select, scope: Scope) -> list[SelectItem]:
    """Bind the SELECT list with stars expanded; output names must be distinct and types known."""
    items: list[SelectItem] = []
    for node in select.expressions:
        if len(items) >= MAX_OUTPUTS:
            problem = limit_error(len(select.expressions), MAX_OUTPUTS, "outputs", "add several queries")
            raise context.source.with_location(problem, node)
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            items += _expand_star(context, node, scope)
        else:
            items.append(_bind_item(context, node, scope))
    _check_size(context, select, tuple(item.value for item in items))
    _check_output_names(context, items)
    return items


def _bind_item(context: BindContext, node: exp.Expr, scope: Scope) -> SelectItem:
    value = bind_expression(scope, node.this if isinstance(node, exp.Alias) else node)
    if value.type == NULL:
        raise context.source.error_at_node(node, "output has no type: it is always NULL", hint="write CAST(NULL AS type)")
    return SelectItem(derive_output_name(node), value, node)


def _expand_star(context: BindContext, node: exp.Star | exp.Column, scope: Scope) -> list[SelectItem]:
    star = node if isinstance(node, exp.Star) else node.this
    check_clauses(context, star, frozenset())
    if isinstance(scope.collector, AggregateCollector):
        raise context.source.error_at_node(node, "* cannot be selected from an aggregation", hint="name the grouped columns")
    try:
        columns = scope.relation.expand_star(node.table if isinstance(node, exp.Column) else "")
    except SqlError as problem:
        raise context.source.with_location(problem, node) from None
    return [SelectItem(item.name, value, node) for item, value in columns]


def _check_output_names(context: BindContext, items: list[SelectItem]) -> None:
    used_names: set[str] = set()
    for item in items:
        if item.name.lower() in used_names:
            raise context.source.error_at_node(
                item.node, f"output name '{item.name}' is used twice", hint="give one of them an alias: … AS name"
            )
        used_names.add(item.name.lower())


_LATERAL_VIEW_USAGE = "write LATERAL VIEW explode(words(text)) AS word, with a registered function that returns ARRAY<…>"


def bind_lateral_view(
    source: SqlSource, relation: Relation, view: exp.Lateral, unnested_streams: dict[str, RowStream]
) -> Relation:
    """Return the relation with a column for the elements, one row per element; add its streams to `unnested_streams`."""
    try:
        return _unnest_relation(source, relation, view, unnested_streams)
    except SqlError as problem:
        raise source.with_location(problem, view) from None


def _unnest_relation(
    source: SqlSource, relation: Relation, view: exp.Lateral, unnested_streams: dict[str, RowStream]
) -> Relation:
    alias, generator = view.args.get("alias"), view.this
    names = [column.name for column in alias.columns] if alias is not None else []
    call = generator.expressions[0] if isinstance(generator, exp.Anonymous) and len(generator.expressions) == 1 else None
    function = None if call is None else get_user_function(call)
    if call is None or generator.name.lower() != "explode" or len(names) != 1 or view.args.get("outer"):
        raise SqlError("this LATERAL VIEW is not supported", hint=_LATERAL_VIEW_USAGE)
    if function is None or not pa.types.is_list(function.result_type):
        raise SqlError("only lists of registered functions can be exploded", hint=_LATERAL_VIEW_USAGE)
    if relation.find_field(names[0]) is not None:
        raise SqlError(f"column '{names[0]}' already exists", hint="choose another name for the elements")
    if any(branch.stream.name.startswith("~") for branch in relation.branches):
        raise SqlError("results of windows cannot be exploded", hint="explode rows before they are aggregated or joined")
    scope = Scope(source, relation, "LATERAL VIEW")
    values = call_user_function(function, [bind_expression(scope, arg) for arg in call.expressions], lists=True)

    def unnest_branch(branch: RelationBranch) -> RelationBranch:
        unnested = unnest_stream(branch.stream, relation.push_down(values, branch))
        unnested_streams[unnested.name] = unnested
        return replace(branch, stream=unnested.stream, columns=(*branch.columns, unnested.element))

    fields = (*relation.fields, Field(names[0], function.result_type.value_type))
    return replace(relation, fields=fields, branches=tuple(map(unnest_branch, relation.branches)))
