"""The entry point of the SQL front end: binds the text of a query to a logical plan."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from sqlglot import exp
from sqlglot.errors import SqlglotError

from headrace.errors import HeadraceError, SqlError, log_internal_error
from headrace.model.expression import column_names, combine_conjuncts, split_conjuncts, substitute_columns
from headrace.model.types import Schema
from headrace.plan.derived import AnyQuery, DerivedStream, NestedQuery, WindowedQuery
from headrace.plan.derived import collect_unnested as of_streams
from headrace.plan.logical import WINDOW_END, WINDOW_START, AggregateQuery, LogicalQuery, SelectBranch, StatelessQuery
from headrace.plan.sliding_join import SlidingJoinQuery
from headrace.sql.aggregation import bind_aggregation
from headrace.sql.functions import mark_user_functions
from headrace.sql.limits import check_plan_size, nesting_error
from headrace.sql.parser import SqlSource, parse_statement
from headrace.sql.relation import Relation
from headrace.sql.scope import Catalog, SlidingJoinScope
from headrace.sql.select import BindContext, DerivedTables, bind_from, bind_projection, flatten_query, has_aggregation, with_ctes
from headrace.sql.sliding_join import (
    bind_interval_join,
    bind_sliding_join,
    bind_sliding_subquery,
    is_interval_join,
    is_sliding_join,
)
from headrace.sql.window_join import bind_window_join

_WINDOW_BOUNDS = {WINDOW_START.name, WINDOW_END.name}
# 4,000 characters of arithmetic make a plan of 170 KB, so that the cache stays below some 50 MB whatever clients send.
_MAX_CACHED_PLANS = 256
MAX_CACHED_CHARACTERS = 4_000


def bind_query(text: str, catalog: Catalog) -> AnyQuery:
    """Return the logical plan with every name and type checked; raises only SqlError, whatever the text.

    Plans are cached: a text is bound when its query is added, when its batch runs, and after recovery. Errors are not. An
    exception of any other kind is a bug of headrace: it is logged and raised as an InternalError.
    """
    return (_bind_cached if len(text) <= MAX_CACHED_CHARACTERS else _bind_text)(text, catalog)


@lru_cache(maxsize=_MAX_CACHED_PLANS)
def _bind_cached(text: str, catalog: Catalog) -> AnyQuery:
    return _bind_text(text, catalog)


def _bind_text(text: str, catalog: Catalog) -> AnyQuery:
    try:
        return _bind_statement(
            BindContext(SqlSource(text), catalog, DerivedTables(_bind_windowed, _bind_sliding_scope, bind_sliding_join))
        )
    except SqlError:
        raise
    except HeadraceError as problem:
        raise SqlError(problem.message, detail=problem.detail, hint=problem.hint) from problem
    except RecursionError:  # the stack of the caller is already deep
        raise nesting_error() from None
    except SqlglotError as problem:
        raise SqlError(f"query cannot be parsed: {problem}") from problem
    except Exception as problem:
        raise log_internal_error("the query could not be bound", problem) from problem


def _bind_statement(context: BindContext) -> AnyQuery:
    tree = parse_statement(context.source)
    mark_user_functions(tree, context.catalog)
    while isinstance(tree, exp.Subquery) and isinstance(tree.this, exp.Query) and set(_list_set_args(tree)) == {"this"}:
        tree = tree.this
    if not isinstance(tree, exp.Query):
        raise context.source.error_at_node(tree, f"{tree.key.upper()} is not a query", hint="write SELECT … FROM …")
    if isinstance(tree, exp.Select) and is_sliding_join(context, tree):
        return _nest_plan(context, bind_sliding_join(context, tree))
    if isinstance(tree, exp.Select) and is_interval_join(context, tree):
        return _nest_plan(context, bind_interval_join(context, tree))
    if isinstance(tree, exp.Select) and _is_windowed(tree):
        return _nest_plan(context, _bind_windowed(context, tree))
    return _nest_plan(context, _bind_stateless(context, tree))


def _list_set_args(node: exp.Expr) -> list[str]:
    return [key for key, value in node.args.items() if value]


def _is_windowed(select: exp.Select) -> bool:
    return bool(select.args.get("joins")) or has_aggregation(select)


def _bind_windowed(context: BindContext, select: exp.Select) -> WindowedQuery:
    """Bind a SELECT that aggregates or joins."""
    context = with_ctes(context, select)
    if select.args.get("joins"):
        return bind_window_join(context, select)
    return bind_aggregation(context, select, bind_from(context, select))


def _bind_sliding_scope(context: BindContext, node: exp.Expr, name: str) -> SlidingJoinScope | None:
    """Return the scope of a query that joins in SLIDING windows; None for any other query."""
    query = node.this if isinstance(node, exp.CTE) else node
    return bind_sliding_subquery(context, query, name) if is_sliding_join(context, query) else None


def _bind_stateless(context: BindContext, node: exp.Expr) -> LogicalQuery:
    """Bind a query that filters, projects and concatenates (UNION ALL) streams."""
    if isinstance(node, exp.Select):
        context = with_ctes(context, node)
        relation = bind_projection(context, node, bind_from(context, node))
    else:
        relation = flatten_query(context, node)
    if relation.window is not None:
        raise context.source.error_at_node(
            node.args.get("from_") or node,
            "a windowed query must aggregate or join",
            hint="add COUNT(*), SUM(…) or GROUP BY, or read the stream without a window",
        )
    derived = context.derived_tables.derived_streams.get(relation.branches[0].stream.name)
    if derived is not None and len(relation.branches) == 1 and not isinstance(derived.plan, SlidingJoinQuery):
        narrowed = _narrow_plan(derived.plan, relation)
        if narrowed is not None:
            return narrowed
    branches = tuple(SelectBranch(b.stream.name, b.columns, b.predicate) for b in relation.branches)
    return StatelessQuery(branches, Schema(relation.fields))


def _narrow_plan(plan: WindowedQuery, relation: Relation) -> WindowedQuery | None:
    """Fuse a filter and projection over the results of a windowed query into that query; None if that is impossible."""
    branch = relation.branches[0]
    values = dict(zip(plan.schema.names, plan.output, strict=True))
    output = tuple(substitute_columns(column, values) for column in branch.columns)
    predicates = split_conjuncts(substitute_columns(branch.predicate, values))
    narrowed = replace(plan, output=output, schema=Schema(relation.fields))
    if isinstance(narrowed, AggregateQuery):
        return replace(narrowed, having=combine_conjuncts([*split_conjuncts(narrowed.having), *predicates]))
    if narrowed.grouping is None:
        if any(
            column_names(part) & _WINDOW_BOUNDS for part in predicates
        ):  # the predicate of a join runs before window bounds are known
            return None
        return replace(narrowed, predicate=combine_conjuncts([*split_conjuncts(narrowed.predicate), *predicates]))
    having = combine_conjuncts([*split_conjuncts(narrowed.grouping.having), *predicates])
    return replace(narrowed, grouping=replace(narrowed.grouping, having=having))


def _nest_plan(context: BindContext, plan: LogicalQuery) -> AnyQuery:
    """Return the plan together with the derived and unnested streams that it reads, if any."""
    needed = set(plan.streams)
    inner: list[DerivedStream] = []
    for stream in reversed(context.derived_tables.derived_streams.values()):
        if stream.name in needed:
            needed.update(stream.plan.streams)
            inner.insert(0, stream)
    unfolded = of_streams(sorted(needed), context.derived_tables.unnested_streams)
    query = NestedQuery(tuple(inner), plan, unfolded) if inner or unfolded else plan
    check_plan_size(query)
    return query
