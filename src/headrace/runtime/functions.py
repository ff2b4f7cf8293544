"""The UDFs of a session: those that new queries may call, and the tags of all whose code workers may need.

The tag of a replaced or dropped UDF is retained: plans of earlier epochs that still have open windows may call it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.model.function import UserFunction


@dataclass(frozen=True, slots=True)
class UdfSet:
    """The UDFs of a session: those that queries may call, by lower-case name, and the tags of all ever registered."""

    active: Mapping[str, UserFunction] = field(default_factory=dict)
    all_tags: tuple[str, ...] = ()

    def with_udf(self, function: UserFunction) -> UdfSet:
        """Return the set with a UDF added; it replaces a UDF of the same name."""
        return UdfSet({**self.active, function.name: function}, tuple(dict.fromkeys((*self.all_tags, function.tag))))

    def without_udf(self, name: str) -> UdfSet:
        """Return the set without the UDF of that name; its tag is retained."""
        return UdfSet({known: udf for known, udf in self.active.items() if known != name}, self.all_tags)

    def to_json(self) -> dict[str, Any]:
        """Return a value that `from_json` reads back."""
        return {"offered": [udf.to_json() for udf in self.active.values()], "tags": list(self.all_tags)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> UdfSet:
        """Read a value of `to_json`; an empty value (a checkpoint without UDFs) gives an empty set."""
        offered = (UserFunction.from_json(udf) for udf in value.get("offered", ()))
        return UdfSet({udf.name: udf for udf in offered}, tuple(value.get("tags", ())))
