"""Records: the classes whose values are written to checkpoints, each under a declared name.

A file names records and their fields by what is declared here, never by the name or the module of a Python class: a class can be
renamed or moved without breaking a checkpoint. The declared name of a record, and the names of its fields, are part of the
checkpoint format. A field that is added later needs a default; a field that is removed or renamed makes older files unreadable,
and reading one is refused with the name of the field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, TypeVar

import pyarrow as pa

_Class = TypeVar("_Class", bound=type)


@dataclass(frozen=True, slots=True)
class RecordType:
    """The declaration of a record; `get_values` returns the values of the stored fields, in their order."""

    name: str
    fields: tuple[str, ...]
    get_values: Callable[[Any], tuple[Any, ...]]
    build: Callable[..., Any]
    is_value: bool  # whether records are immutable, so that equal ones may be one object

    def build_from(self, fields: Sequence[str]) -> Callable[..., Any]:
        """Return a function that builds the record from the values of `fields`; raises ValueError for unknown fields."""
        if tuple(fields) == self.fields:
            return self.build
        unknown = [name for name in fields if name not in self.fields]
        if unknown:
            raise ValueError(f"record '{self.name}' has an unknown field '{unknown[0]}'")
        return lambda *values: self.build(**dict(zip(fields, values, strict=True)))


_TYPES_BY_NAME: dict[str, RecordType] = {}
_TYPES_BY_CLASS: dict[type, RecordType] = {}


def record(name: str) -> Callable[[_Class], _Class]:
    """Declare a dataclass or an enumeration as a record; fields that the constructor does not take are not stored."""

    def declare(python_class: _Class) -> _Class:
        if name in _TYPES_BY_NAME:
            raise ValueError(f"record '{name}' is declared twice")
        if issubclass(python_class, Enum):
            declared = RecordType(name, ("value",), lambda member: (member.value,), python_class, is_value=True)
        else:
            declared_fields = dataclasses.fields(python_class)  # type: ignore[arg-type]
            fields = tuple(field.name for field in declared_fields if field.init)
            is_value = python_class.__dataclass_params__.frozen  # type: ignore[attr-defined]
            declared = RecordType(name, fields, _make_getter(fields), python_class, is_value)
        _TYPES_BY_NAME[name] = _TYPES_BY_CLASS[python_class] = declared
        return python_class

    return declare


def copy_record(value: Any) -> Any:
    """Return a shallow copy of a record; much faster than `dataclasses.replace`."""
    record_type = _TYPES_BY_CLASS[type(value)]
    return record_type.build(*record_type.get_values(value))


def render_record(value: Any) -> str:
    """Return a text that names records and fields as declared: equal values have equal texts, in every version of the code."""
    record_type = _TYPES_BY_CLASS.get(type(value))
    if record_type is not None:
        values = zip(record_type.fields, record_type.get_values(value), strict=True)
        return f"{record_type.name}({', '.join(f'{name}={render_record(item)}' for name, item in values)})"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(render_record, value))}]"
    if isinstance(value, frozenset | set):  # in no order of its own: that of its repr differs between processes
        return f"{{{', '.join(sorted(map(render_record, value)))}}}"
    return str(value) if isinstance(value, pa.DataType) else repr(value)


def find_record_type(python_class: type) -> RecordType | None:
    """Return the declaration of a class, or None if it is not a record."""
    return _TYPES_BY_CLASS.get(python_class)


def get_record_type(name: str) -> RecordType:
    """Return the declaration of a name; raises ValueError if no loaded module declares it."""
    if name not in _TYPES_BY_NAME:
        raise ValueError(f"unknown record '{name}'")
    return _TYPES_BY_NAME[name]


def _make_getter(fields: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    if not fields:
        return lambda _: ()
    getter = attrgetter(*fields)
    return (lambda value: (getter(value),)) if len(fields) == 1 else getter
