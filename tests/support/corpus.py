"""Stored checkpoints of every format since 7, and how a session continues with one."""

from __future__ import annotations

from pathlib import Path

from support.every_kind_session import BATCHES, BATCHES_BEFORE_STOP, EveryKindSession, write_file

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
FILES_FOLDER = Path("/tmp/headrace-corpus-files")
"""The folder of the file source: its path is part of the definition of the source, so it is the same everywhere."""


def continue_run(checkpoint: Path) -> dict[str, list[object]]:
    """Continue a stopped checkpoint to its end; return the results of all queries."""
    FILES_FOLDER.mkdir(exist_ok=True)
    for batch in range(BATCHES_BEFORE_STOP):
        write_file(FILES_FOLDER, batch)
    run = EveryKindSession(checkpoint, FILES_FOLDER)
    try:
        run.attach_callback()
        run.run(BATCHES_BEFORE_STOP, BATCHES)
        run.session.drain()
        return run.read_results()
    finally:
        run.session.close()


def format_results(results: dict[str, list[object]]) -> dict[str, list[str]]:
    """Return results as texts, for a JSON file."""
    return {name: [", ".join(map(str, row)) for row in rows] for name, rows in results.items()}  # type: ignore[call-overload]
