"""The figures of a running service: an overview of the last micro-batches, and metrics for Prometheus.

Metrics cover rows read and emitted, micro-batch times by step, task and partition, rows and state of operators, and latency,
state and cost of each query. Labels are names of streams and queries, which the limits of the service bound, and labels of
partitions, of which there are at most 64 (`runtime.metrics`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from headrace.runtime.metrics import compute_percentiles, make_label
from headrace.runtime.sink_queue import QueueStatus
from headrace.service.host import ServiceHost
from headrace.session import Session

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
        "partitions": describe_partitions(session),
        "history": _history_by_second(host, now.timestamp()),
    }


def describe_partitions(session: Session) -> dict[str, Any]:
    """Return the fields of `PartitionsInfo`."""
    found = session.partitioning
    shares = {"least_share": min(found.shares), "greatest_share": max(found.shares)}
    numbers = {"partitions": found.partitions, "next": found.next, "auto": found.is_auto, "parallelism": found.parallelism}
    return {**numbers, **shares}


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


class _MetricsCollector:
    """Builds all metrics from the session at each scrape, so that counters continue from the checkpoint after a restart."""

    def __init__(self, host: ServiceHost) -> None:
        self._host = host

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        session = self._host.session
        rows = CounterMetricFamily("headrace_stream_rows", "Rows read from a stream.", labels=["stream"])
        rate = GaugeMetricFamily("headrace_stream_rate", "Recent rows per second of event time.", labels=["stream"])
        lag = GaugeMetricFamily("headrace_stream_lag_seconds", "How far event time is behind the wall clock.", labels=["stream"])
        degraded = GaugeMetricFamily("headrace_stream_degraded", "1 if the source cannot be read, else 0.", labels=["stream"])
        skipped = CounterMetricFamily(
            "headrace_stream_skipped_rows", "Lines and messages that do not fit the columns.", labels=["stream"]
        )
        lost = CounterMetricFamily("headrace_stream_lost_messages", "Messages that were deleted unread.", labels=["stream"])
        now = self._host.now().timestamp()
        for name, report in session.streams().items():
            rows.add_metric([name], report["rows"])
            rate.add_metric([name], self._host.stream_rate(name))
            degraded.add_metric([name], float(report["status"] != "ok"))
            skipped.add_metric([name], report["skipped_rows"])
            lost.add_metric([name], sum(report["lost"].values()))
            if report["max_event_time"] > 0:
                lag.add_metric([name], now - report["max_event_time"] / 1e6)
        emitted = CounterMetricFamily("headrace_query_rows", "Rows emitted by a query.", labels=["query"])
        late = CounterMetricFamily("headrace_query_late_rows", "Late rows of a query.", labels=["query"])
        latency = GaugeMetricFamily(
            "headrace_query_latency_seconds",
            "Event-time latency: from the end of a window until its results.",
            labels=["query", "quantile"],
        )
        state = GaugeMetricFamily(
            "headrace_query_state_bytes", "State bytes of a query: its share of the shared state.", labels=["query"]
        )
        cost = GaugeMetricFamily(
            "headrace_query_cost", "Seconds of work per second by the cost model: shared or alone.", labels=["query", "as"]
        )
        queries, stats = session.queries(), self._host.query_stats()
        for query in queries:
            emitted.add_metric([query.name], query.emitted)
            late.add_metric([query.name], sum(query.late.values()))
            state.add_metric([query.name], stats.state_bytes.get(query.id, 0))
            if query.id in stats.latencies:
                latency.add_metric([query.name, "0.5"], stats.latencies[query.id].p50)
                latency.add_metric([query.name, "0.95"], stats.latencies[query.id].p95)
            if query.id in stats.costs:
                cost.add_metric([query.name, "shared"], stats.costs[query.id].shared)
                cost.add_metric([query.name, "alone"], stats.costs[query.id].alone)
        batches = session.done()
        last = batches[-1] if batches else None
        yield from (rows, rate, lag, degraded, skipped, lost, emitted, late, latency, state, cost)
        yield from self._collect_sink_metrics()
        yield from self._collect_task_metrics()
        yield CounterMetricFamily("headrace_batches", "Committed micro-batches.", value=session.last_batch + 1)
        yield GaugeMetricFamily("headrace_batch_seconds", "Duration of the last micro-batch.", value=last.seconds if last else 0)
        yield GaugeMetricFamily("headrace_batch_rows", "Rows of the last micro-batch.", value=last.report.rows if last else 0)
        live, waiting = (sum(query.status == status for query in queries) for status in ("live", "accepted"))
        yield GaugeMetricFamily("headrace_queries_live", "Live queries.", value=live)
        yield GaugeMetricFamily("headrace_queries_waiting", "Accepted queries that are not live yet.", value=waiting)
        queue = session.waiting_changes
        yield GaugeMetricFamily("headrace_changes_waiting", "Query changes that wait for a micro-batch.", value=queue.waiting)
        yield GaugeMetricFamily("headrace_changes_limit", "Query changes that may wait.", value=queue.max_waiting)
        text = "Seconds that the oldest query change has waited."
        yield GaugeMetricFamily("headrace_changes_waiting_seconds", text, value=queue.oldest_seconds)
        yield CounterMetricFamily("headrace_changes_refused", "Query changes refused by the full queue.", value=queue.refused)
        yield GaugeMetricFamily("headrace_partitions", "Key partitions.", value=session.partitioning.partitions)
        yield self._collect_shares(session.partitioning.shares)
        yield GaugeMetricFamily("headrace_readers", "Live readers of results.", value=self._host.reader_count)
        yield GaugeMetricFamily("headrace_up", "1 if micro-batches run, else 0.", value=float(not self._host.notifier.is_over))

    def _collect_sink_metrics(self) -> Iterator[Metric]:
        """Yield what waits for the sinks that the driver serves."""
        labels = ["query", "sink", "to"]
        degraded = GaugeMetricFamily("headrace_sink_degraded", "1 if the destination is not available, else 0.", labels=labels)
        batches = GaugeMetricFamily("headrace_sink_waiting_batches", "Micro-batches that wait for a sink.", labels=labels)
        size = GaugeMetricFamily("headrace_sink_waiting_bytes", "Bytes of the files that wait for a sink.", labels=labels)
        queues: defaultdict[tuple[str, str, str], list[QueueStatus]] = defaultdict(list)
        for queue in self._host.session.sink_changes.list_queues():  # some of a query that another one has replaced
            queues[queue.query, str(queue.number), queue.description].append(queue)
        for values, equal in queues.items():
            degraded.add_metric(values, float(any(queue.problem for queue in equal)))
            batches.add_metric(values, sum(queue.waiting_batches for queue in equal))
            size.add_metric(values, sum(queue.waiting_bytes for queue in equal))
        yield from (degraded, batches, size)

    @staticmethod
    def _collect_shares(shares: Sequence[float]) -> Metric:
        """Return the part of all hashes of keys that each partition has: equal, unless overloaded ranges were split."""
        totals: defaultdict[str, float] = defaultdict(float)
        for number, share in enumerate(shares):
            totals[make_label(number)] += share
        text = "Part of the hashes of keys."
        metric = GaugeMetricFamily("headrace_partition_share", text, labels=["partition"])
        for label, share in totals.items():
            metric.add_metric([label], share)
        return metric

    def _collect_task_metrics(self) -> Iterator[Metric]:
        """Yield times of steps and tasks, rows and state of operators by partition, and unread rows of streams."""
        statistics = self._host.session.statistics
        totals = statistics.read_totals()
        for name, text, label, seconds in (
            ("step", "Seconds of micro-batches by step.", "step", totals.step_seconds),
            ("map_task", "Seconds of map tasks.", "task", totals.map_seconds),
            ("reduce_task", "Seconds of reduce tasks.", "partition", totals.reduce_seconds),
        ):
            times = CounterMetricFamily(f"headrace_{name}_seconds", text, labels=[label])
            for value_label, value in seconds.items():
                times.add_metric([value_label], value)
            yield times
        labels = ["operator", "partition"]
        rows_in = CounterMetricFamily("headrace_operator_input_rows", "Rows or partials received.", labels=labels)
        rows_out = CounterMetricFamily("headrace_operator_output_rows", "Result rows emitted.", labels=labels)
        state_bytes = GaugeMetricFamily("headrace_operator_state_bytes", "Bytes of state.", labels=labels)
        state_rows = GaugeMetricFamily("headrace_operator_state_rows", "Groups, sessions or rows in state.", labels=labels)
        for metric, counts in (
            (rows_in, totals.rows_in),
            (rows_out, totals.rows_out),
            (state_bytes, totals.state_bytes),
            (state_rows, totals.state_rows),
        ):
            for key, count in counts.items():
                metric.add_metric(list(key), count)
            yield metric
        for figure, text in (
            ("rows_in", "Rows inserted into stores of joins in SLIDING windows."),
            ("probes", "Rows that looked for partners in such stores."),
            ("pairs", "Pairs of rows whose windows and conditions were checked."),
            ("delayed", "Rows that waited for a later stage, because a store was not complete."),
        ):
            work = CounterMetricFamily(f"headrace_store_{figure}", text, labels=["partition"])
            for partition, store_counts in totals.store_totals.items():
                work.add_metric([partition], getattr(store_counts, figure))
            yield work
        for figure, text in (
            ("look_ups", "Rows, or keys of rows, that joins in TUMBLE and HOP windows looked up."),
            ("found", "Pairs of equal keys that these joins found."),
            ("kept", "Pairs that they had kept from earlier windows, and read."),
        ):
            pairs = CounterMetricFamily(f"headrace_window_join_{figure}", text, labels=["partition"])
            for partition, pair_counts in totals.window_pairs.items():
                pairs.add_metric([partition], getattr(pair_counts, figure))
            yield pairs
        unread = GaugeMetricFamily("headrace_stream_lag_rows", "Rows not read yet, where the source knows.", labels=["stream"])
        for name, lag in statistics.count_lag().items():
            unread.add_metric([name], lag)
        yield unread
        labels = ["stream", "partition"]
        by_partition = GaugeMetricFamily("headrace_stream_partition_lag_rows", "Rows of a partition not read yet.", labels=labels)
        for name, report in self._host.session.streams().items():
            totals_by_label: defaultdict[str, int] = defaultdict(int)
            for number, part in report["partitions"].items():
                if part["lag"] is not None:
                    totals_by_label[make_label(number)] += part["lag"]
            for partition, count in totals_by_label.items():
                by_partition.add_metric([name, partition], count)
        yield by_partition


def render_metrics(host: ServiceHost) -> str:
    """Return all metrics in the Prometheus text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_MetricsCollector(host))
    return generate_latest(registry).decode()
