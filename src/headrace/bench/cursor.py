"""The position of one consumer group in one partition.

    0        committed          read        [   )      produced
    ├───────────┼─────────────────┼──────────┼───┼─────────┤
      dropped      may be read again          read out of order

Several readers may fetch parts of a batch concurrently and in any order: `read` advances only over rows without gaps.
"""

from __future__ import annotations

from headrace.errors import HeadraceError


class GroupCursor:
    """Row numbers of one partition. Not thread-safe: the queue holds the lock."""

    def __init__(self, start: int) -> None:
        """Start at a row; the group never reads the rows before it."""
        self.read = self.committed = start
        self._out_of_order: dict[int, int] = {}  # ranges read beyond `read`: start → stop

    def check_read(self, start: int, stop: int, produced: int) -> None:
        """Reject rows that are not produced yet or that this group has committed."""
        if not 0 <= start <= stop:
            raise HeadraceError(f"invalid row range {start} to {stop}")
        if stop > produced:
            raise HeadraceError(f"rows up to {stop} requested, but only {produced} are produced yet")
        if start < self.committed:
            raise HeadraceError(f"rows from {start} requested, but this group has committed the rows before {self.committed}")

    def record_read(self, start: int, stop: int) -> None:
        """Record that rows [start, stop) were sent."""
        self._out_of_order[start] = max(stop, self._out_of_order.get(start, stop))
        for begin in sorted(self._out_of_order):
            if begin > self.read:
                break
            self.read = max(self.read, self._out_of_order.pop(begin))

    def check_commit(self, position: int) -> None:
        """Reject a commit of rows that were not read."""
        if not 0 <= position <= self.read:
            raise HeadraceError(f"cannot commit the rows before {position}: only {self.read} were read")

    def commit(self, position: int) -> None:
        """Release the rows before `position`; a position below the committed one has no effect."""
        self.check_commit(position)
        self.committed = max(self.committed, position)
