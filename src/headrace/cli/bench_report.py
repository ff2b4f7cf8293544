"""`headrace bench report DIR`: one HTML page of a result document."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.bench.report import write_report


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where `headrace bench run --out` wrote result.json.")],
) -> None:
    """Make DIR/report.html of DIR/result.json: one file, which needs no network."""
    print(write_report(folder.expanduser()))
