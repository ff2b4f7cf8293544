"""Name resolution: the catalog of streams and UDFs, the scopes of joins, and the names visible in a clause.

Stream and function names are case-insensitive. A FROM clause with joins has a scope of its own kind: `WindowJoinScope` holds
relations in TUMBLE or HOP windows with their JOIN clauses, `SlidingJoinScope` the inputs in SLIDING windows, the conditions
between them, and named tables. In both, column `c` of side or input i has the name `i.c`, as in the plan. In a
`WindowJoinScope` it refers to column `c` of the relation on that side until `push_down` rewrites it over the columns of the
stream. A sub-query that joins in SLIDING windows is inlined: its inputs and conditions become those of the outer query, its
outputs a table whose columns are expressions over the inputs.

During binding, placeholder columns represent the aggregates and window bounds in expressions. Their names start with NUL, so no
stream can have them; `headrace.sql.aggregation` replaces them by the columns of the logical plan.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
from sqlglot import exp

from headrace.errors import SchemaError, SqlError
from headrace.model.aggregate import AggregateCall
from headrace.model.expression import (
    TRUE,
    Call,
    Column,
    Expression,
    Literal,
    column_names,
    combine_conjuncts,
    split_conjuncts,
    substitute_columns,
)
from headrace.model.function import UserFunction
from headrace.model.stream import Stream
from headrace.model.types import TIMESTAMP, Field, Schema
from headrace.model.window import HopWindow, Window
from headrace.plan.sliding_join import SlidingInput, SlidingJoinQuery, canonicalize_join, referenced_inputs
from headrace.plan.window_join import (
    JoinKind,
    joined_column,
    present_column,
    split_joined_name,
    to_joined_columns,
    to_stream_columns,
)
from headrace.sql.parser import SqlSource
from headrace.sql.relation import Relation


@dataclass(frozen=True, slots=True)
class Catalog:
    """An immutable set of declared streams and registered UDFs; stream names are unique ignoring case."""

    streams: tuple[Stream, ...] = ()
    functions: tuple[UserFunction, ...] = ()
    _streams_by_name: dict[str, Stream] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index streams by lower-case name; reject names that differ only in case."""
        by_name: dict[str, Stream] = {}
        for stream in self.streams:
            if stream.name.lower() in by_name:
                raise SchemaError(f"stream '{stream.name}' is declared twice")
            by_name[stream.name.lower()] = stream
        object.__setattr__(self, "_streams_by_name", by_name)

    @staticmethod
    def of(streams: Iterable[Stream], functions: Iterable[UserFunction] = ()) -> Catalog:
        """Make a catalog of streams and functions."""
        return Catalog(tuple(streams), tuple(functions))

    def find_stream(self, name: str) -> Stream | None:
        """Return the stream of that name, ignoring case, or None."""
        return self._streams_by_name.get(name.lower())

    def find_function(self, name: str) -> UserFunction | None:
        """Return the registered function of that name, ignoring case, or None."""
        return next((function for function in self.functions if function.name == name.lower()), None)

    @property
    def stream_names(self) -> tuple[str, ...]:
        """The sorted names of the declared streams, for error messages."""
        return tuple(sorted(stream.name for stream in self.streams))


