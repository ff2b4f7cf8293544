"""Terminal helpers of all commands: consoles, JSON output, a clean stop on signals, and formatting for people."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.connectors.row_text import to_json_value
from headrace.errors import SessionError
from headrace.runtime.partition_scaling import PartitionSetting, parse_partitions


class BackendName(StrEnum):
    """The back-end of a session."""

    spark = "spark"
    local = "local"
    reference = "reference"

    def check_available(self) -> None:
        """Raise if Spark has no Java, with a hint what to install; Spark's own message is less clear."""
        home = os.environ.get("JAVA_HOME")
        if self is BackendName.spark and not shutil.which(str(Path(home) / "bin" / "java") if home else "java"):
            raise SessionError(
                f"Java not found{f' in JAVA_HOME={home}' if home else ''}",
                detail="Spark needs Java 17 or newer",
                hint="apt-get install openjdk-17-jre-headless (Debian, Ubuntu), dnf install java-17-openjdk-headless (Fedora), "
                "brew install openjdk@17 (macOS); or --backend local, which needs no Spark",
            )


def parse_partitions_option(text: str | None) -> PartitionSetting | None:
    """Return the value of --partitions; raises SessionError for anything but a number of partitions and "auto"."""
    return None if text is None else parse_partitions(int(text) if text.isascii() and text.isdigit() else text.lower())


@contextlib.contextmanager
def quiet_stdout(*, wanted: bool) -> Iterator[None]:
    """Redirect standard output, also of child processes started inside, to standard error."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    saved_fd = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(saved_fd, 1)
        os.close(saved_fd)


@contextlib.contextmanager
def report_progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress on standard error; standard output is redirected there meanwhile."""
    with quiet_stdout(wanted=True):
        console = progress_console(as_json=True)
        if console.is_terminal:
            with console.status("…") as status:
                yield status.update
        else:
            yield lambda text: console.print(text, soft_wrap=True)


def print_json(document: dict[str, Any]) -> None:
    """Print the JSON document of a command."""
    print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False), flush=True)


@contextlib.contextmanager
def stop_on_signal(stopping: threading.Event) -> Iterator[None]:
    """Set an event on the first SIGINT (Ctrl-C) or SIGTERM; a second Ctrl-C raises KeyboardInterrupt."""

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        stopping.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def progress_console(*, as_json: bool) -> Console:
    """Return the console for progress: standard error when standard output is reserved for JSON."""
    return Console(stderr=as_json, highlight=False, markup=False)


def result_table(title: str, rows: pa.Table, limit: int) -> Table:
    """Return at most `limit` rows as a table for the terminal."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for field in rows.schema:
        is_number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
        table.add_column(Text(field.name), justify="right" if is_number else "left", overflow="fold")
    for row in rows.slice(0, limit).to_pylist():
        table.add_row(*[format_cell(value) for value in row.values()])
    if rows.num_rows > limit:
        table.caption, table.caption_justify = f"… and {rows.num_rows - limit:,} more", "left"
    return table


def format_cell(value: Any) -> Text:
    """Format a result value: numbers rounded, times without `T` and `Z`."""
    if value is None:
        return Text("NULL", "dim")
    if isinstance(value, float):
        return Text(f"{value:,.4f}".rstrip("0").rstrip(".") if 1e-3 <= abs(value) < 1e12 or value == 0 else f"{value:g}")
    return Text(str(to_json_value(value)).removesuffix("Z").replace("T", " ", 1) if hasattr(value, "isoformat") else str(value))


def format_seconds(value: float | None) -> str:
    """Format a duration in ms or s; – for None."""
    if value is None:
        return "–"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def format_count(value: float) -> str:
    """Format a number, large ones with k or M."""
    for limit, suffix, digits in ((1e7, "M", 1), (1e6, "M", 2), (1e4, "k", 0)):
        if value >= limit:
            return f"{value / (1e6 if suffix == 'M' else 1e3):,.{digits}f} {suffix}"
    return f"{value:,.0f}"
