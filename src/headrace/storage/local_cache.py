"""A cache of immutable objects in files of this machine, so that workers map state instead of fetching it again.

All processes of a machine share the folder. An object is written under a scratch name and renamed, so that a file is complete or
absent. Above a limit the oldest files are deleted, and at any size those that nobody has used for a day, which ended sessions
have left; a file that is mapped stays readable. HEADRACE_CACHE_DIR and HEADRACE_CACHE_BYTES name the folder and the limit; by
default the folder is in the first local folder of Spark, else in that of temporary files, and the limit is 8 GiB.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
import uuid
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from headrace.storage.locations import parse_local_path
from headrace.storage.store import Chunks

_DEFAULT_BYTES = 8 << 30
_KEPT_SHARE = 0.8  # of the limit, after an eviction
_CHECK_SHARE = 16  # the size of the folder is checked whenever this process has written a 16th of the limit
_TOUCH_SECONDS = 60
_MAX_IDLE_SECONDS = 86_400
_EMPTY = pa.py_buffer(b"")


class LocalCache:
    """Files of one folder, by name."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Take the folder, which is created if it is missing, and the limit of its size in bytes."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder, self._max_bytes = folder, max_bytes
        self._unchecked_bytes = max_bytes  # the first object of a process checks

    def find(self, name: str) -> pa.Buffer | None:
        """Return an object as a memory map, or None if it is not here."""
        path = self._path_of(name)
        try:
            status = path.stat()
            if time.time() - status.st_mtime > _TOUCH_SECONDS:
                os.utime(path)
            return _map_file(path)
        except OSError:
            return None

    def add(self, name: str, chunks: Chunks) -> pa.Buffer | None:
        """Keep an object and return it as a memory map; return None if the disk refuses: then it is fetched when needed."""
        path = self._path_of(name)
        scratch = path.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            with scratch.open("xb") as file:
                file.writelines(chunks)
            scratch.replace(path)
            content = _map_file(path)
        except OSError:
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)
            return None
        self._unchecked_bytes += content.size
        if self._unchecked_bytes * _CHECK_SHARE > self._max_bytes:
            self._unchecked_bytes = 0
            self.evict()
        return content

    def remove(self, name: str) -> None:
        """Remove an object if it is here."""
        with contextlib.suppress(OSError):
            self._path_of(name).unlink(missing_ok=True)

    def evict(self) -> None:
        """Delete the files that were not used for a day, and, above the limit of the folder, for the longest time."""
        files = sorted(_list_files(self._folder))
        total = sum(size for _, size, _ in files)
        kept = int(self._max_bytes * _KEPT_SHARE) if total > self._max_bytes else total
        oldest = time.time() - _MAX_IDLE_SECONDS
        for used_at, size, path in files:
            if total <= kept and used_at >= oldest:
                return
            with contextlib.suppress(OSError):
                Path(path).unlink(missing_ok=True)
            total -= size

    def _path_of(self, name: str) -> Path:
        return self._folder / hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def _map_file(path: Path) -> pa.Buffer:
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return _EMPTY
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


def _list_files(folder: Path) -> list[tuple[float, int, str]]:
    """Return (time of the last use, size, path) of all files, those that other processes delete meanwhile left out."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat()
                found.append((status.st_mtime, status.st_size, entry.path))
    return found


@lru_cache(maxsize=8)
def open_local_cache(folder: str, max_bytes: int) -> LocalCache:
    """Return the cache of a folder; one object for each process."""
    return LocalCache(parse_local_path(folder, "HEADRACE_CACHE_DIR"), max_bytes)


def get_local_cache() -> LocalCache:
    """Return the cache that the environment of this process names."""
    return open_local_cache(_find_folder(), int(os.environ.get("HEADRACE_CACHE_BYTES", _DEFAULT_BYTES)))


def _find_folder() -> str:
    chosen = os.environ.get("HEADRACE_CACHE_DIR")
    if chosen:
        return chosen
    local_folders = os.environ.get("SPARK_LOCAL_DIRS") or os.environ.get("LOCAL_DIRS") or tempfile.gettempdir()
    folder = Path(local_folders.split(",")[0]) / f"headrace-cache-{os.getuid()}"
    if folder.exists() and folder.stat().st_uid != os.getuid():  # of somebody else, who could exchange its files
        return tempfile.mkdtemp(prefix="headrace-cache-")
    return str(folder)
