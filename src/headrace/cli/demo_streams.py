"""The streams of the demonstration: purchases and ads of a game, made up; their event time is the time of day."""

from __future__ import annotations

from datetime import UTC, datetime

from headrace.connectors import RateSource
from headrace.session import Session

RATE = 2_000.0
_SHARES = {"purchases": 0.8, "ads": 0.2}  # of all rows
_WATERMARK = "500 ms"


def declare_demo(session: Session, rate: float = RATE) -> None:
    """Declare both streams, with so many rows a second in all; in a recovered session they go on as they began."""
    known = session.streams()
    for name, share in _SHARES.items():
        begun = known[name]["source"]["start_time"] if name in known else None
        start = datetime.now(UTC) if begun is None else datetime.fromtimestamp(begun / 1e6, UTC)
        source = RateSource(max(rate * share, 1), name, start_time=start)
        session.create_stream(name, source, time="time", watermark=_WATERMARK)
