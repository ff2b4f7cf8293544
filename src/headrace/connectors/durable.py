"""Files that are there whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_whole(path: Path, write: Callable[[Path], None], *, sync: bool = True) -> None:
    """Let `write` fill a hidden file beside `path`, then put it in place in one step, over what was there.

    Readers that ignore names starting with '.' never see half a file. With `sync`, it also survives a loss of power.
    """
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(hidden)
        if sync:
            _sync(hidden)
        hidden.replace(path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    if sync:
        _sync(path.parent)


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` in place of a file, durably."""
    write_whole(path, lambda hidden: _write_bytes(hidden, content))


def append_line(path: Path, line: bytes) -> None:
    """Add one line to a file, durably; a crash may leave part of it, which `complete_lines` removes."""
    with path.open("ab") as file:
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())


def complete_lines(path: Path) -> list[bytes]:
    """Return the lines of a file (none if it is not there), after cutting off an unfinished last one."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        replace_file(path, whole)
    return whole.splitlines()


def _write_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
