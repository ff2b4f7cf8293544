"""Window state: assigns rows to windows and closes final windows, with one class per kind of window.

A state buffers the rows themselves. `add` takes a row that passed the predicate and returns its outcome; `close` yields, and
drops, every window that ends at or before the watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from headrace.model.window import HopWindow, SessionWindow, Window, window_starts_containing


@dataclass(frozen=True, slots=True)
class WindowItem:
    """A buffered row: its event time, `group` (equal for equal keys), the displayed keys, and the aggregates' arguments."""

    time: int
    group: tuple[Any, ...]
    keys: tuple[Any, ...]
    arguments: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class ClosedWindow:
    """One group of a final window, with its rows in order of arrival (in a session: of event time)."""

    start: int
    end: int
    items: list[WindowItem]


class RowOutcome(Enum):
    """The outcome of adding a row to window state."""

    KEPT = "kept"
    LATE = "late"
    OUTSIDE = "outside"  # outside every window that starts at or after `since`: in a gap, or only in earlier windows


class WindowState(Protocol):
    """The rows of one query in windows that are not final."""

    def add(self, time: int, watermark: float, make: Callable[[], WindowItem]) -> RowOutcome:
        """Add a row of a batch with that watermark; call `make` only if the row is in an open window."""

    def close(self, watermark: float) -> Iterator[ClosedWindow]:
        """Yield all windows with end ≤ watermark, ascending, and drop their rows."""


def make_window_state(window: Window, since: float) -> WindowState:
    """Return an empty state; windows that start before `since` are ignored."""
    return HopWindowState(window, since) if isinstance(window, HopWindow) else SessionWindowState(window)


@dataclass(slots=True)
class HopWindowState:
    """State of TUMBLE and HOP windows: start → group → rows."""

    window: HopWindow
    since: float
    _open_windows: dict[int, dict[tuple[Any, ...], list[WindowItem]]] = field(default_factory=dict)

    def add(self, time: int, watermark: float, make: Callable[[], WindowItem]) -> RowOutcome:
        """Add the row to those of its windows that are open."""
        starts = [start for start in window_starts_containing(self.window, time) if start >= self.since]
        open_starts = [start for start in starts if start + self.window.size > watermark]
        if not open_starts:
            return RowOutcome.LATE if starts else RowOutcome.OUTSIDE
        item = make()
        for start in open_starts:
            self._open_windows.setdefault(start, {}).setdefault(item.group, []).append(item)
        return RowOutcome.KEPT

    def close(self, watermark: float) -> Iterator[ClosedWindow]:
        """Yield final windows by start, then by first arrival of the group."""
        for start in sorted(start for start in self._open_windows if start + self.window.size <= watermark):
            for items in self._open_windows.pop(start).values():
                yield ClosedWindow(start, start + self.window.size, items)


@dataclass(slots=True)
class SessionWindowState:
    """State of SESSION windows: group → rows not emitted yet."""

    window: SessionWindow
    _pending: dict[tuple[Any, ...], list[WindowItem]] = field(default_factory=dict)

    def add(self, time: int, watermark: float, make: Callable[[], WindowItem]) -> RowOutcome:
        """Add the row unless a session of this row alone would be final already."""
        if time + self.window.gap <= watermark:
            return RowOutcome.LATE
        item = make()
        self._pending.setdefault(item.group, []).append(item)
        return RowOutcome.KEPT

    def close(self, watermark: float) -> Iterator[ClosedWindow]:
        """Yield final sessions by start, then by end, then by first arrival of the group."""
        closed = []
        for group in list(self._pending):
            sessions = list(self._split_sessions(self._pending[group]))
            closed += [session for session in sessions if session.end <= watermark]
            self._pending[group] = [item for session in sessions if session.end > watermark for item in session.items]
            if not self._pending[group]:
                del self._pending[group]
        yield from sorted(closed, key=lambda session: (session.start, session.end))

    def _split_sessions(self, items: list[WindowItem]) -> Iterator[ClosedWindow]:
        """Split the rows of a group wherever two neighbours are more than the gap apart."""
        run: list[WindowItem] = []
        for item in sorted(items, key=lambda item: item.time):
            if run and item.time - run[-1].time > self.window.gap:
                yield self._make_session(run)
                run = []
            run.append(item)
        yield self._make_session(run)

    def _make_session(self, run: list[WindowItem]) -> ClosedWindow:
        return ClosedWindow(run[0].time, run[-1].time + self.window.gap, run)
