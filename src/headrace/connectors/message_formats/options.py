"""Options of message formats: the JSON scalars of a range, checked."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from headrace.connectors.source import Option
from headrace.errors import SchemaError
from headrace.model.types import Schema

_PATH_OPTION = "field."
_STEP = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")
MAX_PATH = 100
_TIMESTAMP_FORMATS = ("", "iso", "epoch_s", "epoch_ms", "epoch_us")


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """What all formats share: where columns are in a message, how times are written, and which columns decide about a message.

    `schema_text` is the Avro or Protobuf schema of the writer and `message` the name of its message; otherwise the schema is in
    the `registry`, in which encoded rows are registered below the `subject`.
    With `checks_all`, a message is rejected if any declared column does not fit; otherwise only those that are read are checked.
    """

    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    timestamp_format: str = ""
    checks_all: bool = False
    schema_text: str = ""
    registry: str = ""
    subject: str = ""
    message: str = ""
    delimiter: str = ","

    def path_of(self, column: str) -> tuple[str, ...]:
        """Return the names that lead to a column: its own name, unless an option says otherwise."""
        return self.paths.get(column, (column,))

    def refuse_patterns(self) -> None:
        """Raise SchemaError if times have a pattern of strptime, which this format does not read."""
        if "%" in self.timestamp_format:
            raise _timestamp_format_error(self.timestamp_format)


def _timestamp_format_error(timestamp_format: str) -> SchemaError:
    return SchemaError(
        f"unknown timestamp_format '{timestamp_format}'",
        detail=f"one of: {', '.join(_TIMESTAMP_FORMATS[1:])}; for JSON also a pattern of strptime, such as '%d.%m.%Y %H:%M'",
    )


def parse_options(schema: Schema, options: Mapping[str, Option], known: Collection[str]) -> FormatOptions:
    """Check the options of a format that has those in `known`; raises SchemaError for others, and for a path of no column."""
    paths = {}
    for name, value in options.items():
        if name.startswith(_PATH_OPTION) and _PATH_OPTION in known:
            column = schema.find(name.removeprefix(_PATH_OPTION))
            if column is None:
                raise SchemaError(f"option '{name}' names no column", detail=f"columns: {', '.join(schema.names)}")
            paths[column.name] = parse_path(str(value))
        elif name not in known and name != "on_error":
            listed = ", ".join(f"{option}COLUMN" if option == _PATH_OPTION else option for option in known) or "none"
            raise SchemaError(f"unknown option '{name}' of the message format", detail=f"options: {listed}")
    timestamp_format = str(options.get("timestamp_format", ""))
    if timestamp_format not in _TIMESTAMP_FORMATS and "%" not in timestamp_format:
        raise _timestamp_format_error(timestamp_format)
    return FormatOptions(
        paths,
        "" if timestamp_format == "iso" else timestamp_format,
        checks_all=str(options.get("on_error", "fail")) != "fail",
        schema_text=str(options.get("schema", "")),
        registry=str(options.get("registry", "")),
        subject=str(options.get("subject", "")),
        message=str(options.get("message", "")),
        delimiter=str(options.get("delimiter", ",")),
    )


def parse_path(text: str) -> tuple[str, ...]:
    """Return the names of a path such as ``payload.user.`a.b` ``; raises SchemaError for an invalid one."""
    names, at = [], 0
    while at <= len(text):
        match = _STEP.match(text, at)
        if not match or (match.end() < len(text) and text[match.end()] != "."):
            raise SchemaError(
                f"invalid path '{text}'", hint="write names with dots between, and a name with a dot in back-quotes"
            )
        names.append(match[2] if match[1] is None else match[1].replace("``", "`"))
        at = match.end() + 1
    if len(names) > MAX_PATH:
        raise SchemaError(f"path '{text[:50]}…' has more than {MAX_PATH} names")
    return tuple(names)
