"""Message types of Protobuf, from the text of a .proto file (proto2 or proto3).

Types are resolved from the innermost scope outwards, as protoc does. Services, extensions, options and reserved numbers are
skipped. Files that a text imports are texts by name; of those of google/protobuf, times and wrappers are known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headrace.errors import SchemaError

_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[A-Za-z_][\w.]*|\.[A-Za-z_][\w.]*|[-+]?[\w.]+|[{}\[\]();=,<>:])""",
    re.DOTALL,
)
_MAX_DEPTH = 100
_WELL_KNOWN = """
syntax = "proto3"; package google.protobuf;
message Timestamp { int64 seconds = 1; int32 nanos = 2; }
message DoubleValue { double value = 1; } message FloatValue { float value = 1; } message Int64Value { int64 value = 1; }
message UInt64Value { uint64 value = 1; } message Int32Value { int32 value = 1; } message UInt32Value { uint32 value = 1; }
message BoolValue { bool value = 1; } message StringValue { string value = 1; } message BytesValue { bytes value = 1; }
"""


@dataclass(frozen=True, slots=True)
class ProtoField:
    """A field: its type as it is written, and the scope in which that is resolved; `has_presence` if a missing value is NULL."""

    name: str
    number: int
    type: str
    scope: str
    label: str
    oneof: str
    has_presence: bool


@dataclass(slots=True)
class ProtoTypes:
    """The messages and enums of files, by full name; messages at the top of the main file in their order."""

    messages: dict[str, list[ProtoField]] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    children: dict[str, list[str]] = field(default_factory=dict)  # messages by the scope they are in; "" for the main file
    imports: list[str] = field(default_factory=list)

    def resolve(self, name: str, scope: str) -> str:
        """Return the full name of a type that is written in a scope; raises SchemaError if there is none."""
        if name.startswith("."):
            candidates = [name[1:]]
        else:
            parts = scope.split(".") if scope else []
            candidates = [".".join([*parts[:count], name]) for count in range(len(parts), -1, -1)]
        for candidate in candidates:
            if candidate in self.messages or candidate in self.enums:
                return candidate
        raise SchemaError(
            f"the Protobuf schema names the unknown type '{name}'", hint="add the file that declares it to the registry"
        )

    def find_message(self, name: str) -> str:
        """Return the full name of a message by its full or last name; by default the first of the file."""
        if not name:
            if not self.children.get(""):
                raise SchemaError("the Protobuf schema has no message")
            return self.children[""][0]
        matches = [full for full in self.messages if full == name or full.endswith(f".{name}")]
        if name in matches or len(matches) == 1:
            return name if name in matches else matches[0]
        problem = "names several messages" if matches else "names no message"
        raise SchemaError(
            f"'{name}' {problem} of the Protobuf schema", detail=f"messages: {', '.join(self.children.get('', []))}"
        )

    def find_by_indexes(self, indexes: tuple[int, ...]) -> str:
        """Return the message at a place: the number of a message in the file, and of nested messages in it."""
        scope = ""
        for index in indexes:
            children = self.children.get(scope, [])
            if index >= len(children):
                raise SchemaError(f"the Protobuf schema has no message at place {list(indexes)}")
            scope = children[index]
        return scope


def parse_proto(text: str, imported: Mapping[str, str] | None = None) -> ProtoTypes:
    """Return the types of a file and of the files that it imports; raises SchemaError if the text is no such file."""
    types = ProtoTypes()
    _FileParser(text, types).parse("")
    pending, seen = list(types.imports), set[str]()
    while pending:
        name = pending.pop()
        content = (imported or {}).get(name)
        if name in seen or content is None:
            continue
        seen.add(name)
        other = ProtoTypes()
        _FileParser(content, other).parse("\0")
        _merge(types, other)
        pending += other.imports
    known = ProtoTypes()
    _FileParser(_WELL_KNOWN, known).parse("\0")
    _merge(types, known)
    return types


def _merge(types: ProtoTypes, other: ProtoTypes) -> None:
    for full, fields in other.messages.items():
        types.messages.setdefault(full, fields)
    for full, values in other.enums.items():
        types.enums.setdefault(full, values)
    for scope, children in other.children.items():
        types.children.setdefault(scope, children)


