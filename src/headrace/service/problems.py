"""Errors as HTTP responses (a status, and the parts of the error as JSON), and the base class of request bodies."""

from __future__ import annotations

import math
import re
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator

from headrace.errors import (
    HeadraceError,
    InternalError,
    NameTakenError,
    NotFoundError,
    OwnershipLostError,
    QueueFullError,
    SchemaError,
    SessionError,
    SqlError,
    log_internal_error,
)


class ForbiddenPathError(HeadraceError):
    """A request names a file or a destination that requests may not name."""


_STATUS_BY_ERROR: tuple[tuple[type[HeadraceError], int], ...] = (
    (SqlError, 422),
    (SchemaError, 422),
    (NotFoundError, 404),
    (NameTakenError, 409),
    (ForbiddenPathError, 403),
    (QueueFullError, 429),
    (SessionError, 409),
    (InternalError, 500),
    (OwnershipLostError, 503),
    (HeadraceError, 422),
)

_RETRY_SECONDS = 5  # after which a queue that was full may have room
_MAX_TEXT_CHARACTERS = 2_000  # characters of a part; errors quote values, which can be of any length
_PLACE_PATTERN = re.compile(r"line (\d+), column (\d+):")


class Problem(BaseModel):
    """An error; the parts are those of every error of headrace."""

    error: str = Field(description="What is wrong.")
    place: str = Field(default="", description="For SQL: the line, with a caret below the error.")
    line: int = Field(default=0, description="The line of the error, counted from 1; 0 if it has no place.")
    column: int = Field(default=0, description="The column of the error, counted from 1; 0 if it has no place.")
    detail: str = Field(default="", description="Details, such as the names that exist.")
    hint: str = Field(default="", description="What to do.")


class HttpRequestError(HeadraceError):
    """A rejected request with its HTTP status; `retry_s` becomes Retry-After, for requests that may succeed later."""

    def __init__(self, status: int, message: str, *, detail: str = "", hint: str = "", retry_s: float | None = None) -> None:
        """Take the HTTP status and the parts of the error."""
        super().__init__(message, detail=detail, hint=hint)
        self.status, self.retry_s = status, retry_s


async def handle_error(_: Request, error: Exception) -> JSONResponse:
    """Handle a HeadraceError raised by a path: return its response."""
    assert isinstance(error, HeadraceError)
    return problem_response(error)


async def handle_unexpected_error(request: Request, problem: Exception) -> JSONResponse:
    """Handle an exception of any other kind, a bug of headrace: log it, and return a response that has its reference only."""
    return problem_response(log_internal_error(f"{request.method} {request.url.path}", problem))


def problem_response(error: HeadraceError) -> JSONResponse:
    """Return the response of an error."""
    if isinstance(error, HttpRequestError):
        status, headers = error.status, {}
        if error.retry_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(error.retry_s)))
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
    else:
        status = next(code for error_type, code in _STATUS_BY_ERROR if isinstance(error, error_type))
        headers = {"Retry-After": str(_RETRY_SECONDS)} if isinstance(error, QueueFullError) else {}
    match = _PLACE_PATTERN.match(error.place)
    line, column = (int(match[1]), int(match[2])) if match else (0, 0)
    message, detail, hint = (
        part if len(part) <= _MAX_TEXT_CHARACTERS else f"{part[:_MAX_TEXT_CHARACTERS]}…"
        for part in (error.message, error.detail, error.hint)
    )
    content = Problem(error=message, place=error.place, line=line, column=column, detail=detail, hint=hint)
    return JSONResponse(content.model_dump(), status, headers)


_MAX_KEYS = 50


class RequestBody(BaseModel):
    """A request body that rejects unknown keys.

    Pydantic reports each unknown key, so a body with thousands is rejected as a whole before it blocks the event loop.
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_key_count(cls, body: Any) -> Any:
        if isinstance(body, dict) and len(body) > _MAX_KEYS:
            raise ValueError(f"the body has {len(body):,} keys; at most {_MAX_KEYS} are allowed")
        return body
