"""What stands in FROM when streams are joined: several relations in windows, and how they are put together.

While a query is being bound, column `c` of side i goes by the name `i.c`, as it does in the plan, but means column `c` of the
relation on that side; `Joined.pushed` turns it into an expression over the stream's own columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.errors import SqlError
from headrace.model.expression import Call, Column, Expression, Literal, columns, substitute
from headrace.model.schema import Field
from headrace.model.window import Sliding, Window
from headrace.plan.join import JoinKind, joined_column, lifted, owner, present_column
from headrace.sql.relation import Relation


@dataclass(frozen=True, slots=True)
class Step:
    """The next relation to the right: how it is joined with all before it, and on which conditions over joined columns."""

    kind: JoinKind
    conditions: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Joined:
    """Sides in the order of the text; `steps[i]` joins side i + 1. `merged` are columns of USING, by lower-case name."""

    sides: tuple[Relation, ...]
    steps: tuple[Step, ...] = ()
    merged: Mapping[str, Expression] = field(default_factory=dict)
    name: str | None = None

    @property
    def window(self) -> Window:
        """The longest window of a side: it has the bounds that are shown."""
        windows = [side.window for side in self.sides if isinstance(side.window, Sliding)]
        return max(windows, key=lambda window: window.size)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns that can be seen, for messages."""
        return tuple(dict.fromkeys(name for index in sorted(self.visible) for name in self.sides[index].names))

    @property
    def visible(self) -> frozenset[int]:
        """The sides whose columns the joined rows have."""
        return frozenset({0} | {index + 1 for index, step in enumerate(self.steps) if step.kind.pairs})

    def optional(self, steps: int) -> frozenset[int]:
        """Return the sides that rows may lack after so many steps."""
        found: set[int] = set()
        for index, step in enumerate(self.steps[:steps]):
            found |= set(range(index + 1)) if step.kind.keeps_right else set()
            found |= {index + 1} if step.kind.keeps_left and step.kind.pairs else set()
        return frozenset(found)

    def lookup(self, table: str, name: str) -> Expression | None:
        """Return a column by its name, and that of its side if given; SqlError if it could be several."""
        if table:
            index = self._side(table)
            found = self.sides[index].find(name)
            return None if found is None else joined_column(index, found.name, found.type)
        if name.lower() in self.merged:
            return self.merged[name.lower()]
        holders = [(index, item) for index in sorted(self.visible) if (item := self.sides[index].find(name)) is not None]
        if len(holders) > 1:
            named = " and ".join(f"'{self.sides[index].name}'" for index, _ in holders)
            raise SqlError(f"column '{name}' is ambiguous", detail=f"it is in {named}", hint="write the table before it: t.x")
        return joined_column(holders[0][0], holders[0][1].name, holders[0][1].type) if holders else None

    def star(self, table: str) -> list[tuple[Field, Expression]]:
        """Return the columns `*` or `table.*` stands for, in order; those of USING once, and first."""
        if table:
            index = self._side(table)
            return [(item, joined_column(index, item.name, item.type)) for item in self.sides[index].fields]
        found = [(self._named(name, value), value) for name, value in self.merged.items()]
        for index in sorted(self.visible):
            found += [
                (item, joined_column(index, item.name, item.type))
                for item in self.sides[index].fields
                if item.name.lower() not in self.merged
            ]
        return found

    def _named(self, name: str, value: Expression) -> Field:
        first = next(item for side in self.sides if (item := side.find(name)) is not None)
        return Field(first.name, value.type)

    def _side(self, table: str) -> int:
        found = [index for index in sorted(self.visible) if (self.sides[index].name or "").lower() == table.lower()]
        if found:
            return found[0]
        hidden = any((side.name or "").lower() == table.lower() for side in self.sides)
        raise SqlError(
            f"unknown table '{table}'",
            detail=f"FROM has {', '.join(repr(self.sides[index].name or '') for index in sorted(self.visible))}",
            hint="a SEMI or ANTI join gives columns of its left side only" if hidden else "",
        )

    def pushed(self, expression: Expression, steps: int | None = None) -> Expression:
        """Return an expression over columns of the sides as one over columns of their streams, for rows after so many steps."""
        optional = self.optional(len(self.steps) if steps is None else steps)
        names = [name for name in columns(expression) if name[0].isdigit()]
        return substitute(expression, {name: self._pushed(*owner(name), optional) for name in names})

    def _pushed(self, index: int, name: str, optional: frozenset[int]) -> Expression:
        side = self.sides[index]
        value = dict(zip(side.names, side.branches[0].columns, strict=True))[name]
        found = lifted(value, index)
        if index in optional and not isinstance(found, Column):  # of a row that is not there nothing is computed
            return Call("case", (present_column(index), found, Literal(None, found.type)), found.type)
        return found


def shown(name: str) -> str:
    """Return a column's name as the query has it."""
    return owner(name)[1] if name[:1].isdigit() and "." in name else name
