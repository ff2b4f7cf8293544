"""Reports of benchmarks: which there are, and each as the page it is."""

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
    """A report of a benchmark."""

    name: str = Field(description="Of the folder it lies in.")
    size_bytes: int


@router.get("/reports")
def reports(host: Served, _: Reader) -> list[ReportInfo]:
    """Return the reports of benchmarks, newest first; none if there is no folder of them."""
    return [ReportInfo(name=one.name, size_bytes=one.size, **one.card.model_dump()) for one in host.reports.listed()]


@router.get(
    "/reports/{name}",
    response_class=Response,  # HTMLResponse would have refusals described as HTML, too
    responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}, **MISSING},
)
def report(name: str, host: Served, _: Reader) -> HTMLResponse:
    """Return a report: one page that needs nothing else, and is allowed nothing else."""
    return HTMLResponse(host.reports.page(name), headers=_HEADERS)
