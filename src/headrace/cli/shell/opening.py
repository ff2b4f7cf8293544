"""The choice of the shell's target: a service, or a session in this process."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import typer

from headrace.cli.session_file import SessionFile
from headrace.cli.shell.embedded import EmbeddedTarget, open_demo_session, open_file_session
from headrace.cli.shell.remote import open_remote
from headrace.cli.shell.target import ShellTarget
from headrace.cli.terminal import BackendName, progress_console
from headrace.errors import HeadraceError
from headrace.session import Session

HOST, PORT = "127.0.0.1", 8420
SERVICE = f"http://{HOST}:{PORT}"
_CONNECT_TIMEOUT_SECONDS = 0.5
_ADDRESS_PATTERN = re.compile(r"[\w.-]+:\d+", re.ASCII)


class OpenedTarget(NamedTuple):
    """A target and its description; `is_default` if the user did not choose it."""

    target: ShellTarget
    description: str
    is_default: bool = False


def open_target(place: str | None, backend: BackendName | None, token: str | None) -> OpenedTarget:
    """Open the target the user named; by default the service on the default port if it runs, otherwise the demo streams."""
    if place is None and backend is None and _is_service_listening():
        return _open_service(SERVICE, token, is_default=True)
    if place is not None and (place.startswith(("http://", "https://")) or _ADDRESS_PATTERN.fullmatch(place)):
        if backend is not None:
            raise typer.BadParameter("--backend applies to a session in this process, not to a service")
        return _open_service(place if "://" in place else f"http://{place}", token)
    chosen = backend or BackendName.local
    chosen.check_available()
    if place is None:
        session = _start_session(chosen, lambda: open_demo_session(chosen.value))
        reason = "" if backend else f"no service at {SERVICE}, so "
        return OpenedTarget(
            EmbeddedTarget(session), f"{reason}a session in this process ({chosen.value}) with generated streams", is_default=True
        )
    file = SessionFile.load(Path(place), require_queries=False)
    session = _start_session(chosen, lambda: open_file_session(file, chosen.value))
    bounded = any(stream.kind == "files" for stream in file.streams)
    note = "; reading starts with the first SELECT, TAIL or RESULTS" if bounded else ""
    return OpenedTarget(
        EmbeddedTarget(session, bounded=bounded), f"a session in this process ({chosen.value}) from {place}{note}"
    )


def _is_service_listening() -> bool:
    try:
        socket.create_connection((HOST, PORT), _CONNECT_TIMEOUT_SECONDS).close()
    except OSError:
        return False
    return True


def _open_service(url: str, token: str | None, *, is_default: bool = False) -> OpenedTarget:
    try:
        return OpenedTarget(open_remote(url, token), f"the service at {url}", is_default)
    except HeadraceError as error:
        if not is_default:
            raise
        hint = f"{error.hint}; or open a session in this process: headrace sql --backend local".removeprefix("; or ")
        raise HeadraceError(error.message, detail=error.detail, hint=hint) from error


def _start_session(backend: BackendName, open_session: Callable[[], Session]) -> Session:
    with progress_console(as_json=True).status(f"starting {'Spark' if backend is BackendName.spark else 'a session'} …"):
        return open_session()
