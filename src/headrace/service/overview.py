"""The overview of the service: rates, latency and watermark of the last micro-batches."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from headrace.runtime.latency import compute_percentiles
from headrace.service.host import ServiceHost

_OVERVIEW_WINDOW_SECONDS = 10.0
_HISTORY_SECONDS = 120


def build_overview(host: ServiceHost) -> dict[str, Any]:
    """Return the fields of `Overview`."""
    session, now = host.session, host.now()
    batches = session.done()
    recent = [batch for batch in batches if batch.at > now.timestamp() - _OVERVIEW_WINDOW_SECONDS]
    span = max(
        _OVERVIEW_WINDOW_SECONDS
        if len(batches) > len(recent)
        else now.timestamp() - min((batch.at for batch in recent), default=0),
        1.0,
    )
    queries = session.queries()
    live = sum(query.status == "live" for query in queries)
    streams = session.streams().values()
    watermarks = [batch["max_event_time"] - batch["delay"] for batch in streams if batch["max_event_time"] > 0]
    watermark = datetime.fromtimestamp(min(watermarks) / 1e6, UTC) if watermarks and len(watermarks) == len(streams) else None
    batch_seconds = [batch.seconds for batch in batches[-100:] if batch.report.rows]
    return {
        "rows_per_second": sum(batch.report.rows for batch in recent) / span,
        "emitted_per_second": sum(batch.report.emitted for batch in recent) / span,
        "latency_seconds": asdict(compute_percentiles(batch_seconds)) if batch_seconds else None,
        "live": live,
        "waiting": sum(query.status == "accepted" for query in queries),
        "watermark": None if watermark is None else watermark.isoformat().replace("+00:00", "Z"),
        "lag_seconds": None if watermark is None else (now - watermark).total_seconds(),
        "batch": session.last_batch,
        "history": _history_by_second(host, now.timestamp()),
    }


def _history_by_second(host: ServiceHost, now: float) -> list[dict[str, float]]:
    """Return rates for each second in which a micro-batch ended."""
    seconds: dict[int, list[Any]] = defaultdict(list)
    for batch in host.session.done():
        if batch.at > now - _HISTORY_SECONDS:
            seconds[int(batch.at)].append(batch)
    return [
        {
            "at": float(second),
            "rows_per_second": sum(batch.report.rows for batch in batches),
            "emitted_per_second": sum(batch.report.emitted for batch in batches),
            "batch_seconds": max(batch.seconds for batch in batches),
            "live": batches[-1].report.live,
        }
        for second, batches in sorted(seconds.items())
    ]
