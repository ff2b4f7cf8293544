"""Reconciliation of the queries of a session file with those of a checkpoint.

Same name, text and sink: the query continues. Only in the checkpoint: it is removed. Only in the file: it is added. Same name but
a different text or sink: an error, because the results would mix two queries. A query that had failed stays failed.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from headrace.cli.session_file import QueryEntry, SessionFile
from headrace.connectors import Sink
from headrace.errors import CheckpointError, HeadraceError, NameTakenError, SessionError
from headrace.query import Query
from headrace.session import Session

_PART_FILES = "part-*"


@dataclass(frozen=True, slots=True)
class KnownQuery:
    """A query of the session and its sink."""

    handle: Query
    sink: Sink

    @property
    def row_count(self) -> int:
        """Number of emitted rows."""
        return self.handle.emitted

    @property
    def status(self) -> str:
        """One of accepted, live, removed, failed."""
        return self.handle.status

    @property
    def error(self) -> str | None:
        """Why it failed, if it did."""
        return self.handle.error

    @property
    def late(self) -> dict[str, int]:
        """Late rows, by stream."""
        return self.handle.late

    @property
    def path(self) -> str | None:
        """The folder of a file sink, otherwise None."""
        return getattr(self.sink, "path", None)


def load_known_queries(session: Session) -> dict[str, KnownQuery]:
    """Return the live and failed queries of a recovered session by name; the last one if several of a name failed."""
    records = session._registry.records.values()  # noqa: SLF001
    failed = {record.name: KnownQuery(Query(session, record), record.sink) for record in records if record.status == "failed"}
    return failed | {query.name: KnownQuery(query, query._record.sink) for query in session.queries()}  # noqa: SLF001


def install_queries(
    session: Session, file: SessionFile, sinks: Mapping[str, Sink], known: Mapping[str, KnownQuery], console: Console
) -> dict[str, KnownQuery]:
    """Add and remove queries so that the session has those of the file; return them in the order of the file."""
    entries = {entry.name: entry for entry in file.queries}
    for entry in file.queries:  # raise before anything changes
        _check_query(entry, sinks[entry.name], known.get(entry.name), session, file)
    for name, query in known.items():
        if name not in entries and query.status != "failed":
            session.remove(name)
            console.print(f"removed query '{name}', which is no longer in the file", markup=False)
    return {name: known[name] if name in known else _add_query(session, entry, sinks[name]) for name, entry in entries.items()}


def _add_query(session: Session, entry: QueryEntry, sink: Sink) -> KnownQuery:
    return KnownQuery(session.add(entry.sql, name=entry.name, sink=sink), sink)


def _check_query(entry: QueryEntry, sink: Sink, known: KnownQuery | None, session: Session, file: SessionFile) -> None:
    path = getattr(sink, "path", None)
    if known is None:
        if path is not None and any(Path(path).glob(_PART_FILES)):
            raise SessionError(
                f"directory '{path}' of query '{entry.name}' contains results of another checkpoint",
                hint="delete it, choose another one, or start over with --fresh",
            )
        return
    hint = f"rename the query, start over with --fresh, or use another --checkpoint than '{_checkpoint_folder(session)}'"
    if known.handle.sql != entry.sql:
        raise NameTakenError(
            f"query '{entry.name}' in '{file.path}' differs from its text in the checkpoint",
            detail=f"in the checkpoint: {known.handle.sql}",
            hint=hint,
        )
    if known.sink != sink:
        raise NameTakenError(
            f"query '{entry.name}' in '{file.path}' differs from its sink in the checkpoint",
            detail=f"in the checkpoint: {known.path or known.sink.kind}; in the file: {path or sink.kind}",
            hint=hint,
        )
    if path is not None and known.row_count and not Path(path).is_dir():
        raise SessionError(
            f"directory '{path}' of query '{entry.name}' is missing, with {known.row_count} rows that are not written again",
            hint=hint,
        )


def _checkpoint_folder(session: Session) -> Path:
    return session.results_folder.parent


def was_drained(session: Session) -> bool:
    """Return whether an earlier run with --once closed all windows, so that all new rows are late for them."""
    return session._coordinator.state.drained  # noqa: SLF001


def _check_unused(checkpoint: Path) -> None:
    with (checkpoint / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint '{checkpoint}' is in use by another session", hint="stop that one first"
            ) from error


def delete_checkpoint(checkpoint: Path | None, sinks: Iterable[Sink]) -> None:
    """Delete a checkpoint and the result files of these sinks, and no other files."""
    if checkpoint is not None and checkpoint.exists():
        if not (checkpoint / "HEADRACE").exists():
            raise HeadraceError(
                f"directory '{checkpoint}' is not a headrace checkpoint, so --fresh does not delete it", hint="delete it yourself"
            )
        _check_unused(checkpoint)
        shutil.rmtree(checkpoint)
    for sink in sinks:
        path = getattr(sink, "path", None)
        for part in Path(path).glob(_PART_FILES) if path is not None else ():
            part.unlink()
