"""Files of messages: JSON lines, Avro object containers and Protobuf messages behind their lengths.

avro_container  header and blocks of an Avro file, without the kernels: the driver counts rows with it
avro_columns    the columns that an Avro file declares
framing         the messages of a file, in chunks
reader          a range to rows, with the messages that are none

The names of this package are loaded on first use: they need numba and the kernels of message formats, which a process that reads
no such file should not wait for.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.connectors.message_files.avro_columns import infer_avro_schema
    from headrace.connectors.message_files.reader import make_format, read_file

__all__ = ["MESSAGE_FILES", "infer_avro_schema", "make_format", "read_file"]

_OPTIONS = ("field.COLUMN", "timestamp_format")
MESSAGE_FILES: Mapping[str, tuple[str, ...]] = {"json": _OPTIONS, "avro": _OPTIONS, "protobuf": (*_OPTIONS, "schema", "message")}
"""The formats, and the options of each."""

_HOME = {"infer_avro_schema": "avro_columns", "make_format": "reader", "read_file": "reader"}


def __getattr__(name: str) -> Any:
    """Import a name on first use."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
