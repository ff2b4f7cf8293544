"""Paths of benchmark reports: the list, and each report as an HTML page."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse
from pydantic import Field

from headrace.service.api.common import MISSING, REFUSALS, Reader, Served
from headrace.service.reports import POLICY, Card

router = APIRouter(prefix="/v1", tags=["reports"], responses=REFUSALS)

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class ReportInfo(Card):
    """A benchmark report."""

    name: str = Field(description="Name of its folder.")
    size_bytes: int


@router.get("/reports")
def reports(host: Served, _: Reader) -> list[ReportInfo]:
    """Return the benchmark reports, newest first; an empty list if the folder of reports is missing."""
    return [ReportInfo(name=report.name, size_bytes=report.size, **report.card.model_dump()) for report in host.reports.listed()]


@router.get(
    "/reports/{name}",
    response_class=Response,  # HTMLResponse would document errors as HTML, too
    responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}, **MISSING},
)
def report(name: str, host: Served, _: Reader) -> HTMLResponse:
    """Return a report: a self-contained page, which its content security policy keeps from loading anything."""
    return HTMLResponse(host.reports.page(name), headers=_HEADERS)
