"""What stands in FROM, flattened: named, typed columns, each an expression over one stream's own columns.

A relation has one branch for each stream it reads (more than one after UNION ALL). Expressions are bound against the
relation's columns and pushed into every branch by substitution.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pyarrow as pa

from headrace.errors import SqlError
from headrace.model.expression import TRUE, Column, Expression, conjunction, conjuncts, substitute
from headrace.model.schema import Field
from headrace.model.stream import Stream
from headrace.model.window import Ends, Sliding, Window, ends_of
from headrace.plan.join import JoinQuery
from headrace.plan.stacked import HIDDEN, Derived, Windowed
from headrace.sql.casts import cast
from headrace.sql.coerce import common_type, mismatch


@dataclass(frozen=True, slots=True)
class Branch:
    """The part of a relation that reads one stream; `columns` are in the order of the relation's fields."""

    stream: Stream
    columns: tuple[Expression, ...]
    predicate: Expression = TRUE


@dataclass(frozen=True, slots=True)
class Results:
    """When windows end whose results are read, and how long they are."""

    ends: Ends
    size: int


@dataclass(frozen=True, slots=True)
class Relation:
    """A flattened FROM clause or sub-query; `name` is its alias, `window` set by TUMBLE, HOP or SESSION around it.

    `results_of` says whose results its rows are, if they are those of tumbling or hopping windows.
    """

    fields: tuple[Field, ...]
    branches: tuple[Branch, ...]
    name: str | None = None
    window: Window | None = None
    results_of: Results | None = None
    _by_name: dict[str, Field] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the columns by lower-case name."""
        object.__setattr__(self, "_by_name", {item.name.lower(): item for item in self.fields})

    @property
    def names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(item.name for item in self.fields)

    @property
    def same_window(self) -> Sliding | None:
        """Windows in each of which there are the results of just one: those that queries without a window of their own mean."""
        found = self.results_of if self.window is None else None
        return None if found is None else Sliding(found.ends.step, found.ends.step)

    def find(self, name: str) -> Field | None:
        """Return the column of that name, whatever the case, or None."""
        return self._by_name.get(name.lower())

    def lookup(self, table: str, name: str) -> Column | None:
        """Return a column by its name, and that of the relation if given; None if there is none."""
        self._check_table(table)
        found = self.find(name)
        return None if found is None else Column(found.name, found.type)

    def star(self, table: str) -> list[tuple[Field, Expression]]:
        """Return the columns `*` or `table.*` stands for, in order."""
        self._check_table(table)
        return [(item, Column(item.name, item.type)) for item in self.fields]

    def _check_table(self, table: str) -> None:
        if table and table.lower() != (self.name or "").lower():
            known = f"'{self.name}'" if self.name else "without a name"
            raise SqlError(f"unknown table '{table}'", detail=f"FROM is {known}")

    def push(self, expression: Expression, branch: Branch) -> Expression:
        """Return an expression over the relation's columns as one over the stream of a branch."""
        return substitute(expression, dict(zip(self.names, branch.columns, strict=True)))

    def filtered(self, predicate: Expression) -> Relation:
        """Return only the rows for which the predicate holds."""
        if predicate == TRUE:
            return self
        kept = [replace(b, predicate=_conjoined(b.predicate, self.push(predicate, b))) for b in self.branches]
        return replace(self, branches=tuple(kept))

    def projected(self, fields: tuple[Field, ...], outputs: tuple[Expression, ...]) -> Relation:
        """Return the relation of these outputs, named and typed by `fields`."""
        branches = (replace(b, columns=tuple(self.push(output, b) for output in outputs)) for b in self.branches)
        return Relation(fields, tuple(branches), window=self.window, results_of=self.results_of)

    def renamed(self, name: str | None, columns: list[str]) -> Relation:
        """Return the relation under an alias, its columns renamed if `columns` are given."""
        if not columns:
            return replace(self, name=name or self.name)
        if len(columns) != len(self.fields):
            raise SqlError(f"alias '{name}' names {len(columns)} columns, but there are {len(self.fields)}")
        if len({column.lower() for column in columns}) < len(columns):
            raise SqlError(f"alias '{name}' names a column twice")
        fields = tuple(Field(new, old.type) for new, old in zip(columns, self.fields, strict=True))
        return replace(self, fields=fields, name=name or self.name)


def _conjoined(left: Expression, right: Expression) -> Expression:
    """Return both conditions as one chain of ANDs, so that nesting in the text makes no difference."""
    return conjunction([*conjuncts(left), *conjuncts(right)])


def of_stream(stream: Stream) -> Relation:
    """Return all columns of a stream."""
    columns = tuple(Column(item.name, item.type) for item in stream.schema)
    return Relation(stream.schema.fields, (Branch(stream, columns),), stream.name)


def of_results(found: Derived, results_of: Results | None) -> Relation:
    """Return the results of a windowed query."""
    fields = found.stream.schema.fields[:-HIDDEN]
    columns = tuple(Column(item.name, item.type) for item in fields)
    return Relation(fields, (Branch(found.stream, columns),), results_of=results_of)


def results(plan: Windowed) -> Results | None:
    """Return whose results a query has; None of sessions."""
    if isinstance(plan, JoinQuery):
        return Results(plan.ends, plan.size)
    return Results(ends_of(plan.window), plan.window.size) if isinstance(plan.window, Sliding) else None


def event_time(stream: Stream) -> Column:
    """Return the event-time column as the stream declares it."""
    found = stream.schema.find(stream.time)
    assert found is not None  # checked by Stream
    return Column(found.name, found.type)


def union_all(left: Relation, right: Relation) -> Relation:
    """Return the rows of both, columns matched by position, names from the left, types promoted."""
    if len(left.fields) != len(right.fields):
        raise SqlError(
            f"UNION ALL of {len(left.fields)} and {len(right.fields)} columns", hint="select the same number of columns"
        )
    if left.window != right.window:
        raise SqlError("UNION ALL of different windows", hint="window the union: TUMBLE((SELECT … UNION ALL …), '8 seconds')")
    types = [_promoted(a, b) for a, b in zip(left.fields, right.fields, strict=True)]
    fields = tuple(Field(item.name, kind) for item, kind in zip(left.fields, types, strict=True))
    branches = (
        replace(b, columns=tuple(cast(c, kind) for c, kind in zip(b.columns, types, strict=True)))
        for b in (*left.branches, *right.branches)
    )
    results_of = left.results_of if left.results_of == right.results_of else None
    return Relation(fields, tuple(branches), window=left.window, results_of=results_of)


def _promoted(left: Field, right: Field) -> pa.DataType:
    kind = common_type(left.type, right.type)
    if kind is None:
        problem = mismatch("unite column", left.type, right.type)
        raise SqlError(problem.message, detail=f"columns '{left.name}' and '{right.name}'", hint=problem.hint)
    return kind


def check_event_time(relation: Relation, expression: Expression | None) -> None:
    """Refuse a window over anything but event time.

    With an expression, it must be the event-time column of every stream read. Without one (a window in FROM), the streams'
    own event time is used, and a column that goes by its name must not be something else.
    """
    for branch in relation.branches:
        time = event_time(branch.stream)
        if expression is None:
            named = relation.find(time.name)
            given: Expression = relation.push(Column(named.name, named.type), branch) if named else time
        else:
            given = relation.push(expression, branch)
        if given != time:
            raise SqlError(
                f"a window must be over event time, which for stream '{branch.stream.name}' is column '{time.name}'",
                detail=f"here it is over {given}",
                hint="pass the column on unchanged (it may be renamed)",
            )
