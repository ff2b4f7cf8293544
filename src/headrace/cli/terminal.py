"""What commands share when they talk: consoles, one JSON document and nothing else, a clean stop, numbers for people."""

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

from headrace.connectors.text import json_value
from headrace.errors import SessionError


class BackendName(StrEnum):
    """Where a session runs."""

    spark = "spark"
    local = "local"
    reference = "reference"

    def check(self) -> None:
        """Refuse Spark without Java, with what to install, before Spark says it less clearly."""
        home = os.environ.get("JAVA_HOME")
        if self is BackendName.spark and not shutil.which(str(Path(home) / "bin" / "java") if home else "java"):
            raise SessionError(
                f"no Java was found{f' in JAVA_HOME={home}' if home else ''}",
                detail="Spark needs Java 17 or newer",
                hint="apt-get install openjdk-17-jre-headless (Debian, Ubuntu), dnf install java-17-openjdk-headless (Fedora), "
                "brew install openjdk@17 (macOS); or --backend local, which needs no Spark",
            )


@contextlib.contextmanager
def quiet_stdout(*, wanted: bool) -> Iterator[None]:
    """Send everything that is printed, here or by child processes started here, to standard error."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that tells how far a command is, on standard error; nothing reaches standard output meanwhile."""
    with quiet_stdout(wanted=True):
        console = progress_console(as_json=True)
        if console.is_terminal:
            with console.status("…") as status:
                yield status.update
        else:
            yield lambda text: console.print(text, soft_wrap=True)


def print_json(document: dict[str, Any]) -> None:
    """Print the one document of a command."""
    print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False), flush=True)


@contextlib.contextmanager
def stop_on_signal(stopping: threading.Event) -> Iterator[None]:
    """Set an event on the first Ctrl-C or TERM; a second Ctrl-C interrupts as usual."""

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        stopping.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def progress_console(*, as_json: bool) -> Console:
    """Return the console for progress: standard error when standard output is for machines."""
    return Console(stderr=as_json, highlight=False, markup=False)


def result_table(title: str, rows: pa.Table, limit: int) -> Table:
    """Return rows as a table for people, at most `limit` of them."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for field in rows.schema:
        number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
        table.add_column(Text(field.name), justify="right" if number else "left", overflow="fold")
    for row in rows.slice(0, limit).to_pylist():
        table.add_row(*[cell(value) for value in row.values()])
    if rows.num_rows > limit:
        table.caption, table.caption_justify = f"… and {rows.num_rows - limit:,} more", "left"
    return table


def cell(value: Any) -> Text:
    """Return a value of a result for people: short numbers, times without what is always the same."""
    if value is None:
        return Text("NULL", "dim")
    if isinstance(value, float):
        return Text(f"{value:,.4f}".rstrip("0").rstrip(".") if 1e-3 <= abs(value) < 1e12 or value == 0 else f"{value:g}")
    return Text(str(json_value(value)).removesuffix("Z").replace("T", " ", 1) if hasattr(value, "isoformat") else str(value))


def seconds(value: float | None) -> str:
    """Return a short length of time."""
    if value is None:
        return "–"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def count(value: float) -> str:
    """Return a large number in few letters."""
    for limit, suffix, digits in ((1e7, "M", 1), (1e6, "M", 2), (1e4, "k", 0)):
        if value >= limit:
            return f"{value / (1e6 if suffix == 'M' else 1e3):,.{digits}f} {suffix}"
    return f"{value:,.0f}"
