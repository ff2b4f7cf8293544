"""Manifests: the state after a batch, published by one atomic step that only one session can win.

In a folder, every batch has a manifest of its own, which is created only if it does not exist; older ones are deleted. In an
object store there is one manifest, replaced only in the version that this session has read or written. Numbered manifests do not
suffice there: a session that was paused before its commit could commit a batch whose manifest its successor has already deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from headrace.errors import CheckpointError, StorageError
from headrace.storage import documents
from headrace.storage.posix import PosixStore
from headrace.storage.store import Store, VersionConflictError, VersionedStore

CURRENT_MANIFEST = "manifest/current.json"


class ManifestConflictError(Exception):
    """Another session has committed; `writer` says which, as far as it is known."""

    def __init__(self, writer: str) -> None:
        """Take the name of the other session, for the message."""
        super().__init__(writer)
        self.writer = writer


class Manifests(Protocol):
    """The manifests of a checkpoint."""

    def read_newest(self) -> Any:
        """Return the newest manifest, or None if there is none; raises CheckpointError if it is damaged."""

    def publish(self, batch: int, manifest: object) -> None:
        """Publish the manifest of a batch; raises ManifestConflictError if another session has published one meanwhile.

        After a StorageError it may be there or not: recovery would use it, and the next call replaces it.
        """

    def get_previous(self, batch: int) -> Sequence[str]:
        """Return the key of the manifest that the one of a batch supersedes, if it is another one; lists nothing."""

    def list_superseded(self, batch: int) -> Sequence[str]:
        """Return the keys of all manifests before that of a batch."""


class NumberedManifests:
    """Manifests in a folder, `manifest/0000000007.json` after batch 7."""

    def __init__(self, store: Store) -> None:
        """Take the store of the checkpoint."""
        self._store = store
        self._refused: bytes | None = None  # whose publication failed: it may be there nevertheless

    def read_newest(self) -> Any:
        """See `Manifests`; an older manifest is never used in the place of a damaged one."""
        keys = self._store.list("manifest")
        return documents.get_record(self._store, max(keys, key=parse_batch)) if keys else None

    def publish(self, batch: int, manifest: object) -> None:
        """See `Manifests`."""
        key = _numbered_key(batch)
        content = documents.encode_record(self._store, key, manifest)
        try:
            self._store.put(key, content, if_absent=not self._is_refused(key))
        except FileExistsError:
            raise ManifestConflictError(_describe_writer(self._store, key)) from None
        except StorageError:
            self._refused = b"".join(content)
            raise
        self._refused = None

    def _is_refused(self, key: str) -> bool:
        """Return whether the manifest that exists is one that this session failed to publish."""
        if self._refused is None or self._store.find_size(key) is None:
            return False
        return self._store.get(key) == self._refused

    def get_previous(self, batch: int) -> Sequence[str]:
        """See `Manifests`."""
        return (_numbered_key(batch - 1),)

    def list_superseded(self, batch: int) -> Sequence[str]:
        """See `Manifests`."""
        return [key for key in self._store.list("manifest") if parse_batch(key) < batch]


class VersionedManifest:
    """The one manifest in an object store."""

    def __init__(self, store: VersionedStore) -> None:
        """Take the store of the checkpoint."""
        self._store = store
        self._version: str | None = None
        self._refused: bytes | None = None

    def read_newest(self) -> Any:
        """See `Manifests`; from then on, only what was read is replaced."""
        found = self._store.get_version(CURRENT_MANIFEST)
        if found is None:
            return None
        self._version = found[1]
        return documents.decode_record(self._store, CURRENT_MANIFEST, found[0])

    def publish(self, batch: int, manifest: object) -> None:
        """See `Manifests`."""
        del batch
        content = b"".join(documents.encode_record(self._store, CURRENT_MANIFEST, manifest))
        try:
            self._version = self._replace(content)
        except StorageError:
            self._refused = content
            raise
        self._refused = None

    def _replace(self, content: bytes) -> str:
        try:
            return self._store.replace_version(CURRENT_MANIFEST, content, self._version)
        except VersionConflictError:
            found = self._store.get_version(CURRENT_MANIFEST)
            if found is not None and found[0] == content:  # a repeated request met its own first attempt
                return found[1]
            if found is None or found[0] != self._refused:
                raise ManifestConflictError(_describe_writer(self._store, CURRENT_MANIFEST)) from None
        try:
            return self._store.replace_version(CURRENT_MANIFEST, content, found[1])
        except VersionConflictError:
            raise ManifestConflictError(_describe_writer(self._store, CURRENT_MANIFEST)) from None

    def get_previous(self, batch: int) -> Sequence[str]:
        """See `Manifests`; there is none."""
        del batch
        return ()

    def list_superseded(self, batch: int) -> Sequence[str]:
        """See `Manifests`; there are none."""
        del batch
        return ()


def open_manifests(store: Store) -> Manifests:
    """Return the manifests of the checkpoint in a store."""
    return NumberedManifests(store) if isinstance(store, PosixStore) else VersionedManifest(cast("VersionedStore", store))


def parse_batch(key: str) -> int:
    """Return the batch number in the name of a log entry or manifest."""
    return int(key.rpartition("/")[2].partition(".")[0])


def _numbered_key(batch: int) -> str:
    return f"manifest/{batch:010d}.json"


def _describe_writer(store: Store, key: str) -> str:
    try:
        return f"by {documents.get_record(store, key).writer}"
    except CheckpointError as error:
        return f"its manifest is not readable: {error.detail or error.message}"
