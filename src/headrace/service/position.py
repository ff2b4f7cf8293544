"""Positions in the results of a query: a batch, and a number of its rows.

Clients only compare positions and hand them back. They stay valid across restarts, because a committed batch never changes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.service.refusals import HttpRequestError

_POSITION_PATTERN = re.compile(r"(\d{1,15})\.(\d{1,15})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The position after all batches before `batch` and the first `rows` rows of `batch`."""

    batch: int = 0
    rows: int = 0

    def __str__(self) -> str:
        """Return the text form that `parse` reads."""
        return f"{self.batch}.{self.rows}"

    @staticmethod
    def parse(text: str) -> Position:
        """Parse the text form of a position."""
        match = _POSITION_PATTERN.fullmatch(text)
        if match is None:
            raise HttpRequestError(
                422,
                f"invalid position '{text[:80]}'",
                hint="use a position that came with results, such as '17.0', or 'beginning', 'last-100' or 'now'",
            )
        return Position(int(match[1]), int(match[2]))


BEGINNING = Position()
