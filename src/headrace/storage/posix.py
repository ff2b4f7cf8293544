"""A store in a folder of a POSIX file system, and atomic, durable writes of single files.

A file is written under a hidden name that no other attempt uses, and renamed when it is complete; file and folder are synced. A
failed write leaves nothing behind. Readers that ignore names starting with '.' never see an incomplete file.

The environment variable HEADRACE_FSYNC=off turns off every fsync of this process and of its children. It is unsafe: after a
loss of power, committed batches may be missing or damaged. It exists for tests, whose files need not survive the test; a killed
process loses nothing either way.
"""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from headrace.storage.store import Chunks

_EMPTY = pa.py_buffer(b"")


class PosixStore:
    """A store in a folder; see `Store`. It holds no state, so that it can be created anywhere for the same folder."""

    def __init__(self, folder: str | Path) -> None:
        """Take the folder; it is created by the first object."""
        self._folder = Path(folder)

    def path_of(self, key: str) -> Path:
        """Return the path of a key."""
        return self._folder / key

    def name_of(self, key: str) -> str:
        """See `Store`."""
        return str(self._folder / key)

    def put(self, key: str, chunks: Chunks, *, if_absent: bool = False, sync: bool = True) -> None:
        """See `Store`."""
        path = self._prepare_folder(key)
        write_atomically(path, lambda hidden: _write_chunks(hidden, chunks), sync=sync, if_absent=if_absent)

    def put_file(self, key: str, write: Callable[[Path], None], *, sync: bool = True) -> None:
        """See `Store`."""
        write_atomically(self._prepare_folder(key), write, sync=sync)

    def append_line(self, key: str, line: bytes) -> None:
        """See `Store`."""
        path = self._prepare_folder(key)
        is_new = not path.exists()
        with path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                _write_fully(file, line + b"\n")
                _sync_descriptor(file.fileno())
            except OSError:  # the disk is full: a part of the line would damage the next one
                file.truncate(size)
                raise
        if is_new:
            _sync_path(path.parent)

    def get(self, key: str) -> bytes:
        """See `Store`."""
        return self.path_of(key).read_bytes()

    def open_local(self, key: str) -> pa.Buffer:
        """See `Store`."""
        path = self.path_of(key)
        if path.stat().st_size == 0:  # an empty file cannot be mapped
            return _EMPTY
        with pa.memory_map(str(path)) as file:
            return file.read_buffer()

    def list(self, prefix: str) -> list[str]:
        """See `Store`."""
        folder = self.path_of(prefix)
        if not folder.is_dir():
            return []
        return sorted(
            f"{prefix}/{entry.name}" for entry in os.scandir(folder) if not entry.name.startswith(".") and entry.is_file()
        )

    def find_size(self, key: str) -> int | None:
        """See `Store`."""
        try:
            return self.path_of(key).stat().st_size
        except FileNotFoundError:
            return None

    def delete(self, key: str) -> None:
        """See `Store`."""
        self.path_of(key).unlink(missing_ok=True)

    def sync_folders(self) -> None:
        """Make every name in the store durable: a killed process may have left names that it had no time to sync."""
        for folder, _, _ in os.walk(self._folder):
            _sync_path(Path(folder))
        _sync_path(self._folder.parent)

    def delete_incomplete(self) -> None:
        """Delete the hidden files that interrupted writes left anywhere in the store; no write may be running."""
        for path in self._folder.rglob(".*.tmp"):
            path.unlink(missing_ok=True)

    def ensure_folder(self, key: str) -> Path:
        """Return the path of a folder; create it, durably, if it is missing."""
        path = self.path_of(key)
        create_folder(path)
        return path

    def _prepare_folder(self, key: str) -> Path:
        path = self.path_of(key)
        if not path.parent.is_dir():
            self.ensure_folder(str(Path(key).parent))
        return path


def create_folder(path: Path) -> None:
    """Create a folder and its parents, durably, those that are missing."""
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        _sync_path(folder.parent)


@lru_cache(maxsize=1024)
def sync_name_once(folder: Path) -> None:
    """Make the name of a folder durable, once in a process: a killed process may have created it and not synced it."""
    _sync_path(folder.parent)


def write_atomically(path: Path, write: Callable[[Path], None], *, sync: bool = True, if_absent: bool = False) -> None:
    """Let `write` fill a hidden file beside `path`, then rename it to `path`; with `sync`, it survives a loss of power.

    An existing file is replaced; with `if_absent`, FileExistsError is raised instead.
    """
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        write(hidden)
        if sync:
            _sync_path(hidden)
        if if_absent:
            _link_exclusively(hidden, path)
        else:
            hidden.replace(path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    if sync:
        _sync_path(path.parent)


def _link_exclusively(hidden: Path, path: Path) -> None:
    """Give a file its name unless the name is taken; without hard links, the check and the rename are two steps."""
    try:
        path.hardlink_to(hidden)
    except FileExistsError:
        raise
    except OSError:
        if path.exists():
            raise FileExistsError(str(path)) from None
        hidden.replace(path)
    else:
        hidden.unlink()


def replace_file(path: Path, content: bytes) -> None:
    """Replace the content of a file, atomically and durably."""
    write_atomically(path, lambda hidden: _write_chunks(hidden, [content]))


def _write_chunks(path: Path, chunks: Chunks) -> None:
    with path.open("xb") as file:
        file.writelines(chunks)


def _write_fully(file: io.FileIO, content: bytes) -> None:
    """Write all bytes to an unbuffered file; one write may take only some of them."""
    while content:
        content = content[file.write(content) :]


def _sync_path(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        _sync_descriptor(handle)
    finally:
        os.close(handle)


def _sync_descriptor(descriptor: int) -> None:
    """Wait until the content of an open file is on disk; do nothing if HEADRACE_FSYNC=off."""
    if os.environ.get("HEADRACE_FSYNC") != "off":
        os.fsync(descriptor)
