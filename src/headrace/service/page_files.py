"""The page: the files of `page/`, served as they are. Browsers are told that it loads what is served here, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from headrace.service.reports import POLICY

_FOLDER = Path(__file__).parent / "page"
_KINDS = {  # said here: what the system's tables say of .js differs from machine to machine
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_POLICY = (  # data: is what the editor's own style sheet draws with
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FRAME = "report_frame.html"  # what the page puts reports into
_FRAME_POLICY = f"{POLICY}; frame-ancestors 'self'"
_HEADERS = {
    "Cache-Control": "no-cache",  # asked for each time, and answered with 304 if nothing changed
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class _Page(StaticFiles):
    """Files with the headers of a page; no token is needed for them, as there is nothing of a session in them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file, or that it has not changed."""
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        if path == _FRAME:
            response.headers["Content-Security-Policy"] = _FRAME_POLICY
        kind = _KINDS.get(Path(path).suffix)
        if kind is not None and response.status_code == 200:
            response.headers["Content-Type"] = kind
        return response


def mount(app: FastAPI) -> None:
    """Serve the page at / and its parts below /page; called once, after all other paths."""
    files: Any = _Page(directory=_FOLDER)

    async def page(request: Request) -> Response:
        found: Response = await files.get_response("index.html", request.scope)
        return found

    app.add_route("/", page, methods=["GET", "HEAD"], include_in_schema=False)
    app.mount("/page", files, name="page")
