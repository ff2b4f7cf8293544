"""The one entry of the SQL front end: text to logical query."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.errors import SqlglotError

from headrace.errors import HeadraceError, SqlError
from headrace.model.schema import Schema
from headrace.plan.logical import LogicalQuery, SelectBranch, StatelessQuery
from headrace.sql.aggregation import bind_aggregation
from headrace.sql.catalog import Catalog
from headrace.sql.flatten import Context, aggregates, bind_from, flatten, project, with_ctes
from headrace.sql.joins import bind_join
from headrace.sql.parse import Source, parse
from headrace.sql.relation import Relation


def bind_query(text: str, catalog: Catalog) -> LogicalQuery:
    """Return what the query means, every name and type checked; raises SqlError, and nothing else, for any text."""
    try:
        return _bind(Context(Source(text), catalog))
    except SqlError:
        raise
    except HeadraceError as problem:
        raise SqlError(problem.message, detail=problem.detail, hint=problem.hint) from problem
    except RecursionError:
        raise SqlError("query is nested too deeply", hint="use IN (…) for many alternatives") from None
    except SqlglotError as problem:
        raise SqlError(f"query cannot be parsed: {problem}") from problem
    except Exception as problem:  # whatever a text makes the parser do, the caller gets an SqlError
        raise SqlError(f"query is not understood ({type(problem).__name__}: {problem})") from problem


def _bind(context: Context) -> LogicalQuery:
    tree = parse(context.source)
    while isinstance(tree, exp.Subquery) and isinstance(tree.this, exp.Query) and set(_given(tree)) == {"this"}:
        tree = tree.this
    if not isinstance(tree, exp.Query):
        raise context.source.error(tree, f"{tree.key.upper()} is not a query", hint="write SELECT … FROM …")
    if isinstance(tree, exp.Select):
        return _select(context, tree)
    return _stateless(context, tree, flatten(context, tree))


def _given(node: exp.Expr) -> list[str]:
    return [key for key, value in node.args.items() if value]


def _select(context: Context, select: exp.Select) -> LogicalQuery:
    context = with_ctes(context, select)
    if select.args.get("joins"):
        return bind_join(context, select)
    relation = bind_from(context, select)
    if aggregates(select):
        return bind_aggregation(context, select, relation)
    return _stateless(context, select, project(context, select, relation))


def _stateless(context: Context, node: exp.Expr, relation: Relation) -> StatelessQuery:
    if relation.window is not None:
        raise context.source.error(
            node.args.get("from_") or node,
            "a windowed query must aggregate or join",
            hint="add COUNT(*), SUM(…) or GROUP BY, or read the stream without a window",
        )
    branches = tuple(SelectBranch(b.stream.name, b.columns, b.predicate) for b in relation.branches)
    return StatelessQuery(branches, Schema(relation.fields))
