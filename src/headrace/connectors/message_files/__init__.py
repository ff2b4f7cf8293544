"""Files of messages: JSON lines, Avro object containers and Protobuf messages behind their lengths.

avro_container  header and blocks of an Avro file, without the kernels: the driver counts rows with it
options         the options of these formats, checked where a source is created
framing         the messages of a file, in chunks
reader          a range to rows, with the messages that are none

The names of this package are loaded on first use: they need numba and the kernels of message formats, which a process that reads
no such file should not wait for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.connectors.message_files.options import check_options, infer_avro_schema
    from headrace.connectors.message_files.reader import read_file

__all__ = ["MESSAGE_FILES", "check_options", "infer_avro_schema", "read_file"]

MESSAGE_FILES = ("json", "avro", "protobuf")
_HOME = {"check_options": "options", "infer_avro_schema": "options", "read_file": "reader"}


def __getattr__(name: str) -> Any:
    """Import a name on first use."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