@dataclass(frozen=True, slots=True)
class BoundJoinClause:
    """A JOIN clause: how the next relation is joined with those before it, and the conditions over joined columns."""

    kind: JoinKind
    conditions: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class WindowJoinScope:
    """Sides in the order of the text, and the JOIN clauses; clause i joins side i + 1. USING columns by lower-case name."""

    sides: tuple[Relation, ...]
    clauses: tuple[BoundJoinClause, ...] = ()
    using_columns: Mapping[str, Expression] = field(default_factory=dict)
    name: str | None = None

    @property
    def window(self) -> Window:
        """The longest window of a side: the query sees its bounds."""
        windows = [side.window for side in self.sides if isinstance(side.window, HopWindow)]
        return max(windows, key=lambda window: window.size)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of all visible columns, for error messages."""
        return tuple(dict.fromkeys(name for index in sorted(self.visible_sides) for name in self.sides[index].column_names))

    @property
    def visible_sides(self) -> frozenset[int]:
        """The sides whose columns joined rows contain."""
        return frozenset({0} | {index + 1 for index, step in enumerate(self.clauses) if step.kind.has_both_sides})

    def find_nullable_sides(self, steps: int) -> frozenset[int]:
        """Return the sides that may be missing (NULL) from a row after so many joins."""
        nullable: set[int] = set()
        for index, step in enumerate(self.clauses[:steps]):
            nullable |= set(range(index + 1)) if step.kind.keeps_right else set()
            nullable |= {index + 1} if step.kind.keeps_left and step.kind.has_both_sides else set()
        return frozenset(nullable)

    def lookup_column(self, table: str, name: str) -> Expression | None:
        """Return a column by name, and by side if `table` is given; SqlError if the name is ambiguous."""
        if table:
            index = self._find_side(table)
            column = self.sides[index].find_field(name)
            return None if column is None else joined_column(index, column.name, column.type)
        if name.lower() in self.using_columns:
            return self.using_columns[name.lower()]
        holders = [
            (index, item) for index in sorted(self.visible_sides) if (item := self.sides[index].find_field(name)) is not None
        ]
        if len(holders) > 1:
            named = " and ".join(f"'{self.sides[index].name}'" for index, _ in holders)
            raise SqlError(f"column '{name}' is ambiguous", detail=f"it is in {named}", hint="write the table before it: t.x")
        return joined_column(holders[0][0], holders[0][1].name, holders[0][1].type) if holders else None

    def expand_star(self, table: str) -> list[tuple[Field, Expression]]:
        """Return the columns of `*` or `table.*` in order; USING columns come first, and once."""
        if table:
            index = self._find_side(table)
            return [(item, joined_column(index, item.name, item.type)) for item in self.sides[index].fields]
        columns = [(self._make_using_field(name, value), value) for name, value in self.using_columns.items()]
        for index in sorted(self.visible_sides):
            columns += [
                (item, joined_column(index, item.name, item.type))
                for item in self.sides[index].fields
                if item.name.lower() not in self.using_columns
            ]
        return columns

    def _make_using_field(self, name: str, value: Expression) -> Field:
        first = next(item for side in self.sides if (item := side.find_field(name)) is not None)
        return Field(first.name, value.type)

    def _find_side(self, table: str) -> int:
        matches = [index for index in sorted(self.visible_sides) if (self.sides[index].name or "").lower() == table.lower()]
        if matches:
            return matches[0]
        hidden = any((side.name or "").lower() == table.lower() for side in self.sides)
        raise SqlError(
            f"unknown table '{table}'",
            detail=f"FROM has {', '.join(repr(self.sides[index].name or '') for index in sorted(self.visible_sides))}",
            hint="a SEMI or ANTI join gives columns of its left side only" if hidden else "",
        )

    def push_down(self, expression: Expression, steps: int | None = None) -> Expression:
        """Rewrite an expression over the sides as one over the streams, for rows after so many joins (default: all)."""
        nullable = self.find_nullable_sides(len(self.clauses) if steps is None else steps)
        names = [name for name in column_names(expression) if name[0].isdigit()]
        return substitute_columns(
            expression, {name: self._push_down_column(*split_joined_name(name), nullable) for name in names}
        )

    def _push_down_column(self, index: int, name: str, nullable: frozenset[int]) -> Expression:
        side = self.sides[index]
        value = dict(zip(side.column_names, side.branches[0].columns, strict=True))[name]
        lifted_value = to_joined_columns(value, index)
        if index in nullable and not isinstance(
            lifted_value, Column
        ):  # a missing row gives NULL, whatever the expression computes
            return Call("case", (present_column(index), lifted_value, Literal(None, lifted_value.type)), lifted_value.type)
        return lifted_value


def display_name(name: str) -> str:
    """Return a column's name as written in the query, without the input number."""
    return split_joined_name(name)[1] if name[:1].isdigit() and "." in name else name


@dataclass(frozen=True, slots=True)
class ScopeTable:
    """A named table of a scope; `values` are expressions over the columns of all inputs."""

    name: str
    fields: tuple[Field, ...]
    values: tuple[Expression, ...]

    def make_nullable(self, time: Column) -> ScopeTable:
        """Return the table with NULL in all columns where a row of its only input is missing; `time` is its event time."""
        is_missing = Call("is_null", (time,), pa.bool_())
        values = (
            value if isinstance(value, Column) else Call("case", (is_missing, Literal(None, value.type), value), value.type)
            for value in self.values
        )
        return replace(self, values=tuple(values))

    def find_column(self, name: str) -> Expression | None:
        """Return the value of a column by name, ignoring case, or None."""
        values = (value for item, value in zip(self.fields, self.values, strict=True) if item.name.lower() == name.lower())
        return next(values, None)


