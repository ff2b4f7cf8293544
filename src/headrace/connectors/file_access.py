"""Files by path or URL: their sizes and versions, their content, and those that match a pattern.

A file in an object store is fetched once and kept in the cache of the machine (`storage.local_cache`), under its version; of a
Parquet file only the parts that are needed are fetched. Paths and patterns are absolute, as `parse_file_path` returns them.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.storage.local_cache import get_local_cache
from headrace.storage.locations import get_storage_options, is_url, open_store, parse_location

_GLOB_CHARACTERS = re.compile(r"[*?\[]")


class FileStatus(NamedTuple):
    """A file at one moment: size in bytes, order of its last change, and the version that an object store gives it."""

    path: str
    size: int
    changed: int
    version: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether more than the path is known: the listing of a folder has names only."""
        return self.size >= 0


def is_glob(path: str) -> bool:
    """Return whether a path is a pattern with `*`, `?` or `[…]`."""
    return _GLOB_CHARACTERS.search(path) is not None


def parse_file_path(path: str | Path, error: type[HeadraceError], what: str) -> str:
    """Return the absolute path or the URL of a file, folder or pattern; raises `error` for an unknown scheme."""
    text = parse_location(path, error, what)
    return text if is_url(text) else os.path.abspath(text)  # noqa: PTH100 - patterns are no paths, and `..` is resolved


def get_status(path: str) -> FileStatus:
    """Return the status of a file; raises FileNotFoundError if there is none."""
    if is_url(path):
        store, key = _open_bucket(path)
        return _to_status(path, store.get_entry(key))
    status = os.stat(path)  # noqa: PTH116 - once for each file of each listing
    return FileStatus(path, status.st_size, status.st_mtime_ns)


def open_file(path: str, version: str = "", checksum: str = "") -> pa.NativeFile:
    """Open a file for random access, memory-mapped; raises OSError if it cannot be opened.

    Of an object, `version` is the one that is meant: it takes no request if this machine has it. Without, it is the newest one,
    unless the caller verifies a check sum of the content.
    """
    if not is_url(path):
        return pa.memory_map(path)
    store, key = _open_bucket(path)
    name = f"{path} {checksum or version or get_status(path).version}"
    content = get_local_cache().find(name)
    if content is None:
        found = store.get_version(key)
        if found is None:
            raise FileNotFoundError(path)
        current = _parse_version(found[1])
        if version not in {"", current}:
            raise OSError("it was replaced after it was discovered; files of a stream must never change")
        content = get_local_cache().add(f"{path} {checksum or current}", [found[0]]) or pa.py_buffer(found[0])
    return pa.BufferReader(content)


def open_parts(path: str) -> Any:
    """Return what `pyarrow.parquet` reads parts of a file from: its path, or an object that fetches the parts."""
    if not is_url(path):
        return path
    store, key = _open_bucket(path)
    return store.open_reader(key)


def path_exists(path: str) -> bool:
    """Return whether a file or folder exists; a folder of an object store always does."""
    return is_url(path) or Path(path).exists()


def list_files(path: str) -> Iterator[FileStatus]:
    """Yield the files that a path stands for: itself, those directly in it, or those that match a pattern; in any order."""
    if is_url(path):
        yield from _list_objects(path)
        return
    if is_glob(path):
        names = [name for name in glob.glob(path, recursive=True) if Path(name).is_file()]  # noqa: PTH207
    elif Path(path).is_dir():
        with os.scandir(path) as entries:
            names = [entry.path for entry in entries if entry.is_file()]
    else:
        names = [path] if Path(path).exists() else []
    for name in names:
        yield FileStatus(name, -1, -1)  # without a look at each: most of them are known


def _list_objects(url: str) -> Iterator[FileStatus]:
    """Yield the objects at a URL, directly below it, or matching it; `*` matches no '/', `**` does."""
    store, key = _open_bucket(url)
    folder = key[: _GLOB_CHARACTERS.search(key).start()].rpartition("/")[0] if is_glob(key) else key  # type: ignore[union-attr]
    matches = re.compile(_translate(key)).fullmatch if is_glob(key) else None
    root = url[: len(url) - len(key)]
    for entry in store.list_entries(folder, recursive=matches is not None):
        name = entry["path"]
        if matches is None or matches(name):
            yield _to_status(root + name, entry)


def _translate(pattern: str) -> str:
    """Return the regular expression of a pattern of keys."""
    parts = re.split(r"(\*\*/?|\*|\?|\[[^\]]*\])", pattern)
    special = {"*": "[^/]*", "?": "[^/]", "**": ".*", "**/": "(?:.*/)?"}
    return "".join(
        special.get(part) or (fnmatch.translate(part)[4:-3] if part.startswith("[") else re.escape(part)) for part in parts
    )


def _to_status(path: str, entry: Any) -> FileStatus:
    changed = int(entry["last_modified"].timestamp() * 1e6)
    return FileStatus(path, int(entry["size"]), changed, _parse_version(entry["e_tag"] or ""))


def _parse_version(tag: str) -> str:
    """Return an e-tag without quotes: Azure has them in the answer to a get, and not in a listing."""
    return tag.strip('"')


def _open_bucket(url: str) -> tuple[Any, str]:
    """Return the store of the bucket of a URL, and the key in it."""
    scheme, _, rest = url.partition("://")
    depth = 2 if scheme == "az" else 1  # account and container
    parts = rest.split("/", depth)
    bucket = f"{scheme}://{'/'.join(parts[:depth])}"
    return open_store(bucket, options=get_storage_options(url)), parts[depth] if len(parts) > depth else ""
