"""Paths of benchmark reports: the list, and each report as an HTML page."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse
from pydantic import Field

from headrace.service.api.common import COMMON_ERRORS, NOT_FOUND, AdminAccess, HostDep
from headrace.service.reports import REPORT_POLICY, ReportCard

router = APIRouter(prefix="/v1", tags=["reports"], responses=COMMON_ERRORS)

_REPORT_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"{REPORT_POLICY}; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class ReportInfo(ReportCard):
    """A benchmark report."""

    name: str = Field(description="Name of its folder.")
    size_bytes: int


@router.get("/reports")
def list_reports(host: HostDep, _: AdminAccess) -> list[ReportInfo]:
    """Return the benchmark reports, newest first; an empty list if the folder of reports is missing."""
    return [
        ReportInfo(name=report.name, size_bytes=report.size, **report.card.model_dump()) for report in host.reports.list_reports()
    ]


@router.get(
    "/reports/{name}",
    response_class=Response,  # HTMLResponse would document errors as HTML, too
    responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}, **NOT_FOUND},
)
def get_report(name: str, host: HostDep, _: AdminAccess) -> HTMLResponse:
    """Return a report: a self-contained page, which its content security policy keeps from loading anything."""
    return HTMLResponse(host.reports.read_page(name), headers=_REPORT_HEADERS)
