"""How far a reader has come in the results of a query: a batch, and rows of it.

Positions are only ever compared and handed back. They stay good over restarts: a batch that is committed never changes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.service.refusals import RefusedError

_TEXT = re.compile(r"(\d{1,15})\.(\d{1,15})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """All rows of batches before `batch`, and the first `rows` rows of it."""

    batch: int = 0
    rows: int = 0

    def __str__(self) -> str:
        """Return what `parse` reads."""
        return f"{self.batch}.{self.rows}"

    @staticmethod
    def parse(text: str) -> Position:
        """Read a position that was handed out."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise RefusedError(
                422,
                f"'{text[:80]}' is no position",
                hint="give back one that came with results, as '17.0', or 'beginning', 'last-100' or 'now'",
            )
        return Position(int(match[1]), int(match[2]))


BEGINNING = Position()
