"""The output of a running benchmark: a progress bar with rates, queue and latency; verdicts stay above it."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from headrace.bench.driver_client import DriverStatus
from headrace.bench.latency import Latencies
from headrace.bench.result import BenchRun
from headrace.bench.run import RunWatcher
from headrace.bench.sustainable import TrialVerdict
from headrace.cli.terminal import format_count, format_seconds

_LINE_INTERVAL_SECONDS = 5.0  # seconds between lines where there is no terminal


class BenchView:
    """A context manager that shows a progress bar on a terminal, otherwise a line every few seconds."""

    def __init__(self, console: Console) -> None:
        """Write to `console`."""
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[figures]}"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("", figures="", total=None)
        self._phase, self._rate, self._last_shown_at, self._last_status = "", None, 0.0, None  # type: tuple[str, float | None, float, DriverStatus | None]

    def __enter__(self) -> Self:
        """Start the progress bar."""
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Remove the progress bar."""
        self._progress.stop()

    def make_watcher(self) -> RunWatcher:
        """Return the callbacks of a run."""
        return RunWatcher(self._start_phase, self._show_sample, self._show_verdict)

    def _start_phase(self, phase: str, rate: float | None) -> None:
        self._phase, self._rate, self._last_status = phase, rate, None
        line = phase if rate is None else f"{phase}, {format_count(rate)} rows/s offered"
        self._progress.reset(self._task, description=line, figures="", total=None)
        if not self._console.is_terminal:
            self._console.print(line, soft_wrap=True)

    def _show_sample(self, status: DriverStatus, second: float, total: float, latencies: Latencies | None) -> None:
        now = time.monotonic()
        if now - self._last_shown_at < (0.5 if self._console.is_terminal else _LINE_INTERVAL_SECONDS) and latencies is None:
            return
        figures = self._format_figures(status, latencies)
        self._last_shown_at, self._last_status = now, status
        self._progress.update(self._task, completed=min(second, total), total=total, figures=figures)
        if not self._console.is_terminal:
            self._console.print(f"  {second:.0f} s: {figures}", soft_wrap=True)

    def _format_figures(self, status: DriverStatus, latencies: Latencies | None) -> str:
        previous, parts = self._last_status, []
        if previous is not None and status.now > previous.now:
            parts.append(f"read {format_count((status.read - previous.read) * 1e6 / (status.now - previous.now))} rows/s")
        parts.append(f"queue {format_count(status.backlog)}")
        if latencies is not None and latencies.event_time_series.p95:
            parts.append(f"latency p95 {format_seconds(latencies.event_time_series.p95[-1])}")
        return ", ".join(parts)

    def _show_verdict(self, verdict: TrialVerdict) -> None:
        outcome = "sustained" if verdict.sustainable else f"not sustained: {verdict.reason}"
        self._console.print(f"  {format_count(verdict.rate)} rows/s {outcome}", soft_wrap=True)

    def show_run(self, run: BenchRun) -> None:
        """Print the result of a run."""
        if run.figures is None:
            self._console.print(f"{run.sut}, {run.query_count} queries: failed: {run.failure}", style="red", soft_wrap=True)
            return
        latency = run.figures.event_time_latency.histogram.summarize()
        rate, p95 = format_count(run.figures.sustainable_rate or 0), format_seconds(latency.p95 if latency else None)
        text = f"{run.sut}, {run.query_count} queries: {rate} rows/s, event-time latency p95 {p95}"
        self._console.print(text, style="bold", soft_wrap=True)
