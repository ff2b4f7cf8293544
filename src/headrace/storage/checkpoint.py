"""The checkpoint: batch log, manifests, and the lock that admits one session at a time.

A batch is first *logged* – its input ranges and its query changes – and then run; it is committed when its manifest exists. Log
entries and manifests are stored as a whole, or not at all. After a crash, recovery starts from the newest manifest; a log entry
after it is run again with the same input, the same changes and the same state, and gives the same results.

    HEADRACE              format and identity of the checkpoint
    log/0000000007.json   log entry of batch 7            manifest/0000000007.json   state after batch 7
    plans/  queries/      what workers need to know       state/                     partial aggregates, sessions, rows of joins
    results/              rows for readers                deliveries/                rows for callbacks and consoles
    sources/              bookkeeping of sources          functions/                 code of UDFs
    shuffle/              blocks of the running batch

A manifest names every file that recovery depends on: a missing file is reported by name before the first batch runs, and the
content of each is protected by check sums. The first manifest, of batch −1, is written when the checkpoint is created, so that a
checkpoint without a manifest is damaged, never new.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError, StorageError
from headrace.storage import documents
from headrace.storage.checksum import compute_checksum
from headrace.storage.posix import PosixStore
from headrace.storage.result_log import is_packed_file
from headrace.storage.store import parse_local_path

CHECKPOINT_FORMAT = 8
_MARKER = "HEADRACE"
_FILES_BY_BATCH = (
    "state",
    "results",
    "deliveries",
)  # names of files start with a batch number
_MAX_FOLDER_NAME = 100  # characters of a stream name; a check sum stands for the rest
_SWEPT_FOLDERS = ("state", "results", "deliveries", "plans", "queries", "shuffle")


class Checkpoint:
    """A checkpoint directory, locked for one session; `store` has its files."""

    def __init__(self, directory: str | Path) -> None:
        """Open or create a checkpoint.

        Raises CheckpointError if the directory is in use, has another format, or is not empty and not a checkpoint.
        """
        self.path = parse_local_path(directory)
        self.store = PosixStore(self.path)
        self._check_directory()
        self.store.ensure_folder("")
        self._lock: int | None = self._acquire_lock()
        self._refused_manifest: bytes | None = None  # whose commit failed: it may be there nevertheless
        try:
            if self.store.find_size(_MARKER) is None:
                self._create_marker()
            self.identity = read_identity(self.path)
            self.store = PosixStore(self.path, self.identity)
        except BaseException:
            self.close()
            raise

    def _create_marker(self) -> None:
        """Make a new checkpoint of a directory; the marker is its first file, so that one with others has lost it."""
        if any(path.is_dir() for path in self.path.iterdir()):
            raise documents.damaged_error(self.store, _MARKER, FileNotFoundError())
        documents.put_document(self.store, _MARKER, {"format": CHECKPOINT_FORMAT, "identity": uuid.uuid4().hex})

    def _check_directory(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise CheckpointError(f"checkpoint '{self.path}' is not a directory", hint="name an empty or new directory")
        known = (_MARKER, "lock")
        if self.path.exists() and any(self.path.iterdir()) and not any((self.path / name).exists() for name in known):
            raise CheckpointError(
                f"directory '{self.path}' is not a headrace checkpoint and not empty", hint="name an empty or new directory"
            )

    def _acquire_lock(self) -> int:
        try:
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StorageError(
                f"checkpoint '{self.path}' cannot be locked", detail=str(error), hint="a session must be able to write to it"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise CheckpointError(
                f"checkpoint '{self.path}' is in use by another session",
                hint="close that session first, or use another directory",
            ) from error
        return descriptor

    def close(self) -> None:
        """Release the lock; a second call has no effect."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def ensure_source_folder(self, stream: str) -> Path:
        """Return the private folder of a stream's source, for its durable metadata; create it if it is missing."""
        name = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else f"%{ord(c):x}" for c in stream)
        if len(name) > _MAX_FOLDER_NAME:
            name = f"{name[:_MAX_FOLDER_NAME]}~{compute_checksum(stream.encode('utf-8', 'surrogatepass'))}"
        return self.store.ensure_folder(f"sources/{name}")

    def delete_source_folder(self, stream: str) -> None:
        """Delete the private folder of a stream's source, durably: a loss of power must not give it to a later stream."""
        self.store.delete_folder(f"sources/{self.ensure_source_folder(stream).name}")

    def log_batch(self, batch: int, entry: object) -> None:
        """Write the log entry of a batch before the batch runs."""
        documents.put_record(self.store, _entry_key("log", batch), entry)

    def commit(self, batch: int, manifest: object) -> None:
        """Commit the batch by publishing its manifest; raises CheckpointError if another session has committed it.

        After a StorageError the manifest may be there or not: recovery would use it, and the next attempt replaces it.
        """
        key = _entry_key("manifest", batch)
        content = documents.encode_record(self.store, key, manifest)
        try:
            self.store.put(key, content, if_absent=not self._is_refused_manifest(key))
        except FileExistsError:
            raise CheckpointError(
                f"batch {batch} was committed by another session", hint="let only one session use a checkpoint"
            ) from None
        except StorageError:
            self._refused_manifest = b"".join(content)
            raise
        self._refused_manifest = None

    def _is_refused_manifest(self, key: str) -> bool:
        """Return whether the manifest that exists is one that this session failed to commit."""
        if self._refused_manifest is None or self.store.find_size(key) is None:
            return False
        return self.store.get(key) == self._refused_manifest

    def read_manifest(self) -> Any:
        """Return the newest manifest; None in a new checkpoint. Raises CheckpointError if it is missing or damaged.

        An older manifest is never used in the place of a damaged one.
        """
        self.store.sync_folders()
        batches = self._list_batches("manifest")
        if batches:
            return documents.get_record(self.store, _entry_key("manifest", batches[-1]))
        if any(self.store.list(folder) for folder in ("log", *_SWEPT_FOLDERS)):
            raise documents.damaged_error(self.store, "manifest", FileNotFoundError())
        return None

    def read_log_entry(self, batch: int) -> Any:
        """Return the log entry of a batch, or None if the batch was not logged."""
        key = _entry_key("log", batch)
        return None if self.store.find_size(key) is None else documents.get_record(self.store, key)

    def check_files(self, batch: int, referenced: Iterable[str], *, logged: bool) -> None:
        """Check that all files exist that the manifest of `batch` names.

        `logged` tells whether the next batch has a log entry: without one, no worker may have written files for it.
        Raises CheckpointError with the name of a missing file.
        """
        for key in sorted(referenced):
            if self.store.find_size(key) is None:
                raise documents.damaged_error(self.store, key, FileNotFoundError())
        for folder in _FILES_BY_BATCH:
            for key in () if logged else self.store.list(folder):
                if int(key.partition("/")[2].partition("-")[0]) > batch:
                    raise documents.damaged_error(self.store, _entry_key("log", batch + 1), FileNotFoundError())

    def sweep(self, batch: int, referenced: Iterable[str], *, is_running: bool = False) -> None:
        """Delete what the manifest of `batch` does not name: files of failed attempts, and those that a failure left undeleted.

        While a session is running, other threads write to folders of sources, to the top folder, and to packed files.
        """
        kept = set(referenced)
        for folder in _SWEPT_FOLDERS:
            for key in self.store.list(folder):
                if key not in kept and not (is_running and is_packed_file(key)):
                    self.store.delete(key)
        for folder in ("log", "manifest"):
            for entry in self._list_batches(folder):
                if entry < batch:
                    self.store.delete(_entry_key(folder, entry))
        for folder in ("log", "manifest", *_SWEPT_FOLDERS):
            self.store.sweep_scratch(folder, is_packed_file if is_running else lambda _: False)
        for folder in () if is_running else ("", "functions", *self._list_source_folders()):
            self.store.sweep_scratch(folder)

    def _list_source_folders(self) -> list[str]:
        folder = self.store.path_of("sources")
        return [f"sources/{path.name}" for path in folder.iterdir()] if folder.is_dir() else []

    def delete_superseded(self, batch: int, files: Iterable[str]) -> None:
        """After the commit of `batch`, delete the manifest and log entry before it, and files that it no longer refers to."""
        self.store.delete(_entry_key("manifest", batch - 1))
        self.store.delete(_entry_key("log", batch - 1))
        for key in files:
            self.store.delete(key)

    def _list_batches(self, folder: str) -> list[int]:
        return [int(Path(key).stem) for key in self.store.list(folder)]


