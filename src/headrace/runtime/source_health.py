"""Health of sources: a stream whose source fails is degraded, and its source is tried again after a growing delay.

A degraded stream stops alone. Its position does not move, so that it misses no row; the streams and queries beside it go on. The
delay before the next attempt doubles with every failure, and the first success ends it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.errors import SourceError

_LOG = logging.getLogger("headrace")
FIRST_DELAY_SECONDS = 0.1
MAX_DELAY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class SourceFailure:
    """Why a stream is degraded, how many attempts have failed in a row, and when the next one is due, by the clock."""

    error: SourceError
    attempts: int
    retry_at: float


class SourceHealth:
    """The failures of the sources of a session, by stream. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without failures; `clock` returns seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: dict[str, SourceFailure] = {}
        self.on_change: Callable[[str, str | None], None] = lambda _stream, _error: None
        """Called with the error of a stream that is degraded, or with None when it is readable again; must not wait."""

    def record_failure(self, stream: str, error: SourceError) -> None:
        """Degrade a stream, and double the delay until its source is tried again."""
        with self._lock:
            earlier = self._failures.get(stream)
            attempts = 1 if earlier is None else earlier.attempts + 1
            delay = min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(attempts - 1, 30))
            self._failures[stream] = SourceFailure(error, attempts, self._clock() + delay)
        if earlier is None or earlier.error.message != error.message:
            _LOG.warning("stream '%s' is degraded: %s", stream, error)
            self.on_change(stream, str(error))

    def record_success(self, stream: str) -> None:
        """End the failure of a stream, if there is one."""
        if stream in self._failures:
            self.forget(stream)
            _LOG.warning("stream '%s' is readable again", stream)
            self.on_change(stream, None)

    def forget(self, stream: str) -> None:
        """Forget a stream, because it was dropped or has another source."""
        with self._lock:
            self._failures.pop(stream, None)

    def is_due(self, stream: str) -> bool:
        """Return whether the source of a stream may be called: it did not fail, or the delay after its failure is over."""
        failure = self._failures.get(stream)
        return failure is None or failure.retry_at <= self._clock()

    def retry_now(self) -> None:
        """Make every degraded stream due; a further failure continues the sequence of delays."""
        with self._lock:
            now = self._clock()
            self._failures = {name: SourceFailure(f.error, f.attempts, now) for name, f in self._failures.items()}

    @property
    def failures(self) -> Mapping[str, SourceFailure]:
        """The failures of degraded streams, by stream."""
        with self._lock:
            return dict(self._failures)


def to_source_error(stream: str, problem: Exception) -> SourceError:
    """Return the error of a source, with the name of its stream; any unexpected exception of a source is one."""
    if isinstance(problem, SourceError):
        problem.stream = stream
        return problem
    error = SourceError(f"source of stream '{stream}' failed", stream=stream, detail=f"{type(problem).__name__}: {problem}")
    error.__cause__ = problem
    return error
