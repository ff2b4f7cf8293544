"""The scope of a FROM clause that joins windowed streams: several relations in windows, and their JOIN clauses.

During binding, column `c` of side i has the name `i.c`, as in the plan, but refers to column `c` of the relation on that side.
`Joined.pushed` rewrites it as an expression over the columns of the stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.errors import SqlError
from headrace.model.expression import Call, Column, Expression, Literal, column_names, substitute_columns
from headrace.model.schema import Field
from headrace.model.window import HopWindow, Window
from headrace.plan.join import JoinKind, joined_column, present_column, split_joined_name, to_joined_columns
from headrace.sql.relation import Relation


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
