"""The checkpoint: batch log, manifests, and the lock that admits one session at a time.

A batch is first *logged* – its input ranges and its query changes – and then run; it is committed when its manifest exists. Log
entries and manifests are stored as a whole, or not at all. After a crash, recovery starts from the newest manifest; a log entry
after it is run again with the same input, the same changes and the same state, and gives the same results.

    HEADRACE              format and identity of the checkpoint
    lock, lease.json      the lock in a folder, or the lease in an object store
    log/0000000007.json   log entry of batch 7            manifest/0000000007.json   state after batch 7 (in an object store:
                          (in an object store with the    manifest/current.json)
                          epoch: 0000000007.000002.json)
    plans/  queries/      what workers need to know       state/                     partial aggregates, sessions, rows of joins
    results/              rows for readers                deliveries/                rows for callbacks and consoles
    sources/              bookkeeping of sources          functions/                 code of UDFs
    shuffle/              blocks of the running batch      dead-letters/             messages for topics, not sent yet

A manifest names every file that recovery depends on: a missing file is reported by name before the first batch runs, and the
content of each is protected by check sums. The first manifest, of batch −1, is written when the checkpoint is created, so that a
checkpoint without a manifest is damaged, never new.

A session that was paused while another one took its checkpoint over does no harm: only one of them can publish the next manifest
(`manifests`), the name of a log entry has the epoch of the lease, and the sweep deletes what existed while the session had it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError, OwnershipLostError
from headrace.storage import documents
from headrace.storage.checkpoint_lock import acquire_lock
from headrace.storage.checksum import compute_checksum
from headrace.storage.locations import StorageOptions, is_url, open_store, parse_location
from headrace.storage.lock_wait import LockWait
from headrace.storage.manifests import ManifestConflictError, open_manifests, parse_batch
from headrace.storage.requests import DeferredDeletion
from headrace.storage.result_log import is_packed_file
from headrace.storage.store import Store

CHECKPOINT_FORMAT = 10
_MARKER = "HEADRACE"
_FILES_BY_BATCH = (
    "state",
    "results",
    "deliveries",
)  # names of files start with a batch number
_MAX_FOLDER_NAME = 100  # characters of a stream name; a check sum stands for the rest
_SWEPT_FOLDERS = ("state", "results", "deliveries", "plans", "queries", "shuffle")


class Checkpoint:
    """A checkpoint in a folder or an object store, locked for one session; `store` has its files."""

    def __init__(self, location: str | Path, options: StorageOptions | None = None, wait: LockWait | None = None) -> None:
        """Open or create a checkpoint; `options` are those of an object store. A standby (`wait`) waits while it is in use.

        Raises CheckpointError if it is in use, has another format, or if the place is not empty and not a checkpoint.
        """
        self.location = parse_location(location)
        self.options = {} if options is None else dict(options)
        self.store = self._open_store()
        self._check_place()
        self.store.create_folder("")
        self._deletion: DeferredDeletion | None = None
        self._lock = acquire_lock(self.location, self.store, wait)
        try:
            if self.store.find_size(_MARKER) is None:
                self._create_marker()
            self.identity = read_identity(self.store)
            self.store = self._open_store(self.identity)
            self._manifests = open_manifests(self.store)
            self._deletion = DeferredDeletion(self.store)
        except BaseException:
            self.close()
            raise

    def _open_store(self, identity: str = "") -> Store:
        return open_store(self.location, identity, self.options)

    @property
    def path(self) -> Path | None:
        """The folder of the checkpoint; None in an object store."""
        return None if is_url(self.location) else Path(self.location)

    @property
    def writer(self) -> str:
        """The name of this session in the manifests that it commits: the epoch of its lock, and the process."""
        return f"{self._lock.epoch}@{self._lock.owner}"

    def check_owner(self) -> None:
        """Raise CheckpointError if another session is known to own the checkpoint, or may own it, or this one is closed."""
        self._lock.check()

    def verify_owner(self) -> None:
        """Raise CheckpointError if another session owns the checkpoint: that is then why a batch failed, whatever it raised."""
        self._lock.check(now=True)

    @property
    def loss(self) -> OwnershipLostError | None:
        """Why this session no longer owns the checkpoint, as far as it is known without a request; None while it does."""
        return self._lock.loss

    def exists(self) -> bool:
        """Return whether the checkpoint has not been deleted."""
        return self.store.find_size(_MARKER) is not None

    def _create_marker(self) -> None:
        """Make a new checkpoint of a place; the marker is its first file, so that one with others has lost it."""
        if self.store.list_folders(""):
            raise documents.damaged_error(self.store, _MARKER, FileNotFoundError())
        documents.put_document(self.store, _MARKER, {"format": CHECKPOINT_FORMAT, "identity": uuid.uuid4().hex})

    def _check_place(self) -> None:
        path = self.path
        if path is not None and path.exists() and not path.is_dir():
            raise CheckpointError(f"checkpoint '{path}' is not a directory", hint="name an empty or new directory")
        found = self.store.list("")
        if not {_MARKER, "lock", "lease.json"}.isdisjoint(found):
            return
        if found or self.store.list_folders("") or (path is not None and path.exists() and any(path.iterdir())):
            raise CheckpointError(
                f"directory '{self.location}' is not a headrace checkpoint and not empty", hint="name an empty or new directory"
            )

    def close(self) -> None:
        """Wait for deletions, and release the lock; a second call has no effect."""
        if self._deletion is not None:
            self._deletion.close()
        self._lock.release()

    def open_source_store(self, stream: str) -> Store:
        """Return the private store of a stream's source, for its durable metadata; create its folder if it is missing."""
        folder = f"sources/{name_source_folder(stream)}"
        self.store.create_folder(folder)
        return self.store.scope(folder)

    def list_source_files(self, stream: str) -> list[str]:
        """Return the keys of all files of a stream's source."""
        return self.store.list(f"sources/{name_source_folder(stream)}")

    def delete_source_folder(self, stream: str) -> None:
        """Delete the private folder of a stream's source, durably: a loss of power must not give it to a later stream."""
        folder = f"sources/{name_source_folder(stream)}"
        self.store.create_folder(folder)
        self.store.delete_folder(folder)

    def log_batch(self, batch: int, entry: object) -> None:
        """Write the log entry of a batch before the batch runs."""
        self._lock.check()
        documents.put_record(self.store, self._log_key(batch), entry)

    def _log_key(self, batch: int) -> str:
        """Return the key of a log entry of this session: that of an earlier owner, who may wake up, is another one."""
        return _log_entry_key(batch, self._lock.epoch)

    def commit(self, batch: int, manifest: object) -> None:
        """Commit the batch by publishing its manifest; raises CheckpointError if another session has committed it.

        After a StorageError the manifest may be there or not: recovery would use it, and the next attempt replaces it.
        """
        self._publish_manifest(batch, manifest, f"batch {batch} was committed by another session")

    def _publish_manifest(self, batch: int, manifest: object, conflict_message: str) -> None:
        self._lock.check()
        try:
            self._manifests.publish(batch, manifest)
        except ManifestConflictError as conflict:
            raise OwnershipLostError(
                conflict_message,
                detail=f"{conflict.writer}; this is {self.writer}",
                hint="let only one session use a checkpoint; open the session again to continue after that batch",
            ) from None

    def claim(self, manifest: object) -> None:
        """Publish the newest manifest again, as that of this session, so that an earlier owner cannot commit any more.

        It must precede every deletion: a commit of the earlier owner would refer to files that are about to be deleted. Where the
        lock is never taken over, nothing happens.
        """
        if self._lock.epoch:
            self._publish_manifest(0, manifest, "the checkpoint was changed by another session while this one was opened")

    def read_manifest(self) -> Any:
        """Return the newest manifest; None in a new checkpoint. Raises CheckpointError if it is missing or damaged."""
        self.store.sync_names()
        manifest = self._manifests.read_newest()
        if manifest is None and any(self.store.list(folder) for folder in ("log", *_SWEPT_FOLDERS)):
            raise documents.damaged_error(self.store, "manifest", FileNotFoundError())
        return manifest

    def read_log_entry(self, batch: int) -> Any:
        """Return the log entry of a batch, or None if the batch was not logged; of several, that of the newest owner."""
        keys = [key for key in self.store.list("log") if parse_batch(key) == batch]
        return documents.get_record(self.store, max(keys)) if keys else None

    def check_files(self, batch: int, referenced: Collection[str], is_known: Callable[[str], bool], *, logged: bool) -> None:
        """Check that all files exist that the manifest of `batch` names.

        `logged` tells whether the next batch has a log entry: without one, no worker may have written files for it, and there are
        every file of a query `is_known`: its query was in a manifest. Where a lock can be taken over, a session that lost it may
        have written others.
        Raises CheckpointError with the name of a missing file.
        """
        folders = {key.rpartition("/")[0] for key in referenced}
        existing = {key for folder in folders for key in self.store.list(folder)}
        missing = min(set(referenced) - existing, default=None)
        if missing is not None:
            raise documents.damaged_error(self.store, missing, FileNotFoundError())
        if not logged and not self._lock.epoch and self._has_files_after(batch, is_known):
            raise documents.damaged_error(self.store, self._log_key(batch + 1), FileNotFoundError())

    def _has_files_after(self, batch: int, is_known: Callable[[str], bool]) -> bool:
        """Return whether there are files of a later batch, or of a query that only a later batch can have added."""
        written = (key.partition("/")[2].partition("-")[0] for folder in _FILES_BY_BATCH for key in self.store.list(folder))
        return any(int(number) > batch for number in written) or not all(map(is_known, self.store.list("queries")))

    def sweep(self, batch: int, referenced: Iterable[str], *, is_running: bool = False) -> None:
        """Delete what the manifest of `batch` does not name: files of failed attempts, and those that a failure left undeleted.

        While a session is running, other threads write to folders of sources, to the top folder, and to packed files. All files
        are listed before the lock is checked: nothing that a later owner of the checkpoint has written is among them.
        """
        kept = set(referenced)
        listed = [key for folder in _SWEPT_FOLDERS for key in self.store.list(folder)]
        swept = [key for key in listed if key not in kept and not (is_running and is_packed_file(key))]
        entries = [key for key in self.store.list("log") if parse_batch(key) < batch]
        superseded = self._manifests.list_superseded(batch)
        self._lock.check()
        self.store.delete_many([*swept, *entries, *superseded])
        for folder in ("log", "manifest", *_SWEPT_FOLDERS):
            self.store.sweep_scratch(folder, is_packed_file if is_running else lambda _: False)
        for folder in () if is_running else ("", "functions", *self.store.list_folders("sources")):
            self.store.sweep_scratch(folder)

    def delete_superseded(self, batch: int, files: Iterable[str]) -> None:
        """After the commit of `batch`, delete the manifest and log entry before it, and files that it no longer refers to.

        In an object store nothing waits for that: whoever owns the checkpoint meanwhile does not refer to them, either.
        """
        assert self._deletion is not None
        self._deletion.submit([*self._manifests.get_previous(batch), self._log_key(batch - 1), *files])


