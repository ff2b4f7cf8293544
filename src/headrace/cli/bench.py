"""`headrace bench`: benchmarks of headrace and other engines in one run on one machine.

`list` shows the scenarios. `run` runs systems under a scenario, one after the other, with a progress bar (rates, queue, latency),
and writes each result when it is complete. `report` writes the HTML report of a result document. `scaling` measures source
rows/s by number of queries.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from headrace.bench.cluster import LOOPBACK, BenchCluster
from headrace.bench.driver.client import DriverStatus
from headrace.bench.measure.latency import Latencies
from headrace.bench.measure.sustainable import TrialVerdict
from headrace.bench.report import write_report
from headrace.bench.result import BenchRun, append_run
from headrace.bench.run import RunWatcher, ScenarioRunner
from headrace.bench.scaling import measure_scaling
from headrace.bench.scenarios.scenario import PEERS, SYSTEMS, Scenario, list_scenarios, load_scenario
from headrace.bench.topic_run import open_topic
from headrace.cli.terminal import format_count, format_seconds, print_json, progress_console, report_progress
from headrace.errors import HeadraceError
from headrace.storage.locations import parse_local_path


def list_command(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False) -> None:
    """List the scenarios with their number of queries and their systems. --json prints all parameters."""
    scenarios = [load_scenario(name) for name in list_scenarios()]
    if as_json:
        print(json.dumps({"scenarios": [_scenario_document(scenario) for scenario in scenarios]}, indent=2, ensure_ascii=False))
        return
    table = Table(Column("scenario", no_wrap=True), "what is measured", "queries", "systems", box=SIMPLE_HEAD, pad_edge=False)
    for scenario in scenarios:
        systems = "all" if scenario.systems == PEERS else ", ".join(scenario.systems)
        table.add_row(scenario.name, scenario.title, f"{scenario.peak_query_count:,}", systems)
    Console().print(table, f"all systems: {', '.join(PEERS)}", sep="")


def _scenario_document(scenario: Scenario) -> dict[str, Any]:
    return {**scenario.to_json(), "most_queries": scenario.peak_query_count}


def report_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder that `headrace bench run --out` wrote result.json to.")
    ],
) -> None:
    """Write DIR/report.html from DIR/result.json: a single file that needs no network."""
    print(write_report(folder.expanduser()))


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
        return RunWatcher(self._start_phase, self._show_sample, self._show_verdict, self._show_read)

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

    def show_step(self, text: str) -> None:
        """Show what happens before the runs, on a terminal as the current step, else every few seconds."""
        self._progress.update(self._task, description=text, figures="")
        now = time.monotonic()
        if not self._console.is_terminal and now - self._last_shown_at >= _LINE_INTERVAL_SECONDS:
            self._last_shown_at = now
            self._console.print(text, soft_wrap=True)

    def _show_read(self, read: int, rows: int, second: float) -> None:
        figures = f"{format_count(read)} of {format_count(rows)} rows"
        self._progress.update(self._task, completed=read, total=rows, figures=figures)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._last_shown_at >= _LINE_INTERVAL_SECONDS:
            self._last_shown_at = now
            self._console.print(f"  {second:.0f} s: {figures}", soft_wrap=True)

    def _show_verdict(self, verdict: TrialVerdict) -> None:
        outcome = "sustained" if verdict.sustainable else f"not sustained: {verdict.reason}"
        self._console.print(f"  {format_count(verdict.rate)} {verdict.unit} {outcome}", soft_wrap=True)

    def show_run(self, run: BenchRun) -> None:
        """Print the result of a run."""
        if run.figures is None:
            self._console.print(f"{run.sut}, {run.query_count} queries: failed: {run.failure}", style="red", soft_wrap=True)
            return
        latency = run.figures.event_time_latency.histogram.summarize()
        rate, p95 = format_count(run.figures.sustainable_rate or 0), format_seconds(latency.p95 if latency else None)
        text = f"{run.sut}, {run.query_count} queries: {rate} rows/s"
        if run.figures.sustainable_request_rate is not None:
            text = f"{run.sut}, {run.query_count} queries: {format_count(run.figures.sustainable_request_rate)} requests/s"
        text += f", event-time latency p95 {p95}" if latency else ""
        self._console.print(text, style="bold", soft_wrap=True)


def run_command(
    scenario: Annotated[str, typer.Argument(help="A name from `headrace bench list`, or a .toml file.")],
    sut: Annotated[str, typer.Option(help=f"Systems, separated by commas: {', '.join(SYSTEMS)}.")] = "headrace",
    rate: Annotated[float | None, typer.Option(help="Offer this many rows/s instead of searching the sustainable rate.")] = None,
    requests: Annotated[
        float | None, typer.Option(help="Requests/s to add and remove queries, instead of searching their sustainable rate.")
    ] = None,
    search: Annotated[bool, typer.Option("--search", help="Search the sustainable rate; the default without --rate.")] = False,
    duration: Annotated[
        float | None, typer.Option("--seconds", help="Duration of the run; the maximum duration of a trial.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Number of runs of each system.")] = 1,
    queries: Annotated[str, typer.Option(help="Numbers of queries, separated by commas.")] = "",
    keys: Annotated[int | None, typer.Option(help="Number of distinct keys.")] = None,
    nodes: Annotated[str, typer.Option(help="Numbers of nodes of a cluster to start on this machine, separated by commas.")] = "",
    node_cores: Annotated[float | None, typer.Option(help="Cores of a node; default: those of the scenario, else 0.5.")] = None,
    master: Annotated[
        str, typer.Option(help="A running cluster: spark://HOST:PORT, or http://HOST:PORT of Flink's REST interface.")
    ] = "",
    host: Annotated[
        str, typer.Option(help="Address of this machine that a cluster of other machines can reach; default: loopback.")
    ] = LOOPBACK,
    brokers: Annotated[
        str, typer.Option(help="Kafka brokers for the topic of a scenario, HOST:PORT; default: one is started here.")
    ] = "",
    rows: Annotated[int | None, typer.Option(min=1, help="Number of messages of the topic of a scenario.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for the systems, e.g. mode=separate.")] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder of result.json; runs are appended to it.")] = "bench-out",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document with the runs.")] = False,
) -> None:
    """Measure systems under a scenario. A failed run has a reason and no number; the exit code is then 1."""
    folder = parse_local_path(out, "--out")
    if rate is not None and (search or not rate > 0):
        raise HeadraceError("invalid --rate: it must be positive, and excludes --search")
    base, systems = load_scenario(scenario).with_overrides(rows=rows), _parse_systems(sut)
    if requests is not None and (base.request_search is None or not requests > 0):
        raise HeadraceError("invalid --requests: it must be positive, and needs a scenario with a [request_search]")
    variants = [
        base.with_overrides(queries=count, seconds=duration, keys=keys, cluster=cluster)
        for count in _parse_counts("--queries", queries)
        for cluster in _make_clusters(base.cluster, nodes, node_cores, master)
    ]
    runs = []
    with BenchView(progress_console(as_json=True)) as view, open_topic(base, brokers, view.show_step) as topic:
        for variant in variants:
            for system in systems:
                for number in range(1, repeat + 1):
                    watcher, options = view.make_watcher(), _parse_options(option or [])
                    run = ScenarioRunner(system, variant, watcher, rate, options, host, topic, requests).run(number)
                    append_run(folder, run)
                    view.show_run(run)
                    runs.append(run)
    if as_json:
        print_json({"runs": [run.to_json() for run in runs]})
    else:
        progress_console(as_json=False).print(
            summary_table(runs), f"Written to {folder / 'result.json'}; `headrace bench report {out}` makes a page of it."
        )
    if any(run.failure for run in runs):
        raise typer.Exit(1)


def _parse_systems(text: str) -> list[str]:
    systems = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in systems if name not in SYSTEMS]
    if unknown or not systems:
        raise HeadraceError(f"unknown system in '{text}'", detail=f"systems: {', '.join(SYSTEMS)}")
    return systems


def _parse_counts(option: str, text: str) -> list[int | None]:
    if not text:
        return [None]
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise HeadraceError(f"'{text}' is not a list of numbers", hint=f"write {option} 1,4") from None


def _make_clusters(base: BenchCluster | None, nodes: str, node_cores: float | None, master: str) -> list[BenchCluster | None]:
    """Return a cluster for each number of nodes, or the one with this master; None keeps that of the scenario."""
    if master:
        if nodes or node_cores:
            raise HeadraceError("--master excludes --nodes and --node-cores: the nodes of a running cluster are as they are")
        return [BenchCluster(master=master)]
    cluster = base or BenchCluster(nodes=1)
    if node_cores is not None:
        cluster = replace(cluster, cores=node_cores)
    elif not nodes:
        return [None]
    counts = [cluster.nodes if count is None else count for count in _parse_counts("--nodes", nodes)]
    return [replace(cluster, nodes=count) for count in counts]


def _parse_options(settings: list[str]) -> dict[str, Any]:
    pairs = [setting.partition("=") for setting in settings]
    if any(not sign for _, sign, _ in pairs):
        raise HeadraceError("invalid --option: write NAME=VALUE", detail=f"given: {', '.join(settings)}")
    return {name: _parse_value(value) for name, _, value in pairs}


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def summary_table(runs: list[BenchRun]) -> Table:
    """Return the runs as a table for the terminal."""
    has_nodes = any(run.scenario.get("cluster") for run in runs)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, justify in (
        ("system", "left"),
        ("queries", "right"),
        *((("nodes", "right"),) if has_nodes else ()),
        ("sustainable rows/s", "right"),
        ("event-time latency p95", "right"),
    ):
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    for run in runs:
        figures, parameters = run.figures, [str(run.query_count)]
        if has_nodes:
            parameters.append(str((run.scenario["cluster"] or {}).get("nodes") or "–"))
        if figures is None:
            table.add_row(run.sut, *parameters, Text(f"failed: {run.failure}", "red"), "–")
            continue
        latency = figures.event_time_latency.histogram.summarize()
        table.add_row(
            run.sut,
            *parameters,
            format_count(figures.sustainable_rate or 0),
            format_seconds(latency.p95 if latency else None),
        )
    return table


app = typer.Typer(help="Benchmark headrace against other engines on the same data in the same run.", no_args_is_help=True)
app.command("list")(list_command)
app.command("run")(run_command)
app.command("report")(report_command)


@app.command("scaling")
def scaling_command(
    queries: Annotated[str, typer.Option(help="Numbers of queries, separated by commas.")] = "1,64,1000",
    rows: Annotated[int, typer.Option(help="Rows to read during the measurement.")] = 40_000_000,
    rows_per_batch: Annotated[int, typer.Option(help="Rows in a micro-batch.")] = 5_000_000,
    streaming_rows: Annotated[int, typer.Option(help="Rows for stock Structured Streaming, which is much slower.")] = 1_000_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Measure source rows/s by number of queries: headrace, plain Spark SQL, and a streaming query for each query."""
    try:
        counts = sorted({int(part) for part in queries.split(",")})
    except ValueError:
        raise HeadraceError(f"'{queries}' is not a list of numbers", hint="write --queries 1,64,1000") from None
    if not counts or counts[0] < 1 or rows < 1 or rows_per_batch < 1 or streaming_rows < 1:
        raise HeadraceError("numbers of queries and rows must be positive")
    with report_progress() as report:
        result = measure_scaling(counts, rows, rows_per_batch, streaming_rows, report)
    if as_json:
        print(json.dumps(result, indent=2))
        return
    table = Table(
        "system", "queries", "source rows/s", "of one query", title=f"{rows:,} rows, {result['machine']['cores']} cores"
    )
    for system, rates in result["rows_per_second"].items():
        for count, rate in rates.items():
            table.add_row(system, count, f"{rate:,.0f}", f"{rate / rates['1']:.0%}" if "1" in rates else "")
    Console().print(table)
