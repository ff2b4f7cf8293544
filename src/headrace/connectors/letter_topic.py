"""Dead letters of a stream of Kafka in a topic: workers write them to files of the checkpoint, the driver sends them.

The messages are those that were read: the same bytes, key, headers and timestamp, and further headers that say where each of them
was and why it is no row. A file names the topic and the settings of the client, so that whoever finds it can send it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from headrace.connectors.pending_files import OutputPlace, PendingFile, open_sink_store, write_pending_file
from headrace.connectors.sinks.kafka import KafkaSink
from headrace.connectors.source import Option, Range
from headrace.storage.checkpoint import name_source_folder

_FOLDER = "dead-letters"
_SUFFIX = ".arrow"
_TARGET = b"headrace.target"
_NOT_FOR_PRODUCERS = frozenset({"bootstrap.servers", "isolation.level"})


@dataclass(frozen=True, slots=True)
class LetterSink(KafkaSink):
    """A topic for dead letters; rows have the columns of rejected messages, and each becomes the message that it was."""

    destination_class: ClassVar[tuple[str, str]] = ("headrace.connectors.letter_destination", "LetterDestination")


def locate_letters(checkpoint: str, stream: str) -> str:
    """Return the folder or URL of the files with dead letters of a stream that are not sent yet."""
    return f"{checkpoint.rstrip('/')}/{_FOLDER}/{name_source_folder(stream)}"


def write_letters(checkpoint: str, split: Range, place: OutputPlace, letters: pa.Table) -> PendingFile:
    """Write dead letters of a range, whose options name the topic; raises OSError or StorageError."""
    target = {"topic": str(split.options["dead_letter"]).partition(":")[2], "client": json.loads(str(split.options["client"]))}
    content, table = pa.BufferOutputStream(), letters.replace_schema_metadata({_TARGET: json.dumps(target, sort_keys=True)})
    with pa.ipc.new_file(content, table.schema) as writer:
        writer.write_table(table)
    return write_pending_file(locate_letters(checkpoint, split.stream), place, _SUFFIX, content.getvalue())


def read_letters(file: PendingFile, client: Mapping[str, Option] | None = None) -> tuple[LetterSink, pa.Table] | None:
    """Return the topic and the dead letters of a file; None if it is gone. Raises OSError or StorageError.

    `client` are the present settings of the stream, whose brokers may have moved; without them, those of the file count.
    """
    store = open_sink_store(file.folder)
    if store.find_size(file.key) is None:
        return None
    table = pa.ipc.open_file(pa.BufferReader(store.get(file.key))).read_all()
    target: dict[str, Any] = json.loads((table.schema.metadata or {})[_TARGET])
    settings: Mapping[str, Option] = target["client"] if client is None else client
    options: Any = {name: value for name, value in settings.items() if name not in _NOT_FOR_PRODUCERS}
    sink = LetterSink(brokers=str(settings["bootstrap.servers"]), topic=target["topic"], options=options)
    return sink, table.replace_schema_metadata(None)


def delete_letters(files: Sequence[PendingFile]) -> None:
    """Delete files whose dead letters were sent; raises OSError or StorageError."""
    open_sink_store(files[0].folder).delete_many([file.key for file in files])


def parse_batch(file: PendingFile) -> int:
    """Return the batch that has written a file."""
    return int(file.name.removesuffix(_SUFFIX).split("-")[1])
