"""Complete runs of a session with a query of every kind, on any back-end, for comparison with the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import headrace as hr
from headrace.storage.locations import use_storage_options
from support.every_kind_session import BATCHES, EveryKindSession


class SessionOfEveryKind(EveryKindSession):
    """The session with a query of every kind, with other options than the base class gives it."""

    def __init__(self, checkpoint: Path | str, folder: Path | str, **options: Any) -> None:
        self._options = options
        super().__init__(checkpoint, folder)

    def _open_session(self, checkpoint: Path | str) -> None:
        self.session = hr.Session(checkpoint, **self._options)


def run_every_kind(folder: Path | str, name: str, **options: Any) -> dict[str, Any]:
    """Return the results of a query of every kind, as texts, and the number of partitions; `folder` is a path or a URL."""
    with use_storage_options(options.get("storage_options", {})):  # for the files that are written beside the session
        run = SessionOfEveryKind(f"{folder}/checkpoint-{name}", f"{folder}/files-{name}", **options)
        return _run_to_the_end(run)


def _run_to_the_end(run: SessionOfEveryKind) -> dict[str, Any]:
    with run.session:
        run.run(0, BATCHES)
        run.session.drain()
        results = {query: [repr(row) for row in rows] for query, rows in run.read_results().items()}
        return {"results": results, "partitions": run.session.partitioning.partitions}
