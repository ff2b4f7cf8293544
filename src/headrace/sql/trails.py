"""What stands in FROM when streams are joined in SLIDING windows: inputs, the conditions between them, and named tables.

A sub-query that is such a join itself disappears: its inputs and conditions become those of the query around it, its outputs
a table whose columns are expressions over them. Column `c` of input i goes by `i.c`, as it does in the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.errors import SqlError
from headrace.model.expression import TRUE, Call, Column, Expression, conjunction, conjuncts
from headrace.model.schema import Field
from headrace.plan.join import joined_column, lifted, lowered, owner
from headrace.plan.multiway import RangeInput, inputs_of
from headrace.sql.relation import Relation


@dataclass(frozen=True, slots=True)
class Table:
    """A name and the columns that go by it; `values` are over the columns of all inputs."""

    name: str
    fields: tuple[Field, ...]
    values: tuple[Expression, ...]

    def find(self, name: str) -> Expression | None:
        """Return a column by its name, whatever the case."""
        found = (value for one, value in zip(self.fields, self.values, strict=True) if one.name.lower() == name.lower())
        return next(found, None)


@dataclass(frozen=True, slots=True)
class Trails:
    """Inputs and conditions; `tables` in the order of the text; `merged` are columns of USING, by lower-case name."""

    inputs: tuple[RangeInput, ...] = ()
    conditions: tuple[Expression, ...] = ()
    tables: tuple[Table, ...] = ()
    merged: Mapping[str, Expression] = field(default_factory=dict)
    name: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns that can be seen, for messages."""
        return tuple(dict.fromkeys(one.name for table in self.tables for one in table.fields))

    def lookup(self, table: str, name: str) -> Expression | None:
        """Return a column by its name, and that of its table if given; SqlError if it could be several."""
        if table:
            return self._table(table).find(name)
        if name.lower() in self.merged:
            return self.merged[name.lower()]
        holders = [(one, value) for one in self.tables if (value := one.find(name)) is not None]
        if len(holders) > 1:
            named = " and ".join(f"'{one.name}'" for one, _ in holders)
            raise SqlError(f"column '{name}' is ambiguous", detail=f"it is in {named}", hint="write the table before it: t.x")
        return holders[0][1] if holders else None

    def star(self, table: str) -> list[tuple[Field, Expression]]:
        """Return the columns `*` or `table.*` stands for, in order; those of USING once, and first."""
        if table:
            one = self._table(table)
            return list(zip(one.fields, one.values, strict=True))
        found = [(Field(self._spelled(name), value.type), value) for name, value in self.merged.items()]
        for one in self.tables:
            found += [(f, v) for f, v in zip(one.fields, one.values, strict=True) if f.name.lower() not in self.merged]
        return found

    def _spelled(self, name: str) -> str:
        return next(one.name for table in self.tables for one in table.fields if one.name.lower() == name)

    def _table(self, name: str) -> Table:
        found = next((one for one in self.tables if one.name.lower() == name.lower()), None)
        if found is None:
            raise SqlError(f"unknown table '{name}'", detail=f"FROM has {', '.join(repr(one.name) for one in self.tables)}")
        return found

    def beside(self, other: Trails) -> Trails:
        """Return both side by side; the inputs of the other come after one's own."""
        by = len(self.inputs)
        tables = (replace(one, values=tuple(shifted(value, by) for value in one.values)) for one in other.tables)
        conditions = (shifted(one, by) for one in other.conditions)
        return replace(
            self,
            inputs=(*self.inputs, *other.inputs),
            conditions=(*self.conditions, *conditions),
            tables=(*self.tables, *tables),
        )

    def filtered(self, condition: Expression) -> Trails:
        """Return it with one more condition: parts that look at one input select its rows, the others stay between inputs."""
        inputs, between = list(self.inputs), list(self.conditions)
        for part in conjuncts(condition):
            used = inputs_of(part)
            if len(used) > 1:
                between.append(part)
            elif part != TRUE:
                one = min(used, default=0)
                kept = conjunction([*conjuncts(inputs[one].predicate), lowered(part)])
                inputs[one] = replace(inputs[one], predicate=kept)
        return replace(self, inputs=tuple(inputs), conditions=tuple(between))


def trail(relation: Relation, length: int, lateness: int, name: str) -> Trails:
    """Return a stream in a sliding window, as the only input."""
    branch = relation.branches[0]
    values = tuple(lifted(column, 0) for column in branch.columns)
    return Trails(
        (RangeInput(branch.stream.name, length, branch.predicate, lateness),), (), (Table(name, relation.fields, values),)
    )


def shifted(expression: Expression, by: int) -> Expression:
    """Return an expression over joined columns after `by` inputs were put before."""
    if isinstance(expression, Column):
        index, name = owner(expression.name)
        return joined_column(index + by, name, expression.type)
    if isinstance(expression, Call):
        return Call(expression.function, tuple(shifted(arg, by) for arg in expression.args), expression.type)
    return expression
