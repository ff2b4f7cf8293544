"""Errors as HTTP responses: status, headers, and the place of an error in a query."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.errors import HeadraceError, NameTakenError, NotFoundError, QueueFullError, SessionError, SqlError
from headrace.service.problems import HttpRequestError, problem_response


def read_content(error: HeadraceError) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(problem_response(error).body)
    return content


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SqlError("x"), 422),
        (NotFoundError("x"), 404),
        (NameTakenError("x"), 409),
        (SessionError("x"), 409),
        (QueueFullError("x"), 429),
        (HeadraceError("x"), 422),
    ],
)
def test_every_kind_of_error_has_its_status(error: HeadraceError, status: int):
    assert problem_response(error).status_code == status


def test_an_error_without_a_place_has_line_and_column_zero():
    expected = {"error": "no query 'q'", "place": "", "line": 0, "column": 0, "detail": "queries: a", "hint": "add it"}
    assert read_content(NotFoundError("no query 'q'", detail="queries: a", hint="add it")) == expected


def test_the_place_of_an_error_is_a_line_and_a_column():
    content = read_content(SqlError("unknown column 'x'", place="line 3, column 14: SELECT x"))
    assert (content["line"], content["column"]) == (3, 14)


def test_long_parts_are_cut():
    content = read_content(HeadraceError("m" * 2_000, detail="d" * 2_001))
    assert (content["error"], content["detail"]) == ("m" * 2_000, "d" * 2_000 + "…")


def test_headers_of_rejected_requests():
    def list_headers(error: HeadraceError) -> dict[str, str]:
        headers = problem_response(error).headers
        return {name: headers[name] for name in ("retry-after", "www-authenticate") if name in headers}

    assert list_headers(HttpRequestError(401, "no token")) == {"www-authenticate": "Bearer"}
    assert list_headers(HttpRequestError(403, "not allowed")) == {}
    assert list_headers(HttpRequestError(429, "too many", retry_s=2.1)) == {"retry-after": "3"}
    assert list_headers(QueueFullError("too many")) == {"retry-after": "5"}
    assert list_headers(HttpRequestError(503, "busy", retry_s=0.0)) == {"retry-after": "1"}
