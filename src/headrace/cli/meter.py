"""Measurement of a running session from outside: rows per second and micro-batch times."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from headrace.session import Session

_RATE_WINDOW_SECONDS = 5.0
_IDLE_SECONDS = 0.05


class SessionMeter:
    """Advances a session and measures each micro-batch. One thread calls `advance`; any thread may read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Take a clock that returns seconds."""
        self._clock = clock
        self._recent: deque[tuple[float, float, int]] = deque(maxlen=1000)  # start, end, rows
        self.batch_seconds: list[float] = []
        self.batches = self.rows = self.emitted = 0
        self.started_at = clock()

    def advance(self, session: Session) -> bool:
        """Run one micro-batch; return False if there was no work."""
        previous_batch, started = session.last_batch, self._clock()
        report = session.advance(retry_degraded=False)
        if session.last_batch == previous_batch:
            return False
        self._recent.append((started, self._clock(), report.rows))
        self.batch_seconds.append(self._clock() - started)
        self.batches, self.rows, self.emitted = self.batches + 1, self.rows + report.rows, self.emitted + report.emitted
        return True

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the measurement started."""
        return self._clock() - self.started_at

    @property
    def rows_per_second(self) -> float:
        """Source rows per second over the last few seconds."""
        now = self._clock()
        recent = [entry for entry in list(self._recent) if entry[1] > now - _RATE_WINDOW_SECONDS]
        return sum(rows for _, _, rows in recent) / max(now - recent[0][0], 1e-3) if recent else 0.0

    @property
    def median_batch_seconds(self) -> float | None:
        """Median duration of the last few micro-batches; None before the first."""
        return statistics.median(self.batch_seconds[-9:]) if self.batch_seconds else None


class BatchThread(threading.Thread):
    """Advances a session in the background, micro-batches at least `interval` seconds apart, until stopped."""

    def __init__(self, session: Session, meter: SessionMeter, interval: float) -> None:
        """Take the session, its meter and the interval."""
        super().__init__(name="headrace-pump", daemon=True)
        self._session, self._meter, self._interval = session, meter, interval
        self._stopping = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Advance until stopped; an error ends the thread and is stored for `raise_if_failed`."""
        try:
            run_batches(self._session, self._meter, self._interval, self._stopping)
        except BaseException as error:  # noqa: BLE001  raised again by `raise_if_failed`
            self.error = error

    def raise_if_failed(self) -> None:
        """Raise the error that ended the thread, if any."""
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Stop after the current micro-batch."""
        self._stopping.set()
        self.join()


def run_batches(
    session: Session, meter: SessionMeter, interval: float, stopping: threading.Event, after: Callable[[], None] = lambda: None
) -> None:
    """Advance a session until `stopping` is set; call `after` after every attempt."""
    while not stopping.is_set():
        started = time.monotonic()
        had_work = meter.advance(session)
        after()
        stopping.wait(max(interval - (time.monotonic() - started), 0.0 if had_work else _IDLE_SECONDS))


def summarize_values(values: Sequence[float]) -> dict[str, float] | None:
    """Return median, 95th percentile and maximum, or None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    summary = {
        "median": statistics.median(ordered),
        "p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        "max": ordered[-1],
    }
    return {name: round(value, 4) for name, value in summary.items()}
