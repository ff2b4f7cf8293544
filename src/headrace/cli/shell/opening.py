"""The choice of the shell's target: a service, or a session in this process."""

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
    """A target and its description; `is_default` if the user did not choose it."""

    target: Target
    about: str
    found: bool = False


def open_target(place: str | None, backend: BackendName | None, token: str | None) -> Opened:
    """Open the target the user named; by default the service on the default port if it runs, otherwise the demo streams."""
    if place is None and backend is None and _somebody_listens():
        return _service(SERVICE, token, found=True)
    if place is not None and (place.startswith(("http://", "https://")) or _ADDRESS.fullmatch(place)):
        if backend is not None:
            raise typer.BadParameter("--backend applies to a session in this process, not to a service")
        return _service(place if "://" in place else f"http://{place}", token)
    chosen = backend or BackendName.local
    chosen.check()
    if place is None:
        session = _started(chosen, lambda: demo_session(chosen.value))
        reason = "" if backend else f"no service at {SERVICE}, so "
        return Opened(Embedded(session), f"{reason}a session in this process ({chosen.value}) with generated streams", found=True)
    file = SessionFile.load(Path(place), queries_needed=False)
    session = _started(chosen, lambda: file_session(file, chosen.value))
    bounded = any(stream.kind == "files" for stream in file.streams)
    note = "; reading starts with the first SELECT, TAIL or RESULTS" if bounded else ""
    return Opened(Embedded(session, bounded=bounded), f"a session in this process ({chosen.value}) from {place}{note}")


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
        hint = f"{error.hint}; or open a session in this process: headrace sql --backend local".removeprefix("; or ")
        raise HeadraceError(error.message, detail=error.detail, hint=hint) from error


def _started(backend: BackendName, open_session: Callable[[], Session]) -> Session:
    with progress_console(as_json=True).status(f"starting {'Spark' if backend is BackendName.spark else 'a session'} …"):
        return open_session()
