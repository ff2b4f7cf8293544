"""The JSON form of records: named fields, every record once, and values that keep their Python type.

    {"records": {"hop-window": ["size", "slide"], …},       the fields of every kind of record in this document
     "nodes": [["hop-window", 8000000, 4000000], …],        the records, each after those that it contains
     "root": {"ref": 0}}

Texts, integers, booleans, finite floats and null stand for themselves, and an array is a tuple. Everything else is an object with
one member that names its kind: {"ref": number of a node}, {"list": […]}, {"set": […]}, {"map": [[key, value], …]},
{"type": SQL name or Arrow schema}, {"decimal": text}, {"date": text}, {"time": text}, {"float": "nan"}, {"bytes": base64}.
A record that is contained twice is one object again after reading, and so are equal immutable records. Containers add kinds of
their own for arrays, which have no JSON form.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.model.record import find_record_type, get_record_type
from headrace.model.types import parse_type, type_name

Json: TypeAlias = Any
ArrayEncoder: TypeAlias = Callable[[Any], str]
ArrayDecoder: TypeAlias = Callable[[Any], Any]

_PLAIN_TYPES = frozenset({str, int, bool, float, type(None)})
_quote = json.encoder.encode_basestring_ascii


def encode_records(root: object, encode_array: ArrayEncoder | None = None) -> str:
    """Return the JSON document of a value; raises TypeError for a value that is neither plain nor a record.

    `encode_array` returns the JSON text of a value that is neither, or raises TypeError.
    """
    with _pause_gc():
        encoder = _RecordEncoder(encode_array)
        encoded_root = encoder.encode(root)
        fields = json.dumps(encoder.fields, separators=(",", ":"))
        return f'{{"records":{fields},"nodes":[{",".join(encoder.nodes)}],"root":{encoded_root}}}'


def decode_records(document: Json, array_decoders: Mapping[str, ArrayDecoder] | None = None) -> Any:
    """Return the value of a parsed JSON document; raises ValueError if it does not have the form of one."""
    try:
        with _pause_gc():
            decoder = _RecordDecoder(document["records"], array_decoders or {})
            for node in document["nodes"]:
                decoder.add_node(node)
            return decoder.decode(document["root"])
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"not a document of records: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _pause_gc() -> Iterator[None]:
    """Let no garbage collection run: the many small objects of a large plan would trigger dozens, and none of them is garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _RecordEncoder(dict[type, Callable[[Any], str]]):
    """Maps types to functions that return the JSON text of a value; the function of a type is found at its first value.

    Text instead of lists and dictionaries for `json.dumps`: half the time, and nothing for the garbage collector to visit.
    """

    def __init__(self, encode_array: ArrayEncoder | None) -> None:
        super().__init__({
            str: _quote,
            int: int.__repr__,
            bool: lambda value: "true" if value else "false",
            type(None): lambda _: "null",
            float: lambda value: repr(value) if math.isfinite(value) else f'{{"float":"{value!r}"}}',
            tuple: self._encode_items,
            list: lambda value: f'{{"list":{self._encode_items(value)}}}',
            frozenset: self._encode_set,
            set: self._encode_set,
            dict: self._encode_map,
            Decimal: lambda value: f'{{"decimal":"{value}"}}',
            datetime: lambda value: f'{{"time":"{value.isoformat()}"}}',
            date: lambda value: f'{{"date":"{value.isoformat()}"}}',
            bytes: lambda value: f'{{"bytes":"{base64.b64encode(value).decode()}"}}',
        })  # fmt: skip
        self.fields: dict[str, tuple[str, ...]] = {}
        self.nodes: list[str] = []
        self._references: dict[int, str] = {}  # by identity: all records are alive while their root is
        self._value_references: dict[str, str] = {}  # by the text of the node
        self._encode_array = encode_array

    def encode(self, value: Any) -> str:
        """Return the JSON text of a value, after adding its records to the nodes."""
        return self[type(value)](value)

    def __missing__(self, kind: type) -> Callable[[Any], str]:
        """Return the function for a type that occurs for the first time."""
        record_type = find_record_type(kind)
        if record_type is not None:
            self.fields[record_type.name] = record_type.fields
            refer = self._refer_to_value if record_type.is_value else self._add_node
            self[kind] = partial(self._encode_record, f'["{record_type.name}"', record_type.get_values, refer)
        elif issubclass(kind, pa.DataType):
            self[kind] = lambda value: f'{{"type":"{encode_type(value)}"}}'
        elif issubclass(kind, dict):
            self[kind] = self._encode_map
        else:
            self[kind] = self._encode_array or _refuse
        return self[kind]

    def _encode_record(
        self, start: str, get_values: Callable[[Any], tuple[Any, ...]], refer: Callable[[str], str], value: Any
    ) -> str:
        reference = self._references.get(id(value))
        if reference is None:
            node = ",".join([start, *[self[type(item)](item) for item in get_values(value)]]) + "]"
            reference = self._references[id(value)] = refer(node)
        return reference

    def _add_node(self, node: str) -> str:
        """Add a node; return the reference to it."""
        self.nodes.append(node)
        return f'{{"ref":{len(self.nodes) - 1}}}'

    def _refer_to_value(self, node: str) -> str:
        """Return the reference to the node of an immutable record: equal ones are stored once, and are one object again."""
        reference = self._value_references.get(node)
        if reference is None:
            reference = self._value_references[node] = self._add_node(node)
        return reference

    def _encode_items(self, items: Iterable[Any]) -> str:
        return f"[{','.join([self[type(item)](item) for item in items])}]"

    def _encode_set(self, items: Iterable[Any]) -> str:
        return f'{{"set":[{",".join(sorted(self[type(item)](item) for item in items))}]}}'

    def _encode_map(self, items: Mapping[Any, Any]) -> str:
        pairs = [f"[{self[type(key)](key)},{self[type(value)](value)}]" for key, value in items.items()]
        return f'{{"map":[{",".join(pairs)}]}}'


def _refuse(value: Any) -> str:
    raise TypeError(f"a value of type {type(value).__name__} has no stored form")


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
        """Build the record of a node; the records that it refers to are built already."""
        plain, decode = _PLAIN_TYPES, self.decode
        self._nodes.append(self._builders[node[0]](*[item if type(item) in plain else decode(item) for item in node[1:]]))

    def decode(self, value: Json) -> Any:
        """Return the value of its JSON form."""
        if type(value) is list:
            plain, decode = _PLAIN_TYPES, self.decode
            return tuple([item if type(item) in plain else decode(item) for item in value])
        if type(value) is dict:
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
