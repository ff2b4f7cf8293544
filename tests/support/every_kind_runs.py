"""Complete runs of a session with a query of every kind, on any back-end, for comparison with the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import headrace as hr
from support.every_kind_session import BATCHES, EveryKindSession


class SessionOfEveryKind(EveryKindSession):
    """The session with a query of every kind, with other options than the base class gives it."""

    def __init__(self, checkpoint: Path, folder: Path, **options: Any) -> None:
        self._options = options
        folder.mkdir(parents=True)
        super().__init__(checkpoint, folder)

    def _open_session(self, checkpoint: Path) -> None:
        self.session = hr.Session(checkpoint, **self._options)


def run_every_kind(folder: Path, name: str, **options: Any) -> dict[str, Any]:
    """Return the results of a query of every kind, as texts, and the number of partitions."""
    run = SessionOfEveryKind(folder / f"checkpoint-{name}", folder / f"files-{name}", **options)
    with run.session:
        run.run(0, BATCHES)
        run.session.drain()
        results = {query: [repr(row) for row in rows] for query, rows in run.read_results().items()}
        return {"results": results, "partitions": run.session._coordinator.partitions}
