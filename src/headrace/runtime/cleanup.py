"""Cleanup that always completes: one step that fails does not keep the others from running."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable

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


def create_temporary_folder(cleanup: deque[Callable[[], object]]) -> str:
    """Create a folder, put its removal in front of the steps of a cleanup, and return its path."""
    folder = tempfile.mkdtemp(prefix="headrace-")
    cleanup.appendleft(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder
