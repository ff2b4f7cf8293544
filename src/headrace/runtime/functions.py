"""The user functions of a session: which queries may call, and all whose code workers may be asked for.

A function that was replaced or dropped is kept: plans of earlier epochs, which windows that are still open were begun under, may
name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.model.function import UserFunction


@dataclass(frozen=True, slots=True)
class Functions:
    """A value of a manifest and a log entry; `offered` by name, in lower case, `tags` of all there ever were."""

    offered: Mapping[str, UserFunction] = field(default_factory=dict)
    tags: tuple[str, ...] = ()

    def plus(self, function: UserFunction) -> Functions:
        """Return them with one more, or with another in the place of that of the same name."""
        return Functions({**self.offered, function.name: function}, tuple(dict.fromkeys((*self.tags, function.tag))))

    def minus(self, name: str) -> Functions:
        """Return them without one that queries may call."""
        return Functions({known: one for known, one in self.offered.items() if known != name}, self.tags)

    def to_json(self) -> dict[str, Any]:
        """Return a value that `from_json` reads back."""
        return {"offered": [one.to_json() for one in self.offered.values()], "tags": list(self.tags)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Functions:
        """Read what `to_json` wrote; nothing, in a checkpoint that knew no functions."""
        offered = (UserFunction.from_json(one) for one in value.get("offered", ()))
        return Functions({one.name: one for one in offered}, tuple(value.get("tags", ())))
