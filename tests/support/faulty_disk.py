"""A disk that refuses changes: it is full, read-only or broken from a given step on, for one step or until it is repaired.

Every change of the disk is a step (`headrace.storage.posix.FileOperations`). A write that the disk refuses may have happened in
part: half of the content is there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.storage import posix

FAULTS = {"full": errno.ENOSPC, "read-only": errno.EROFS, "broken": errno.EIO}


class FaultyDisk(posix.FileOperations):
    """Refuses the step number `fail_at`, counted from 1, and with `lasting` all following ones until `repair`.

    A fault `after` the step refuses it when it has happened, as a sync or a network file system does. Only changes below `root`
    are steps.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.steps: list[str] = []
        self.repair()
        monkeypatch.setattr(posix, "_files", self)

    def repair(self) -> None:
        """Refuse nothing any more, and count from the start."""
        self.steps, self.refused = [], 0
        self._fail_at, self._fail_on, self._fault, self._is_lasting, self._is_after = 0, "", 0, False, False

    def fail(self, step: int, fault: str, *, lasting: bool = False, after: bool = False) -> None:
        """Refuse a step from now on."""
        self.repair()
        self._fail_at, self._fault, self._is_lasting, self._is_after = step, FAULTS[fault], lasting, after

    def fail_on(self, start: str, fault: str, *, lasting: bool = False, after: bool = False) -> None:
        """Refuse the next step whose text starts like this: the kind of change and the path, such as 'rename state/'."""
        self.fail(0, fault, lasting=lasting, after=after)
        self._fail_on = start

    def _run(self, kind: str, path: Path, change: Callable[[], None], change_half: Callable[[], None] | None = None) -> None:
        if not path.is_relative_to(self.root):
            change()
            return
        self.steps.append(f"{kind} {path.relative_to(self.root)}")
        number = len(self.steps)
        if self._fail_on and self.steps[-1].startswith(self._fail_on):
            self._fail_at, self._fail_on = number, ""
        is_refused = self._fail_at and (number >= self._fail_at if self._is_lasting else number == self._fail_at)
        if not is_refused:
            change()
            return
        self.refused += 1
        if self._is_after and number == self._fail_at:
            change()
        elif change_half is not None and self._fault != errno.EROFS:
            change_half()
        raise OSError(self._fault, os.strerror(self._fault), str(path))

    def write(self, path: Path, write: Callable[[Path], object]) -> None:
        def write_half() -> None:
            write(path)
            os.truncate(path, path.stat().st_size // 2)

        self._run("write", path, lambda: posix.FileOperations.write(self, path, write), write_half)

    def append(self, path: Path, content: bytes, offset: int) -> None:
        append = posix.FileOperations.append
        self._run(
            "append",
            path,
            lambda: append(self, path, content, offset),
            lambda: append(self, path, content[: len(content) // 2], offset),
        )

    def sync(self, path: Path) -> None:
        self._run("sync", path, lambda: None)

    def sync_descriptor(self, descriptor: int) -> None:
        pass  # of an append: a step of its own already

    def rename(self, path: Path, target: Path) -> None:
        self._run("rename", target, lambda: posix.FileOperations.rename(self, path, target))

    def link(self, path: Path, target: Path) -> None:
        self._run("link", target, lambda: posix.FileOperations.link(self, path, target))

    def unlink(self, path: Path) -> None:
        self._run("unlink", path, lambda: posix.FileOperations.unlink(self, path))

    def make_folder(self, path: Path) -> None:
        self._run("make_folder", path, lambda: posix.FileOperations.make_folder(self, path))

    def remove_folder(self, path: Path) -> None:
        def remove_half() -> None:
            for file in sorted(path.iterdir())[::2]:
                file.unlink()

        self._run("remove_folder", path, lambda: posix.FileOperations.remove_folder(self, path), remove_half)
