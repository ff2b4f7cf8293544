"""How far one consumer group is in one partition.

    0        committed          read        [   )      produced
    ├───────────┼─────────────────┼──────────┼───┼─────────┤
      forgotten    may be read again          read out of order

Several readers may fetch parts of a batch at once, in any order: `read` goes on only when nothing before it is missing.
"""

from __future__ import annotations

from headrace.errors import HeadraceError


class Cursor:
    """Row numbers of one partition. Not thread-safe: its queue holds the lock."""

    def __init__(self, start: int) -> None:
        """Begin at a row: what is before it is none of the group's business."""
        self.read = self.committed = start
        self._ahead: dict[int, int] = {}  # parts read beyond `read`: start → stop

    def check(self, start: int, stop: int, produced: int) -> None:
        """Refuse rows that are not there: not yet, or no longer for this group."""
        if not 0 <= start <= stop:
            raise HeadraceError(f"rows {start} to {stop} are no range")
        if stop > produced:
            raise HeadraceError(f"rows up to {stop} were asked for, but only {produced} are there yet")
        if start < self.committed:
            raise HeadraceError(f"rows from {start} were asked for, but this group has committed those before {self.committed}")

    def took(self, start: int, stop: int) -> None:
        """Note that rows [start, stop) were handed out."""
        self._ahead[start] = max(stop, self._ahead.get(start, stop))
        for begin in sorted(self._ahead):
            if begin > self.read:
                break
            self.read = max(self.read, self._ahead.pop(begin))

    def check_commit(self, position: int) -> None:
        """Refuse to give up rows that were never read."""
        if not 0 <= position <= self.read:
            raise HeadraceError(f"rows before {position} cannot be committed: {self.read} were read")

    def commit(self, position: int) -> None:
        """Give up the rows before `position`; what was given up before stays so."""
        self.check_commit(position)
        self.committed = max(self.committed, position)
