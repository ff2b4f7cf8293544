"""The web page: the static files of `page/`, with a content security policy that allows only files of this service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from headrace.service.reports import REPORT_POLICY

_PAGE_FOLDER = Path(__file__).parent / "page"
_MEDIA_TYPES = {  # listed here because the system's media types, such as that of .js, differ between machines
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_PAGE_POLICY = (  # data: images are in the editor's own style sheet
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FRAME_FILE = "report_frame.html"  # the frame in which the page shows reports
_FRAME_POLICY = f"{REPORT_POLICY}; frame-ancestors 'self'"
_PAGE_HEADERS = {
    "Cache-Control": "no-cache",  # revalidated each time, 304 if unchanged
    "Content-Security-Policy": _PAGE_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class _PageFiles(StaticFiles):
    """Static files with security headers; they need no token because they contain no data of the session."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file, or 304 if it has not changed."""
        response = await super().get_response(path, scope)
        response.headers.update(_PAGE_HEADERS)
        if path == _FRAME_FILE:
            response.headers["Content-Security-Policy"] = _FRAME_POLICY
        kind = _MEDIA_TYPES.get(Path(path).suffix)
        if kind is not None and response.status_code == 200:
            response.headers["Content-Type"] = kind
        return response


def mount_page(app: FastAPI) -> None:
    """Serve the page at / and its files below /page; call it once, after all other paths are added."""
    files: Any = _PageFiles(directory=_PAGE_FOLDER)

    async def page(request: Request) -> Response:
        response: Response = await files.get_response("index.html", request.scope)
        return response

    app.add_route("/", page, methods=["GET", "HEAD"], include_in_schema=False)
    app.mount("/page", files, name="page")
