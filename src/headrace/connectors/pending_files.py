"""Pending files of file sinks: complete and durable, and hidden until the batch that wrote them is committed.

A worker writes a file to the sub-folder `_pending` of a sink, under a name that no other attempt uses, and reports it. The
manifest of the batch names the files of the attempts that count. After the commit the driver publishes these: it gives them their
visible names. All others are swept. Readers (Spark, Hive, Arrow datasets, FileSource) ignore names that start with '_'.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.model.record import record
from headrace.storage.locations import is_url, open_store
from headrace.storage.posix import PosixStore
from headrace.storage.requests import run_requests
from headrace.storage.store import Store, make_attempt_key

PENDING_FOLDER = "_pending"
_PART_NAME = "part-"
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
        return f"{_PART_NAME}{self.batch:010d}-{self.partition:05d}{f'-{self.part:05d}' if self.part else ''}{suffix}"


def open_sink_store(folder: str) -> Store:
    """Return the store of the folder or URL of a sink: the only place that decides what kind of store it is."""
    return open_store(folder) if is_url(folder) else PosixStore(folder, syncs_names=True)


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
    sizes = (
        run_requests(lambda file: store.find_size(file.key), files)
        if store.is_remote
        else map(store.find_size, [f.key for f in files])
    )
    gone = [file for file, size in zip(files, sizes, strict=True) if size is None and store.find_size(file.name) != file.bytes]
    new_keys = {file.key: file.name for file in files if file not in gone}
    if new_keys:
        store.rename(new_keys)
    return gone


def has_pending_folder(folder: str) -> bool:
    """Return whether this process sees a folder for pending files, which the first file creates, and which stays.

    All processes see the same objects of an object store.
    """
    return is_url(folder) or Path(folder, PENDING_FOLDER).is_dir()


def list_sink_files(folder: str) -> list[str]:
    """Return the keys of the files that sinks have published in a folder."""
    return [key for key in open_sink_store(folder).list("") if key.startswith(_PART_NAME)]


def delete_sink_files(folder: str) -> None:
    """Delete the files of sinks in a folder, published or pending, and no others."""
    store = open_sink_store(folder)
    pending = [key for key in store.list(PENDING_FOLDER) if _PART_NAME in key]
    store.delete_many([*list_sink_files(folder), *pending])


def sweep_pending_files(folder: str, checkpoint: str, kept: Container[str], check_owner: Callable[[], object]) -> None:
    """Delete the pending files of a sink that a checkpoint has written, also incomplete ones, except the keys `kept`.

    No attempt that may count is running. `check_owner` raises if another session owns the checkpoint; it is called after the
    files are listed, so that none of that session is among them. Raises OSError or StorageError if the store refuses it.
    """
    store, prefix = open_sink_store(folder), _get_prefix(checkpoint)
    swept = [key for key in store.list(PENDING_FOLDER) if key.startswith(f"{PENDING_FOLDER}/{prefix}") and key not in kept]
    check_owner()
    store.delete_many(swept)
    store.sweep_scratch(PENDING_FOLDER, lambda name: not name.startswith(prefix))


def _get_prefix(checkpoint: str) -> str:
    """Return what the names of a checkpoint start with: another one may have used the folder, or may use it now."""
    return f"{checkpoint[:_OWNER_DIGITS]}-"
