"""The scope of a FROM clause that joins streams in SLIDING windows: inputs, the conditions between them, and named tables.

The binder inlines a sub-query that is such a join: its inputs and conditions become those of the outer query, its outputs a
table whose columns are expressions over the inputs. Column `c` of input i has the name `i.c`, as in the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.errors import SqlError
from headrace.model.expression import TRUE, Call, Column, Expression, combine_conjuncts, split_conjuncts
from headrace.model.schema import Field
from headrace.plan.join import joined_column, split_joined_name, to_joined_columns, to_stream_columns
from headrace.plan.multiway import SlidingInput, referenced_inputs
from headrace.sql.relation import Relation


@dataclass(frozen=True, slots=True)
class ScopeTable:
    """A named table of a scope; `values` are expressions over the columns of all inputs."""

    name: str
    fields: tuple[Field, ...]
    values: tuple[Expression, ...]

    def find_column(self, name: str) -> Expression | None:
        """Return the value of a column by name, ignoring case, or None."""
        values = (value for item, value in zip(self.fields, self.values, strict=True) if item.name.lower() == name.lower())
        return next(values, None)


@dataclass(frozen=True, slots=True)
class SlidingJoinScope:
    """Inputs and conditions; tables in the order of the text; USING columns by lower-case name."""

    inputs: tuple[SlidingInput, ...] = ()
    conditions: tuple[Expression, ...] = ()
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
        """Add a condition: conjuncts over one input become its predicate, the others stay conditions between inputs."""
        inputs, between = list(self.inputs), list(self.conditions)
        for part in split_conjuncts(condition):
            used = referenced_inputs(part)
            if len(used) > 1:
                between.append(part)
            elif part != TRUE:
                index = min(used, default=0)
                predicate = combine_conjuncts([*split_conjuncts(inputs[index].predicate), to_stream_columns(part)])
                inputs[index] = replace(inputs[index], predicate=predicate)
        return replace(self, inputs=tuple(inputs), conditions=tuple(between))


def make_window_scope(relation: Relation, length: int, lateness: int, name: str) -> SlidingJoinScope:
    """Return the scope of a single stream in a SLIDING window."""
    branch = relation.branches[0]
    values = tuple(to_joined_columns(column, 0) for column in branch.columns)
    return SlidingJoinScope(
        (SlidingInput(branch.stream.name, length, branch.predicate, lateness),), (), (ScopeTable(name, relation.fields, values),)
    )


def shift_inputs(expression: Expression, by: int) -> Expression:
    """Renumber the inputs of an expression over joined columns after `by` inputs are inserted before them."""
    if isinstance(expression, Column):
        index, name = split_joined_name(expression.name)
        return joined_column(index + by, name, expression.type)
    if isinstance(expression, Call):
        return Call(expression.function, tuple(shift_inputs(arg, by) for arg in expression.args), expression.type)
    return expression
