"""A disk that forgets whatever was not synced, for tests of a loss of power.

`ForgetfulDisk` replaces the sync of `headrace.storage.posix`. The content of a file is durable as of its last sync, and so are
the names in a folder: what was created, renamed or deleted in it since then is as it was. `cut_power` puts a folder into the
state that a loss of power would leave at worst.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace.storage import posix


class PowerCut(BaseException):
    """Raised in the place of a sync; no code of the engine may catch it."""


class ForgetfulDisk:
    """Records what is durable below a folder; raises PowerCut at the sync number `cut_at`."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.forget_all()
        operations = posix.FileOperations()
        monkeypatch.setattr(operations, "sync_descriptor", lambda fd: self.sync(Path(f"/proc/self/fd/{fd}").readlink()))
        monkeypatch.setattr(posix, "_files", operations)

    def forget_all(self) -> None:
        """Start with an empty disk."""
        self.syncs, self.cut_at = 0, -1
        self._files: dict[Path, bytes] = {}
        self._folders: set[Path] = set()
        self._content_of_inode: dict[int, bytes] = {}

    def sync(self, path: Path) -> None:
        """Make the content of a file, or the names in a folder, durable."""
        self.syncs += 1
        if self.syncs == self.cut_at:
            raise PowerCut
        if path.is_dir():
            self._sync_folder(path)
        else:
            inode = path.stat().st_ino
            self._content_of_inode[inode] = path.read_bytes()
            for durable in [p for p in self._files if p.parent == path.parent and p.exists() and p.stat().st_ino == inode]:
                self._files[durable] = self._content_of_inode[inode]

    def _sync_folder(self, folder: Path) -> None:
        live = {path for path in folder.iterdir() if path.is_file()}
        for gone in [path for path in self._files if path.parent == folder and path not in live]:
            del self._files[gone]
        for path in live:
            self._files[path] = self._content_of_inode.get(path.stat().st_ino, b"")
        for removed in [path for path in self._folders if path.parent == folder and not path.is_dir()]:
            self._folders = {path for path in self._folders if not path.is_relative_to(removed)}
            self._files = {path: content for path, content in self._files.items() if not path.is_relative_to(removed)}
        self._folders |= {path for path in folder.iterdir() if path.is_dir()}

    def cut_power(self) -> None:
        """Replace the folder by what is durable of it: names in folders that are themselves durable."""
        self.cut_at = -1
        shutil.rmtree(self.root)
        self.root.mkdir()
        for path, content in self._files.items():
            above = [parent for parent in path.parents if parent.is_relative_to(self.root) and parent != self.root]
            if self._folders.issuperset(above):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        self._files = {path: content for path, content in self._files.items() if path.exists()}
        self._content_of_inode = {path.stat().st_ino: content for path, content in self._files.items()}
