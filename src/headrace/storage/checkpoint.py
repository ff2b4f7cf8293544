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

from headrace.errors import CheckpointError
from headrace.storage import documents
from headrace.storage.checksum import compute_checksum
from headrace.storage.posix import PosixStore
from headrace.storage.store import parse_local_path

CHECKPOINT_FORMAT = 7
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
        try:
            if self.store.find_size(_MARKER) is None:
                documents.put_document(self.store, _MARKER, {"format": CHECKPOINT_FORMAT, "identity": uuid.uuid4().hex})
            self._identity = self._check_format()
            self._last_logged: int | None = None
            self._renew_cache_identity()
        except BaseException:
            self.close()
            raise

    def _check_directory(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise CheckpointError(f"checkpoint '{self.path}' is not a directory", hint="name an empty or new directory")
        known = (_MARKER, "lock")
        if self.path.exists() and any(self.path.iterdir()) and not any((self.path / name).exists() for name in known):
            raise CheckpointError(
                f"directory '{self.path}' is not a headrace checkpoint and not empty", hint="name an empty or new directory"
            )

    def _acquire_lock(self) -> int:
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise CheckpointError(
                f"checkpoint '{self.path}' is in use by another session",
                hint="close that session first, or use another directory",
            ) from error
        return descriptor

    def _check_format(self) -> str:
        """Return the unique identity of this checkpoint; raises CheckpointError for a damaged marker or another format."""
        older = _read_older_format(self.store.get(_MARKER))
        content = {"format": older} if older is not None else documents.get_document(self.store, _MARKER)
        if content["format"] != CHECKPOINT_FORMAT:
            raise CheckpointError(
                f"checkpoint '{self.path}' has format {content['format']}; this headrace reads format {CHECKPOINT_FORMAT}",
                hint="use the version of headrace that wrote it, or start with a new directory and read the input again",
            )
        return str(content["identity"])

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

    def log_batch(self, batch: int, entry: object) -> None:
        """Write the log entry of a batch before the batch runs.

        A batch that is logged again was planned again, and writes plans and queries of the same names again: workers must not
        take those of the abandoned attempt from their caches.
        """
        if batch == self._last_logged:
            self._renew_cache_identity()
        self._last_logged = batch
        documents.put_record(self.store, _entry_key("log", batch), entry)

    def commit(self, batch: int, manifest: object) -> None:
        """Commit the batch by publishing its manifest; raises CheckpointError if another session has committed it."""
        try:
            documents.put_record(self.store, _entry_key("manifest", batch), manifest, if_absent=True)
        except FileExistsError:
            raise CheckpointError(
                f"batch {batch} was committed by another session", hint="let only one session use a checkpoint"
            ) from None

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
        if self.store.find_size(key) is None:
            return None
        self._last_logged = batch
        return documents.get_record(self.store, key)

    def _renew_cache_identity(self) -> None:
        """Let workers cache the files of the checkpoint anew."""
        self.identity = f"{self._identity}-{uuid.uuid4().hex[:8]}"

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

    def sweep(self, referenced: Iterable[str]) -> None:
        """Delete the files that no manifest names: those of interrupted attempts, and those that a crash left undeleted."""
        self.store.delete_incomplete()
        newest = self._list_batches("manifest")[-1]
        for folder in ("manifest", "log"):
            for batch in self._list_batches(folder):
                if batch < newest:
                    self.store.delete(_entry_key(folder, batch))
        kept = set(referenced)
        for folder in _SWEPT_FOLDERS:
            for key in self.store.list(folder):
                if key not in kept:
                    self.store.delete(key)

    def sweep_attempts(self, batch: int, referenced: Iterable[str]) -> None:
        """After the commit of a batch that ran more than once, delete the files of its other attempts."""
        kept = set(referenced)
        for folder in _FILES_BY_BATCH:
            for key in self.store.list(folder):
                if key.startswith(f"{folder}/{batch:010d}-") and key not in kept:
                    self.store.delete(key)

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


def _read_older_format(marker: bytes) -> int | None:
    """Return the format of a marker that older versions wrote, without a check sum; None for other content."""
    try:
        content = json.loads(marker)
        return content["format"] if isinstance(content, dict) and isinstance(content.get("format"), int) else None
    except ValueError:
        return None
