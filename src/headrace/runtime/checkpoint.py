"""The checkpoint directory: what is promised (log), what holds (manifest), and who may write.

A batch is first *logged* – its input ranges and the query changes it brings – and then run; it has happened when its
manifest is there. Both are whole files put in place by rename. After a crash the last manifest holds; a log entry after
it is run again, with the same input, the same changes and the same state, so it gives the same results under the same names.
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

from headrace.connectors.durable import replace_file
from headrace.errors import CheckpointError

FORMAT = 5
_FOLDERS = ("log", "manifest", "plans", "queries", "state", "results", "sources", "exchange", "functions")
_KEEP = 2


class Checkpoint:
    """One directory, one session at a time.

    `fault` is called with the name of each step that changes the directory; tests make it raise, to crash there.
    """

    def __init__(self, directory: str | Path, fault: Callable[[str], None] = lambda _: None) -> None:
        """Open or create; refuses a directory that is in use, of another format, or something else entirely."""
        self.path = Path(directory).absolute()
        self.fault = fault
        self._check_kind()
        for folder in _FOLDERS:
            (self.path / folder).mkdir(parents=True, exist_ok=True)
        self._lock = self._locked()
        marker = self.path / "HEADRACE"
        if not marker.exists():
            replace_file(marker, json.dumps({"format": FORMAT, "identity": uuid.uuid4().hex}).encode())
        self.identity = self._check_format(marker)

    def _check_kind(self) -> None:
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

    def _locked(self) -> int:
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
        """Return what tells this checkpoint from any other."""
        try:
            content = json.loads(marker.read_bytes())
            found, identity = content["format"], str(content.get("identity", ""))
        except (ValueError, KeyError, TypeError) as error:
            self.close()
            raise CheckpointError(
                f"checkpoint marker '{marker}' is damaged", hint="restore it from a copy, or start with a new directory"
            ) from error
        if found != FORMAT:
            self.close()
            raise CheckpointError(
                f"checkpoint '{self.path}' has format {found}; this headrace reads format {FORMAT}",
                hint="run the headrace that wrote it, or start with a new directory and read the input again",
            )
        return identity

    def close(self) -> None:
        """Let others use the directory; safe to call twice."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def folder(self, *parts: str) -> Path:
        """Return a folder inside the checkpoint, made if need be."""
        path = self.path.joinpath(*parts)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def source_folder(self, stream: str) -> Path:
        """Return the folder where the source of a stream keeps what it must remember."""
        return self.folder("sources", "".join(c if c.isalnum() or c in "-_" else f"%{ord(c):x}" for c in stream))

    def log(self, batch: int, entry: dict[str, Any]) -> None:
        """Promise a batch."""
        self.fault("log")
        _write(self._entry("log", batch), entry)
        self.fault("logged")

    def commit(self, batch: int, manifest: dict[str, Any]) -> None:
        """Make a batch have happened."""
        self.fault("commit")
        _write(self._entry("manifest", batch), manifest)
        self.fault("committed")

    def last_manifest(self) -> tuple[int, dict[str, Any]] | None:
        """Return the newest manifest, or None in a new checkpoint; a damaged one is refused, never passed over."""
        found = _numbers(self.path / "manifest")
        return (found[-1], _read(self._entry("manifest", found[-1]))) if found else None

    def logged(self, batch: int) -> dict[str, Any] | None:
        """Return the log entry of a batch, or None."""
        path = self._entry("log", batch)
        return _read(path) if path.exists() else None

    def clean(self, batch: int, referred: Iterable[str]) -> None:
        """After batch `batch` is committed, remove old logs and manifests, and state and plan files nobody refers to."""
        kept = set(referred)
        for folder in ("log", "manifest"):
            for number in _numbers(self.path / folder):
                if number <= batch - _KEEP:
                    self._entry(folder, number).unlink(missing_ok=True)
        for folder in ("state", "plans", "queries"):
            for path in (self.path / folder).iterdir():
                if f"{folder}/{path.name}" not in kept:
                    path.unlink(missing_ok=True)

    def _entry(self, folder: str, batch: int) -> Path:
        return self.path / folder / f"{batch:010d}.json"


def _numbers(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("[0-9]*.json"))


def _write(path: Path, value: dict[str, Any]) -> None:
    body = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    replace_file(path, b"%08x\n%s" % (zlib.crc32(body), body))


def _read(path: Path) -> dict[str, Any]:
    check, _, body = path.read_bytes().partition(b"\n")
    try:
        return _checked(check, body)
    except ValueError as error:
        raise CheckpointError(
            f"{path.parent.name} '{path}' is damaged",
            detail=str(error),
            hint="restore the checkpoint directory from a copy, or start with a new one and read the input again",
        ) from error


def _checked(check: bytes, body: bytes) -> dict[str, Any]:
    if int(check, 16) != zlib.crc32(body):
        raise ValueError("its check sum does not fit its content")
    found: dict[str, Any] = json.loads(body)
    return found
