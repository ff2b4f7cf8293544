"""What a run leaves on disk: the files that the checkpoint and the sinks may have, and the rows in them."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import headrace as hr
from simulation.history import Rows, ViolationError


def check_bounds(checkpoint: Path) -> None:
    """After a batch, the checkpoint has the newest manifest and log entry, and at most those of the batch before."""
    for folder in ("manifest", "log"):
        names = [path.name for path in (checkpoint / folder).glob("[!.]*")]
        if len(names) > 2:
            raise ViolationError("unbounded files", f"{folder}: {sorted(names)}")


def check_files(checkpoint: Path, session: hr.Session) -> None:
    """After a restart, the checkpoint has the files that the newest manifest names, and plans of newer streams, no others."""
    names = {str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file()}
    manifests = sorted(name for name in names if name.startswith("manifest/"))
    text = (checkpoint / manifests[-1]).read_text()
    live = {f"queries/{q.id:08d}.query" for q in session.queries()}
    live |= session._coordinator.state.plan_files()  # no manifest has a stream that was declared after the last batch
    for name in sorted(names):
        folder, _, rest = name.rpartition("/")
        is_known = (
            not rest.startswith(".")
            and (folder in {"", "log", "manifest"} or folder.startswith("sources/") or f'"{name}"' in text or name in live)
            and not (folder in {"log", "manifest"} and len([n for n in names if n.startswith(f"{folder}/")]) > 2)
        )
        if not is_known and folder != "queries":
            raise ViolationError("orphaned file", name)


def check_sinks(folder: Path) -> None:
    """After a restart, no sink has files that are not published."""
    for path in folder.glob("*/_pending/*"):
        raise ViolationError("orphaned file", str(path.relative_to(folder)))


def read_rows(session: hr.Session, handle: hr.Query, after: int) -> dict[int, Rows]:
    """Return the rows of a query by batch; its columns need not be known any more."""
    found = session.result_reader.iter_rows(handle.id, after, handle.last_batch)
    return {batch: [row for part in rows for row in part.to_pylist()] for batch, rows in found}


def read_sink(folder: Path) -> dict[int, Rows]:
    found: dict[int, Rows] = {}
    for path in sorted(folder.glob("part-*.jsonl")):
        rows = [_parse_times(json.loads(line)) for line in path.read_text().splitlines()]
        found.setdefault(_find_batch(path), []).extend(rows)
    return found


def list_sink_batches(folder: Path) -> set[int]:
    return {_find_batch(path) for path in folder.glob("part-*.jsonl")}


def _find_batch(path: Path) -> int:
    return int(path.name.split("-")[1])


def _parse_times(row: dict[str, Any]) -> dict[str, Any]:
    return {n: datetime.fromisoformat(v) if n in {"w0", "w1", "v0", "time"} and v else v for n, v in row.items()}