def _entry_key(folder: str, batch: int) -> str:
    return f"{folder}/{batch:010d}.json"


def read_identity(directory: Path) -> str:
    """Return the unique identity of a checkpoint; raises CheckpointError for a damaged marker or another format."""
    store = PosixStore(directory)
    older = _read_older_format(store.get(_MARKER))
    content = {"format": older} if older is not None else documents.get_document(store, _MARKER)
    if content["format"] != CHECKPOINT_FORMAT:
        raise CheckpointError(
            f"checkpoint '{directory}' has format {content['format']}; this headrace reads format {CHECKPOINT_FORMAT}",
            hint="use the version of headrace that wrote it, or start with a new directory and read the input again",
        )
    return str(content["identity"])


def _read_older_format(marker: bytes) -> int | None:
    """Return the format of a marker that older versions wrote: JSON, in format 7 after its check sum; None for other content."""
    checksum, separator, body = marker.partition(b"\n")
    text = body if separator and checksum == compute_checksum(body).encode() else marker
    try:
        content = json.loads(text)
        return content["format"] if isinstance(content, dict) and isinstance(content.get("format"), int) else None
    except ValueError:
        return None


def open_source_store(directory: Path) -> PosixStore:
    """Return the store of the folder of a source, which `Checkpoint.ensure_source_folder` made; a test may use any folder."""
    root = directory.parent.parent
    identity = read_identity(root) if (root / _MARKER).exists() else ""
    return PosixStore(directory, identity, f"sources/{directory.name}/")
