"""Cleanup that always completes: one step that fails does not keep the others from running."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

_LOG = logging.getLogger("headrace")


def run_all_steps(steps: Iterable[Callable[[], object]], error_before: BaseException | None = None) -> None:
    """Call every step in order, whatever the others raise; raise the first error at the end, and log the others.

    `error_before` is an error that made the cleanup necessary, and counts as the first.
    """
    first = error_before
    for step in steps:
        try:
            step()
        except BaseException as error:  # noqa: BLE001  raised at the end
            if first is not None:
                _LOG.warning("cleanup failed, too: %s", error, exc_info=error)
            first = first or error
    if first is not None:
        raise first


def choose_folder(chosen: str | Path | None, steps: deque[Callable[[], object]]) -> str | Path:
    """Return the chosen folder, or create a temporary one; a step to delete that is put before the others."""
    if chosen is not None:
        return chosen
    folder = tempfile.mkdtemp(prefix="headrace-")
    steps.appendleft(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder


class ClosedAtEnd:
    """A context manager that calls `close` at the end of its block."""

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Release all resources."""
        raise NotImplementedError
