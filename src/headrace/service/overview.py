"""How it goes, from the last micro-batches: rates and latency."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from headrace.runtime.latency import spread
from headrace.service.host import Host

_LATELY_SECONDS = 10.0
_HISTORY_SECONDS = 120


def seen(host: Host) -> dict[str, Any]:
    """Return the overview."""
    session, now = host.session, host.now()
    done = session.done()
    lately = [one for one in done if one.at > now.timestamp() - _LATELY_SECONDS]
    since = max(_LATELY_SECONDS if len(done) > len(lately) else now.timestamp() - min((one.at for one in lately), default=0), 1.0)
    queries = session.queries()
    live = sum(query.status == "live" for query in queries)
    reports = session.streams().values()
    marks = [one["max_event_time"] - one["delay"] for one in reports if one["max_event_time"] > 0]
    mark = datetime.fromtimestamp(min(marks) / 1e6, UTC) if marks and len(marks) == len(reports) else None
    lengths = [one.seconds for one in done[-100:] if one.report.rows]
    return {
        "rows_per_second": sum(one.report.rows for one in lately) / since,
        "emitted_per_second": sum(one.report.emitted for one in lately) / since,
        "latency_seconds": asdict(spread(lengths)) if lengths else None,
        "live": live,
        "waiting": sum(query.status == "accepted" for query in queries),
        "watermark": None if mark is None else mark.isoformat().replace("+00:00", "Z"),
        "lag_seconds": None if mark is None else (now - mark).total_seconds(),
        "batch": session.last_batch,
        "history": _history(host, now.timestamp()),
    }


def _history(host: Host, now: float) -> list[dict[str, float]]:
    """Return sums of each second that has a micro-batch."""
    seconds: dict[int, list[Any]] = defaultdict(list)
    for one in host.session.done():
        if one.at > now - _HISTORY_SECONDS:
            seconds[int(one.at)].append(one)
    return [
        {
            "at": float(second),
            "rows_per_second": sum(one.report.rows for one in found),
            "emitted_per_second": sum(one.report.emitted for one in found),
            "batch_seconds": max(one.seconds for one in found),
            "live": found[-1].report.live,
        }
        for second, found in sorted(seconds.items())
    ]
