"""The queries of a session file meet those of a checkpoint.

Same name, text and sink: the query goes on. In the checkpoint only: removed. In the file only: added. Same name but
another text or sink: refused, for its results would be of two kinds. Failed before: it stays failed, as it would have.
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

_PARTS = "part-*"


@dataclass(frozen=True, slots=True)
class Known:
    """A query of the session and where its results go."""

    handle: Query
    sink: Sink

    @property
    def rows(self) -> int:
        """How many rows it emitted."""
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
        """How many rows came too late, by stream."""
        return self.handle.late

    @property
    def path(self) -> str | None:
        """The directory it writes to, if it does."""
        return getattr(self.sink, "path", None)


def known_queries(session: Session) -> dict[str, Known]:
    """Return the queries a recovered session has, live or failed, by name; of several failed ones the last."""
    records = session._queries.records.values()  # noqa: SLF001
    failed = {record.name: Known(Query(session, record), record.sink) for record in records if record.status == "failed"}
    return failed | {query.name: Known(query, query._record.sink) for query in session.queries()}  # noqa: SLF001


def install(
    session: Session, file: SessionFile, sinks: Mapping[str, Sink], known: Mapping[str, Known], console: Console
) -> dict[str, Known]:
    """Make the session's queries those of the file; return them in the order of the file."""
    wanted = {query.name: query for query in file.queries}
    for query in file.queries:  # refuse before anything is changed
        _check(query, sinks[query.name], known.get(query.name), session, file)
    for name, found in known.items():
        if name not in wanted and found.status != "failed":
            session.remove(name)
            console.print(f"query '{name}' is no longer in the file: removed", markup=False)
    return {name: known[name] if name in known else _added(session, query, sinks[name]) for name, query in wanted.items()}


def _added(session: Session, query: QueryEntry, sink: Sink) -> Known:
    return Known(session.add(query.sql, name=query.name, sink=sink), sink)


def _check(query: QueryEntry, sink: Sink, known: Known | None, session: Session, file: SessionFile) -> None:
    path = getattr(sink, "path", None)
    if known is None:
        if path is not None and any(Path(path).glob(_PARTS)):
            raise SessionError(
                f"directory '{path}' of query '{query.name}' already holds results, but not of this checkpoint",
                hint="remove it, name another one, or start over with --fresh",
            )
        return
    hint = f"rename the query, start over with --fresh, or use another --checkpoint than '{_checkpoint(session)}'"
    if known.handle.sql != query.sql:
        raise NameTakenError(
            f"query '{query.name}' in '{file.path}' has another text than in the checkpoint",
            detail=f"then: {known.handle.sql}",
            hint=hint,
        )
    if known.sink != sink:
        raise NameTakenError(
            f"query '{query.name}' in '{file.path}' has another sink than in the checkpoint",
            detail=f"then: {known.path or known.sink.kind}; now: {path or sink.kind}",
            hint=hint,
        )
    if path is not None and known.rows and not Path(path).is_dir():
        raise SessionError(
            f"directory '{path}' of query '{query.name}' is gone, with {known.rows} rows that will not be written again",
            hint=hint,
        )


def _checkpoint(session: Session) -> Path:
    return session.results_folder.parent


def was_drained(session: Session) -> bool:
    """Tell whether all windows were closed by an earlier run with --once: whatever comes now is late for them."""
    return session._coordinator.state.drained  # noqa: SLF001


def _check_unused(checkpoint: Path) -> None:
    with (checkpoint / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint '{checkpoint}' is in use by another session", hint="stop that one first"
            ) from error


def forget(checkpoint: Path | None, sinks: Iterable[Sink]) -> None:
    """Remove a checkpoint and the result files of these sinks; nothing else that may be there."""
    if checkpoint is not None and checkpoint.exists():
        if not (checkpoint / "HEADRACE").exists():
            raise HeadraceError(
                f"directory '{checkpoint}' is not a headrace checkpoint, so --fresh leaves it alone", hint="remove it by hand"
            )
        _check_unused(checkpoint)
        shutil.rmtree(checkpoint)
    for sink in sinks:
        path = getattr(sink, "path", None)
        for part in Path(path).glob(_PARTS) if path is not None else ():
            part.unlink()
