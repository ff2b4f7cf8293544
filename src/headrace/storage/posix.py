"""Atomic and durable writes of files on a POSIX file system.

The environment variable HEADRACE_FSYNC=off turns off every fsync of this process and of its children. It is unsafe: after a
loss of power, committed batches may be missing or damaged. It exists for tests, whose files need not survive the test; a killed
process loses nothing either way.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: Path, write: Callable[[Path], None], *, sync: bool = True) -> None:
    """Let `write` fill a hidden file beside `path`, then rename it to `path`, replacing an existing file.

    Readers that ignore names starting with '.' never see an incomplete file. With `sync`, the file also survives a loss of power.
    """
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(hidden)
        if sync:
            _fsync_path(hidden)
        hidden.replace(path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    if sync:
        _fsync_path(path.parent)


def replace_file(path: Path, content: bytes) -> None:
    """Replace the content of a file, atomically and durably."""
    write_atomically(path, lambda hidden: _write_bytes(hidden, content))


def append_line(path: Path, line: bytes) -> None:
    """Append one line to a file, durably; a crash may leave an incomplete line, which the next read removes."""
    with path.open("ab") as file:
        file.write(line + b"\n")
        file.flush()
        sync_descriptor(file.fileno())


def sync_descriptor(descriptor: int) -> None:
    """Wait until the content of an open file is on disk; do nothing if HEADRACE_FSYNC=off."""
    if os.environ.get("HEADRACE_FSYNC") != "off":
        os.fsync(descriptor)


def read_complete_lines(path: Path) -> list[bytes]:
    """Return the lines of a file, none if the file is missing; remove an incomplete last line from the file."""
    if not path.exists():
        return []
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    if len(complete) < len(content):
        replace_file(path, complete)
    return complete.splitlines()


def _write_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _fsync_path(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        sync_descriptor(handle)
    finally:
        os.close(handle)
