"""Errors as answers: a status, and the parts of the error as JSON."""

from __future__ import annotations

import math
import re

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from headrace.errors import HeadraceError, NameTakenError, NotFoundError, SchemaError, SessionError, SqlError

_STATUS: tuple[tuple[type[HeadraceError], int], ...] = (
    (SqlError, 422),
    (SchemaError, 422),
    (NotFoundError, 404),
    (NameTakenError, 409),
    (SessionError, 409),
    (HeadraceError, 422),
)

_SAID = 2_000  # characters of a part: values that do not fit are quoted, however long they are
_PLACE = re.compile(r"line (\d+), column (\d+):")


class Problem(BaseModel):
    """What went wrong; the parts are those of every error of headrace."""

    error: str = Field(description="What kind of thing, quoted.")
    place: str = Field(default="", description="For SQL: the line, with a caret below the place.")
    line: int = Field(default=0, description="The line of the place, from 1 on; 0 if there is none.")
    column: int = Field(default=0, description="The column of the place, from 1 on; 0 if there is none.")
    detail: str = Field(default="", description="What is there instead.")
    hint: str = Field(default="", description="What to do.")


class RefusedError(HeadraceError):
    """A request that is not served, with the status that says why; `retry_s` is for those that may come again."""

    def __init__(self, status: int, message: str, *, detail: str = "", hint: str = "", retry_s: float | None = None) -> None:
        """Give the status of HTTP."""
        super().__init__(message, detail=detail, hint=hint)
        self.status, self.retry_s = status, retry_s


async def refused(_: Request, error: Exception) -> JSONResponse:
    """Answer with an error of headrace."""
    assert isinstance(error, HeadraceError)
    return problem(error)


def problem(error: HeadraceError) -> JSONResponse:
    """Return the answer that says what was wrong."""
    if isinstance(error, RefusedError):
        status, headers = error.status, {}
        if error.retry_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(error.retry_s)))
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
    else:
        status, headers = next(code for kind, code in _STATUS if isinstance(error, kind)), {}
    where = _PLACE.match(error.place)
    line, column = (int(where[1]), int(where[2])) if where else (0, 0)
    said, detail, hint = (
        part if len(part) <= _SAID else f"{part[:_SAID]}…" for part in (error.message, error.detail, error.hint)
    )
    content = Problem(error=said, place=error.place, line=line, column=column, detail=detail, hint=hint)
    return JSONResponse(content.model_dump(), status, headers)
