"""Pending files of file sinks: complete and durable, and hidden until the batch that wrote them is committed.

A worker writes a file to the sub-folder `_pending` of a sink, under a name that no other attempt uses, and reports it. The
manifest of the batch names the files of the attempts that count. After the commit the driver publishes these: it gives them their
visible names. All others are swept. Readers (Spark, Hive, Arrow datasets, FileSource) ignore names that start with '_'.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.model.record import record
from headrace.storage.posix import PosixStore
from headrace.storage.store import make_attempt_key

PENDING_FOLDER = "_pending"
_OWNER_DIGITS = 8  # of the identity of a checkpoint, in names


@record("pending-file")
@dataclass(frozen=True, slots=True)
class PendingFile:
    """A file of the sink in `folder` that a worker has written as `key`, and that is to be published as `name`."""

    folder: str
    key: str
    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """Where rows of a sink come from: a part of a partition of a batch; `checkpoint` is the identity of the checkpoint."""

    batch: int
    partition: int
    part: int = 0
    checkpoint: str = ""

    def format_name(self, suffix: str) -> str:
        """Return the visible name of the file with the rows; it is the same in every attempt."""
        return f"part-{self.batch:010d}-{self.partition:05d}{f'-{self.part:05d}' if self.part else ''}{suffix}"


def open_sink_store(folder: str) -> PosixStore:
    """Return the store of the folder of a sink: the only place that decides what kind of store it is."""
    return PosixStore(folder, syncs_names=True)


def write_pending_file(folder: str, place: OutputPlace, suffix: str, content: Any) -> PendingFile:
    """Write a file under a name of its own, durably; raises OSError or StorageError if the store refuses it."""
    name = place.format_name(suffix)
    key = make_attempt_key(PENDING_FOLDER, _get_prefix(place.checkpoint) + name.removesuffix(suffix), suffix)
    open_sink_store(folder).put(key, [content])
    return PendingFile(folder, key, name, len(memoryview(content)))


def find_pending_size(file: PendingFile) -> int | None:
    """Return the size of a pending file as this process sees it, or None if it sees no such file."""
    try:
        return open_sink_store(file.folder).find_size(file.key)
    except OSError:
        return None


def publish_files(files: Sequence[PendingFile]) -> list[PendingFile]:
    """Give the pending files of one sink their visible names, durably; return those that have neither name.

    Files that an earlier call has published are left as they are. A file that has the name, from another run, is replaced. Raises
    OSError or StorageError if the store refuses it; then some files may be published.
    """
    store = open_sink_store(files[0].folder)
    gone = [f for f in files if store.find_size(f.key) is None and store.find_size(f.name) != f.bytes]
    new_keys = {file.key: file.name for file in files if file not in gone}
    if new_keys:
        store.rename(new_keys)
    return gone


def has_pending_folder(folder: str) -> bool:
    """Return whether this process sees a folder for pending files, which the first file creates, and which stays."""
    return open_sink_store(folder).path_of(PENDING_FOLDER).is_dir()


def sweep_pending_files(folder: str, checkpoint: str, kept: Container[str]) -> None:
    """Delete the pending files of a sink that a checkpoint has written, also incomplete ones, except the keys `kept`.

    No attempt that may count is running. Raises OSError or StorageError if the store refuses it.
    """
    store, prefix = open_sink_store(folder), _get_prefix(checkpoint)
    for key in store.list(PENDING_FOLDER):
        if key.startswith(f"{PENDING_FOLDER}/{prefix}") and key not in kept:
            store.delete(key)
    store.sweep_scratch(PENDING_FOLDER, lambda name: not name.startswith(prefix))


def _get_prefix(checkpoint: str) -> str:
    """Return what the names of a checkpoint start with: another one may have used the folder, or may use it now."""
    return f"{checkpoint[:_OWNER_DIGITS]}-"