@dataclass(frozen=True, slots=True)
class SlidingJoinScope:
    """Inputs and conditions; tables in the order of the text; USING columns by lower-case name.

    An outer or anti join has `outer_inputs`, whose rows need no partner, and conditions on its results (see `SlidingJoinQuery`).
    """

    inputs: tuple[SlidingInput, ...] = ()
    conditions: tuple[Expression, ...] = ()
    outer_inputs: tuple[int, ...] = ()
    emits_matches: bool = True
    predicate: Expression = TRUE
    tables: tuple[ScopeTable, ...] = ()
    using_columns: Mapping[str, Expression] = field(default_factory=dict)
    name: str | None = None

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of all visible columns, for error messages."""
        return tuple(dict.fromkeys(item.name for table in self.tables for item in table.fields))

    def lookup_column(self, table: str, name: str) -> Expression | None:
        """Return a column by name, and by table if given; SqlError if the name is ambiguous."""
        if table:
            return self._find_table(table).find_column(name)
        if name.lower() in self.using_columns:
            return self.using_columns[name.lower()]
        holders = [(other, value) for other in self.tables if (value := other.find_column(name)) is not None]
        if len(holders) > 1:
            named = " and ".join(f"'{other.name}'" for other, _ in holders)
            raise SqlError(f"column '{name}' is ambiguous", detail=f"it is in {named}", hint="write the table before it: t.x")
        return holders[0][1] if holders else None

    def expand_star(self, table: str) -> list[tuple[Field, Expression]]:
        """Return the columns of `*` or `table.*` in order; USING columns come first, and once."""
        if table:
            source = self._find_table(table)
            return list(zip(source.fields, source.values, strict=True))
        columns = [(Field(self._get_column_spelling(name), value.type), value) for name, value in self.using_columns.items()]
        for source in self.tables:
            columns += [
                (f, v) for f, v in zip(source.fields, source.values, strict=True) if f.name.lower() not in self.using_columns
            ]
        return columns

    def _get_column_spelling(self, name: str) -> str:
        return next(item.name for table in self.tables for item in table.fields if item.name.lower() == name)

    def _find_table(self, name: str) -> ScopeTable:
        match = next((table for table in self.tables if table.name.lower() == name.lower()), None)
        if match is None:
            raise SqlError(f"unknown table '{name}'", detail=f"FROM has {', '.join(repr(table.name) for table in self.tables)}")
        return match

    def concat_scope(self, other: SlidingJoinScope) -> SlidingJoinScope:
        """Return the scope of both; the inputs of the other follow those of this scope."""
        by = len(self.inputs)
        tables = (replace(table, values=tuple(shift_inputs(value, by) for value in table.values)) for table in other.tables)
        conditions = (shift_inputs(condition, by) for condition in other.conditions)
        return replace(
            self,
            inputs=(*self.inputs, *other.inputs),
            conditions=(*self.conditions, *conditions),
            tables=(*self.tables, *tables),
        )

    def with_filter(self, condition: Expression) -> SlidingJoinScope:
        """Add a condition on the rows of the scope.

        Conjuncts over one input become its predicate, the others stay conditions between inputs. Results of an outer join are
        filtered, except by conjuncts on an input that no result lacks.
        """
        scope = self
        for part in split_conjuncts(condition):
            used = referenced_inputs(part)
            lacks_rows = {1 - index for index in self.outer_inputs}
            if part == TRUE:
                continue
            if self.outer_inputs and (len(used) != 1 or used <= lacks_rows):
                scope = replace(scope, predicate=combine_conjuncts([*split_conjuncts(scope.predicate), part]))
            elif len(used) > 1:
                scope = replace(scope, conditions=(*scope.conditions, part))
            else:
                scope = scope.with_input_filter(min(used, default=0), part)
        return scope

    def with_outer_join(self, outer_inputs: tuple[int, ...], condition: Expression, *, emits_matches: bool) -> SlidingJoinScope:
        """Return the outer join of both inputs; conjuncts of ON on an input whose rows need a partner select its rows."""
        scope = replace(self, outer_inputs=outer_inputs, emits_matches=emits_matches)
        for part in split_conjuncts(condition):
            used = referenced_inputs(part)
            if len(used) == 1 and not used <= set(outer_inputs):
                scope = scope.with_input_filter(min(used), part)
            elif part != TRUE:
                scope = replace(scope, conditions=(*scope.conditions, part))
        return scope

    def with_input_filter(self, index: int, condition: Expression) -> SlidingJoinScope:
        """Return the scope with a further condition on the rows of an input."""
        inputs = list(self.inputs)
        predicate = combine_conjuncts([*split_conjuncts(inputs[index].predicate), to_stream_columns(condition)])
        inputs[index] = replace(inputs[index], predicate=predicate)
        return replace(self, inputs=tuple(inputs))

    def to_plan(self, output: tuple[Expression, ...], schema: Schema) -> SlidingJoinQuery:
        """Return the join with its outputs, in canonical form."""
        return canonicalize_join(
            SlidingJoinQuery(self.inputs, self.conditions, output, schema, self.outer_inputs, self.emits_matches, self.predicate)
        )


def make_window_scope(relation: Relation, length: int, lateness: int, name: str) -> SlidingJoinScope:
    """Return the scope of a single stream in a SLIDING window."""
    branch = relation.branches[0]
    values = tuple(to_joined_columns(column, 0) for column in branch.columns)
    return SlidingJoinScope(
        (SlidingInput(branch.stream.name, length, branch.predicate, lateness),),
        tables=(ScopeTable(name, relation.fields, values),),
    )


def shift_inputs(expression: Expression, by: int) -> Expression:
    """Renumber the inputs of an expression over joined columns after `by` inputs are inserted before them."""
    if isinstance(expression, Column):
        index, name = split_joined_name(expression.name)
        return joined_column(index + by, name, expression.type)
    if isinstance(expression, Call):
        return Call(expression.function, tuple(shift_inputs(arg, by) for arg in expression.args), expression.type)
    return expression


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
