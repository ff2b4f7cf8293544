"""What a user asks of a running session, as it is logged: two verbs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Add:
    """Add a query; it was parsed and checked before. `sink` is None where a callback of this process takes the rows."""

    id: int
    name: str
    sql: str
    sink: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a query: from this batch on nothing of it is emitted. `error` says why, when it failed outside the pipeline."""

    id: int
    error: str | None = None


Command: TypeAlias = Add | Remove


def to_json(command: Command) -> dict[str, Any]:
    """Return a value that `from_json` reads back."""
    return {"add" if isinstance(command, Add) else "remove": asdict(command)}


def from_json(value: dict[str, Any]) -> Command:
    """Read a logged command."""
    return Add(**value["add"]) if "add" in value else Remove(**value["remove"])
