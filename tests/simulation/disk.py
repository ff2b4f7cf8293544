"""The simulated disk: a folder of a file system in memory that can fail at any durable operation.

It takes the place of the file operations of `headrace.storage.posix`. Every write, append, sync, new name and deletion is an
operation, and so is every fault point. At an operation that the schedule chooses, the process dies (`Crashed`) – a write leaves a
part of its file – or the disk is full. At that moment the folder is moved away, so that nothing a dying process still does can
reach it.

A loss of power also undoes what was not synced. A file has the content of its last sync, and a folder the names of its last sync;
of everything since then, all is lost, or each part at random, as a file system may order its writes.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from headrace.storage import posix


class Crashed(BaseException):
    """The process dies here; no code of the product may catch it."""


class SimulatedDisk(posix.FileOperations):
    """The files below `root`; at most one in a process is installed."""

    def __init__(self, root: Path, random: Random) -> None:
        self.root, self._away = root, root.with_name(f"{root.name}-away")
        self._random = random
        self.operations = 0
        self.crash_after: int | None = None
        self._crash_at: tuple[str, int] | None = None  # the step from which operations are counted, and how many follow it
        self.is_dead = False
        self._full_from: int | None = None
        self._full_writes = 0
        self.errors = 0  # writes that failed because the disk was full
        self._contents: dict[int, bytes] = {}  # content at the last sync, by inode
        self._names: dict[str, dict[str, int | None]] = {}  # names at the last sync of a folder; None for a folder
        self._replaced: posix.FileOperations | None = None
        root.mkdir(parents=True)

    # --- installation -------------------------------------------------------------------------------------------------

    def install(self) -> None:
        self._replaced, posix._files = posix._files, self

    def uninstall(self) -> None:
        if self._replaced is not None:
            posix._files = self._replaced
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.rmtree(self._away, ignore_errors=True)

    # --- operations ---------------------------------------------------------------------------------------------------

    def reach(self, step: str) -> None:
        """Count an operation; the process dies here if its time has come."""
        if self.is_dead:
            raise Crashed(step)
        self.operations += 1
        if self._crash_at is not None and self._crash_at[0] == step:
            self.crash_after, self._crash_at = self._crash_at[1], None
        if self.crash_after is not None:
            if self.crash_after == 0:
                self.kill()
                raise Crashed(step)
            self.crash_after -= 1

    def kill(self) -> None:
        """Let the process die: the folder is as it is now, whatever the process does afterwards."""
        self.crash_after, self.is_dead = None, True
        self.root.rename(self._away)

    def revive(self) -> None:
        """Give the folder to the next process."""
        if self.is_dead:
            shutil.rmtree(self.root, ignore_errors=True)
            self._away.rename(self.root)
            self.is_dead = False

    def fill(self, after: int, count: int) -> None:
        """Let `count` writes fail, after some more that succeed."""
        self._full_from, self._full_writes = after, count

    def crash(self, after: int, at: str = "") -> None:
        """Let the process die after so many operations, counted from now or from the next step of a name on."""
        self.crash_after, self._crash_at = (None, (at, after)) if at else (after, None)

    def disarm(self) -> tuple[int | None, tuple[str, int] | None, int | None, int]:
        """Stop all faults; return them for `arm`."""
        faults = self.crash_after, self._crash_at, self._full_from, self._full_writes
        self.arm(None, None, None, 0)
        return faults

    def arm(self, crash_after: int | None, crash_at: tuple[str, int] | None, full_from: int | None, full_writes: int) -> None:
        """Arm the faults that `disarm` returned."""
        self.crash_after, self._crash_at = crash_after, crash_at
        self._full_from, self._full_writes = full_from, full_writes

    def _reach_write(self, write_part: Callable[[float], object]) -> None:
        """Count a write; if it fails, `write_part` leaves a fraction of its bytes."""
        if self.crash_after == 0 and not self.is_dead:
            write_part(self._random.random())
        self.reach("write")
        if self._full_from is None:
            return
        self._full_from -= 1
        if self._full_from < 0:
            self._full_writes -= 1
            self._full_from = 0 if self._full_writes > 0 else None
            self.errors += 1
            write_part(self._random.random())
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(self, path: Path, write: Callable[[Path], object]) -> None:
        def write_part(part: float) -> None:
            write(path)
            os.truncate(path, int(part * path.stat().st_size))

        self._reach_write(write_part)
        super().write(path, write)

    def append(self, path: Path, content: bytes, offset: int) -> None:
        self._reach_write(lambda part: _append_bytes(path, content[: int(part * len(content))], offset))
        super().append(path, content, offset)

    def sync(self, path: Path) -> None:
        if self.is_dead:
            raise Crashed("sync")
        super().sync(path)

    def sync_descriptor(self, descriptor: int) -> None:
        self.reach("sync")
        path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
        if os.path.isdir(path):  # noqa: PTH112
            self._names[path] = _list_names(path)
        else:
            self._contents[os.fstat(descriptor).st_ino] = Path(path).read_bytes()

    def rename(self, path: Path, target: Path) -> None:
        self.reach("rename")
        super().rename(path, target)

    def link(self, path: Path, target: Path) -> None:
        self.reach("link")
        super().link(path, target)

    def unlink(self, path: Path) -> None:
        self.reach("delete")
        super().unlink(path)

    def make_folder(self, path: Path) -> None:
        self.reach("make folder")
        super().make_folder(path)

    def remove_folder(self, path: Path) -> None:
        if self.crash_after == 0 and not self.is_dead:
            for file in sorted(path.iterdir()):
                if self._random.random() < 0.5:
                    file.unlink()
        self.reach("remove folder")
        super().remove_folder(path)

    # --- loss of power ------------------------------------------------------------------------------------------------

    def lose_unsynced(self, *, everything: bool) -> None:
        """Undo what was not synced: everything, or each part at random."""
        self.revive()
        rebuilt: dict[str, bytes | None] = {str(self.root): None}
        self._collect_durable(str(self.root), rebuilt, everything=everything)
        shutil.rmtree(self.root)
        for path, content in rebuilt.items():
            if content is None:
                Path(path).mkdir()
            else:
                Path(path).write_bytes(content)
        self.mark_durable()

    def mark_durable(self) -> None:
        """Take all that there is for synced."""
        self._contents, self._names = {}, {}
        for folder, _, files in os.walk(self.root):
            self._names[folder] = _list_names(folder)
            for name in files:
                path = Path(folder, name)
                self._contents[path.stat().st_ino] = path.read_bytes()

    def _collect_durable(self, folder: str, rebuilt: dict[str, bytes | None], *, everything: bool) -> None:
        """Add what survives of a folder, by path; None for a folder."""
        now = _list_names(folder) if os.path.isdir(folder) else {}  # noqa: PTH112
        synced = self._names.get(folder, {})
        for name in sorted({*now, *synced}):
            chosen = synced if everything or self._random.random() < 0.5 else now
            if now.get(name, -1) == synced.get(name, -1):
                chosen = now
            if name not in chosen:
                continue
            path = f"{folder}/{name}"
            inode = chosen[name]
            if inode is None:
                rebuilt[path] = None
                self._collect_durable(path, rebuilt, everything=everything)
            else:
                rebuilt[path] = self._choose_content(path, inode, everything=everything)

    def _choose_content(self, path: str, inode: int, *, everything: bool) -> bytes:
        synced = self._contents.get(inode, b"")
        try:
            with open(path, "rb") as file:  # noqa: PTH123
                now = file.read() if os.fstat(file.fileno()).st_ino == inode else synced
        except FileNotFoundError:
            now = synced
        if everything or now == synced or self._random.random() < 0.3:
            return synced
        grown = now[len(synced) :] if now.startswith(synced) else b""
        if grown and self._random.random() < 0.7:
            return synced + grown[: self._random.randrange(len(grown) + 1)]
        return now


def _list_names(folder: str) -> dict[str, int | None]:
    return {entry.name: None if entry.is_dir() else entry.inode() for entry in os.scandir(folder)}


def _append_bytes(path: Path, content: bytes, offset: int) -> None:
    with path.open("r+b") as file:
        file.truncate(offset)
        file.seek(offset)
        file.write(content)
