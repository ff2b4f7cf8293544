"""The kinds of sources and their options, as texts name them: session files, `CREATE STREAM … WITH (…)`, the command line.

An option has the name of the argument of the source. `schema` is the declaration of the columns.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headrace.connectors import kafka
from headrace.connectors.files import FileSource
from headrace.connectors.rate import RateSource
from headrace.connectors.source import Source
from headrace.connectors.tcp import TcpSource
from headrace.errors import SchemaError

OptionTypes = Mapping[str, tuple[type, ...]]

SOURCE_OPTIONS: Mapping[str, OptionTypes] = {
    "files": {
        "path": (str,), "format": (str,), "schema": (str,), "on_error": (str,), "dead_letter": (str,), "header": (bool,),
        "delimiter": (str,), "timestamp_format": (str,), "format_options": (dict,),
    },
    "rate": {
        "rows_per_second": (int, float), "generator": (str,), "rows": (int,), "seed": (int,), "start_time": (datetime, str),
        "keys": (int,), "field_max": (int,),
    },
    "tcp": {"address": (str,), "stream": (str,), "group": (str,)},
    "kafka": {
        "topic": (str,), "brokers": (str,), "schema": (str,), "format": (str,), "format_options": (dict,),
        "start": (str, datetime, dict), "key": (str,), "headers": (str,), "timestamp": (str,), "partition": (str,),
        "offset": (str,), "options": (dict,), "max_rows_per_batch": (int,), "max_bytes_per_batch": (int,),
        "stall_timeout": (str,), "on_error": (str,), "dead_letter": (str,),
        "on_lost": (str,), "group": (str,),
    },
}  # fmt: skip
REQUIRED_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "files": ("path",),
    "rate": ("rows_per_second",),
    "tcp": ("address", "stream"),
    "kafka": ("topic", "brokers", "schema"),
}


STREAM_OPTIONS = ("max_ahead", "watermark_by", "idle")


def open_source(kind: str, options: Mapping[str, Any], clock: Callable[[], float] | None = None) -> Source:
    """Return a source; only generated streams take a clock. Raises SchemaError or SourceError for an invalid option."""
    if kind == "files":
        return FileSource(**options)
    if kind == "tcp":
        return TcpSource(**options)
    if kind == "kafka":
        return kafka.KafkaSource(**options)
    return RateSource(**options) if clock is None else RateSource(**options, clock=clock)


def parse_option(kind: str, name: str, text: str) -> Any:
    """Return the value of an option that is given as text; raises SchemaError if there is none of that name, or it is invalid.

    Numbers, booleans and tables are written as in TOML.
    """
    types = SOURCE_OPTIONS[kind].get(name)
    if types is None:
        known = ", ".join(option for option in SOURCE_OPTIONS[kind] if option != "schema")
        raise SchemaError(f"connector '{kind}' has no option '{name}'", detail=f"options: {known}")
    if str in types and not (dict in types and text.startswith("{")):
        return text
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = None
    if type(value) not in types:
        raise SchemaError(f"option '{name}' of connector '{kind}' has the invalid value '{text}'")
    return value


@dataclass(frozen=True, slots=True)
class ConnectorSettings:
    """The options of `CREATE STREAM … WITH (…)`: the kind of source, its own options, and those of the stream."""

    connector: str
    options: dict[str, Any]
    stream_options: dict[str, str]


def parse_connector(texts: Mapping[str, str], columns: str) -> ConnectorSettings:
    """Return the settings that texts name, with the declared columns; raises SchemaError for an unknown or missing option.

    `properties.NAME` is a setting of a client, `format.NAME` one of the format of messages.
    """
    connector = texts.get("connector", "")
    if connector not in SOURCE_OPTIONS:
        raise SchemaError(f"unknown connector '{connector}'", detail=f"connectors: {', '.join(SOURCE_OPTIONS)}")
    options: dict[str, Any] = {"schema": columns} if columns else {}
    if columns and "schema" not in SOURCE_OPTIONS[connector]:
        raise SchemaError(f"connector '{connector}' has columns of its own", hint="declare only the watermark between ( and )")
    for name, text in texts.items():
        prefix, dot, rest = name.partition(".")
        table = {"properties": "options", "format": "format_options"}.get(prefix) if dot else None
        if table is not None and table in SOURCE_OPTIONS[connector]:
            options.setdefault(table, {})[rest] = text
        elif name not in {"connector", *STREAM_OPTIONS}:
            options[name] = parse_option(connector, name, text)
    missing = [name for name in REQUIRED_OPTIONS[connector] if name not in options]
    if missing:
        what = "columns" if missing[0] == "schema" else f"option '{missing[0]}'"
        raise SchemaError(f"connector '{connector}' needs {what}")
    return ConnectorSettings(connector, options, {name: text for name, text in texts.items() if name in STREAM_OPTIONS})
