"""UDFs as queries call them, and the per-process table of their code.

A UDF is identified by its *tag*: its name and a digest of its code and types. A `Call` names the tag, so that calls of the
same UDF with the same arguments are equal expressions and computed once, no matter which query contains them; a changed
UDF has another tag. The same tag means the same code in every process, so one table per process is enough.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.errors import EvaluationError
from headrace.model.record import record
from headrace.model.types import parse_type, type_name

UdfCode: TypeAlias = Callable[..., Any]
"""Maps Arrow arrays of equal length to one value per entry: an Arrow array, a NumPy array or a list."""

_UDF_CODE: dict[str, UdfCode] = {}
_ARRAY_TYPE = re.compile(r"\s*ARRAY\s*<(.+)>\s*$", re.IGNORECASE | re.DOTALL)


@record("user-function")
@dataclass(frozen=True, slots=True)
class UserFunction:
    """A UDF that queries can call; `argument_types` has None for an argument of any type."""

    name: str
    digest: str
    argument_types: tuple[pa.DataType | None, ...]
    result_type: pa.DataType

    @property
    def tag(self) -> str:
        """Identifier that calls use: name and digest."""
        return f"{self.name}@{self.digest}"

    def to_json(self) -> list[Any]:
        """Return a JSON value for `from_json`."""
        return [
            self.name,
            self.digest,
            [kind and type_name(kind) for kind in self.argument_types],
            _result_type_name(self.result_type),
        ]

    @staticmethod
    def from_json(value: list[Any]) -> UserFunction:
        """Build the function from the value of `to_json`."""
        name, digest, arguments, result = value
        return UserFunction(name, digest, tuple(kind and parse_type(kind) for kind in arguments), parse_result_type(result))


def parse_result_type(text: str) -> pa.DataType:
    """Parse the result type of a UDF: a SQL type, or `ARRAY<type>` for a list of values per row."""
    array_type = _ARRAY_TYPE.match(text)
    return pa.list_(parse_type(array_type[1])) if array_type else parse_type(text)


def _result_type_name(kind: pa.DataType) -> str:
    return f"ARRAY<{type_name(kind.value_type)}>" if pa.types.is_list(kind) else type_name(kind)


def is_udf_tag(function: str) -> bool:
    """Return whether the function name of a call is the tag of a UDF."""
    return "@" in function


def udf_name(tag: str) -> str:
    """Return the SQL name of a UDF."""
    return tag.partition("@")[0]


def register_udf_code(tag: str, code: UdfCode) -> None:
    """Make the code of a UDF available to the evaluators of this process."""
    _UDF_CODE[tag] = code


def get_udf_code(tag: str) -> UdfCode:
    """Return the code of a UDF; raise EvaluationError if it is not registered in this process."""
    if tag not in _UDF_CODE:
        raise EvaluationError(f"function '{udf_name(tag)}' is not loaded in this process")
    return _UDF_CODE[tag]
