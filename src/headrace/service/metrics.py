"""Figures for Prometheus: what was read, emitted and added, how long batches take, and each query's share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

if TYPE_CHECKING:
    from headrace.service.host import Host


class _Figures:
    """Made anew for each look: nothing is counted twice, and a restart goes on where the checkpoint is."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def collect(self) -> Iterator[Metric]:
        """Yield all figures."""
        session = self._host.session
        rows = CounterMetricFamily("headrace_stream_rows", "Rows read from a stream.", labels=["stream"])
        rate = GaugeMetricFamily("headrace_stream_rate", "Rows in a second of event time, lately.", labels=["stream"])
        lag = GaugeMetricFamily("headrace_stream_lag_seconds", "How far event time is behind the time of day.", labels=["stream"])
        now = self._host.now().timestamp()
        for name, report in session.streams().items():
            rows.add_metric([name], report["rows"])
            rate.add_metric([name], self._host.rate(name))
            if report["max_event_time"] > 0:
                lag.add_metric([name], now - report["max_event_time"] / 1e6)
        emitted = CounterMetricFamily("headrace_query_rows", "Rows a query emitted.", labels=["query"])
        late = CounterMetricFamily("headrace_query_late_rows", "Rows that came too late for a query.", labels=["query"])
        latency = GaugeMetricFamily(
            "headrace_query_latency_seconds",
            "From the end of a window until its results, event time.",
            labels=["query", "quantile"],
        )
        kept = GaugeMetricFamily("headrace_query_state_bytes", "A query's part of what is kept.", labels=["query"])
        cost = GaugeMetricFamily(
            "headrace_query_cost", "Seconds of work a second, by the model: in company or alone.", labels=["query", "as"]
        )
        queries, insight = session.queries(), self._host.insight()
        for query in queries:
            emitted.add_metric([query.name], query.emitted)
            late.add_metric([query.name], sum(query.late.values()))
            kept.add_metric([query.name], insight.state_bytes.get(query.id, 0))
            if query.id in insight.latencies:
                latency.add_metric([query.name, "0.5"], insight.latencies[query.id].p50)
                latency.add_metric([query.name, "0.95"], insight.latencies[query.id].p95)
            if query.id in insight.accounts:
                cost.add_metric([query.name, "shared"], insight.accounts[query.id].shared)
                cost.add_metric([query.name, "alone"], insight.accounts[query.id].alone)
        done = session.done()
        last = done[-1] if done else None
        yield from (rows, rate, lag, emitted, late, latency, kept, cost)
        yield CounterMetricFamily("headrace_batches", "Committed micro-batches.", value=session.last_batch + 1)
        yield GaugeMetricFamily("headrace_batch_seconds", "Length of the last micro-batch.", value=last.seconds if last else 0)
        yield GaugeMetricFamily("headrace_batch_rows", "Rows of the last micro-batch.", value=last.report.rows if last else 0)
        live, waiting = (sum(query.status == status for query in queries) for status in ("live", "accepted"))
        yield GaugeMetricFamily("headrace_queries_live", "Queries in the pipeline.", value=live)
        yield GaugeMetricFamily("headrace_queries_waiting", "Queries that wait for it.", value=waiting)
        yield GaugeMetricFamily("headrace_readers", "Readers that follow a query.", value=self._host.readers)
        yield GaugeMetricFamily("headrace_up", "Whether micro-batches run.", value=float(not self._host.news.over))


def exposition(host: Host) -> str:
    """Return the figures as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(host))
    return generate_latest(registry).decode()
