"""The streams of the demo: generated purchases and ads of a game, with the wall clock as event time."""

from __future__ import annotations

from datetime import UTC, datetime

from headrace.connectors import RateSource
from headrace.session import Session

DEFAULT_RATE = 2_000.0
_SHARES = {"purchases": 0.8, "ads": 0.2}  # of all rows
_WATERMARK = "500 ms"


def declare_demo_streams(session: Session, rate: float = DEFAULT_RATE) -> None:
    """Declare both streams with `rate` rows per second in total; a recovered session keeps their start time."""
    streams = session.streams()
    for name, share in _SHARES.items():
        recorded_start = streams[name]["source"]["start_time"] if name in streams else None
        start = datetime.now(UTC) if recorded_start is None else datetime.fromtimestamp(recorded_start / 1e6, UTC)
        source = RateSource(max(rate * share, 1), name, start_time=start)
        session.create_stream(name, source, time="time", watermark=_WATERMARK)
