"""What a shell is opened on: a service that is named or found, or a session of its own."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import typer

from headrace.cli.session_file import SessionFile
from headrace.cli.shell.embedded import Embedded, demo_session, file_session
from headrace.cli.shell.remote import opened
from headrace.cli.shell.target import Target
from headrace.cli.terminal import BackendName, progress_console
from headrace.errors import HeadraceError
from headrace.session import Session

HOST, PORT = "127.0.0.1", 8420
SERVICE = f"http://{HOST}:{PORT}"
_KNOCK_SECONDS = 0.5
_ADDRESS = re.compile(r"[\w.-]+:\d+", re.ASCII)


class Opened(NamedTuple):
    """A target, and what it is in a few words; `found` if it was not named by the user."""

    target: Target
    about: str
    found: bool = False


def open_target(place: str | None, backend: BackendName | None, token: str | None) -> Opened:
    """Open what the user named; if that is nothing, the service that listens where one does, or else the demo's streams."""
    if place is None and backend is None and _somebody_listens():
        return _service(SERVICE, token, found=True)
    if place is not None and (place.startswith(("http://", "https://")) or _ADDRESS.fullmatch(place)):
        if backend is not None:
            raise typer.BadParameter("--backend is for a session of one's own, not for a service")
        return _service(place if "://" in place else f"http://{place}", token)
    chosen = backend or BackendName.local
    chosen.check()
    if place is None:
        session = _started(chosen, lambda: demo_session(chosen.value))
        why = "" if backend else f"no service at {SERVICE}, so "
        return Opened(Embedded(session), f"{why}a session of its own ({chosen.value}), with made-up streams", found=True)
    file = SessionFile.load(Path(place), queries_needed=False)
    session = _started(chosen, lambda: file_session(file, chosen.value))
    bounded = any(stream.kind == "files" for stream in file.streams)
    rest = "; rows are read from the first SELECT, TAIL or RESULTS on" if bounded else ""
    return Opened(Embedded(session, bounded=bounded), f"a session of its own ({chosen.value}) over {place}{rest}")


def _somebody_listens() -> bool:
    try:
        socket.create_connection((HOST, PORT), _KNOCK_SECONDS).close()
    except OSError:
        return False
    return True


def _service(url: str, token: str | None, *, found: bool = False) -> Opened:
    try:
        return Opened(opened(url, token), f"the service at {url}", found)
    except HeadraceError as error:
        if not found:
            raise
        hint = f"{error.hint}; or open a session of your own: headrace sql --backend local".removeprefix("; or ")
        raise HeadraceError(error.message, detail=error.detail, hint=hint) from error


def _started(backend: BackendName, open_session: Callable[[], Session]) -> Session:
    with progress_console(as_json=True).status(f"starting {'Spark' if backend is BackendName.spark else 'a session'} …"):
        return open_session()
