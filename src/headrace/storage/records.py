"""The JSON form of records: named fields, every record once, and values that keep their Python type.

    {"records": {"hop-window": ["size", "slide"], …},       the fields of every kind of record in this document
     "nodes": [["hop-window", 8000000, 4000000], …],        the records, each after those that it contains
     "root": {"ref": 0}}

Texts, integers, booleans, finite floats and null stand for themselves, and an array is a tuple. Everything else is an object with
one member that names its kind: {"ref": number of a node}, {"list": […]}, {"set": […]}, {"map": [[key, value], …]},
{"type": SQL name or Arrow schema}, {"decimal": text}, {"date": text}, {"time": text}, {"float": "nan"}, {"bytes": base64}.
Equal references stay equal: a record that is contained twice is one object again after reading. `arrays` adds the kinds of values
that have no JSON form: a container passes functions that put arrays into its buffers and take them out again.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.model.record import find_record_type, get_record_type
from headrace.model.types import parse_type, type_name

Json: TypeAlias = Any
ArrayEncoder: TypeAlias = Callable[[Any], Json]
ArrayDecoder: TypeAlias = Callable[[Any], Any]

_PLAIN_TYPES = frozenset({str, int, bool, type(None)})


def encode_records(root: object, encode_array: ArrayEncoder | None = None) -> Json:
    """Return the JSON document of a value; raises TypeError for a value that is neither plain nor a record."""
    encoder = _RecordEncoder(encode_array)
    encoded_root = encoder.encode(root)
    return {"records": encoder.fields, "nodes": encoder.nodes, "root": encoded_root}


def decode_records(document: Json, array_decoders: Mapping[str, ArrayDecoder] | None = None) -> Any:
    """Return the value of a JSON document; raises ValueError if it does not have the form of one."""
    try:
        decoder = _RecordDecoder(document["records"], array_decoders or {})
        for node in document["nodes"]:
            decoder.add_node(node)
        return decoder.decode(document["root"])
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"not a document of records: {type(error).__name__}: {error}") from error


class _RecordEncoder:
    def __init__(self, encode_array: ArrayEncoder | None) -> None:
        self.fields: dict[str, tuple[str, ...]] = {}
        self.nodes: list[list[Json]] = []
        self._node_numbers: dict[int, Json] = {}  # references by identity: all records are alive while their root is
        self._encode_array = encode_array

    def encode(self, value: Any) -> Json:
        kind = type(value)
        if kind in _PLAIN_TYPES:
            return value
        if kind is tuple:
            return [item if type(item) in _PLAIN_TYPES else self.encode(item) for item in value]
        record_type = find_record_type(kind)
        if record_type is None:
            return self._encode_other(value)
        reference = self._node_numbers.get(id(value))
        if reference is None:
            values = record_type.get_values(value)
            node = [record_type.name, *(item if type(item) in _PLAIN_TYPES else self.encode(item) for item in values)]
            self.fields[record_type.name] = record_type.fields
            reference = self._node_numbers[id(value)] = {"ref": len(self.nodes)}
            self.nodes.append(node)
        return reference

    def _encode_other(self, value: Any) -> Json:
        match value:
            case float():
                return value if math.isfinite(value) else {"float": repr(value)}
            case list():
                return {"list": [self.encode(item) for item in value]}
            case frozenset() | set():
                return {"set": sorted((self.encode(item) for item in value), key=repr)}
            case dict():
                return {"map": [[self.encode(key), self.encode(item)] for key, item in value.items()]}
            case pa.DataType():
                return {"type": encode_type(value)}
            case Decimal():
                return {"decimal": str(value)}
            case datetime():
                return {"time": value.isoformat()}
            case date():
                return {"date": value.isoformat()}
            case bytes():
                return {"bytes": base64.b64encode(value).decode()}
        if self._encode_array is None:
            raise TypeError(f"a value of type {type(value).__name__} has no stored form")
        return self._encode_array(value)


class _RecordDecoder:
    def __init__(self, fields: Mapping[str, list[str]], array_decoders: Mapping[str, ArrayDecoder]) -> None:
        self._builders = {name: get_record_type(name).build_from(stored) for name, stored in fields.items()}
        self._nodes: list[Any] = []
        self._decoders: dict[str, Callable[[Any], Any]] = {
            "ref": self._nodes.__getitem__,
            "float": float,
            "list": lambda items: [self.decode(item) for item in items],
            "set": lambda items: frozenset(self.decode(item) for item in items),
            "map": lambda items: {self.decode(key): self.decode(item) for key, item in items},
            "type": decode_type,
            "decimal": Decimal,
            "time": datetime.fromisoformat,
            "date": date.fromisoformat,
            "bytes": base64.b64decode,
            **array_decoders,
        }

    def add_node(self, node: list[Json]) -> None:
        build = self._builders[node[0]]
        self._nodes.append(build(*(item if type(item) in _PLAIN_TYPES else self.decode(item) for item in node[1:])))

    def decode(self, value: Json) -> Any:
        kind = type(value)
        if kind is list:
            return tuple(item if type(item) in _PLAIN_TYPES else self.decode(item) for item in value)
        if kind is dict:
            ((name, content),) = value.items()
            return self._decoders[name](content)
        return value


@lru_cache(maxsize=1024)
def encode_type(kind: pa.DataType) -> str:
    """Return the SQL name of a type, or its serialized Arrow schema if it has none."""
    name = type_name(kind)
    try:
        if parse_type(name) == kind:
            return name
    except SchemaError:
        pass
    return "arrow:" + base64.b64encode(pa.schema([pa.field("", kind)]).serialize().to_pybytes()).decode()


@lru_cache(maxsize=1024)
def decode_type(text: str) -> pa.DataType:
    """Return the type of a text of `encode_type`."""
    if not text.startswith("arrow:"):
        return parse_type(text)
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text[len("arrow:") :]))).field(0).type
