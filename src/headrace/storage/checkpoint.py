"""The checkpoint directory: batch log, manifests, and the lock that admits one session at a time.

A batch is first *logged* – its input ranges and its query changes – and then run; it is committed when its manifest exists.
Log entries and manifests are complete files, published by rename. After a crash, recovery starts from the last manifest; a log
entry after it is run again with the same input, the same changes and the same state, so it writes the same results under the
same file names.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError
from headrace.storage.posix import replace_file

CHECKPOINT_FORMAT = 6
_FOLDERS = ("log", "manifest", "plans", "queries", "state", "results", "sources", "exchange", "functions")
_ENTRIES_KEPT = 2


class Checkpoint:
    """A checkpoint directory, locked for one session.

    The constructor's `fault` hook is called with the name of each step that changes the directory; tests let it raise to
    simulate a crash at that step.
    """

    def __init__(self, directory: str | Path, fault: Callable[[str], None] = lambda _: None) -> None:
        """Open or create a checkpoint.

        Raises CheckpointError if the directory is in use, has another format, or is not empty and not a checkpoint.
        """
        self.path = Path(directory).absolute()
        self.fault = fault
        self._check_directory()
        for folder in _FOLDERS:
            (self.path / folder).mkdir(parents=True, exist_ok=True)
        self._lock = self._acquire_lock()
        marker = self.path / "HEADRACE"
        if not marker.exists():
            replace_file(marker, json.dumps({"format": CHECKPOINT_FORMAT, "identity": uuid.uuid4().hex}).encode())
        self.identity = self._check_format(marker)

    def _check_directory(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise CheckpointError(f"checkpoint '{self.path}' is not a directory", hint="name an empty or new directory")
        if (
            self.path.exists()
            and not (self.path / "HEADRACE").exists()
            and any(self.path.iterdir())
            and not (self.path / "lock").exists()
        ):
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

    def _check_format(self, marker: Path) -> str:
        """Return the unique identity of this checkpoint; raises CheckpointError for a damaged marker or another format."""
        try:
            content = json.loads(marker.read_bytes())
            version, identity = content["format"], str(content.get("identity", ""))
        except (ValueError, KeyError, TypeError) as error:
            self.close()
            raise CheckpointError(
                f"checkpoint marker '{marker}' is damaged", hint="restore it from a copy, or start with a new directory"
            ) from error
        if version != CHECKPOINT_FORMAT:
            self.close()
            raise CheckpointError(
                f"checkpoint '{self.path}' has format {version}; this headrace reads format {CHECKPOINT_FORMAT}",
                hint="use the version of headrace that wrote it, or start with a new directory and read the input again",
            )
        return identity

    def close(self) -> None:
        """Release the lock; a second call has no effect."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def ensure_folder(self, *parts: str) -> Path:
        """Return a folder inside the checkpoint; create it if it is missing."""
        path = self.path.joinpath(*parts)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def ensure_source_folder(self, stream: str) -> Path:
        """Return the private folder of a stream's source, for its durable metadata; create it if it is missing."""
        return self.ensure_folder("sources", "".join(c if c.isalnum() or c in "-_" else f"%{ord(c):x}" for c in stream))

    def log_batch(self, batch: int, entry: dict[str, Any]) -> None:
        """Write the log entry of a batch before the batch runs."""
        self.fault("log")
        _write_entry(self._entry_path("log", batch), entry)
        self.fault("logged")

    def commit(self, batch: int, manifest: dict[str, Any]) -> None:
        """Commit the batch by publishing its manifest."""
        self.fault("commit")
        _write_entry(self._entry_path("manifest", batch), manifest)
        self.fault("committed")

    def read_last_manifest(self) -> tuple[int, dict[str, Any]] | None:
        """Return the newest batch number and its manifest, or None in a new checkpoint.

        Raises CheckpointError for a damaged manifest; an older one is never used in its place.
        """
        batches = _list_batches(self.path / "manifest")
        return (batches[-1], _read_entry(self._entry_path("manifest", batches[-1]))) if batches else None

    def read_log_entry(self, batch: int) -> dict[str, Any] | None:
        """Return the log entry of a batch, or None if the batch was not logged."""
        path = self._entry_path("log", batch)
        return _read_entry(path) if path.exists() else None

    def remove_unreferenced(self, batch: int, referred: Iterable[str]) -> None:
        """Remove old log entries and manifests, and unreferenced state, plan and query files, after the commit of `batch`."""
        referenced = set(referred)
        for folder in ("log", "manifest"):
            for number in _list_batches(self.path / folder):
                if number <= batch - _ENTRIES_KEPT:
                    self._entry_path(folder, number).unlink(missing_ok=True)
        for folder in ("state", "plans", "queries"):
            for path in (self.path / folder).iterdir():
                if f"{folder}/{path.name}" not in referenced:
                    path.unlink(missing_ok=True)

    def _entry_path(self, folder: str, batch: int) -> Path:
        return self.path / folder / f"{batch:010d}.json"


def _list_batches(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("[0-9]*.json"))


def _write_entry(path: Path, value: dict[str, Any]) -> None:
    body = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    replace_file(path, b"%08x\n%s" % (zlib.crc32(body), body))


def _read_entry(path: Path) -> dict[str, Any]:
    check, _, body = path.read_bytes().partition(b"\n")
    try:
        return _verify_checksum(check, body)
    except ValueError as error:
        raise CheckpointError(
            f"{path.parent.name} '{path}' is damaged",
            detail=str(error),
            hint="restore the checkpoint directory from a copy, or start with a new one and read the input again",
        ) from error


def _verify_checksum(check: bytes, body: bytes) -> dict[str, Any]:
    if int(check, 16) != zlib.crc32(body):
        raise ValueError("the checksum does not match the content")
    value: dict[str, Any] = json.loads(body)
    return value
