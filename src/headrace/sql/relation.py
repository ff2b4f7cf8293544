"""The flattened form of a FROM clause: named, typed columns, each an expression over the columns of one stream.

A relation has one branch per stream that it reads (several after UNION ALL). The binder binds expressions over the relation's
columns and pushes them down into every branch by substitution.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pyarrow as pa

from headrace.errors import SqlError
from headrace.model.expression import TRUE, Column, Expression, combine_conjuncts, split_conjuncts, substitute_columns
from headrace.model.stream import Stream
from headrace.model.types import Field
from headrace.model.window import HopWindow, Window, WindowEnds, ends_of_window
from headrace.plan.derived import HIDDEN_COLUMN_COUNT, DerivedStream, WindowedQuery
from headrace.plan.window_join import WindowJoinQuery
from headrace.sql.casts import cast_to
from headrace.sql.types import find_common_type, type_mismatch_error


@dataclass(frozen=True, slots=True)
class RelationBranch:
    """The part of a relation that reads one stream; `columns` are in the order of the relation's fields."""

    stream: Stream
    columns: tuple[Expression, ...]
    predicate: Expression = TRUE


@dataclass(frozen=True, slots=True)
class ResultWindows:
    """The windows that produced the results a relation reads: when they end, and their size."""

    ends: WindowEnds
    size: int


