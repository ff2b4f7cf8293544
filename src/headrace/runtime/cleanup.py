"""Cleanup that always completes: one step that fails does not keep the others from running."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

_LOG = logging.getLogger("headrace")


def run_all_steps(steps: Iterable[Callable[[], object]]) -> None:
    """Call every step in order, whatever the others raise; raise the first error at the end, and log the others."""
    first: BaseException | None = None
    for step in steps:
        try:
            step()
        except BaseException as error:  # noqa: BLE001  raised at the end
            if first is not None:
                _LOG.warning("cleanup failed, too: %s", error, exc_info=error)
            first = first or error
    if first is not None:
        raise first