def delete_checkpoint(location: str, options: StorageOptions | None = None) -> None:
    """Delete a checkpoint, if there is one; raises CheckpointError if it is in use, or if the place has other files."""
    store = open_store(location, options=options)
    if not store.list("") and not store.list_folders(""):
        return
    if store.find_size(_MARKER) is None:
        hint = "delete it yourself"
        raise CheckpointError(f"directory '{location}' is not a headrace checkpoint, so it is not deleted", hint=hint)
    lock = acquire_lock(location, store)
    try:
        for folder in store.list_folders(""):
            store.delete_folder(folder)
        store.delete_many(sorted(store.list(""), key=lambda key: key == _MARKER))  # the marker last, so that it can be repeated
    finally:
        lock.release()


def _log_entry_key(batch: int, epoch: int) -> str:
    return f"log/{batch:010d}{f'.{epoch:06d}' if epoch else ''}.json"


def name_source_folder(stream: str) -> str:
    """Return the name of the folder of a stream's source: made of letters, digits and few other characters, for any stream."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else f"%{ord(c):x}" for c in stream)
    if len(name) > _MAX_FOLDER_NAME:
        name = f"{name[:_MAX_FOLDER_NAME]}~{compute_checksum(stream.encode('utf-8', 'surrogatepass'))}"
    return name


def read_identity(store: Store) -> str:
    """Return the unique identity of the checkpoint in a store; raises CheckpointError for a damaged marker or another format."""
    older = _read_older_format(store.get(_MARKER))
    content = {"format": older} if older is not None else documents.get_document(store, _MARKER)
    if content["format"] != CHECKPOINT_FORMAT:
        raise CheckpointError(
            f"checkpoint '{store.location}' has format {content['format']}; this headrace reads format {CHECKPOINT_FORMAT}",
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
