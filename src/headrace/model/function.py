"""User functions as queries call them, and where an evaluator finds what they do.

A function is known by its *tag*: its name and a digest of its code and types. The tag is what a `Call` names, so that calls of
the same function with the same arguments are equal expressions and computed once, whoever wrote them; and a function that was
changed is another one. The same tag means the same code wherever it is loaded, so one table a process is enough.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.errors import EvaluationError
from headrace.model.schema import parse_type, type_name

Code: TypeAlias = Callable[..., Any]
"""Takes Arrow arrays, all of one length, and returns one value for each entry: an Arrow array, a NumPy array or a list."""

_CODE: dict[str, Code] = {}
_ARRAY = re.compile(r"\s*ARRAY\s*<(.+)>\s*$", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A function that queries may call; `arguments` are their types, None where any will do."""

    name: str
    digest: str
    arguments: tuple[pa.DataType | None, ...]
    result: pa.DataType

    @property
    def tag(self) -> str:
        """What calls name it by."""
        return f"{self.name}@{self.digest}"

    def to_json(self) -> list[Any]:
        """Return a value that `from_json` reads back."""
        return [self.name, self.digest, [kind and type_name(kind) for kind in self.arguments], _result_name(self.result)]

    @staticmethod
    def from_json(value: list[Any]) -> UserFunction:
        """Read what `to_json` wrote."""
        name, digest, arguments, result = value
        return UserFunction(name, digest, tuple(kind and parse_type(kind) for kind in arguments), result_type(result))


def result_type(text: str) -> pa.DataType:
    """Return the type of what a function may return: one of SQL's, or `ARRAY<type>` for a list of values for each row."""
    lists = _ARRAY.match(text)
    return pa.list_(parse_type(lists[1])) if lists else parse_type(text)


def _result_name(kind: pa.DataType) -> str:
    return f"ARRAY<{type_name(kind.value_type)}>" if pa.types.is_list(kind) else type_name(kind)


def is_tag(function: str) -> bool:
    """Tell whether a call is one of a user function."""
    return "@" in function


def named(tag: str) -> str:
    """Return the name that a function has in SQL."""
    return tag.partition("@")[0]


def provide(tag: str, code: Code) -> None:
    """Let evaluators of this process find what a function does."""
    _CODE[tag] = code


def code_of(tag: str) -> Code:
    """Return what a function does; it must have been provided."""
    if tag not in _CODE:
        raise EvaluationError(f"function '{named(tag)}' was not loaded here")
    return _CODE[tag]
