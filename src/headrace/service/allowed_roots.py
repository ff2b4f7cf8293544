"""The folders whose files requests may name, from `serve --allow-root`; without one, requests name no files at all.

A path counts as what it leads to: `..` and symbolic links are resolved first. The checkpoint of the service is never allowed,
also not below a root, because it contains tokens. An object store is below no root. Paths that the operator gives, in a session
file or on the command line, are not checked.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headrace.connectors import FileSource
from headrace.connectors.file_access import FileStatus, is_glob, parse_file_path
from headrace.errors import HeadraceError
from headrace.service.problems import ForbiddenPathError
from headrace.storage.locations import is_url


class AllowedRoots:
    """Folders that requests may read below."""

    def __init__(self, roots: Sequence[Path], checkpoint: Path | None) -> None:
        """Take the folders, and the folder of the checkpoint to exclude; raises HeadraceError if a folder does not exist."""
        for root in roots:
            if not root.is_dir():
                raise HeadraceError(
                    f"allowed root '{root}' is not a directory", hint="name an existing directory with --allow-root"
                )
        self._roots = [_resolve(str(root)) for root in roots]
        self._checkpoint = None if checkpoint is None else _resolve(str(checkpoint))

    def contains(self, path: str) -> bool:
        """Return whether an absolute path, with all links resolved, is a root or below one, and outside the checkpoint."""
        if is_url(path):
            return False
        try:
            resolved = _resolve(path)
        except (OSError, ValueError):  # ValueError: a character that no path has
            return False
        is_checkpoint = self._checkpoint is not None and _is_within(resolved, self._checkpoint)
        return not is_checkpoint and any(_is_within(resolved, root) for root in self._roots)

    def check(self, path: str) -> None:
        """Check the path or pattern of a request; raises ForbiddenPathError if it is not below a root."""
        folder = _strip_pattern(path)
        if folder is None or not self.contains(folder):
            hint = "name a path below an allowed root" if self._roots else "start the service with --allow-root DIR"
            raise ForbiddenPathError(
                f"path '{path[:200]}' is not below an allowed root",
                detail=f"allowed roots: {', '.join(self._roots) or 'none'}",
                hint=f"{hint}; or declare the stream in the session file",
            )


class ConfinedFileSource(FileSource):
    """A file source that leaves out files outside the allowed roots, and lists them as skipped.

    The check of the declared path does not see links below it, or files that appear later.
    """

    def __init__(self, roots: AllowedRoots, path: str, **options: Any) -> None:
        """Take the roots and the options of a file source; raises ForbiddenPathError if the path is not below a root."""
        roots.check(path)
        super().__init__(path, **options)
        self._roots = roots
        self._outside: dict[str, str] = {}

    @property
    def skipped(self) -> dict[str, str]:
        """See `FileSource`."""
        return {**super().skipped, **self._outside}

    def _list_data_files(self, *, allow_cached: bool = False) -> Iterator[FileStatus]:
        for status in super()._list_data_files(allow_cached=allow_cached):
            if status.path in self._known_paths or self._roots.contains(status.path):
                yield status
            else:
                self._outside[status.path] = "it leads outside the allowed roots"


def _resolve(path: str) -> str:
    return os.path.realpath(path)


def _is_within(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def _strip_pattern(path: str) -> str | None:
    """Return the absolute path of a request, of a pattern the folder that its matches are below; links are not resolved.

    As in file sources, `..` takes away the name before it, even if that is a link. None for a URL, and for the
    home of an unknown user.
    """
    try:
        location = parse_file_path(path, ForbiddenPathError, "path")
    except RuntimeError:
        return None
    if is_url(location):
        return None
    parts = Path(location).parts
    return str(Path(*itertools.takewhile(lambda part: not is_glob(part), parts)))
