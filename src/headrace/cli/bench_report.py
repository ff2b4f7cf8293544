"""`headrace bench report DIR`: write the HTML report of a result document."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.bench.report import write_report


def report_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder that `headrace bench run --out` wrote result.json to.")
    ],
) -> None:
    """Write DIR/report.html from DIR/result.json: a single file that needs no network."""
    print(write_report(folder.expanduser()))
