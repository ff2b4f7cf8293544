"""Reports of benchmarks: the `report.html` of a folder and of the folders in it, as `headrace bench report` writes them.

A report says on its first lines what it is of; what does not say so is none. A report is asked for by the name it was listed
under, and that name is never made part of a path. What is in a report is not trusted: browsers are told to give it an origin
of its own, and no way to reach anybody, this service included.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from headrace.errors import NotFoundError

POLICY = (  # a report is one file, with its scripts and styles in it
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; sandbox allow-scripts"
)
_FILE = "report.html"
_CARD = re.compile(r'<meta name="headrace-report" content="([^"]*)">')
_CARD_BYTES = 1 << 16
_MOST = 500


class Card(BaseModel):
    """What a report says of itself."""

    title: str = Field(description="Of the scenarios in it.")
    scenarios: list[str]
    systems: list[str] = Field(description="Those that were measured.")
    started_at: AwareDatetime = Field(description="When its last run began.")
    runs: int
    failed: int = Field(description="Runs that failed.")
    headline: str = Field(description="What came out, in one sentence; empty if headrace was not among the systems.")


@dataclass(frozen=True, slots=True)
class Report:
    """A report that can be read."""

    name: str
    path: Path
    size: int
    card: Card


class Reports:
    """The reports below a folder, which need not be there; it is looked at anew each time."""

    def __init__(self, folder: Path | None, most_bytes: int) -> None:
        """Files that are larger are not listed."""
        self._folder, self._most_bytes = folder, most_bytes

    def listed(self) -> list[Report]:
        """Return all reports, newest first; whatever cannot be read, or lies elsewhere, is left out."""
        found: dict[str, Report] = {}
        for name, path in self._files():
            report = self._look(name, path)
            if report is not None:
                found.setdefault(name, report)
        return sorted(found.values(), key=lambda report: report.card.started_at, reverse=True)[:_MOST]

    def page(self, name: str) -> bytes:
        """Return the page of a report that is listed."""
        found = next((report for report in self.listed() if report.name == name), None)
        content = b"" if found is None else _beginning(found.path, self._most_bytes + 1)
        if not 0 < len(content) <= self._most_bytes:
            raise NotFoundError(f"report '{name[:80]}' is not there", hint="GET /v1/reports lists those that are")
        return content

    def _files(self) -> Iterator[tuple[str, Path]]:
        """Yield names, and files that may be reports: links followed, and none that lead out of the folder."""
        if self._folder is None:
            return
        try:
            folder = self._folder.resolve(strict=True)
            found = [folder / _FILE, *sorted(folder.glob(f"*/{_FILE}"))]
        except OSError:
            return
        for path in found:
            try:
                whole = path.resolve(strict=True)
            except (OSError, RuntimeError):  # a link to itself is the latter, before Python 3.13
                continue
            if whole.is_relative_to(folder) and whole.is_file():  # a pipe would have us wait
                yield path.parent.name or path.stem, whole

    def _look(self, name: str, path: Path) -> Report | None:
        try:
            size = path.stat().st_size
        except OSError:
            return None
        found = _CARD.search(_beginning(path, _CARD_BYTES).decode("utf-8", "replace"))
        if found is None or size > self._most_bytes or not name.isprintable():
            return None
        try:
            return Report(name, path, size, Card.model_validate_json(html.unescape(found[1])))
        except ValidationError:
            return None


def _beginning(path: Path, size: int) -> bytes:
    """Return the first bytes of a file; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""