def _read_tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise SchemaError(
                f"the Protobuf schema has an invalid character {text[at]!r}", detail=f"line {text.count(chr(10), 0, at) + 1}"
            )
        at = match.end()
        if match[1]:
            yield match[1]


class _FileParser:
    """A recursive-descent parser of one file."""

    def __init__(self, text: str, types: ProtoTypes) -> None:
        self._tokens, self._at, self._types = list(_read_tokens(text)), 0, types
        self._is_proto3 = False
        self._package = ""

    def parse(self, root: str) -> None:
        """Add the types of the file; `root` is the scope of its messages in `children`."""
        while self._at < len(self._tokens):
            word = self._next()
            if word == "syntax":
                self._expect("=")
                self._is_proto3 = self._next()[1:-1] == "proto3"
                self._expect(";")
            elif word == "package":
                self._package = self._next()
                self._expect(";")
            elif word == "import":
                name = self._next()
                name = self._next() if name in {"public", "weak"} else name
                self._types.imports.append(name[1:-1])
                self._expect(";")
            elif word == "message":
                self._parse_message(self._package, root, 0)
            elif word == "enum":
                self._parse_enum(self._package)
            elif word != ";":
                self._skip_statement()

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise SchemaError("the Protobuf schema ends in the middle of a declaration")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _expect(self, word: str) -> None:
        found = self._next()
        if found != word:
            raise SchemaError(f"the Protobuf schema has '{found}' where '{word}' is expected")

    def _skip_statement(self) -> None:
        """Skip to the end of a statement: a semicolon, or a block in braces."""
        depth = 0
        while True:
            word = self._next()
            if word == "{":
                depth += 1
            elif word == "}":
                depth -= 1
                if depth == 0:
                    return
            elif word == ";" and depth == 0:
                return

    def _parse_message(self, scope: str, parent: str, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise SchemaError(f"the Protobuf schema is nested deeper than {_MAX_DEPTH} levels")
        name = self._next()
        full = f"{scope}.{name}" if scope else name
        self._types.messages[full] = []
        self._types.children.setdefault(parent, []).append(full)
        self._expect("{")
        self._parse_body(full, "", depth)

    def _parse_body(self, full: str, oneof: str, depth: int) -> None:
        while (word := self._next()) != "}":
            if word == "message" and not oneof and self._peek() not in {"=", "."}:
                self._parse_message(full, full, depth + 1)
            elif word == "enum" and not oneof:
                self._parse_enum(full)
            elif word == "oneof" and not oneof:
                group = self._next()
                self._expect("{")
                self._parse_body(full, group, depth)
            elif word in {"option", "reserved", "extensions", "extend"}:
                self._skip_statement()
            elif word != ";":
                self._parse_field(full, word, oneof)

    def _parse_field(self, full: str, word: str, oneof: str) -> None:
        label = ""
        if word in {"optional", "required", "repeated"}:
            label, word = word, self._next()
        if word == "map" and self._peek() == "<":
            while self._next() != ">":
                pass
            label, word = "repeated", "map"
        if word == "group":
            raise SchemaError("the Protobuf schema has a group", hint="groups are not supported; use a message")
        name = self._next()
        self._expect("=")
        number = self._read_number()
        if self._peek() == "[":
            depth = 0
            while True:
                mark = self._next()
                depth += (mark in "[{") - (mark in "]}")
                if depth == 0:
                    break
        self._expect(";")
        has_presence = bool(oneof) or label == "optional" or not self._is_proto3
        self._types.messages[full].append(ProtoField(name, number, word, full, label, oneof, has_presence))

    def _read_number(self) -> int:
        text = self._next()
        try:
            return int(text, 0)
        except ValueError:
            raise SchemaError(f"the Protobuf schema has '{text}' where a number is expected") from None

    def _parse_enum(self, scope: str) -> None:
        name = self._next()
        values: dict[str, int] = {}
        self._types.enums[f"{scope}.{name}" if scope else name] = values
        self._expect("{")
        while (word := self._next()) != "}":
            if word in {"option", "reserved"}:
                self._skip_statement()
            elif word != ";":
                self._expect("=")
                values[word] = self._read_number()
                self._skip_statement()
