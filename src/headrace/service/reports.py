"""Benchmark reports: the `report.html` of a folder and of its subfolders, as `headrace bench report` writes them.

A report has a card (metadata) in its first lines; a file without one is not a report. Clients name a report as it was listed,
and that name never becomes part of a path. Reports are not trusted: the content security policy gives them an opaque origin
and no network access, not even to this service.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from headrace.errors import NotFoundError

REPORT_POLICY = (  # a report is a single file with inline scripts and styles
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; sandbox allow-scripts"
)
_REPORT_FILE = "report.html"
_CARD_PATTERN = re.compile(r'<meta name="headrace-report" content="([^"]*)">')
_CARD_BYTES = 1 << 16
_MAX_REPORTS = 500


class ReportCard(BaseModel):
    """The metadata in a report."""

    title: str = Field(description="Title, from its scenarios.")
    scenarios: list[str]
    systems: list[str] = Field(description="The systems that were measured.")
    started_at: AwareDatetime = Field(description="When its last run started.")
    runs: int
    failed: int = Field(description="Runs that failed.")
    headline: str = Field(description="The result in one sentence; empty if headrace was not among the systems.")


@dataclass(frozen=True, slots=True)
class BenchmarkReport:
    """A readable report file and its card."""

    name: str
    path: Path
    size: int
    card: ReportCard


class ReportFolder:
    """The reports below a folder, which may be missing; every call reads the folder again."""

    def __init__(self, folder: Path | None, max_bytes: int) -> None:
        """Take the folder and the size above which files are not listed."""
        self._folder, self._max_bytes = folder, max_bytes

    def list_reports(self) -> list[BenchmarkReport]:
        """Return all reports, newest first, without unreadable files and links that lead out of the folder."""
        reports: dict[str, BenchmarkReport] = {}
        for name, path in self._list_candidates():
            report = self._read_card(name, path)
            if report is not None:
                reports.setdefault(name, report)
        return sorted(reports.values(), key=lambda report: report.card.started_at, reverse=True)[:_MAX_REPORTS]

    def read_page(self, name: str) -> bytes:
        """Return the HTML of a listed report; raises NotFoundError."""
        match = next((report for report in self.list_reports() if report.name == name), None)
        content = b"" if match is None else _read_prefix(match.path, self._max_bytes + 1)
        if not 0 < len(content) <= self._max_bytes:
            raise NotFoundError(f"report '{name[:80]}' does not exist", hint="GET /v1/reports lists the reports")
        return content

    def _list_candidates(self) -> Iterator[tuple[str, Path]]:
        """Yield names and files that may be reports; links are resolved and must stay inside the folder."""
        if self._folder is None:
            return
        try:
            folder = self._folder.resolve(strict=True)
            candidates = [folder / _REPORT_FILE, *sorted(folder.glob(f"*/{_REPORT_FILE}"))]
        except OSError:
            return
        for path in candidates:
            try:
                resolved = path.resolve(strict=True)
            except (OSError, RuntimeError):  # RuntimeError: a link to itself, before Python 3.13
                continue
            if resolved.is_relative_to(folder) and resolved.is_file():  # reading a pipe would block
                yield path.parent.name or path.stem, resolved

    def _read_card(self, name: str, path: Path) -> BenchmarkReport | None:
        try:
            size = path.stat().st_size
        except OSError:
            return None
        card = _CARD_PATTERN.search(_read_prefix(path, _CARD_BYTES).decode("utf-8", "replace"))
        if card is None or size > self._max_bytes or not name.isprintable():
            return None
        try:
            return BenchmarkReport(name, path, size, ReportCard.model_validate_json(html.unescape(card[1])))
        except ValidationError:
            return None


def _read_prefix(path: Path, size: int) -> bytes:
    """Return the first bytes of a file; empty if the file is not readable."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""
