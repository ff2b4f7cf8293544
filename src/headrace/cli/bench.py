"""`headrace bench`: benchmarks of headrace and other engines in one run on one machine."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from headrace.bench.scaling import measure_scaling
from headrace.cli import bench_list, bench_report
from headrace.cli.bench_run import run_command
from headrace.cli.terminal import report_progress
from headrace.errors import HeadraceError

app = typer.Typer(help="Benchmark headrace against other engines on the same data in the same run.", no_args_is_help=True)
app.command("list")(bench_list.list_command)
app.command("run")(run_command)
app.command("report")(bench_report.report_command)


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
