"""Name resolution: the columns, aliases and window bounds visible in a clause, and the collector of aggregates.

During binding, placeholder columns represent the aggregates and window bounds in expressions. Their names start with NUL, so no
stream can have them; `headrace.sql.aggregation` replaces them by the columns of the logical plan.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from headrace.errors import SqlError
from headrace.model.aggregate import AggregateCall
from headrace.model.expression import Column, Expression
from headrace.model.schema import TIMESTAMP
from headrace.model.window import Window
from headrace.sql.joined import WindowJoinScope
from headrace.sql.parse import SqlSource
from headrace.sql.relation import Relation
from headrace.sql.trails import SlidingJoinScope

START_PLACEHOLDER, END_PLACEHOLDER = Column("\0window_start", TIMESTAMP), Column("\0window_end", TIMESTAMP)
_PLACEHOLDERS_BY_COLUMN = {"window_start": START_PLACEHOLDER, "window_end": END_PLACEHOLDER}
_PLACEHOLDERS_BY_FIELD = {"start": START_PLACEHOLDER, "end": END_PLACEHOLDER}
WINDOW_NAMES = frozenset({"window", "session_window"})


@dataclass(slots=True)
class AggregateCollector:
    """The distinct aggregates of one query, in the order of their first use."""

    calls: dict[AggregateCall, int] = field(default_factory=dict)

    def add(self, call: AggregateCall) -> Column:
        """Add an aggregate call; return its placeholder column."""
        return Column(f"\0agg{self.calls.setdefault(call, len(self.calls))}", call.type)


@dataclass(frozen=True, slots=True)
class Scope:
    """The names visible in a clause; `clause` is its name in error messages.

    `collector` is None where aggregates are not allowed, `window` is None where window bounds are not allowed.
    """

    source: SqlSource
    relation: Relation | WindowJoinScope | SlidingJoinScope
    clause: str
    collector: AggregateCollector | None = None
    window: Window | None = None
    aliases: Mapping[str, Expression] = field(default_factory=dict)

    def for_aggregate_arguments(self) -> Scope:
        """Return the scope of an aggregate's arguments, which are evaluated over rows, not groups."""
        return replace(self, clause="an aggregate", collector=None, window=None, aliases={})


def resolve_column(scope: Scope, node: exp.Column) -> Expression:
    """Resolve a column reference; SqlError without a location if the name is unknown."""
    if node.args.get("db") is not None or not isinstance(node.this, exp.Identifier):
        raise SqlError(f"column '{node.sql(dialect='spark')}' is not understood", hint="fields of structures are not supported")
    name, table = node.name, node.table
    if not table and name.lower() in scope.aliases:
        return scope.aliases[name.lower()]
    if table.lower() in WINDOW_NAMES and scope.relation.name != table:
        return resolve_window_bound(scope, f"{table}.{name}", _PLACEHOLDERS_BY_FIELD.get(name.lower()))
    return _lookup_column(scope, table, name)


def _lookup_column(scope: Scope, table: str, name: str) -> Expression:
    column, bound = scope.relation.lookup_column(table, name), _PLACEHOLDERS_BY_COLUMN.get(name.lower())
    if column and bound and scope.window and not table and scope.window != _find_inherited_window(scope.relation):
        raise SqlError(f"column '{name}' is ambiguous", hint="it is a column of the stream and a bound of the window: rename it")
    if column:
        return column
    if bound or name.lower() in WINDOW_NAMES:
        return resolve_window_bound(scope, name, bound)
    raise unknown_name_error("column", name, scope.relation.column_names)


def _find_inherited_window(relation: Relation | WindowJoinScope | SlidingJoinScope) -> Window | None:
    """Return the window that a query over results inherits: columns that hold its bounds are not ambiguous with them."""
    return relation.inherited_window if isinstance(relation, Relation) else None


def resolve_window_bound(scope: Scope, text: str, bound: Column | None) -> Column:
    """Return the start or end of the query's window; SqlError if the clause has no access to it."""
    if bound is None:
        raise SqlError(f"window has no value '{text}' by itself", hint="select window.start and window.end")
    if scope.window is None:
        message = f"'{text}' cannot be used in {scope.clause}"
        raise SqlError(message, hint="the bounds of a window are known in SELECT and HAVING of a query that groups by one")
    return bound


def unknown_name_error(kind: str, name: str, known: Iterable[str]) -> SqlError:
    """Return the error for an unknown name, with the known names and the closest match."""
    names = list(known)
    by_lower = {item.lower(): item for item in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    listed = ", ".join(names) or "none"
    return SqlError(
        f"unknown {kind} '{name}'", detail=f"{kind}s: {listed}", hint=f"did you mean '{by_lower[near[0]]}'?" if near else ""
    )
