"""Where columns are in messages with nested objects or records."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from headrace.connectors.message_formats.options import FormatOptions
from headrace.errors import SchemaError
from headrace.model.types import Field, Schema


@dataclass(slots=True)
class PathNode:
    """A name in an object of the messages: a column, or an object with further members."""

    name: str
    column: Field | None = None
    members: dict[str, PathNode] = field(default_factory=dict)

    def list_columns(self, names: Container[str]) -> Iterator[Field]:
        """Yield the columns at or below this node that have one of the names."""
        if self.column is not None and self.column.name in names:
            yield self.column
        for member in self.members.values():
            yield from member.list_columns(names)

    def contains_any(self, names: Container[str]) -> bool:
        """Return whether a column with one of the names is at or below this node."""
        return next(self.list_columns(names), None) is not None


def place_columns(schema: Schema, options: FormatOptions) -> PathNode:
    """Return the tree of all columns; raises SchemaError if two columns need the same member."""
    root = PathNode("")
    for column in schema:
        _place_column(root, column, options.path_of(column.name))
    return root


def _place_column(root: PathNode, column: Field, path: Sequence[str]) -> None:
    member = root
    for name in path:
        if member.column is not None:
            break
        member = member.members.setdefault(name, PathNode(name))
    if member.column is not None or member.members:
        other = f"column '{member.column.name}'" if member.column is not None else "a nested column"
        raise SchemaError(f"column '{column.name}' and {other} are read from the same member '{'.'.join(path)}'")
    member.column = column
