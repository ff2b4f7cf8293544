"""Formats of messages: rows from the bytes of messages, and messages from rows, a column at a time.

`make_message_format` makes a format from its name, the declared columns and options that are JSON scalars, so that a worker makes
the one that the driver checked. The loops over bytes are in `kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.connectors.message_formats.arrow_format import ArrowFormat
from headrace.connectors.message_formats.avro_format import AvroFormat
from headrace.connectors.message_formats.json_format import JsonFormat
from headrace.connectors.message_formats.options import FormatOptions, parse_options
from headrace.connectors.message_formats.protobuf_format import ProtobufFormat
from headrace.connectors.message_formats.tabular_formats import CsvFormat, RawFormat
from headrace.connectors.messages import MessageFormat
from headrace.connectors.source import Option
from headrace.errors import SchemaError
from headrace.model.types import Schema

_FORMATS: Mapping[str, tuple[Callable[[Schema, FormatOptions], MessageFormat], tuple[str, ...]]] = {
    "json": (JsonFormat, ("field.", "timestamp_format")),
    "avro": (AvroFormat, ("field.", "timestamp_format", "schema", "registry", "subject")),
    "protobuf": (ProtobufFormat, ("field.", "timestamp_format", "schema", "message", "registry", "subject")),
    "csv": (CsvFormat, ("timestamp_format", "delimiter")),
    "arrow": (ArrowFormat, ("field.",)),
    "raw": (RawFormat, ()),
}
"""What makes each format, and its options; `field.` stands for `field.COLUMN`."""

MESSAGE_FORMATS = tuple(_FORMATS)


def make_message_format(name: str, schema: Schema, options: Mapping[str, Option]) -> MessageFormat:
    """Return a format by its name; raises SchemaError for an unknown name, an invalid option, or a type that it does not have."""
    if name not in _FORMATS:
        raise SchemaError(f"unknown message format '{name}'", detail=f"one of: {', '.join(MESSAGE_FORMATS)}")
    make, known = _FORMATS[name]
    return make(schema, parse_options(schema, options, known))