@dataclass(frozen=True, slots=True)
class Relation:
    """A flattened FROM clause or sub-query; `name` is its alias, `window` the TUMBLE, HOP or SESSION window around it.

    A relation over results of TUMBLE or HOP windows also has the windows that produced them.
    """

    fields: tuple[Field, ...]
    branches: tuple[RelationBranch, ...]
    name: str | None = None
    window: Window | None = None
    result_windows: ResultWindows | None = None
    _fields_by_name: dict[str, Field] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the columns by lower-case name."""
        object.__setattr__(self, "_fields_by_name", {item.name.lower(): item for item in self.fields})

    @property
    def column_names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(item.name for item in self.fields)

    @property
    def inherited_window(self) -> HopWindow | None:
        """The window of a query over results that has none of its own: each contains the results of exactly one inner window."""
        windows = self.result_windows if self.window is None else None
        return None if windows is None else HopWindow(windows.ends.step, windows.ends.step)

    def find_field(self, name: str) -> Field | None:
        """Return the column of that name, ignoring case, or None."""
        return self._fields_by_name.get(name.lower())

    def lookup_column(self, table: str, name: str) -> Column | None:
        """Return a column by name, or None; `table` must be empty or the name of the relation."""
        self._check_table(table)
        item = self.find_field(name)
        return None if item is None else Column(item.name, item.type)

    def expand_star(self, table: str) -> list[tuple[Field, Expression]]:
        """Return the columns of `*` or `table.*` in order."""
        self._check_table(table)
        return [(item, Column(item.name, item.type)) for item in self.fields]

    def _check_table(self, table: str) -> None:
        if table and table.lower() != (self.name or "").lower():
            actual = f"'{self.name}'" if self.name else "without a name"
            raise SqlError(f"unknown table '{table}'", detail=f"FROM is {actual}")

    def push_down(self, expression: Expression, branch: RelationBranch) -> Expression:
        """Rewrite an expression over the relation's columns as one over the columns of a branch's stream."""
        return substitute_columns(expression, dict(zip(self.column_names, branch.columns, strict=True)))

    def with_filter(self, predicate: Expression) -> Relation:
        """Return the relation with one more predicate on every branch."""
        if predicate == TRUE:
            return self
        branches = [replace(b, predicate=_conjoin(b.predicate, self.push_down(predicate, b))) for b in self.branches]
        return replace(self, branches=tuple(branches))

    def with_projection(self, fields: tuple[Field, ...], outputs: tuple[Expression, ...]) -> Relation:
        """Return the relation with these outputs as columns, named and typed by `fields`."""
        branches = (replace(b, columns=tuple(self.push_down(output, b) for output in outputs)) for b in self.branches)
        return Relation(fields, tuple(branches), window=self.window, result_windows=self.result_windows)

    def with_alias(self, name: str | None, columns: list[str]) -> Relation:
        """Return the relation under an alias; rename its columns if `columns` are given."""
        if not columns:
            return replace(self, name=name or self.name)
        if len(columns) != len(self.fields):
            raise SqlError(f"alias '{name}' names {len(columns)} columns, but there are {len(self.fields)}")
        if len({column.lower() for column in columns}) < len(columns):
            raise SqlError(f"alias '{name}' names a column twice")
        fields = tuple(Field(new, old.type) for new, old in zip(columns, self.fields, strict=True))
        return replace(self, fields=fields, name=name or self.name)


def _conjoin(left: Expression, right: Expression) -> Expression:
    """AND a flat chain and a condition in one flat chain, so that nesting in the text does not affect plan equality."""
    return combine_conjuncts([left, *split_conjuncts(right)])


def relation_of_stream(stream: Stream) -> Relation:
    """Return the relation of all columns of a stream."""
    columns = tuple(Column(item.name, item.type) for item in stream.schema)
    return Relation(stream.schema.fields, (RelationBranch(stream, columns),), stream.name)


def relation_of_results(derived: DerivedStream, results_of: ResultWindows | None) -> Relation:
    """Return the relation of the results of a windowed query."""
    fields = derived.stream.schema.fields[:-HIDDEN_COLUMN_COUNT]
    columns = tuple(Column(item.name, item.type) for item in fields)
    return Relation(fields, (RelationBranch(derived.stream, columns),), result_windows=results_of)


def find_result_windows(plan: WindowedQuery) -> ResultWindows | None:
    """Return the windows that produce the results of a query; None for SESSION windows."""
    if isinstance(plan, WindowJoinQuery):
        return ResultWindows(plan.ends, plan.longest_window)
    return ResultWindows(ends_of_window(plan.window), plan.window.size) if isinstance(plan.window, HopWindow) else None


def event_time_column(stream: Stream) -> Column:
    """Return the event-time column of a stream."""
    column = stream.schema.find(stream.time)
    assert column is not None  # checked by Stream
    return Column(column.name, column.type)


def union_all(left: Relation, right: Relation) -> Relation:
    """Return the UNION ALL of both: columns matched by position, names from the left, types promoted."""
    if len(left.fields) != len(right.fields):
        raise SqlError(
            f"UNION ALL of {len(left.fields)} and {len(right.fields)} columns", hint="select the same number of columns"
        )
    if left.window != right.window:
        raise SqlError("UNION ALL of different windows", hint="window the union: TUMBLE((SELECT … UNION ALL …), '8 seconds')")
    types = [_promote_types(a, b) for a, b in zip(left.fields, right.fields, strict=True)]
    fields = tuple(Field(item.name, kind) for item, kind in zip(left.fields, types, strict=True))
    branches = (
        replace(b, columns=tuple(cast_to(c, kind) for c, kind in zip(b.columns, types, strict=True)))
        for b in (*left.branches, *right.branches)
    )
    results_of = left.result_windows if left.result_windows == right.result_windows else None
    return Relation(fields, tuple(branches), window=left.window, result_windows=results_of)


def _promote_types(left: Field, right: Field) -> pa.DataType:
    kind = find_common_type(left.type, right.type)
    if kind is None:
        problem = type_mismatch_error("unite column", left.type, right.type)
        raise SqlError(problem.message, detail=f"columns '{left.name}' and '{right.name}'", hint=problem.hint)
    return kind


def check_event_time(relation: Relation, expression: Expression | None) -> None:
    """Reject a window over anything but event time.

    `expression`, if given, must be the event-time column of every stream. Without it (a window in FROM), the window uses the
    event time of the streams, and a column of that name must not be a different value.
    """
    for branch in relation.branches:
        time = event_time_column(branch.stream)
        if expression is None:
            namesake = relation.find_field(time.name)
            window_time: Expression = relation.push_down(Column(namesake.name, namesake.type), branch) if namesake else time
        else:
            window_time = relation.push_down(expression, branch)
        if window_time != time:
            raise SqlError(
                f"a window must be over event time, which for stream '{branch.stream.name}' is column '{time.name}'",
                detail=f"here it is over {window_time}",
                hint="pass the column on unchanged (it may be renamed)",
            )
