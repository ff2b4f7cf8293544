"""The UDFs of a session: those that new queries may call, and the tags of all whose code workers may need.

The tag of a replaced or dropped UDF is retained: plans of earlier epochs that still have open windows may call it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.model.function import UserFunction


@dataclass(frozen=True, slots=True)
class Functions:
    """The UDFs of a session: those that queries may call, by lower-case name, and the tags of all ever registered."""

    offered: Mapping[str, UserFunction] = field(default_factory=dict)
    tags: tuple[str, ...] = ()

    def plus(self, function: UserFunction) -> Functions:
        """Return the set with a UDF added; it replaces a UDF of the same name."""
        return Functions({**self.offered, function.name: function}, tuple(dict.fromkeys((*self.tags, function.tag))))

    def minus(self, name: str) -> Functions:
        """Return the set without the UDF of that name; its tag is retained."""
        return Functions({known: udf for known, udf in self.offered.items() if known != name}, self.tags)

    def to_json(self) -> dict[str, Any]:
        """Return a value that `from_json` reads back."""
        return {"offered": [udf.to_json() for udf in self.offered.values()], "tags": list(self.tags)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Functions:
        """Read a value of `to_json`; an empty value (a checkpoint without UDFs) gives an empty set."""
        offered = (UserFunction.from_json(udf) for udf in value.get("offered", ()))
        return Functions({udf.name: udf for udf in offered}, tuple(value.get("tags", ())))
